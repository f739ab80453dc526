//! Hostile clients: slow, large, many, and endless. Other clients are answered meanwhile.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use devstack::process::Memory;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tests::deployment::BROWSER;
use tests::edge::Edge;
use tests::engines::{Isolated, topics};
use tests::faults::progress;
use tests::links;
use tests::load::Load;
use tests::tally::Tally;
use tests::{PATIENCE, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The number of idle connections, if the limit of open files allows it.
const IDLE: usize = 10_000;

/// The number of unknown slugs to request.
const FLOOD: usize = 200_000;

/// How much the resident memory may grow with them. Storing each slug would take more.
const GROWTH: u64 = 16 * 1024 * 1024;

/// File descriptors of the test and the edge that are not connections.
const SPARE: u64 = 1_000;

/// Starts an edge that knows one link.
async fn edge(variables: &[(&str, &str)]) -> (Edge, Isolated, Vec<String>) {
    let engines = topics().await;
    let slugs = links::publish(&engines, 1);
    let edge = Edge::start(&engines, variables).await;
    edge.knows(&slugs[0]).await;
    (edge, engines, slugs)
}

/// Reads until the edge closes the connection.
async fn everything(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset is an end too: the edge does not read a rejected request to its end.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the connection is ended");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Returns the click of a redirect.
fn answered(redirect: &str) -> tests::load::Answer {
    let (_, id) = redirect.split_once("click_id=").unwrap();
    let click_id = id.split(['&', '\r']).next().unwrap().into();
    tests::load::Answer { click_id, due: Instant::now(), latency: Duration::ZERO }
}

/// Sends bytes and returns the whole answer.
async fn send(edge: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(edge).await.unwrap();
    // The edge may close the connection before everything is sent.
    let _ = stream.write_all(request).await;
    everything(&mut stream).await
}

/// Returns a request that closes its connection.
fn request(target: &str, header: &[u8]) -> Vec<u8> {
    let head =
        format!("GET {target} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\nUser-Agent: {BROWSER}\r\n");
    [head.as_bytes(), header, b"\r\n\r\n"].concat()
}

/// Asserts that visitors are answered.
async fn others_are_answered(edge: &Edge, slugs: &[String]) {
    let load = Load::start(edge.address, slugs, 4, None);
    load.answers(50).await;
    load.stop().await.is_complete();
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_send_a_byte_a_second_are_disconnected_and_delay_nobody() {
    let (edge, _, slugs) = edge(&[("HOPLINE_HEADER_TIMEOUT_SECONDS", "2")]).await;
    let mut slow = JoinSet::new();
    for _ in 0..50 {
        let address = edge.address;
        slow.spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let began = Instant::now();
            for byte in
                b"GET / HTTP/1.1\r\nHost: a.example\r\nX-Slow: ".iter().chain(std::iter::repeat(&b'a'))
            {
                // The slow client's pace.
                let pause = sleep(Duration::from_secs(1));
                let mut answer = [0; 1024];
                tokio::select! {
                    () = pause => {}
                    // The end of the connection, or an answer with the reason.
                    _ = stream.read(&mut answer) => break,
                }
                if stream.write_all(&[*byte]).await.is_err() {
                    break;
                }
                assert!(began.elapsed() < PATIENCE, "a slow client is not cut off");
            }
            began.elapsed()
        });
    }
    others_are_answered(&edge, &slugs).await;
    let lives = slow.join_all().await;
    assert!(lives.iter().all(|life| *life >= Duration::from_secs(1)), "{lives:?}");
    others_are_answered(&edge, &slugs).await;
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn huge_and_malformed_requests_are_rejected_and_the_edge_continues() {
    let (edge, engines, slugs) = edge(&[]).await;
    let slug = format!("/{}", slugs[0]);
    let large = "x".repeat(1 << 20);
    let header = send(edge.address, &request(&slug, format!("X-Large: {large}").as_bytes())).await;
    assert!(header.is_empty() || header.starts_with("HTTP/1.1 431 "), "{header}");
    let many = "X-Many: a\r\n".repeat(10_000);
    let headers = send(edge.address, &request(&slug, many.trim_end().as_bytes())).await;
    assert!(headers.is_empty() || headers.starts_with("HTTP/1.1 431 "), "{headers}");
    let query = send(edge.address, &request(&format!("{slug}?a={}", &large[..100_000]), b"")).await;
    assert!(query.is_empty() || query.starts_with("HTTP/1.1 414 "), "{query}");
    for nonsense in [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"] {
        let answer = send(edge.address, nonsense).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }

    // Bytes that are not UTF-8, in parts that the edge reads, passes on, or ignores.
    let mut log = tests::load::Log::default();
    for name in ["User-Agent", "Referer", "X-Forwarded-For", "Forwarded", "Accept-Language", "X-Request-Id"] {
        let header = [name.as_bytes(), b": \xff\xfe\x80 a"].concat();
        let answer = send(edge.address, &request(&format!("{slug}?a=%ff%fe&b=%"), &header)).await;
        assert!(answer.starts_with("HTTP/1.1 302 "), "{name}: {answer}");
        log.answers.push(answered(&answer));
    }
    // Characters that browsers encode and other clients do not.
    let answer = send(edge.address, &request(&format!("{slug}?a=<b>\"c\"`"), b"")).await;
    assert!(answer.starts_with("HTTP/1.1 302 ") && answer.contains("a=%3Cb%3E%22c%22%60"), "{answer}");
    log.answers.push(answered(&answer));
    edge.ships_everything().await;
    Tally::of(&engines, &log).is_exact();
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_clients_are_answered_beside_thousands_of_idle_connections() {
    let allowed = getrlimit(Resource::RLIMIT_NOFILE).unwrap().1;
    setrlimit(Resource::RLIMIT_NOFILE, allowed, allowed).unwrap();
    let idle = IDLE.min(allowed.saturating_sub(SPARE) as usize);
    // Long enough for all connections to be open at once.
    let variables = [("HOPLINE_HEADER_TIMEOUT_SECONDS", "60"), ("HOPLINE_MAX_CONNECTIONS", "10100")];
    let (edge, _, slugs) = edge(&variables).await;
    let mut connections = Vec::new();
    for _ in 0..idle {
        connections.push(TcpStream::connect(edge.address).await.unwrap());
    }
    eventually("the edge holds them all", async || match open_sockets(&edge) {
        open if open >= idle => Ok(()),
        open => Err(open),
    })
    .await;
    others_are_answered(&edge, &slugs).await;
    let held = open_sockets(&edge);
    assert!(held >= idle, "{held} of {idle} were open while others were answered");
    progress(&format!("answered beside {idle} idle connections, {} MB resident", resident(&edge) >> 20));
    eventually("idle connections are ended", async || match open_sockets(&edge) {
        open if open < 100 => Ok(()),
        open => Err(open),
    })
    .await;
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_unknown_slugs_uses_no_memory_and_writes_no_log() {
    let (edge, _, slugs) = edge(&[]).await;
    // Warms up, so that the memory of normal work is not counted.
    flood(edge.address, 0, FLOOD / 10).await;
    eventually("the first snapshot is written", async || {
        let series = metrics(&edge).await;
        if series.iter().any(|name| name == "hopline_snapshot_written_timestamp_seconds") {
            Ok(())
        } else {
            Err(series)
        }
    })
    .await;
    let (before, lines, page) = (resident(&edge), edge.log().lines().count(), metrics(&edge).await);
    flood(edge.address, FLOOD / 10, FLOOD).await;
    let after = resident(&edge);
    progress(&format!("{FLOOD} unknown slugs: {} kB more", (after.saturating_sub(before)) >> 10));
    assert!(after < before + GROWTH, "{before} bytes became {after}");
    let added = edge.log().lines().count() - lines;
    assert!(added < 100, "{added} lines for {FLOOD} unknown slugs");
    assert_eq!(metrics(&edge).await, page, "no series of its own for a slug");
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
    let (_, page) = edge.operations("/metrics").await;
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
