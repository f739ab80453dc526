//! A receiver on TCP that reads a request and then behaves as the test chooses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The behaviour of a raw receiver after a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Behaviour {
    /// Writes this and closes.
    Close(&'static str),
    /// Writes this and then nothing more.
    Hold(&'static str),
    /// Writes the first text, then the second one forever, as fast as it is read.
    Flood(&'static str, &'static [u8]),
    /// Writes this, one byte each 200 ms.
    Trickle(&'static str),
}

/// A raw receiver; it stops when it is dropped.
pub(crate) struct Raw {
    pub(crate) url: String,
    requests: Arc<AtomicUsize>,
    _server: JoinSet<()>,
}

impl Raw {
    pub(crate) async fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicUsize::new(0));
        let mut server = JoinSet::new();
        let counted = Arc::clone(&requests);
        server.spawn(async move {
            let mut connections: JoinSet<Option<()>> = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(answer(stream, behaviour, Arc::clone(&counted)));
            }
        });
        Self { url, requests, _server: server }
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Ends when the sender closes the connection.
async fn answer(mut stream: TcpStream, behaviour: Behaviour, requests: Arc<AtomicUsize>) -> Option<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    requests.fetch_add(1, Ordering::SeqCst);
    match behaviour {
        Behaviour::Close(text) => stream.write_all(text.as_bytes()).await.ok()?,
        Behaviour::Hold(text) => {
            stream.write_all(text.as_bytes()).await.ok()?;
            // Until the other side closes the connection.
            while stream.read_u8().await.is_ok() {}
        }
        Behaviour::Flood(text, more) => {
            stream.write_all(text.as_bytes()).await.ok()?;
            loop {
                stream.write_all(more).await.ok()?;
            }
        }
        Behaviour::Trickle(text) => {
            for byte in text.bytes().cycle() {
                stream.write_u8(byte).await.ok()?;
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        }
    }
    Some(())
}
