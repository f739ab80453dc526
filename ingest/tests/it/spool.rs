//! Full spools and disks, confirmations, and the command `ingest spool`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use reqwest::Method;
use schemas::message::Link;
use schemas::topic;
use serde_json::Value;
use tests::engines::isolated;
use tests::eventually;

use crate::edge::{BROWSER, Edge, SpoolDir, click_id, clicks, link, live, location, publish, request};
use crate::outages::{click_ten_times, fill_spool, ids};
use crate::program::{Broker, Program};

/// The smallest allowed limit of a spool.
const MIN_BYTES: &str = "1048576";

/// Sends the largest possible clicks until some are dropped; returns the ids of the others, and how many were dropped.
async fn click_until_dropped(program: &Program) -> (BTreeSet<String>, usize) {
    let long = "x".repeat(256);
    let query = ["source", "medium", "campaign", "term", "content"]
        .map(|name| format!("utm_{name}={long}"))
        .join("&");
    let (mut stored, mut dropped) = (BTreeSet::new(), 0);
    while dropped == 0 {
        for _ in 0..50 {
            let headers = [("user-agent", BROWSER.as_bytes())];
            let answer = request(program.address, Method::GET, &format!("/s?{query}"), &headers).await;
            assert_eq!(answer.status(), 302);
            // Only the id of a stored click is given out.
            if location(&answer).contains("click_id=") {
                assert!(stored.insert(click_id(&answer)));
            } else {
                dropped += 1;
            }
        }
    }
    assert_eq!(program.metric("hopline_clicks_dropped_total").await as usize, dropped);
    (stored, dropped)
}

