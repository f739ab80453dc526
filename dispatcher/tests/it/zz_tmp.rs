use crate::world::*;
use schemas::message::Class;
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tests::eventually;
use tests::receiver::{Answer, Receiver};

fn spawn(world: &World) -> tokio::process::Child {
    tokio::process::Command::new(env!("CARGO_BIN_EXE_dispatcher"))
        .args([
            "--kafka-brokers",
            &world.isolated.kafka_brokers,
            "--topic-prefix",
            &world.isolated.topic_prefix,
            "--database-url",
            &world.isolated.database_url,
            "--secret-keys",
            "1:0707070707070707070707070707070707070707070707070707070707070707",
            "--public-url",
            "http://127.0.0.1:1",
            "--webhook-allow",
            "127.0.0.0/8",
            "--operations-listen",
            "127.0.0.1:0",
        ])
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn tmp_kill9() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Late(Duration::from_millis(20), 200)).await;
    let workspace = world.workspace("business").await;
    world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let mut child = spawn(&world);
    let t = Instant::now();
    for round in 0..3 {
        let n = (round + 1) * 300;
        for _ in 0..300 {
            world.click(workspace, Class::Human).await;
        }
        eventually("go", Duration::from_secs(90), async || {
            if receiver.requests().len() > n - 200 { Ok(()) } else { Err(receiver.requests().len()) }
        })
        .await;
        eprintln!("{:?} kill at {}", t.elapsed(), receiver.requests().len());
        child.kill().await.unwrap();
        child = spawn(&world);
        let k = Instant::now();
        eventually("all", Duration::from_secs(120), async || {
            let d: HashSet<_> = receiver.requests().iter().map(|r| r.delivery().to_owned()).collect();
            if d.len() == n { Ok(()) } else { Err(d.len()) }
        })
        .await;
        eprintln!("recovered in {:?}; requests {} of {}", k.elapsed(), receiver.requests().len(), n);
    }
    let k = Instant::now();
    nix_term(&child);
    let status = child.wait().await.unwrap();
    eprintln!("term {:?} in {:?}", status, k.elapsed());
}
fn nix_term(child: &tokio::process::Child) {
    std::process::Command::new("kill").arg(child.id().unwrap().to_string()).status().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tmp_latency() {
    let world = std::sync::Arc::new(World::new().await);
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let mut child = spawn(&world);
    world.click(workspace, Class::Human).await;
    eventually("go", Duration::from_secs(90), async || {
        if receiver.requests().len() >= 1 { Ok(()) } else { Err(receiver.requests().len()) }
    })
    .await;
    let mut set = tokio::task::JoinSet::new();
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    for _ in 0..2000 {
        tick.tick().await;
        let world = world.clone();
        set.spawn(async move {
            let t = std::time::SystemTime::now();
            let id = world.click(workspace, Class::Human).await;
            (id, t, t.elapsed().unwrap())
        });
    }
    let sent = set.join_all().await;
    eventually("go", Duration::from_secs(90), async || {
        if receiver.requests().len() >= 2001 { Ok(()) } else { Err(receiver.requests().len()) }
    })
    .await;
    let map: std::collections::HashMap<String, std::time::SystemTime> = receiver
        .requests()
        .iter()
        .map(|r| (r.json()["data"]["click_id"].as_str().unwrap().to_owned(), r.at))
        .collect();
    let mut l: Vec<Duration> = sent.iter().map(|(id, t, _)| map[id].duration_since(*t).unwrap()).collect();
    l.sort();
    let mut p: Vec<Duration> = sent.iter().map(|(_, _, d)| *d).collect();
    p.sort();
    eprintln!(
        "latency p50 {:?} p99 {:?} max {:?}; publish p50 {:?} p99 {:?}",
        l[1000], l[1980], l[1999], p[1000], p[1980]
    );
    child.kill().await.unwrap();
}
