//! Ends connections whose client reads too slowly.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Bytes that a client must take in time, unless fewer are waiting for it.
const LEAST: usize = 64 << 10;

/// A stream whose writes fail once they wait for a reader that takes neither [`LEAST`] bytes nor all there is in time.
///
/// Without that, a client that reads a byte now and then holds its connection, and what its answer holds, for ever.
#[derive(Debug)]
pub(super) struct Paced<S> {
    stream: S,
    patience: Duration,
    wait: Option<Wait>,
}

/// A wait for a reader, from the first write that had to wait.
#[derive(Debug)]
struct Wait {
    ends: Pin<Box<Sleep>>,
    taken: usize,
}

impl<S> Paced<S> {
    /// Gives the reader of a stream `patience` for [`LEAST`] bytes.
    pub(super) const fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, wait: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if let Poll::Ready(written) = Pin::new(&mut this.stream).poll_write(context, bytes) {
            let taken = written?;
            this.wait.take_if(|wait| {
                wait.taken += taken;
                wait.taken >= LEAST
            });
            return Poll::Ready(Ok(taken));
        }
        let patience = this.patience;
        let wait = this.wait.get_or_insert_with(|| Wait { ends: Box::pin(sleep(patience)), taken: 0 });
        ready!(wait.ends.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly")))
    }

    /// The HTTP library flushes once its buffer is empty.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.wait = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Writes answers of `sizes` to a client that reads `per_second` bytes a second.
    async fn written(sizes: &[usize], per_second: usize) -> io::Result<()> {
        let (server, mut client) = duplex(4 << 10);
        let mut server = Paced::new(server, PATIENCE);
        let reader = tokio::spawn(async move {
            let mut second = vec![0; per_second];
            while client.read_exact(&mut second).await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        });
        for size in sizes {
            server.write_all(&vec![0; *size]).await?;
            server.flush().await?;
        }
        drop(server);
        reader.await.unwrap();
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_must_read_at_a_least_rate() {
        written(&[1 << 20], 3 << 10).await.expect("90 KiB in 30 s are enough");
        let error = written(&[1 << 20], 2 << 10).await.expect_err("60 KiB in 30 s are too few");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_may_read_what_is_left_slowly() {
        written(&[30 << 10], 1 << 10).await.expect("all there is");
        written(&[20 << 10; 50], 1 << 10).await.expect("all of each of fifty answers");
    }
}
