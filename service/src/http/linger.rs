//! Ends connections so that a client that is still sending receives its answer.
//!
//! A socket that is closed while bytes wait in it resets the connection, and the client may lose an answer that it has
//! not read (RFC 9112, 9.6).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

/// How long a client may go on sending after its answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a client may send nothing meanwhile. By default, an idle connection may stay longer.
const SILENCE: Duration = Duration::from_secs(2);

/// Maximum bytes that are discarded after an answer. A client that sends more may lose it.
const MAX_DISCARDED: usize = 64 << 20;

/// Bytes that are discarded at a time.
const PIECE: usize = 16 << 10;

/// Whether the body of a connection's latest request may not have been read to its end.
#[derive(Debug, Clone, Default)]
pub(super) struct Unread(Arc<AtomicBool>);

impl Unread {
    fn set(&self, is_unread: bool) {
        self.0.store(is_unread, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Watches the body of a request. Behind a refused request, there may be bytes that its stand-in does not tell of.
    pub(super) fn watch<B: Body>(&self, body: B, is_refused: bool) -> Watched<B> {
        self.set(is_refused || !body.is_end_stream());
        Watched { body, unread: self.clone() }
    }
}

/// A body that notes when it has been read to its end.
#[derive(Debug)]
pub(super) struct Watched<B> {
    body: B,
    unread: Unread,
}

impl<B: Body + Unpin> Body for Watched<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.unread.set(false);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Ends a connection. If a part of its latest request `is_unread`, what the client still sends is discarded first.
pub(super) async fn end<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, is_unread: bool) {
    // An error means that the client is gone.
    if stream.shutdown().await.is_err() || !is_unread {
        return;
    }
    let discard = async {
        let (mut piece, mut discarded) = (vec![0; PIECE], 0);
        while discarded < MAX_DISCARDED
            && let Ok(Ok(length @ 1..)) = timeout(SILENCE, stream.read(&mut piece)).await
        {
            discarded += length;
        }
    };
    // What is left then is given up.
    let _ = timeout(PATIENCE, discard).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;
    use tokio::time::{Instant, sleep};

    use super::*;

    /// Ends a connection whose client still sends `bytes`, reads, and leaves after `silence`. Returns the bytes that it
    /// could send, and how long the end took.
    async fn ended(is_unread: bool, bytes: usize, silence: Duration) -> (usize, Duration) {
        let (server, mut client) = duplex(1 << 10);
        let sender = tokio::spawn(async move {
            let mut sent = 0;
            while sent < bytes && client.write_all(&[0; 1 << 10]).await.is_ok() {
                sent += 1 << 10;
            }
            let _ = client.read_to_end(&mut Vec::new()).await;
            sleep(silence).await;
            sent
        });
        let began = Instant::now();
        end(server, is_unread).await;
        let took = began.elapsed();
        (sender.await.unwrap(), took)
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_client_still_sends_is_discarded() {
        assert_eq!(ended(true, 8 << 20, Duration::ZERO).await, (8 << 20, Duration::ZERO));
        let (sent, _) = ended(true, MAX_DISCARDED + (1 << 20), Duration::ZERO).await;
        assert!((MAX_DISCARDED..MAX_DISCARDED + (1 << 19)).contains(&sent), "{sent}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_neither_sends_nor_leaves_is_left() {
        assert_eq!(ended(true, 1 << 10, Duration::from_secs(300)).await.1, SILENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_when_everything_was_read() {
        assert_eq!(ended(false, 0, Duration::from_secs(300)).await.1, Duration::ZERO);
    }
}
