//! Hostile clients: many idle connections, and a flood of unknown slugs. Other clients are still answered.

use std::fs;
use std::net::SocketAddr;

use devstack::process::Memory;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tests::edge::Edge;
use tests::engines::topics;
use tests::faults::progress;
use tests::links;
use tests::load::Load;
use tests::{eventually, find_metric, metrics_page};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The number of idle connections, if the limit of open files allows it.
const IDLE: usize = 10_000;

/// The number of unknown slugs to request.
const FLOOD: usize = 200_000;

/// How much the resident memory may grow with them. Storing each slug would take more.
const GROWTH: u64 = 16 * 1024 * 1024;

/// File descriptors of the test and the edge that are not connections.
const SPARE: u64 = 1_000;

/// Starts an edge that knows one link.
async fn edge(variables: &[(&str, &str)]) -> (Edge, Vec<String>) {
    let engines = topics().await;
    let slugs = links::publish(&engines, 1);
    let edge = Edge::start(&engines, variables).await;
    edge.knows(&slugs[0]).await;
    (edge, slugs)
}

/// Asserts that visitors are answered.
async fn others_are_answered(edge: &Edge, slugs: &[String]) {
    let load = Load::start(edge.address, slugs, 4, None);
    load.answers(50).await;
    load.stop().await.is_complete();
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_delay_no_other_client() {
    let allowed = getrlimit(Resource::RLIMIT_NOFILE).unwrap().1;
    setrlimit(Resource::RLIMIT_NOFILE, allowed, allowed).unwrap();
    let idle = IDLE.min(allowed.saturating_sub(SPARE) as usize);
    // The edge closes no idle connection before the client does.
    let variables = [("HOPLINE_HEADER_TIMEOUT_SECONDS", "600"), ("HOPLINE_MAX_CONNECTIONS", "10100")];
    let (edge, slugs) = edge(&variables).await;
    let mut connections = Vec::new();
    for _ in 0..idle {
        connections.push(TcpStream::connect(edge.address).await.unwrap());
    }
    eventually("all connections are open", async || match open_sockets(&edge) {
        open if open >= idle => Ok(()),
        open => Err(open),
    })
    .await;
    others_are_answered(&edge, &slugs).await;
    let held = open_sockets(&edge);
    assert!(held >= idle, "{held} of {idle} were open while others were answered");
    progress(&format!("answered beside {idle} idle connections, {} MB resident", resident(&edge) >> 20));
    drop(connections);
    eventually("the edge has closed their sockets", async || match open_sockets(&edge) {
        open if open < 100 => Ok(()),
        open => Err(open),
    })
    .await;
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_unknown_slugs_uses_no_memory_and_writes_no_log() {
    let (edge, slugs) = edge(&[]).await;
    // Warms up, so that the memory of normal work is not counted.
    flood(edge.address, 0, FLOOD / 10).await;
    eventually("the first snapshot is written", async || {
        find_metric(edge.server.url(), "hopline_snapshot_written_timestamp_seconds").await.ok_or("no time")
    })
    .await;
    let (before, lines, page) = (resident(&edge), edge.log().lines().count(), metrics(&edge).await);
    flood(edge.address, FLOOD / 10, FLOOD).await;
    let after = resident(&edge);
    progress(&format!("{FLOOD} unknown slugs: {} kB more", (after.saturating_sub(before)) >> 10));
    assert!(after < before + GROWTH, "{before} bytes became {after}");
    let added = edge.log().lines().count() - lines;
    assert!(added < 100, "{added} lines for {FLOOD} unknown slugs");
    assert_eq!(metrics(&edge).await, page, "a slug adds no series");
    others_are_answered(&edge, &slugs).await;
    edge.stop().await;
}

/// Requests unknown slugs on a few connections, and reads every answer.
async fn flood(edge: SocketAddr, from: usize, count: usize) {
    const CONNECTIONS: usize = 8;
    /// Pipelined requests.
    const BATCH: usize = 50;
    let mut clients = JoinSet::new();
    for client in 0..CONNECTIONS {
        clients.spawn(async move {
            let mut stream = TcpStream::connect(edge).await.unwrap();
            let own: Vec<usize> = (from..from + count).skip(client).step_by(CONNECTIONS).collect();
            for batch in own.chunks(BATCH) {
                let requests: String = batch
                    .iter()
                    .map(|number| format!("GET /unknown-{number} HTTP/1.1\r\nHost: a.example\r\n\r\n"))
                    .collect();
                stream.write_all(requests.as_bytes()).await.unwrap();
                let mut seen = Vec::new();
                while count_of(&seen, b"HTTP/1.1 404 ") < batch.len() || !seen.ends_with(b"</html>\n") {
                    let read = stream.read_buf(&mut seen).await.unwrap();
                    assert!(read > 0, "{}", String::from_utf8_lossy(&seen));
                }
            }
        });
    }
    clients.join_all().await;
}

fn count_of(bytes: &[u8], wanted: &[u8]) -> usize {
    bytes.windows(wanted.len()).filter(|window| *window == wanted).count()
}

/// Returns the names of the edge's metric series.
async fn metrics(edge: &Edge) -> Vec<String> {
    let page = metrics_page(edge.server.url()).await;
    let series = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut names: Vec<String> =
        series.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect();
    names.sort();
    names
}

/// Returns the resident memory of the edge in bytes.
fn resident(edge: &Edge) -> u64 {
    Memory::of(edge.server.pid().unwrap()).unwrap().resident
}

/// Returns the number of the edge's open sockets.
fn open_sockets(edge: &Edge) -> usize {
    let folder = format!("/proc/{}/fd", edge.server.pid().unwrap());
    let links = fs::read_dir(folder).unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}
