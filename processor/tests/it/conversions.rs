//! Conversions are counted once each, with their click.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use schemas::message::{Conversion, Message as _};
use schemas::row::ClickRow;
use schemas::topic;
use tests::engines::{Isolated, isolated};
use tests::{eventually, find_metric};

use crate::clicks::counted;
use crate::processor::Processor;
use crate::rollups::{link, random_clicks, store};
use crate::upkeep::{delete_link, eager, write, yesterday};

/// Returns the conversion of a click as the API publishes it: with the time in the click's id.
pub(crate) fn conversion(row: &ClickRow) -> Conversion {
    let fixture = include_bytes!("../../../schemas/fixtures/conversion.v1.json");
    Conversion {
        click_id: row.click.click_id.clone(),
        link_id: row.click.link_id,
        workspace_id: row.click.workspace_id,
        clicked_at: row.click.occurred_at,
        converted_at: row.click.occurred_at + TimeDelta::minutes(10),
        ..Conversion::decode(fixture).unwrap()
    }
}

/// Writes a conversion to its topic.
pub(crate) async fn convert(isolated: &Isolated, conversion: &Conversion) {
    write(isolated, topic::CONVERSIONS, "key", &conversion.encode()).await;
}

/// Waits until this many conversions wait for their click.
async fn waiting(isolated: &Isolated, expected: u32) {
    counted(isolated, "SELECT count() FROM waiting_conversions FINAL WHERE counted = 0", expected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversion_counts_once_its_click_is_stored() {
    let isolated = isolated().await;
    let mut rows = random_clicks(yesterday(), 1, 4);
    // The clock of this edge was ten days ahead, and both conversions came after that: rows have the broker's time.
    for row in &mut rows[1..3] {
        row.click.occurred_at = row.broker_ts + TimeDelta::days(10);
    }
    let processor = Processor::start(&isolated).await;
    for row in &rows {
        convert(&isolated, &conversion(row)).await;
    }
    waiting(&isolated, 4).await;
    store(&isolated, &rows[..1]).await;
    waiting(&isolated, 3).await;
    counted(&isolated, "SELECT count() FROM conversions FINAL", 1).await;

    processor.stop().await;
    store(&isolated, &rows[1..3]).await;
    let an_hour_ago = "INSERT INTO waiting_conversions SELECT * REPLACE (now() - 3600 AS added_at) \
                       FROM waiting_conversions FINAL WHERE counted = 0";
    isolated.clickhouse(an_hour_ago).await;
    let processor = Processor::start(&isolated).await;
    waiting(&isolated, 1).await;
    eventually("the metric has the conversion that still waits", async || {
        match find_metric(&processor.operations, "hopline_processor_waiting_conversions").await {
            Some(1.0) => Ok(()),
            found => Err(found),
        }
    })
    .await;
    let at_their_clicks = "SELECT count() FROM conversions FINAL \
                           JOIN clicks USING (workspace_id, link_id, occurred_at, click_id)";
    for query in ["SELECT count() FROM conversions FINAL", at_their_clicks] {
        assert_eq!(isolated.clickhouse(query).await.trim(), "3", "{query}");
    }
    // A record that is read again waits no more.
    convert(&isolated, &conversion(&rows[0])).await;
    convert(&isolated, &Conversion { click_id: "unknown".to_owned(), ..conversion(&rows[0]) }).await;
    waiting(&isolated, 2).await;
    assert_eq!(isolated.clickhouse("SELECT count() FROM conversions FINAL").await.trim(), "3");
    // Those of a deleted link wait for nothing.
    delete_link(&isolated, rows[0].click.link_id).await;
    processor.stop().await;
    let processor = Processor::start_with(eager(&isolated)).await;
    let of_link = format!("link_id = toUUID('{}')", rows[0].click.link_id.uuid());
    let left = format!("SELECT count() FROM waiting_conversions WHERE {of_link}");
    counted(&isolated, &left, 0).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversion_behind_many_waiting_ones_is_counted() {
    let isolated = isolated().await;
    // Of several workspaces and links; the click of the last in their order is stored.
    let mut rows = random_clicks(yesterday(), 1, 40);
    let links = links(&rows);
    let last = format!(
        "SELECT toString(workspace_id), toString(link_id) FROM ({links}) \
         ORDER BY workspace_id DESC, link_id DESC LIMIT 1 FORMAT TSV"
    );
    let last = isolated.clickhouse(&last).await.trim().to_owned();
    let of_last = |row: &&mut ClickRow| {
        format!("{}\t{}", row.click.workspace_id.uuid(), row.click.link_id.uuid()) == last
    };
    let row = rows.iter_mut().find(of_last).unwrap();
    let at = row.click.occurred_at.timestamp_millis();
    for (name, added) in [("recent", "now()"), ("old", "now() - 3600")] {
        row.click.click_id = format!("zzz-{name}");
        store(&isolated, std::slice::from_ref(row)).await;
        let fill = format!(
            "INSERT INTO waiting_conversions (workspace_id, link_id, occurred_at, click_id, converted_at, added_at) \
             SELECT workspace_id, link_id, fromUnixTimestamp64Milli({at}, 'UTC'), \
                    if(number = 0 AND toString(workspace_id) || '\t' || toString(link_id) = '{last}', \
                       'zzz-{name}', 'lost-{name}-' || toString(number)), now64(3), {added} \
             FROM ({links}) AS links CROSS JOIN numbers(700) AS numbers"
        );
        isolated.clickhouse(&fill).await;
    }
    let processor = Processor::start(&isolated).await;
    counted(
        &isolated,
        "SELECT arraySort(groupUniqArray(click_id)) FROM conversions",
        "['zzz-old','zzz-recent']",
    )
    .await;
    processor.stop().await;
}

/// Returns a query for the workspaces and links of these clicks.
fn links(rows: &[ClickRow]) -> String {
    let links: BTreeSet<String> = rows
        .iter()
        .map(|row| {
            format!("(toUUID('{}'), toUUID('{}'))", row.click.workspace_id.uuid(), row.click.link_id.uuid())
        })
        .collect();
    let links: Vec<String> = links.into_iter().collect();
    format!(
        "SELECT link.1 AS workspace_id, link.2 AS link_id FROM (SELECT arrayJoin([{}]) AS link)",
        links.join(", ")
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_clickhouse_rereads_conversions_and_deleted_links() {
    let isolated = isolated().await;
    let rows = random_clicks(yesterday(), 1, 4);
    store(&isolated, &rows).await;
    let processor = Processor::start(&isolated).await;
    convert(&isolated, &conversion(&rows[0])).await;
    counted(&isolated, "SELECT count() FROM conversions FINAL", 1).await;
    counted(&isolated, "SELECT count() > 0 FROM intake_positions", 1).await;
    let tables = ["conversions", "waiting_conversions", "deleted_links", "intake_positions"];
    for table in tables {
        isolated.clickhouse(&format!("CREATE TABLE copy_of_{table} CLONE AS {table}")).await;
    }
    for row in &rows[1..] {
        convert(&isolated, &conversion(row)).await;
    }
    delete_link(&isolated, link(77)).await;
    counted(&isolated, "SELECT count() FROM conversions FINAL", 4).await;
    counted(&isolated, "SELECT count() FROM deleted_links", 1).await;
    processor.stop().await;
    for table in tables {
        isolated.clickhouse(&format!("EXCHANGE TABLES {table} AND copy_of_{table}")).await;
    }
    // The topics get no further records.
    let processor = Processor::start(&isolated).await;
    counted(&isolated, "SELECT count() FROM conversions FINAL", 4).await;
    counted(&isolated, "SELECT count() FROM deleted_links", 1).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversion_is_stored_once_or_becomes_a_dead_letter() {
    let isolated = isolated().await;
    let rows = random_clicks(yesterday(), 1, 4);
    store(&isolated, &rows).await;
    for row in &rows[..3] {
        convert(&isolated, &conversion(row)).await;
    }
    write(&isolated, topic::CONVERSIONS, "key", b"no conversion").await;
    let processor = Processor::start_with(eager(&isolated)).await;
    counted(&isolated, "SELECT count() FROM conversions FINAL", 3).await;
    convert(&isolated, &conversion(&rows[0])).await;
    convert(&isolated, &conversion(&rows[3])).await;
    let last = format!("SELECT count() FROM conversions WHERE click_id = '{}'", rows[3].click.click_id);
    counted(&isolated, &last, 1).await;
    assert_eq!(isolated.clickhouse("SELECT count() FROM conversions FINAL").await.trim(), "4");
    let stored = format!(
        "SELECT toUnixTimestamp64Milli(occurred_at), toUnixTimestamp64Milli(converted_at), link_id, workspace_id \
         FROM conversions FINAL WHERE click_id = '{}'",
        rows[1].click.click_id
    );
    let converted = conversion(&rows[1]);
    assert_eq!(
        isolated.clickhouse(&stored).await.trim(),
        format!(
            "{}\t{}\t{}\t{}",
            converted.clicked_at.timestamp_millis(),
            converted.converted_at.timestamp_millis(),
            converted.link_id.uuid(),
            converted.workspace_id.uuid()
        )
    );
    let letters = tests::log::records(&isolated, topic::DEAD_LETTERS);
    assert_eq!(letters.len(), 1);
    processor.stop().await;
}
