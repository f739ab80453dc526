//! Retries without limit, with a bounded rate of attempts and log lines.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use service::LogLimit;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The partition was revoked, or the process stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped")]
pub struct Stopped;

/// Pauses that grow with each failure, and rate-limited log lines.
#[derive(Debug)]
pub struct Backoff {
    /// The attempted action, to follow "cannot".
    what: &'static str,
    partition: i32,
    pause: Duration,
    attempts: u64,
    log_limit: LogLimit,
}

impl Backoff {
    /// Starts with the shortest pause; `what` completes the sentence "cannot ...".
    pub fn new(what: &'static str, partition: i32) -> Self {
        Self { what, partition, pause: FIRST_PAUSE, attempts: 0, log_limit: LogLimit::default() }
    }

    /// Logs the error, unless one was logged recently, and waits.
    ///
    /// # Errors
    /// [`Stopped`] when `stop` is cancelled meanwhile.
    pub async fn failed(
        &mut self,
        error: &(dyn Error + Send + Sync),
        stop: &CancellationToken,
    ) -> Result<(), Stopped> {
        self.attempts += 1;
        if self.log_limit.is_due() {
            let Self { what, partition, attempts, .. } = *self;
            tracing::warn!(partition, attempts, "cannot {what}, retrying: {error}");
        }
        let time = self.pause;
        self.pause = (time * 2).min(LONGEST_PAUSE);
        pause(time, stop).await
    }
}

/// Waits for some time.
///
/// # Errors
/// [`Stopped`] when `stop` is cancelled meanwhile.
pub async fn pause(time: Duration, stop: &CancellationToken) -> Result<(), Stopped> {
    tokio::select! {
        biased;
        () = stop.cancelled() => Err(Stopped),
        () = sleep(time) => Ok(()),
    }
}

/// Retries until the attempt succeeds.
///
/// # Errors
/// [`Stopped`] when `stop` is cancelled first.
pub async fn until_done<T, E, F>(
    what: &'static str,
    partition: i32,
    stop: &CancellationToken,
    mut attempt: impl FnMut() -> F,
) -> Result<T, Stopped>
where
    E: Error + Send + Sync + 'static,
    F: Future<Output = Result<T, E>>,
{
    let mut backoff = Backoff::new(what, partition);
    loop {
        let outcome = tokio::select! {
            biased;
            () = stop.cancelled() => return Err(Stopped),
            outcome = attempt() => outcome,
        };
        match outcome {
            Ok(value) => return Ok(value),
            Err(error) => backoff.failed(&error, stop).await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_attempt_is_repeated_until_it_succeeds() {
        let mut left = 20;
        let stop = CancellationToken::new();
        let outcome = until_done("count down", 0, &stop, || {
            left -= 1;
            let done = left == 0;
            async move { if done { Ok("done") } else { Err(std::fmt::Error) } }
        })
        .await;
        assert_eq!(outcome, Ok("done"));
        assert_eq!(left, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_the_attempt_and_the_pause() {
        let stop = CancellationToken::new();
        stop.cancel();
        let endless = until_done("wait", 0, &stop, std::future::pending::<Result<(), std::fmt::Error>>).await;
        assert_eq!(endless, Err(Stopped));
        let paused = Backoff::new("wait", 0).failed(&std::fmt::Error, &stop).await;
        assert_eq!(paused, Err(Stopped));
    }
}
