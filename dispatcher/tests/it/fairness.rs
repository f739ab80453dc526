//! Endpoints that never answer, beside endpoints that do.

use std::time::Duration;

use schemas::message::Class;
use tests::eventually;
use tests::receiver::{Answer, Receiver};

use crate::world::{SOON, World};

/// Far longer than a delivery takes, and far shorter than the timeout of an attempt.
const AT_ONCE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_that_never_answer_do_not_delay_those_that_do() {
    let world = World::new().await;
    let receiver =
        Receiver::start(
            |request, _| {
                if request.path == "/alive" { Answer::Status(200) } else { Answer::Silence }
            },
        )
        .await;
    // One in the workspace of endpoints that never answer, and one in another workspace.
    let (shared, own) = (world.workspace("business").await, world.workspace("business").await);
    let holes = 12;
    for _ in 0..holes {
        world.endpoint(shared, &receiver.url("/hole"), &["click.created"]).await;
    }
    for workspace in [shared, own] {
        world.endpoint(workspace, &receiver.url("/alive"), &["click.created"]).await;
    }
    // As few permits as with a thousand endpoints that never answer.
    let dispatcher = world
        .dispatcher_with(|config| {
            config.tuning.per_workspace = 16;
            config.tuning.per_process = 32;
        })
        .await;
    for round in 1..=10 {
        for workspace in [shared, own] {
            world.click(workspace, Class::Human).await;
        }
        // In the first round, the dispatcher does not know yet which endpoints answer.
        let within = if round == 1 { SOON } else { AT_ONCE };
        eventually("both of the living have it", within, async || {
            match receiver.requests_to("/alive").len() {
                count if count == 2 * round => Ok(()),
                count => Err(count),
            }
        })
        .await;
    }
    assert!(receiver.requests_to("/hole").len() <= 16);
    dispatcher.kill().await;
}
