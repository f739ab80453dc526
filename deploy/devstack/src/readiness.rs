//! Waiting for a condition.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::{Cause, Error};

/// The first pause between two checks; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// The longest pause between two checks.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Repeats a check until it succeeds, and returns its result.
///
/// # Errors
/// [`Error::NotReady`] with the last error when `deadline` has passed, even during a check.
pub async fn until<T, C, F>(what: &str, deadline: Duration, mut check: C) -> Result<T, Error>
where
    C: FnMut() -> F,
    F: Future<Output = Result<T, Cause>>,
{
    let end = Instant::now() + deadline;
    let mut pause = FIRST_PAUSE;
    let mut last = None;
    loop {
        match timeout_at(end, check()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(cause)) => last = Some(cause),
            // The error of the check before says more than the timeout.
            Err(_) if last.is_none() => last = Some("no answer".into()),
            Err(_) => {}
        }
        if Instant::now() + pause >= end {
            return Err(Error::NotReady { what: what.to_owned(), waited: deadline, last });
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::error::Error as _;

    use super::*;

    #[tokio::test]
    async fn the_wait_ends_when_the_check_succeeds() {
        let checks = Cell::new(0);
        let found = until("the third check", Duration::from_secs(60), || async {
            checks.set(checks.get() + 1);
            if checks.get() == 3 { Ok(checks.get()) } else { Err("not yet".into()) }
        })
        .await;
        assert_eq!(found.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_missed_deadline_reports_the_last_error() {
        let waited =
            until("a door", Duration::from_millis(20), || async { Err::<(), Cause>("it is locked".into()) })
                .await;
        let error = waited.unwrap_err();
        assert_eq!(error.source().unwrap().to_string(), "it is locked");
        assert!(error.to_string().starts_with("a door was not ready"));
    }

    #[tokio::test]
    async fn a_hanging_check_ends_at_the_deadline() {
        let waited =
            until("a void", Duration::from_millis(20), std::future::pending::<Result<(), Cause>>).await;
        assert_eq!(waited.unwrap_err().source().unwrap().to_string(), "no answer");
    }
}
