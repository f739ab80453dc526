//! Imports of links while the API is killed. `./dev soak import` is the long form.

use tests::engines::isolated;
use tests::faults::{ImportKill, import_kill, progress};

#[tokio::test(flavor = "multi_thread")]
async fn an_import_creates_each_row_once_when_the_api_is_killed() {
    let imported = import_kill(isolated().await, ImportKill { rows: 10_000 }).await;
    progress(&imported.to_string());
}
