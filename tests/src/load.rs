//! Visitors that click continuously, and record every click id that was answered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use crate::deployment::BROWSER;
use crate::eventually;

/// How long a visitor waits for an answer.
const ANSWER: Duration = Duration::from_secs(20);

/// How long a visitor without an answer waits before the next click.
const PAUSE: Duration = Duration::from_millis(5);

/// The beginning of a redirect.
const REDIRECT: &[u8] = b"HTTP/1.1 302 ";

/// More bytes than the head of any answer of an edge.
const HEAD_BYTES: usize = 4 * 1024;

/// A click that was answered with a redirect and stored.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The click id in the destination.
    pub click_id: Box<str>,
    /// When the click was due. With a rate, that does not depend on earlier answers.
    pub due: Instant,
    /// The time from then to the answer.
    pub latency: Duration,
}

/// Running visitors. Dropping this stops them.
#[derive(Debug)]
pub struct Load {
    visitors: JoinSet<Vec<Answer>>,
    counts: Arc<Counts>,
}

/// The results of all clicks.
#[derive(Debug, Default)]
pub struct Log {
    /// The clicks that were answered with a redirect and stored.
    pub answers: Vec<Answer>,
    /// Clicks that were answered with a redirect without a click id, because the spool took no more.
    pub dropped: u64,
    /// Clicks that were sent and not answered, because the edge was killed. They may have been counted.
    pub unanswered: u64,
    /// Clicks that were not sent, because the connection failed.
    pub unsent: u64,
    /// Clicks that were answered with something other than a redirect.
    pub refused: u64,
}

#[derive(Debug, Default)]
struct Counts {
    stop: AtomicBool,
    /// Dropped ones too.
    answered: AtomicU64,
    dropped: AtomicU64,
    unanswered: AtomicU64,
    unsent: AtomicU64,
    refused: AtomicU64,
}

/// The result of a click.
enum Fate {
    Answered(Box<str>),
    Dropped,
    Refused,
    Unanswered,
    Unsent,
}

impl Load {
    /// Starts visitors that click on these links, each on its own connection.
    ///
    /// Together they click `rate` times a second; without a rate, each clicks again after an answer.
    pub fn start(edge: SocketAddr, slugs: &[String], connections: u32, rate: Option<u32>) -> Self {
        let counts = Arc::new(Counts::default());
        let slugs: Arc<[String]> = slugs.into();
        let interval = rate.map(|rate| Duration::from_secs(1) * connections / rate);
        let mut visitors = JoinSet::new();
        for number in 0..connections {
            let first = Instant::now() + interval.unwrap_or_default() * number / connections;
            let visitor = Visitor { edge, slugs: Arc::clone(&slugs), number, counts: Arc::clone(&counts) };
            visitors.spawn(visitor.run(first, interval));
        }
        Self { visitors, counts }
    }

    /// Waits until this many more clicks are answered.
    ///
    /// # Panics
    /// When they are not answered in time.
    pub async fn answers(&self, more: u64) {
        let answered = || self.counts.answered.load(Ordering::Relaxed);
        let wanted = answered() + more;
        eventually("clicks are answered", async || {
            if answered() >= wanted { Ok(()) } else { Err(format!("{} of {wanted}", answered())) }
        })
        .await;
    }

    /// The number of answered clicks.
    pub fn answered(&self) -> u64 {
        self.counts.answered.load(Ordering::Relaxed)
    }

    /// Stops the visitors after their current clicks are answered.
    ///
    /// # Panics
    /// When a visitor panicked.
    pub async fn stop(mut self) -> Log {
        self.counts.stop.store(true, Ordering::Relaxed);
        let mut log = Log::default();
        while let Some(answers) = self.visitors.join_next().await {
            log.answers.append(&mut answers.unwrap());
        }
        let Counts { dropped, unanswered, unsent, refused, .. } = &*self.counts;
        [log.dropped, log.unanswered, log.unsent, log.refused] =
            [dropped, unanswered, unsent, refused].map(|count| count.load(Ordering::Relaxed));
        log
    }
}

impl Log {
    /// The percentile of the latencies of clicks that were due between two times; `None` without clicks.
    pub fn latency(&self, percent: usize, from: Instant, until: Instant) -> Option<Duration> {
        let due = self.answers.iter().filter(|answer| (from..until).contains(&answer.due));
        let mut latencies: Vec<Duration> = due.map(|answer| answer.latency).collect();
        latencies.sort_unstable();
        let rank = (latencies.len() * percent).div_ceil(100).max(1);
        latencies.get(rank - 1).copied()
    }

    /// Adds the results of another edge's visitors.
    pub fn join(&mut self, mut other: Self) {
        self.answers.append(&mut other.answers);
        self.dropped += other.dropped;
        self.unanswered += other.unanswered;
        self.unsent += other.unsent;
        self.refused += other.refused;
    }

    /// Asserts that every click was answered with a redirect and stored.
    ///
    /// # Panics
    /// When a click was not.
    pub fn is_complete(&self) {
        let Self { dropped, unanswered, unsent, refused, .. } = self;
        assert_eq!(
            (dropped, unanswered, unsent, refused),
            (&0, &0, &0, &0),
            "clicks that were dropped, without an answer, without a connection, answered with something else"
        );
    }
}

