//! A load that takes little CPU time from the server on the same cores: its own cost makes servers look more alike.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ::tests::deployment::BROWSER;
use anyhow::{Context as _, anyhow, ensure};
use hdrhistogram::Histogram;
use nix::sys::prctl::set_timerslack;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::statistics::{histogram, micros};

/// Distinct visitors of a load of redirects.
const VISITORS: usize = 5_000;

/// A connection that was idle for longer is replaced; servers close idle ones after 5 s.
const IDLE: Duration = Duration::from_secs(1);

/// How late the kernel may wake a sleeping thread, in nanoseconds; 50,000 by default.
const TIMER_SLACK: u64 = 1;

/// A connection that stays open while it is used.
pub(crate) struct Connection {
    server: SocketAddr,
    stream: TcpStream,
    used: Instant,
    answer: Vec<u8>,
}

impl Connection {
    /// Connects to a server.
    pub(crate) async fn open(server: SocketAddr) -> anyhow::Result<Self> {
        let stream = connect(server).await?;
        Ok(Self { server, stream, used: Instant::now(), answer: Vec::with_capacity(64 * 1024) })
    }

    /// Sends a request and returns the body of its answer.
    ///
    /// # Errors
    /// When no answer comes, or one with another status.
    pub(crate) async fn ask(&mut self, request: &[u8], status: u16) -> anyhow::Result<&[u8]> {
        if self.used.elapsed() > IDLE {
            self.stream = connect(self.server).await?;
        }
        self.stream.write_all(request).await.context("cannot send a request")?;
        self.answer.clear();
        let (head, end) = loop {
            let read = self.stream.read_buf(&mut self.answer).await.context("cannot read an answer")?;
            ensure!(read > 0, "the connection was closed before the answer was complete");
            if let Some((head, body)) = lengths(&self.answer)?
                && self.answer.len() >= head + body
            {
                break (head, head + body);
            }
        };
        self.used = Instant::now();
        let found = self.answer.get(9..12).and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
        ensure!(
            found == Some(status),
            "expected status {status}, got: {}",
            String::from_utf8_lossy(&self.answer)
        );
        Ok(&self.answer[head..end])
    }
}

