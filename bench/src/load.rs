//! The closed load: connections that stay open and ask again as soon as they are answered.
//!
//! Written by hand and for redirects only, because the load runs on the same cores as the server: what it costs
//! makes every server look slower, and two servers more alike than they are.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use ::tests::deployment::BROWSER;
use anyhow::{Context as _, bail};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use crate::statistics::percentile;

/// Different requests: each comes from another visitor, and the links take turns.
const VISITORS: usize = 5_000;

/// More than any redirect that is measured here, with its body.
const ANSWER_BYTES: usize = 4 * 1024;

/// What a redirect begins with.
const REDIRECT: &[u8] = b"HTTP/1.1 302 ";

/// Requests, and how many connections send them at once.
pub(crate) struct Load {
    pub(crate) connections: usize,
    pub(crate) requests: Arc<[Vec<u8>]>,
}

/// What came back.
pub(crate) struct Answers {
    /// From the first request to the last answer.
    pub(crate) elapsed: Duration,
    /// From a request to its answer, in microseconds; ascending.
    latencies: Vec<u32>,
}

impl Load {
    /// Makes requests for these slugs.
    pub(crate) fn new(connections: usize, slugs: &[String]) -> Self {
        let visited = slugs.iter().cycle().take(VISITORS);
        let requests = visited.enumerate().map(|(visitor, slug)| request(slug, visitor)).collect();
        Self { connections, requests }
    }

    /// Sends requests for as long as `duration`, and waits for the answers to all of them.
    ///
    /// # Errors
    /// When one request is not answered, or with anything but a 302.
    pub(crate) async fn run(&self, server: SocketAddr, duration: Duration) -> anyhow::Result<Answers> {
        let mut streams = Vec::new();
        for _ in 0..self.connections {
            let stream =
                TcpStream::connect(server).await.with_context(|| format!("cannot connect to {server}"))?;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
        let began = Instant::now();
        let mut connections = JoinSet::new();
        for (place, stream) in streams.into_iter().enumerate() {
            let requests = Arc::clone(&self.requests);
            // Spread over all requests, so that connections do not ask for one link at one time.
            let first = place * requests.len() / self.connections;
            connections.spawn(connection(stream, requests, first, began + duration));
        }
        let mut latencies = Vec::new();
        while let Some(ended) = connections.join_next().await {
            latencies.append(&mut ended??);
        }
        let elapsed = began.elapsed();
        latencies.sort_unstable();
        Ok(Answers { elapsed, latencies })
    }
}

impl Answers {
    /// How many requests were answered, which is all of them.
    pub(crate) fn count(&self) -> usize {
        self.latencies.len()
    }

    /// Answers per second.
    pub(crate) fn rate(&self) -> f64 {
        self.count() as f64 / self.elapsed.as_secs_f64()
    }

    /// The latency that `percent` per cent of the requests did not exceed, in microseconds.
    pub(crate) fn latency(&self, percent: usize) -> u32 {
        percentile(&self.latencies, percent)
    }
}

/// A navigation as Firefox sends it and a proxy forwards it.
fn request(slug: &str, visitor: usize) -> Vec<u8> {
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
    .into_bytes()
}

/// Sends one request after the other until the time is over; returns the latencies in microseconds.
async fn connection(
    mut stream: TcpStream,
    requests: Arc<[Vec<u8>]>,
    first: usize,
    until: Instant,
) -> anyhow::Result<Vec<u32>> {
    let mut reader = Reader::default();
    let mut latencies = Vec::new();
    let mut sent = Instant::now();
    for request in requests.iter().cycle().skip(first) {
        if sent >= until {
            break;
        }
        stream.write_all(request).await.context("a request could not be sent")?;
        while !reader.is_redirect()? {
            let read = stream.read(reader.room()).await.context("an answer did not come")?;
            reader.read(read)?;
        }
        let answered = Instant::now();
        latencies.push(u32::try_from((answered - sent).as_micros()).unwrap_or(u32::MAX));
        sent = answered;
    }
    Ok(latencies)
}

/// Puts answers together that come in pieces: each must be a redirect.
pub(crate) struct Reader {
    answer: Vec<u8>,
    length: usize,
    /// How long the bodies are, which is the same for all answers of one connection.
    body: Option<usize>,
}

impl Default for Reader {
    fn default() -> Self {
        Self { answer: vec![0; ANSWER_BYTES], length: 0, body: None }
    }
}

impl Reader {
    /// Where the next bytes go.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.answer[self.length..]
    }

    /// Takes so many bytes that came.
    pub(crate) fn read(&mut self, count: usize) -> anyhow::Result<()> {
        self.length += count;
        let answer = &self.answer[..self.length];
        // Anything that is not the beginning of such an answer never becomes one.
        if count == 0
            || self.length == self.answer.len()
            || !REDIRECT.starts_with(&answer[..answer.len().min(13)])
        {
            bail!("expected a 302, got: {}", String::from_utf8_lossy(answer));
        }
        Ok(())
    }

    /// Whether the answer is complete; if it is, the next one may begin.
    pub(crate) fn is_redirect(&mut self) -> anyhow::Result<bool> {
        const END: &[u8] = b"\r\n\r\n";
        let answer = &self.answer[..self.length];
        let body = match self.body {
            Some(body) => body,
            None if answer.windows(END.len()).any(|window| window == END) => {
                *self.body.insert(body_length(answer).context("an answer does not tell its length")?)
            }
            None => return Ok(false),
        };
        let complete = self.length.checked_sub(body).is_some_and(|head| answer[..head].ends_with(END));
        if complete {
            self.length = 0;
        }
        Ok(complete)
    }
}

/// The length of the body, by an answer's head.
fn body_length(answer: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(answer).ok()?;
    let mut headers = text.lines().filter_map(|line| line.split_once(": "));
    headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Answers each request on one connection with `answer`, in two pieces.
    async fn server(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; ANSWER_BYTES];
            while stream.read(&mut request).await.unwrap_or_default() > 0 {
                for piece in [&answer[..5], &answer[5..]] {
                    if stream.write_all(piece.as_bytes()).await.is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            }
        });
        address
    }

    async fn load(answer: &'static str) -> anyhow::Result<Answers> {
        let load = Load::new(1, &["spring".to_owned()]);
        load.run(server(answer).await, Duration::from_millis(20)).await
    }

    #[tokio::test]
    async fn every_redirect_is_counted_with_its_latency() {
        let answers = load("HTTP/1.1 302 Found\r\nlocation: /\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        assert!(answers.count() > 0);
        assert!(answers.latency(50) <= answers.latency(100));
        assert!(answers.elapsed >= Duration::from_millis(20));
    }

    #[tokio::test]
    async fn an_answer_that_is_no_redirect_is_no_result() {
        let error = load("HTTP/1.1 404 Not Found\r\n\r\n").await.err().unwrap();
        assert!(error.to_string().contains("404"), "{error}");
    }

    #[tokio::test]
    async fn a_redirect_may_have_a_body() {
        let answers = load("HTTP/1.1 302 Found\r\nContent-Length: 8\r\n\r\na\r\n\r\nbcd").await.unwrap();
        assert!(answers.count() > 0);
    }

    #[test]
    fn every_request_comes_from_another_visitor() {
        let load = Load::new(1, &["a".to_owned(), "b".to_owned()]);
        let distinct: std::collections::BTreeSet<&Vec<u8>> = load.requests.iter().collect();
        assert_eq!(distinct.len(), VISITORS);
        assert!(load.requests[1].starts_with(b"GET /b HTTP/1.1\r\n"));
    }
}
