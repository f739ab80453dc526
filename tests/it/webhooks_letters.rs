//! Events that were invalid for an older build.

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use schemas::grants::User;
use schemas::message::delivery_id;
use schemas::topic;
use tests::deployment::Deployment;
use tests::log::records;
use tests::receiver::{Answer, Receiver};
use tests::{PATIENCE, eventually};
use tokio::process::Command;

use crate::traffic::Traffic;

#[tokio::test(flavor = "multi_thread")]
async fn the_webhook_of_a_resubmitted_dead_letter_arrives() {
    let deployment = Deployment::start().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let endpoint = deployment.create_endpoint(&receiver.url("/"), &["click.created"]).await;
    let mut traffic = Traffic::on_links(&deployment, 1, 1).await;
    assert!(traffic.click(&deployment).await);
    let requests = async |count| {
        eventually("that many requests", async || match receiver.requests() {
            requests if requests.len() == count => Ok(requests),
            requests => Err(requests.len()),
        })
        .await
    };
    requests(1).await;

    // Another click, as the dead letter of a build that could not decode it.
    let mut click = records(&deployment.engines, topic::CLICKS)[0].json();
    click["click_id"] = "late".into();
    let (letters, clicks) =
        (deployment.engines.topic(topic::DEAD_LETTERS), deployment.engines.topic(topic::CLICKS));
    let headers = [("topic", clicks.as_str()), ("partition", "3"), ("offset", "17")]
        .iter()
        .fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: Some(*value) })
        });
    let (key, payload) = (format!("{clicks}/3/17"), click.to_string());
    let record = FutureRecord::to(&letters).key(&key).payload(&payload).headers(headers);
    let producer: FutureProducer = deployment.engines.kafka().create().unwrap();
    producer.send(record, PATIENCE).await.unwrap();

    let resubmit = Command::new(deployment.program("processor"))
        .args(["dead-letters", "resubmit", "--all"])
        .envs(deployment.environment_of(User::Processor))
        .output()
        .await
        .unwrap();
    assert!(resubmit.status.success(), "{}", String::from_utf8_lossy(&resubmit.stderr));
    let id = delivery_id("late", endpoint["id"].as_str().unwrap());
    assert_eq!(requests(2).await[1].delivery(), id.to_string());
}
