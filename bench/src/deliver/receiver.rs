//! The receiver: as little HTTP as a sender needs, so that it takes as little as possible of the CPU that it shares.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
};

/// The answer to a delivery.
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// A request longer than this is none of ours.
const MAX_REQUEST: usize = 1 << 20;

/// Where to receive.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Address for requests.
    #[arg(long)]
    listen: SocketAddr,
}

/// What was received.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Statistics {
    /// Answered requests.
    pub(crate) received: u64,
    /// From the first to the last of them.
    pub(crate) seconds: f64,
}

#[derive(Debug, Default)]
struct Tally {
    received: u64,
    first: Option<Instant>,
    last: Option<Instant>,
    /// How long after its event each request came.
    latencies_ms: Vec<u32>,
}

impl Tally {
    fn add(&mut self, body: &[u8]) {
        let now = Instant::now();
        self.received += 1;
        self.first.get_or_insert(now);
        self.last = Some(now);
        if let Some(made) = created_at(body) {
            let age = (Utc::now() - made).num_milliseconds();
            self.latencies_ms.push(u32::try_from(age).unwrap_or(0));
        }
    }

    fn statistics(&self) -> Statistics {
        let seconds = self.first.zip(self.last).map(|(first, last)| last.duration_since(first).as_secs_f64());
        Statistics { received: self.received, seconds: seconds.unwrap_or_default() }
    }

    /// The answer to a question about what was received; none for a delivery.
    fn answer(&mut self, path: &[u8]) -> Option<serde_json::Result<String>> {
        match path {
            b"/reset" => *self = Self::default(),
            b"/statistics" => {}
            // Apart, for it is long and the other one is asked for again and again.
            b"/latencies" => return Some(serde_json::to_string(&self.latencies_ms)),
            _ => return None,
        }
        Some(serde_json::to_string(&self.statistics()))
    }
}

/// Receives until SIGTERM.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let listener = TcpListener::bind(options.listen).await.context("cannot listen")?;
    let mut stop = signal(SignalKind::terminate())?;
    let tally = Arc::new(Mutex::new(Tally::default()));
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                stream.set_nodelay(true)?;
                // A sender that goes away is no fault of ours.
                tokio::spawn(connection(stream, Arc::clone(&tally)));
            }
            _ = stop.recv() => return Ok(()),
        }
    }
}

async fn connection(mut stream: TcpStream, tally: Arc<Mutex<Tally>>) -> Option<()> {
    let mut buffer = Vec::with_capacity(4096);
    loop {
        let (head, end) = loop {
            if let Some(found) = complete(&buffer) {
                break found;
            }
            if buffer.len() > MAX_REQUEST || stream.read_buf(&mut buffer).await.ok()? == 0 {
                return None;
            }
        };
        let path = buffer.split(|byte| *byte == b' ').nth(1)?;
        let answer = tally.lock().unwrap_or_else(PoisonError::into_inner).answer(path);
        if let Some(answer) = answer {
            let answer = answer.ok()?;
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                answer.len()
            );
            stream.write_all(format!("{head}{answer}").as_bytes()).await.ok()?;
        } else if path == b"/hole" {
            // Until the sender has given up.
            while stream.read_buf(&mut buffer).await.ok()? > 0 {
                buffer.clear();
            }
            return None;
        } else {
            tally.lock().unwrap_or_else(PoisonError::into_inner).add(&buffer[head..end]);
            stream.write_all(OK).await.ok()?;
        }
        buffer.drain(..end);
    }
}

/// Returns where the body of the first request begins and ends; none while it is not complete.
fn complete(buffer: &[u8]) -> Option<(usize, usize)> {
    let head = buffer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&buffer[..head]).ok()?;
    let length = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(Some(0), |(_, value)| value.trim().parse().ok())?;
    (buffer.len() >= head + length).then_some((head, head + length))
}

/// The event's time in a delivery's body.
fn created_at(body: &[u8]) -> Option<DateTime<Utc>> {
    let text = std::str::from_utf8(body).ok()?;
    let (_, rest) = text.split_once(r#""created_at":""#)?;
    rest.split_once('"')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_complete_with_the_last_byte_of_its_body() {
        let request = b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbodyGET /";
        assert_eq!(complete(&request[..40]), None);
        assert_eq!(complete(request), Some((38, 42)));
        assert_eq!(complete(b"GET / HTTP/1.1\r\n\r\n"), Some((18, 18)));
    }

    #[test]
    fn the_events_time_is_read_from_the_body() {
        let body = br#"{"id":"1","event":"e","created_at":"2026-09-21T13:33:20.123Z","data":{}}"#;
        assert_eq!(created_at(body), "2026-09-21T13:33:20.123Z".parse().ok());
        assert_eq!(created_at(b"{}"), None);
    }
}
