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
        // 57P01-57P03: the server is stopping, crashed, or starting. 53300: too many connections.
        sqlx::Error::Database(ref cause)
            if cause
                .code()
                .is_some_and(|code| code.starts_with("57P") || code == "53300" || code.starts_with("08")) =>
        {
            ApiError::unavailable(error)
        }
        error => ApiError::internal(error),
    }
}

/// Whether an error says that the named unique constraint or index refused a row.
pub(crate) fn violates(error: &sqlx::Error, constraint: &str) -> bool {
    error.as_database_error().and_then(|cause| cause.constraint()) == Some(constraint)
}
