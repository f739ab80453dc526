//! More clicks at once than an endpoint can take.

use std::time::Duration;

use tests::arrivals::Arrivals;
use tests::deployment::{Deployment, click_id};
use tests::eventually;
use tests::load::Load;
use tests::receiver::{Answer, Receiver};

use crate::traffic::{LONG, Traffic};

/// How long the slow endpoint takes for each request.
const SLOW: Duration = Duration::from_millis(50);

/// Requests that may be under way to one endpoint.
const AT_ONCE: usize = 32;

/// Clicks of the burst, at least: five seconds of the slow endpoint's time.
const BURST: u64 = 3_000;

/// How long a neighbour's delivery may take meanwhile, on a machine that runs other tests too.
const NEIGHBOURLY: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_at_a_slow_endpoint_arrives_within_its_bound_and_delays_no_neighbour() {
    let mut deployment = Deployment::start().await;
    let receiver = Receiver::start(|request, _| match request.path.as_str() {
        "/slow" => Answer::Late(SLOW, 200),
        _ => Answer::Status(200),
    })
    .await;
    let slow = deployment.create_endpoint(&receiver.url("/slow"), &["click.created"]).await;
    let slugs: Vec<String> = Traffic::on_links(&deployment, 3, 1).await.slugs().map(str::to_owned).collect();
    deployment.key = deployment.create_account("business").await;
    deployment.create_endpoint(&receiver.url("/neighbour"), &["click.created"]).await;
    let neighbours = Traffic::on_links(&deployment, 1, 1).await;
    let neighbours = neighbours.slugs().next().unwrap();

    let load = Load::start(deployment.edge_address(), &slugs, 16, None);
    load.answers(BURST).await;
    let log = load.stop().await;
    log.is_complete();
    let clicked = deployment.click(neighbours, "198.51.100.7").await.unwrap();
    eventually("the neighbour's click arrives", NEIGHBOURLY, async || {
        match receiver.requests_to("/neighbour").as_slice() {
            [one] if one.json()["data"]["click_id"] == click_id(&clicked) => Ok(()),
            other => Err(other.len()),
        }
    })
    .await;
    eventually("the whole burst arrives", LONG * 2, async || match receiver.requests_to("/slow").len() {
        count if count >= log.answers.len() => Ok(()),
        count => Err((count, log.answers.len())),
    })
    .await;

    let mut requests = receiver.requests_to("/slow");
    requests.sort_by_key(|request| request.at);
    let text = |field: &str| slow[field].as_str().unwrap();
    Arrivals::of(&log, text("id"), text("secret"), &requests, &[]).are_complete();
    // Each takes its time from its arrival on, so those that came within it were under way together.
    for (place, request) in requests.iter().enumerate().skip(AT_ONCE) {
        let earlier = &requests[place - AT_ONCE];
        let apart = request.at.duration_since(earlier.at).unwrap_or_default();
        assert!(apart >= SLOW, "{} requests within {apart:?}", AT_ONCE + 1);
    }
}
