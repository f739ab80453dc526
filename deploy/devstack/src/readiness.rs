//! Waiting on a condition instead of on a clock.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::{Cause, Error};

/// The first pause between two looks; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// The longest pause between two looks, so that readiness is noticed soon.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Looks at a condition until it holds, and returns what the look found.
///
/// # Errors
/// [`Error::NotReady`] with the last look's error when `deadline` has passed. A look that hangs is cut off then, too.
pub async fn until<T, L, F>(what: &str, deadline: Duration, mut look: L) -> Result<T, Error>
where
    L: FnMut() -> F,
    F: Future<Output = Result<T, Cause>>,
{
    let end = Instant::now() + deadline;
    let mut pause = FIRST_PAUSE;
    let mut last = None;
    loop {
        match timeout_at(end, look()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(cause)) => last = Some(cause),
            // A look that was cut off says less than the answer before it.
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
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::cell::Cell;
    use std::error::Error as _;

    use super::*;

    #[tokio::test]
    async fn a_condition_that_comes_to_hold_ends_the_wait() {
        let looks = Cell::new(0);
        let found = until("the third look", Duration::from_secs(60), || async {
            looks.set(looks.get() + 1);
            if looks.get() == 3 { Ok(looks.get()) } else { Err("not yet".into()) }
        })
        .await;
        assert_eq!(found.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_missed_deadline_names_the_last_reason() {
        let waited =
            until("a door", Duration::from_millis(20), || async { Err::<(), Cause>("it is locked".into()) })
                .await;
        let error = waited.unwrap_err();
        assert_eq!(error.source().unwrap().to_string(), "it is locked");
        assert!(error.to_string().starts_with("a door was not ready"));
    }

    #[tokio::test]
    async fn a_look_that_hangs_is_cut_off_at_the_deadline() {
        let waited =
            until("a void", Duration::from_millis(20), std::future::pending::<Result<(), Cause>>).await;
        assert_eq!(waited.unwrap_err().source().unwrap().to_string(), "no answer");
    }
}
