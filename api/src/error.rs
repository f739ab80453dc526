//! What a failed dependency means to a caller.

use service::http::ApiError;

/// An error of Postgres that no operation expected: unreachable is 503, anything else our own fault.
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

/// Whether what a code of Postgres stands for is over when the caller asks again.
fn passes(code: &str) -> bool {
    // 57P01-57P03: the server is stopping, crashed, or starting. 08: the connection. 53300: too many connections.
    // 55P03 and 57014: a lock or the statement took too long. DEADLOCK: another transaction went on.
    code.starts_with("57P") || code.starts_with("08") || ["53300", "55P03", "57014", DEADLOCK].contains(&code)
}

/// Postgres' code for a transaction that it ended because it and another one waited for each other.
const DEADLOCK: &str = "40P01";

/// How often a transaction is tried that keeps meeting others crosswise.
const ATTEMPTS: usize = 5;

/// Runs a transaction, again when Postgres ended it to let another one go on: then it has changed nothing.
pub(crate) async fn despite_deadlocks<T, F>(transaction: impl Fn() -> F) -> Result<T, ApiError>
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

/// Whether an error says that the named unique constraint or index refused a row.
pub(crate) fn violates(error: &sqlx::Error, constraint: &str) -> bool {
    error.as_database_error().and_then(|cause| cause.constraint()) == Some(constraint)
}
