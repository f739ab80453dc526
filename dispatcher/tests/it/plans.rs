//! The number of rows that Postgres reads for a batch of deliveries.

use schemas::message::Class;
use sqlx::Executor as _;
use tests::eventually;
use tests::receiver::{Answer, Receiver};

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn no_cached_plan_reads_the_whole_queue() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    world.endpoint(workspace, &receiver.url("/hook"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    // As autovacuum does, so that Postgres assumes an empty table. After a few executions it would cache a plan for
    // that.
    world.pool.execute("VACUUM ANALYZE webhook_deliveries").await.unwrap();
    let deliver = async |clicks: i64| {
        for _ in 0..clicks {
            let before = receiver.requests_to("/hook").len();
            world.click(workspace, Class::Human).await;
            eventually("it is delivered", async || match receiver.requests_to("/hook").len() {
                now if now > before => Ok(()),
                now => Err(now),
            })
            .await;
        }
    };
    deliver(20).await;
    world.done().await;
    world
        .number(
            "WITH waiting AS (
                 INSERT INTO webhook_deliveries (delivery_id, endpoint_id, workspace_id, epoch, event, body,
                                                 created_at, due_at)
                 SELECT gen_random_uuid(), id, workspace_id, epoch, 'click.created', '', now(),
                        now() + interval '15 minutes'
                 FROM webhook_endpoints, generate_series(1, 20000)
                 RETURNING 1
             ) SELECT count(*) FROM waiting",
        )
        .await;
    let read = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'webhook_deliveries'";
    let before = world.number(read).await;
    deliver(20).await;
    // Postgres reports deleted rows together with the rows that were read.
    let ended = "SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'webhook_deliveries'";
    eventually("all have ended", async || match world.number(ended).await {
        40 => Ok(()),
        count => Err(count),
    })
    .await;
    let read = world.number(read).await - before;
    assert!(read < 20_000, "{read} rows were read for 20 deliveries");
    dispatcher.kill().await;
}
