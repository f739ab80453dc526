//! A client that sends the same bytes again and again, and costs little beside the server.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

/// A GET with a key.
pub(crate) fn get(path: &str, key: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: api.example.com\r\nAuthorization: Bearer {key}\r\n\r\n")
        .into_bytes()
}

/// A POST of JSON with a key.
pub(super) fn post(path: &str, key: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: api.example.com\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// After how long without a request a connection is not used again; servers close it after 5 s.
const IDLE: Duration = Duration::from_secs(1);

/// A connection that stays open while it is used.
pub(crate) struct Connection {
    server: SocketAddr,
    stream: TcpStream,
    used: Instant,
    answer: Vec<u8>,
}

impl Connection {
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
        self.stream.write_all(request).await.context("a request could not be sent")?;
        self.answer.clear();
        let (head, length) = loop {
            if let Some(lengths) = lengths(&self.answer)? {
                break lengths;
            }
            self.read().await?;
        };
        while self.answer.len() < head + length {
            self.read().await?;
        }
        self.used = Instant::now();
        let expected = format!("HTTP/1.1 {status} ");
        let text = || String::from_utf8_lossy(&self.answer);
        ensure!(self.answer.starts_with(expected.as_bytes()), "expected a {status}, got: {}", text());
        Ok(&self.answer[head..head + length])
    }

    async fn read(&mut self) -> anyhow::Result<()> {
        let read = self.stream.read_buf(&mut self.answer).await.context("an answer did not come")?;
        ensure!(read > 0, "the connection was closed before the answer was complete");
        Ok(())
    }
}

async fn connect(server: SocketAddr) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(server).await.with_context(|| format!("cannot connect to {server}"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The bytes of an answer's head and of its body; `None` while the head is not complete.
fn lengths(answer: &[u8]) -> anyhow::Result<Option<(usize, usize)>> {
    let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&answer[..end]).context("the head of an answer is no text")?;
    let length = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .context("an answer has no length")?;
    Ok(Some((end + 4, length.1.trim().parse().context("the length of an answer is no number")?)))
}

/// Sends one request over and over on several connections; each waits for its answers.
///
/// # Errors
/// When one is not answered with a 200.
pub(super) async fn requests_per_second(
    server: SocketAddr,
    request: &[u8],
    connections: usize,
    duration: Duration,
) -> anyhow::Result<f64> {
    let request: Arc<[u8]> = request.into();
    let began = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..connections {
        let request = Arc::clone(&request);
        running.spawn(async move {
            let mut connection = Connection::open(server).await?;
            let mut count = 0_u32;
            while began.elapsed() < duration {
                connection.ask(&request, 200).await?;
                count += 1;
            }
            anyhow::Ok(count)
        });
    }
    let mut count = 0_u32;
    while let Some(ended) = running.join_next().await {
        count += ended??;
    }
    Ok(f64::from(count) / began.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn an_answer_has_a_head_and_a_body() {
        assert_eq!(lengths(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n").unwrap(), None);
        assert_eq!(lengths(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab").unwrap(), Some((38, 3)));
        assert!(lengths(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }

    /// Answers one request with `pieces`, one after the other.
    async fn ask(pieces: &'static [&'static str]) -> anyhow::Result<Vec<u8>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_buf(&mut Vec::new()).await.unwrap();
            for piece in pieces {
                stream.write_all(piece.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        Ok(Connection::open(address).await?.ask(&get("/", "k"), 200).await?.to_vec())
    }

    #[tokio::test]
    async fn a_body_in_pieces_is_read_to_its_end() {
        let pieces = &["HTTP/1.1 200 OK\r\ncontent-length: 4\r\n", "\r\nab", "cd"];
        assert_eq!(ask(pieces).await.unwrap(), b"abcd");
    }

    #[tokio::test]
    async fn another_status_or_half_an_answer_is_no_result() {
        let refused =
            ask(&["HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n"]).await.unwrap_err();
        assert!(refused.to_string().contains("429"), "{refused}");
        assert!(ask(&["HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab"]).await.is_err());
    }
}
