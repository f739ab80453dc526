//! Endpoints that never answer, beside endpoints that do.

use schemas::message::Class;
use tests::eventually;
use tests::receiver::{Answer, Receiver};

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn silent_endpoints_delay_no_other() {
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
    for workspace in [shared, own] {
        world.endpoint(workspace, &receiver.url("/alive"), &["click.created"]).await;
    }
    // As few permits as with a thousand endpoints that never answer.
    let dispatcher = world
        .dispatcher_with(|config| {
            config.tuning.per_account = 16;
            config.tuning.per_process = 32;
        })
        .await;
    for round in 1..=10 {
        for workspace in [shared, own] {
            world.click(workspace, Class::Human).await;
        }
        // The requests that are not answered do not end while this waits.
        receiver.receives_at("/alive", 2 * round).await;
        // From now on, the dispatcher knows which endpoints have answered.
        if round == 1 {
            for _ in 0..12 {
                world.endpoint(shared, &receiver.url("/hole"), &["click.created"]).await;
            }
        }
        if round == 2 {
            eventually("requests hang", async || match receiver.requests_to("/hole").len() {
                0 => Err(0),
                _ => Ok(()),
            })
            .await;
        }
    }
    assert!(receiver.requests_to("/hole").len() <= 16);
    dispatcher.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_workspaces_share_the_permits_of_their_account() {
    let world = World::new().await;
    let receiver =
        Receiver::start(
            |request, _| {
                if request.path == "/alive" { Answer::Status(200) } else { Answer::Silence }
            },
        )
        .await;
    let (greedy, other) = (world.workspace("business").await, world.workspace("business").await);
    let mut workspaces = vec![greedy];
    for _ in 0..5 {
        workspaces.push(world.another_workspace(greedy).await);
    }
    for workspace in &workspaces {
        for _ in 0..5 {
            world.endpoint(*workspace, &receiver.url("/hole"), &["click.created"]).await;
        }
    }
    world.endpoint(other, &receiver.url("/alive"), &["click.created"]).await;
    let dispatcher = world
        .dispatcher_with(|config| {
            config.tuning.per_account = 8;
            config.tuning.per_process = 32;
        })
        .await;
    for workspace in &workspaces {
        world.click(*workspace, Class::Human).await;
    }
    eventually("the first requests hang", async || match receiver.requests_to("/hole").len() {
        0 => Err(0),
        _ => Ok(()),
    })
    .await;
    for count in 1..=5 {
        world.click(other, Class::Human).await;
        receiver.receives_at("/alive", count).await;
    }
    // Half of its permits at most: none of its endpoints has answered.
    assert!(receiver.requests_to("/hole").len() <= 4, "{}", receiver.requests_to("/hole").len());
    dispatcher.kill().await;
}