async fn connect(server: SocketAddr) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(server).await.with_context(|| format!("cannot connect to {server}"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Returns the bytes of an answer's head and body; `None` while the head is not complete.
fn lengths(answer: &[u8]) -> anyhow::Result<Option<(usize, usize)>> {
    let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let head = str::from_utf8(&answer[..end]).context("the head of an answer is not text")?;
    let mut headers = head.lines().filter_map(|line| line.split_once(':'));
    let length = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let (_, length) = length
        .with_context(|| format!("an answer has no length: {}", head.lines().next().unwrap_or_default()))?;
    Ok(Some((end + 4, length.trim().parse().context("the length of an answer is not a number")?)))
}

/// Requests, and how many connections send them at once.
pub(crate) struct Load {
    connections: usize,
    requests: Arc<[Vec<u8>]>,
    /// The status of every answer.
    status: u16,
}

/// The answers of a closed load.
pub(crate) struct Answers {
    /// From the first request to the last answer.
    pub(crate) elapsed: Duration,
    /// From a request to its answer, in microseconds.
    pub(crate) latencies: Histogram<u64>,
}

impl Answers {
    /// Answers per second.
    pub(crate) fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64()
    }
}

impl Load {
    /// Creates a load of one request.
    pub(crate) fn of(connections: usize, request: Vec<u8>) -> Self {
        Self { connections, requests: [request].into(), status: 200 }
    }

    /// Creates a load of visits to these links, each request from another visitor.
    pub(crate) fn visits(connections: usize, slugs: &[String]) -> Self {
        let visited = slugs.iter().cycle().take(VISITORS);
        let requests = visited.enumerate().map(|(visitor, slug)| visit(slug, visitor)).collect();
        Self { connections, requests, status: 302 }
    }

    /// Runs a closed load: each connection sends a request, and the next one when it is answered.
    ///
    /// # Errors
    /// When a request gets no answer, or another status.
    pub(crate) async fn closed(&self, server: SocketAddr, duration: Duration) -> anyhow::Result<Answers> {
        let mut connections = Vec::new();
        for _ in 0..self.connections {
            connections.push(Connection::open(server).await?);
        }
        let began = Instant::now();
        let mut running = JoinSet::new();
        for (place, mut connection) in connections.into_iter().enumerate() {
            let (requests, first, status) = (Arc::clone(&self.requests), self.first(place), self.status);
            running.spawn(async move {
                let mut latencies = histogram()?;
                let mut sent = Instant::now();
                for request in requests.iter().cycle().skip(first) {
                    connection.ask(request, status).await?;
                    let answered = Instant::now();
                    latencies.record(micros(answered - sent))?;
                    if answered - began >= duration {
                        break;
                    }
                    sent = answered;
                }
                anyhow::Ok(latencies)
            });
        }
        let mut latencies = histogram()?;
        while let Some(ended) = running.join_next().await {
            latencies.add(ended??)?;
        }
        let elapsed = began.elapsed();
        ensure!(!latencies.is_empty(), "{server} answered nothing");
        Ok(Answers { elapsed, latencies })
    }

    /// Runs an open load of `rate` requests a second, and returns the latencies from when each request was due and
    /// the delays of the load itself, in microseconds.
    ///
    /// A closed load sends nothing to a server that hangs, and so hides most of the slow answers (coordinated
    /// omission).
    ///
    /// # Errors
    /// When a request gets no answer, or another status.
    pub(crate) async fn open(
        &self,
        server: SocketAddr,
        rate: f64,
        duration: Duration,
    ) -> anyhow::Result<[Histogram<u64>; 2]> {
        let interval = Duration::from_secs_f64(self.connections as f64 / rate);
        let began = Instant::now();
        let mut threads = Vec::new();
        for place in 0..self.connections {
            let (requests, first, status) = (Arc::clone(&self.requests), self.first(place), self.status);
            let begin = began + interval.mul_f64(place as f64 / self.connections as f64);
            // A thread each: the timers of a runtime are as coarse as the latencies to measure.
            threads.push(thread::spawn(move || {
                let requests = requests.iter().cycle().skip(first);
                send_when_due(server, requests, status, begin, interval, began + duration)
            }));
        }
        let joined = tokio::task::spawn_blocking(move || {
            let mut sums = [histogram()?, histogram()?];
            for thread in threads {
                for (sum, one) in
                    sums.iter_mut().zip(thread.join().map_err(|_| anyhow!("a connection panicked"))??)
                {
                    sum.add(one)?;
                }
            }
            Ok(sums)
        });
        joined.await?
    }

    /// Spreads the connections over the requests, so that they do not visit one link at the same time.
    fn first(&self, place: usize) -> usize {
        place * self.requests.len() / self.connections
    }
}

fn send_when_due<'a>(
    server: SocketAddr,
    requests: impl Iterator<Item = &'a Vec<u8>>,
    status: u16,
    begin: Instant,
    interval: Duration,
    until: Instant,
) -> anyhow::Result<[Histogram<u64>; 2]> {
    set_timerslack(TIMER_SLACK).context("cannot set the timer slack")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let mut connection = runtime.block_on(Connection::open(server))?;
    let (mut latencies, mut delays) = (histogram()?, histogram()?);
    let mut due = begin;
    for request in requests {
        if due >= until {
            break;
        }
        if let Some(early) = due.checked_duration_since(Instant::now()) {
            thread::sleep(early);
            delays.record(micros(due.elapsed()))?;
        }
        runtime.block_on(connection.ask(request, status))?;
        latencies.record(micros(due.elapsed()))?;
        due += interval;
    }
    Ok([latencies, delays])
}

/// Returns a GET with an API key.
pub(crate) fn get(path: &str, key: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: api.example.com\r\nAuthorization: Bearer {key}\r\n\r\n").into()
}

/// Returns a POST of JSON with an API key.
pub(crate) fn post(path: &str, key: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: api.example.com\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into()
}

