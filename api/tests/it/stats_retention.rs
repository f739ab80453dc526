//! The retention of each workspace, which the API writes for the processor's upkeep.

use schemas::id::WorkspaceId;
use tests::engines::isolated;

use crate::server::{Server, config, text};

#[tokio::test]
async fn retention_is_written_once_a_day_by_one_instance() {
    let engines = isolated().await;
    let setup = Server::start_on(engines.clone()).await;
    let arguments = ["create-account", "--name", "Small", "--plan", "free"];
    let free = text(&setup.admin(&arguments).await["workspace_id"]);
    let business = setup.workspace.clone();
    setup.stop().await;
    // The first instance may have written the first account's retention, or nothing.
    engines.clickhouse("TRUNCATE TABLE retention").await;

    let (one, other) = (
        Server::serve(engines.clone(), config(&engines)).await,
        Server::serve(engines.clone(), config(&engines)).await,
    );
    let uuid = |id: &str| id.parse::<WorkspaceId>().unwrap().uuid();
    let mut expected = [format!("{}\t30\t1", uuid(&free)), format!("{}\t1095\t1", uuid(&business))];
    expected.sort();
    let query = "SELECT workspace_id, max(days), count() FROM retention GROUP BY workspace_id \
        ORDER BY toString(workspace_id)";
    tests::eventually("both are written", async || {
        let written = engines.clickhouse(query).await;
        if written.trim() == expected.join("\n") { Ok(()) } else { Err(written) }
    })
    .await;
    one.stop().await;
    other.stop().await;
    assert_eq!(engines.clickhouse(query).await.trim(), expected.join("\n"));
}