/// Asserts that exactly the stored clicks arrive, and that no more were dropped.
async fn assert_stored_arrive(
    program: &Program,
    broker: &Broker,
    (stored, dropped): &(BTreeSet<String>, usize),
) {
    let arrived = clicks(&broker.isolated(), stored.len()).await;
    assert_eq!((arrived.len(), &ids(&arrived)), (stored.len(), stored));
    assert_eq!(program.metric("hopline_clicks_dropped_total").await as usize, *dropped);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_spool_keeps_redirecting_counts_drops_and_recovers() {
    let (broker, spool) = (Broker::start(&link("s", "https://a.example/")), SpoolDir::new());
    let limit = [("HOPLINE_SPOOL_MAX_BYTES", MIN_BYTES)];
    let program = Program::start(Program::bare(), &broker, spool.path(), &limit).await;
    program.is_ready("spool").await;
    broker.cluster.broker_down(1).unwrap();
    let mut clicked = click_until_dropped(&program).await;
    let (ready, detail) = program.check("spool").await;
    assert!(!ready && detail.contains("dropped") && detail.contains("full"), "{detail}");
    let on_disk: u64 = spool.segments().iter().map(|path| path.metadata().unwrap().len()).sum();
    assert_eq!(on_disk.to_string(), MIN_BYTES);
    eventually("the gauges match the disk", async || {
        let bytes = program.metric("hopline_spool_bytes").await;
        let segments = program.metric("hopline_spool_segments").await;
        let age = program.metric("hopline_spool_oldest_unconfirmed_seconds").await;
        let matches = bytes == on_disk as f64 && segments == spool.segments().len() as f64 && age > 0.0;
        if matches { Ok(()) } else { Err((bytes, segments, age)) }
    })
    .await;

    broker.cluster.broker_up(1).unwrap();
    program.is_ready("spool").await;
    clicked.0.extend(click_ten_times(program.address).await);
    assert_stored_arrive(&program, &broker, &clicked).await;
    eventually("all clicks are confirmed", async || {
        match program.metric("hopline_spool_oldest_unconfirmed_seconds").await {
            0.0 => Ok(()),
            age => Err(age),
        }
    })
    .await;
}

/// A disk of a few megabytes.
enum SmallDisk {
    /// A file system in memory, in the program's mount namespace.
    Own(PathBuf),
    /// If mount namespaces are not allowed: a limit of the program's file size.
    Limited,
}

impl SmallDisk {
    fn new(spool: &Path) -> (Self, Command) {
        let allowed = Command::new("unshare").args(["-Urm", "true"]).output();
        if allowed.is_ok_and(|output| output.status.success()) {
            fs::create_dir_all(spool).unwrap();
            let script = "mount -t tmpfs -o size=4m tmpfs \"$HOPLINE_SPOOL_DIR\" && exec \"$0\"";
            let mut command = Command::new("unshare");
            command.args(["-Urm", "sh", "-c", script, env!("CARGO_BIN_EXE_ingest")]);
            return (Self::Own(spool.to_owned()), command);
        }
        let mut command = Command::new("sh");
        // Reaching the limit raises SIGXFSZ, which would kill the program.
        command.args(["-c", "trap '' XFSZ; exec \"$0\"", env!("CARGO_BIN_EXE_ingest")]);
        (Self::Limited, command)
    }

    /// Fills the disk.
    fn fill(&self, program: &Program) {
        match self {
            Self::Own(spool) => {
                let mut file = File::create(Self::filler(spool, program)).unwrap();
                let full = loop {
                    if let Err(error) = file.write_all(&[1; 4096]) {
                        break error;
                    }
                };
                assert_eq!(full.kind(), io::ErrorKind::StorageFull);
            }
            Self::Limited => limit(program, "4096:unlimited"),
        }
    }

    /// Frees the space again.
    fn clear(&self, program: &Program) {
        match self {
            Self::Own(spool) => fs::remove_file(Self::filler(spool, program)).unwrap(),
            Self::Limited => limit(program, "unlimited"),
        }
    }

    /// Returns the path of a file in the spool's directory in the program's mount namespace.
    fn filler(spool: &Path, program: &Program) -> PathBuf {
        Path::new("/proc")
            .join(program.pid().to_string())
            .join("root")
            .join(spool.strip_prefix("/").unwrap())
            .join("filler")
    }
}

fn limit(program: &Program, bytes: &str) {
    let done = Command::new("prlimit")
        .arg(format!("--fsize={bytes}"))
        .arg(format!("--pid={}", program.pid()))
        .status();
    assert!(done.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_keeps_redirecting_counts_drops_and_recovers() {
    let (broker, spool) = (Broker::start(&link("s", "https://a.example/")), SpoolDir::new());
    let (disk, command) = SmallDisk::new(spool.path());
    let more_than_the_disk = [("HOPLINE_SPOOL_MAX_BYTES", "3145728")];
    let program = Program::start(command, &broker, spool.path(), &more_than_the_disk).await;
    program.is_ready("spool").await;
    broker.cluster.broker_down(1).unwrap();
    disk.fill(&program);
    let mut clicked = click_until_dropped(&program).await;
    let (ready, detail) = program.check("spool").await;
    assert!(!ready && detail.contains("the disk takes no clicks"), "{detail}");

    disk.clear(&program);
    program.is_ready("spool").await;
    clicked.0.extend(click_ten_times(program.address).await);
    broker.cluster.broker_up(1).unwrap();
    assert_stored_arrive(&program, &broker, &clicked).await;
}

/// Runs `ingest spool`.
fn inspect(arguments: &[&str]) -> Output {
    Program::bare().env_clear().arg("spool").args(arguments).output().unwrap()
}

/// Returns the output of `ingest spool --json`, ignoring the exit code.
fn report(spool: &SpoolDir) -> Value {
    serde_json::from_slice(&inspect(&["--json", spool.path().to_str().unwrap()]).stdout).unwrap()
}

/// Starts a broker that confirms no click of partition 0, so that segments with such clicks stay.
fn broker_without_leader(link: &Link) -> Broker {
    let broker = Broker::start(link);
    broker.cluster.partition_leader(topic::CLICKS.name, 0, None).unwrap();
    broker
}

/// Waits until this many clicks in the spool are confirmed.
async fn are_confirmed(spool: &SpoolDir, clicks: usize) {
    eventually(&format!("{clicks} clicks are confirmed"), async || match report(spool) {
        report if report["confirmed"] == clicks => Ok(()),
        report => Err(report),
    })
    .await;
}

/// Returns the partitions of the clicks in a segment.
fn partitions(segment: &Path) -> Vec<i32> {
    let bytes = fs::read(segment).unwrap();
    let number = |at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    // After the header of the segment.
    let (mut at, mut partitions) = (28, Vec::new());
    while bytes[at..].starts_with(b"clk\x01") {
        partitions.push(number(at + 24));
        at += 16 + usize::try_from(number(at + 8)).unwrap();
    }
    partitions
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_edge_sends_only_unconfirmed_clicks_again() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let link = link("s", "https://a.example/");
    publish(&isolated, &[live(&link)]);
    let broker = broker_without_leader(&link);
    let program = Program::start(Program::bare(), &broker, spool.path(), &[]).await;
    // While nothing is confirmed, all clicks are added to one segment.
    broker.cluster.broker_down(1).unwrap();
    let mut answered = BTreeSet::new();
    // Clicks change their partition every 50 ms. The segment also gets clicks that will be confirmed, so the test
    // does not only check that whole segments are deleted.
    let (unconfirmed, confirmed) = loop {
        answered.extend(click_ten_times(program.address).await);
        let partitions: Vec<i32> = spool.segments().iter().flat_map(|segment| partitions(segment)).collect();
        assert_eq!(partitions.len(), answered.len());
        let unconfirmed = partitions.iter().filter(|partition| **partition == 0).count();
        if (1..partitions.len()).contains(&unconfirmed) {
            break (unconfirmed, partitions.len() - unconfirmed);
        }
    };
    broker.cluster.broker_up(1).unwrap();
    are_confirmed(&spool, confirmed).await;
    program.kill();

    let edge = Edge::start(&isolated, &spool).await;
    eventually("the spool is empty", async || match spool.segments() {
        segments if segments.is_empty() => Ok(()),
        segments => Err(segments),
    })
    .await;
    let arrived = clicks(&isolated, unconfirmed).await;
    assert_eq!((arrived.len(), ids(&arrived).len()), (unconfirmed, unconfirmed));
    assert!(ids(&arrived).is_subset(&answered));
    assert!(arrived.iter().all(|(partition, click)| *partition == 0 && click.again));
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_with_damaged_confirmations_is_sent_again() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let link = link("s", "https://a.example/");
    publish(&isolated, &[live(&link)]);
    let broker = broker_without_leader(&link);
    let all: Vec<i32> = (0..topic::CLICKS.partitions).collect();
    fill_spool(&spool, &all);
    let program = Program::start(Program::bare(), &broker, spool.path(), &[]).await;
    are_confirmed(&spool, all.len() - 1).await;
    program.kill();
    let confirmations = spool.segments()[0].with_extension("confirmed");
    let mut bytes = fs::read(&confirmations).unwrap();
    // In the block with the bits of the first records.
    bytes[64] ^= 1;
    fs::write(&confirmations, bytes).unwrap();

    let edge = Edge::start(&isolated, &spool).await;
    let arrived = clicks(&isolated, all.len()).await;
    assert_eq!(arrived.iter().map(|(partition, _)| *partition).collect::<Vec<_>>(), all);
    assert!(arrived.iter().all(|(_, click)| click.again));
    edge.stop().await;
}

#[test]
fn the_spool_command_reports_damage_by_output_and_exit_code() {
    let spool = SpoolDir::new();
    let path = spool.path().to_str().unwrap();
    let absent = inspect(&[path]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&absent.stderr).contains(path));

    fs::create_dir_all(spool.path()).unwrap();
    assert_eq!(inspect(&[path]).status.code(), Some(0));
    fs::write(spool.path().join("1.clicks"), "no segment").unwrap();
    let damaged = inspect(&[path]);
    assert_eq!(damaged.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&damaged.stdout).contains("unrecognized"));
    let report = report(&spool);
    assert_eq!(report["left_alone"][0]["bytes"], 10);
    assert_eq!((&report["records"], &report["oldest_unconfirmed"]), (&0.into(), &Value::Null));

    assert_eq!(inspect(&["--nonsense"]).status.code(), Some(64));
    let help = inspect(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&help.stdout).contains("Examples:"));
}
