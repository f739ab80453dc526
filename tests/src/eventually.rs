//! Waits for a condition instead of a time.

use std::fmt::Debug;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// How long a test waits for a condition, also on a busy machine. Only a test that fails waits this long; the
/// runner kills tests after twice that.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// How long one answer of an engine may take on a busy machine. A request to Kafka blocks its thread, so that
/// [`eventually`] cannot interrupt it.
pub const ANSWER: Duration = Duration::from_secs(30);

/// Repeats `condition` until it returns a value.
///
/// `condition` returns `Err` with what it observed; the last one is in the panic's message.
///
/// # Panics
/// With `what`, after [`PATIENCE`], even while `condition` waits for an answer, unless it blocks the thread.
pub async fn eventually<T, E: Debug>(what: &str, condition: impl AsyncFnMut() -> Result<T, E>) -> T {
    eventually_within(what, PATIENCE, condition).await
}

/// [`eventually`] with another deadline, for a condition that takes longer or is promised within a time.
///
/// # Panics
/// As [`eventually`].
pub async fn eventually_within<T, E: Debug>(
    what: &str,
    deadline: Duration,
    mut condition: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let end = Instant::now() + deadline;
    let (mut pause, mut last) = (Duration::from_millis(5), None);
    loop {
        match timeout_at(end, condition()).await {
            Ok(Ok(value)) => return value,
            Ok(Err(seen)) => last = Some(seen),
            Err(_) => panic!("{what}: no answer until {deadline:?} had passed; last seen: {last:?}"),
        }
        assert!(Instant::now() + pause < end, "{what}: not within {deadline:?}; last seen: {last:?}");
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}
