//! Waits for a condition instead of a time.

use std::time::{Duration, Instant};

/// Repeats `condition` until it returns a value, and panics with `what` after the deadline.
///
/// `condition` returns `Err` with what it observed; the last one is in the panic's message.
pub async fn eventually<T, E, F>(what: &str, deadline: Duration, mut condition: F) -> T
where
    F: AsyncFnMut() -> Result<T, E>,
    E: std::fmt::Debug,
{
    let start = Instant::now();
    let mut pause = Duration::from_millis(5);
    loop {
        match condition().await {
            Ok(value) => return value,
            Err(seen) if start.elapsed() >= deadline => {
                panic!("{what}: not within {deadline:?}; last seen: {seen:?}")
            }
            Err(_) => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}
