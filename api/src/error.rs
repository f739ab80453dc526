//! Errors of Postgres as answers.

use service::http::ApiError;

/// Converts an unexpected error of Postgres: 503 when it cannot be reached, otherwise 500.
pub(crate) fn database(error: sqlx::Error) -> ApiError {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => ApiError::unavailable(error),
        sqlx::Error::Database(ref cause) if cause.code().is_some_and(|code| passes(&code)) => {
            ApiError::unavailable(error)
        }
        error => ApiError::internal(error),
    }
}

/// Returns whether a repeated request may succeed after this error code.
fn passes(code: &str) -> bool {
    // 57P01-57P03: the server is stopping, crashed, or starting. 08: the connection. 53300: too many connections.
    // 55P03 and 57014: a lock or the statement took too long. DEADLOCK: another transaction went on.
    code.starts_with("57P") || code.starts_with("08") || ["53300", "55P03", "57014", DEADLOCK].contains(&code)
}

/// Postgres' code for a deadlock.
const DEADLOCK: &str = "40P01";

/// Attempts of a transaction that deadlocks.
const ATTEMPTS: usize = 5;

/// Runs a transaction, and again after a deadlock, which has changed nothing.
pub(crate) async fn retry_deadlocks<T, F>(transaction: impl Fn() -> F) -> Result<T, ApiError>
where
    F: Future<Output = Result<T, ApiError>>,
{
    for _ in 1..ATTEMPTS {
        match transaction().await {
            Err(error) if is_deadlock(&error) => {}
            settled => return settled,
        }
    }
    transaction().await
}

fn is_deadlock(error: &ApiError) -> bool {
    std::error::Error::source(error)
        .and_then(|cause| cause.downcast_ref::<sqlx::Error>())
        .and_then(sqlx::Error::as_database_error)
        .is_some_and(|cause| cause.code().as_deref() == Some(DEADLOCK))
}

/// Returns whether a row violates the named unique constraint or index.
pub(crate) fn violates(error: &sqlx::Error, constraint: &str) -> bool {
    error.as_database_error().and_then(|cause| cause.constraint()) == Some(constraint)
}