/// Consecutive visitors on one connection.
struct Visitor {
    edge: SocketAddr,
    slugs: Arc<[String]>,
    number: u32,
    counts: Arc<Counts>,
}

impl Visitor {
    async fn run(self, first: Instant, interval: Option<Duration>) -> Vec<Answer> {
        let mut answers = Vec::new();
        let mut connection: Option<TcpStream> = None;
        let mut due = first;
        for clicked in 0_usize.. {
            if self.counts.stop.load(Ordering::Relaxed) {
                break;
            }
            sleep_until(due.into()).await;
            let request = self.request(clicked);
            let count = match self.click(&mut connection, &request).await {
                Fate::Answered(click_id) => {
                    answers.push(Answer { click_id, due, latency: due.elapsed() });
                    &self.counts.answered
                }
                Fate::Dropped => {
                    self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                    &self.counts.answered
                }
                Fate::Refused => &self.counts.refused,
                Fate::Unanswered => &self.counts.unanswered,
                Fate::Unsent => &self.counts.unsent,
            };
            count.fetch_add(1, Ordering::Relaxed);
            if connection.is_none() {
                sleep(PAUSE).await;
            }
            due = interval.map_or_else(Instant::now, |interval| due + interval);
        }
        answers
    }

    /// Clicks once. Keeps the connection if it can be reused.
    async fn click(&self, connection: &mut Option<TcpStream>, request: &str) -> Fate {
        let mut stream = match connection.take() {
            Some(stream) => stream,
            None => match TcpStream::connect(self.edge).await {
                Ok(stream) => stream,
                Err(_) => return Fate::Unsent,
            },
        };
        match timeout(ANSWER, ask(&mut stream, request)).await {
            Ok(Ok(Some(click_id))) => {
                *connection = Some(stream);
                click_id.map_or(Fate::Dropped, Fate::Answered)
            }
            // The body is not read, so the connection cannot be reused.
            Ok(Ok(None)) => Fate::Refused,
            Ok(Err(_)) | Err(_) => Fate::Unanswered,
        }
    }

    fn request(&self, clicked: usize) -> String {
        let slug = &self.slugs[(clicked + self.number as usize) % self.slugs.len()];
        // From 198.18.0.0/15, which RFC 2544 reserves for benchmarks.
        let address = format!("198.18.{}.{}", self.number % 250, clicked % 250 + 1);
        format!(
            "GET /{slug} HTTP/1.1\r\nHost: links.example.com\r\nUser-Agent: {BROWSER}\r\n\
             X-Forwarded-For: {address}\r\n\r\n"
        )
    }
}

/// Sends a request and returns the click id of the redirect, if it has one; `None` when the answer is not a redirect.
async fn ask(stream: &mut TcpStream, request: &str) -> std::io::Result<Option<Option<Box<str>>>> {
    stream.set_nodelay(true)?;
    stream.write_all(request.as_bytes()).await?;
    let mut head = [0; HEAD_BYTES];
    let mut length = 0;
    while !head[..length].ends_with(b"\r\n\r\n") {
        let read = stream.read(&mut head[length..]).await?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        length += read;
        if !REDIRECT.starts_with(&head[..length.min(REDIRECT.len())]) {
            return Ok(None);
        }
    }
    Ok(Some(click_id(&String::from_utf8_lossy(&head[..length]))))
}

/// Returns the click id in the destination of a redirect.
fn click_id(head: &str) -> Option<Box<str>> {
    let location = head.lines().find_map(|line| line.strip_prefix("location: "))?;
    let (_, after) = location.rsplit_once("click_id=")?;
    Some(after.split('&').next().unwrap_or(after).trim_end().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_click_id_of_a_redirect_is_found() {
        let head = "HTTP/1.1 302 Found\r\nlocation: https://a.example/?b=c&click_id=Abc_-9&d=e\r\n\r\n";
        assert_eq!(click_id(head).as_deref(), Some("Abc_-9"));
        assert_eq!(click_id("HTTP/1.1 302 Found\r\nlocation: https://a.example/\r\n\r\n"), None);
    }

    #[test]
    fn a_latency_covers_the_clicks_due_in_its_span() {
        let start = Instant::now();
        let answer = |second, millis| Answer {
            click_id: "a".into(),
            due: start + Duration::from_secs(second),
            latency: Duration::from_millis(millis),
        };
        let log = Log { answers: vec![answer(0, 9), answer(1, 2), answer(1, 3)], ..Log::default() };
        let span = |from, until| (start + Duration::from_secs(from), start + Duration::from_secs(until));
        let latency = |percent, (from, until)| log.latency(percent, from, until);
        assert_eq!(latency(99, span(0, 1)), Some(Duration::from_millis(9)));
        assert_eq!(latency(50, span(1, 2)), Some(Duration::from_millis(2)));
        assert_eq!(latency(99, span(2, 3)), None);
    }
}