/// Returns a navigation as Firefox sends it and a proxy forwards it.
fn visit(slug: &str, visitor: usize) -> Vec<u8> {
    // From 198.18.0.0/15, which RFC 2544 reserves for benchmarks.
    let address = format!("198.18.{}.{}", visitor / 250, visitor % 250 + 1);
    format!(
        "GET /{slug} HTTP/1.1\r\n\
         Host: links.example.com\r\n\
         User-Agent: {BROWSER}\r\n\
         Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
         Accept-Language: en-GB,en;q=0.5\r\n\
         Accept-Encoding: gzip, deflate, br, zstd\r\n\
         Referer: https://news.example.org/2026/spring\r\n\
         Sec-Fetch-Mode: navigate\r\n\
         X-Forwarded-For: {address}\r\n\r\n"
    )
    .into()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const REDIRECT: &[&str] = &["HTTP/1.1 302 Found\r\nContent-Length: 8\r\n", "\r\na\r\n\r\nbcd"];

    /// Answers each request with `pieces`, the third after a pause.
    fn server(pieces: &'static [&'static str], pause: Duration) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let mut count = 0;
            // A client that was idle for a second connects again.
            while let Ok((mut stream, _)) = listener.accept().await {
                while stream.read_buf(&mut Vec::with_capacity(4096)).await.unwrap_or_default() > 0 {
                    count += 1;
                    if count == 3 {
                        tokio::time::sleep(pause).await;
                    }
                    for piece in pieces {
                        if stream.write_all(piece.as_bytes()).await.is_err() {
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                    if !pieces.concat().contains("302") {
                        break;
                    }
                }
            }
        });
        address
    }

    async fn ask(pieces: &'static [&'static str]) -> anyhow::Result<Vec<u8>> {
        let mut connection = Connection::open(server(pieces, Duration::ZERO)).await?;
        Ok(connection.ask(&get("/", "k"), 200).await?.to_vec())
    }

    #[tokio::test]
    async fn a_body_in_pieces_is_read_to_its_end() {
        let pieces = &["HTTP/1.1 200 OK\r\ncontent-length: 4\r\n", "\r\nab", "cd"];
        assert_eq!(ask(pieces).await.unwrap(), b"abcd");
    }

    #[tokio::test]
    async fn another_status_or_half_an_answer_is_an_error() {
        let error = ask(&["HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n"]).await.unwrap_err();
        assert!(error.to_string().contains("429"), "{error}");
        assert!(ask(&["HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab"]).await.is_err());
        assert!(ask(&["HTTP/1.1 404 Not Found\r\n\r\n"]).await.unwrap_err().to_string().contains("404"));
    }

    #[tokio::test]
    async fn a_closed_load_counts_every_redirect_with_its_latency() {
        let load = Load::visits(1, &["spring".to_owned()]);
        let answers = load.closed(server(REDIRECT, Duration::ZERO), Duration::from_millis(20)).await.unwrap();
        assert!(answers.rate() > 0.0);
        assert!(answers.latencies.value_at_quantile(0.5) <= answers.latencies.max());
        assert!(answers.elapsed >= Duration::from_millis(20));
    }

    #[tokio::test]
    async fn an_open_load_shows_a_pause_in_every_request_due_in_it() {
        let load = Load::visits(1, &["spring".to_owned()]);
        // 100 in a second, of which the pause covers half.
        let pause = Duration::from_millis(500);
        let running = load.open(server(REDIRECT, pause), 100.0, Duration::from_secs(1));
        let [latencies, delays] = running.await.unwrap();
        assert_eq!(latencies.len(), 100, "each that was due, however late it was sent");
        // A closed load would have seen a single slow one.
        assert!(latencies.value_at_quantile(0.8) > 100_000, "{}", latencies.value_at_quantile(0.8));
        assert!(latencies.max() >= 500_000);
        assert!(delays.value_at_quantile(0.5) <= delays.max());
    }

    #[test]
    fn every_request_comes_from_another_visitor() {
        let load = Load::visits(1, &["a".to_owned(), "b".to_owned()]);
        let distinct: std::collections::BTreeSet<&Vec<u8>> = load.requests.iter().collect();
        assert_eq!(distinct.len(), VISITORS);
        assert!(load.requests[1].starts_with(b"GET /b HTTP/1.1\r\n"));
    }
}
