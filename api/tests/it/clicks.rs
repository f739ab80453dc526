//! Clicks as the processor stores them.

use chrono::{DateTime, Utc};
use schemas::message::{Click, Message as _};
use schemas::row::ClickRow;
use serde_json::json;

use crate::server::Server;

/// A click of a link, with its visitor, class and time.
pub(crate) struct Clicked<'a> {
    pub(crate) link: &'a serde_json::Value,
    pub(crate) visitor: u64,
    pub(crate) class: &'a str,
    pub(crate) at: DateTime<Utc>,
}

/// Stores clicks whose broker time is the time of the click.
pub(crate) async fn store(server: &Server, clicks: &[Clicked<'_>]) {
    let mut bytes = Vec::new();
    for (koff, clicked) in clicks.iter().enumerate() {
        let mut click = Click::decode(include_bytes!("../../../schemas/fixtures/click.v1.json")).unwrap();
        click.link_id = clicked.link["id"].as_str().unwrap().parse().unwrap();
        click.workspace_id = server.workspace.parse().unwrap();
        click.visitor = clicked.visitor;
        click.class = serde_json::from_value(json!(clicked.class)).unwrap();
        click.occurred_at = clicked.at;
        ClickRow { click, src: 1 << 16, koff: koff as u64, broker_ts: clicked.at }
            .write_row_binary(&mut bytes);
    }
    let structure = schemas::row::CLICK_STRUCTURE.replace('\'', "\\'");
    let query = format!("INSERT INTO clicks SELECT * FROM input('{structure}') FORMAT RowBinary");
    server.engines.clickhouse_insert(&query, bytes).await;
}

/// Returns one human click of each visitor at this time.
pub(crate) fn of_visitors(link: &serde_json::Value, visitors: u64, at: DateTime<Utc>) -> Vec<Clicked<'_>> {
    (0..visitors).map(|visitor| Clicked { link, visitor, class: "human", at }).collect()
}
