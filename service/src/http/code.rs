//! Error codes.

use http::StatusCode;

/// The machine-readable code of an error; each code has one status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The request cannot be understood.
    BadRequest,
    /// A date in the request is not valid.
    InvalidDate,
    /// A page size is out of range.
    InvalidLimit,
    /// No valid credentials.
    Unauthorized,
    /// The caller is authenticated but not allowed to do this.
    Forbidden,
    /// The key may only read.
    ReadOnlyKey,
    /// The plan does not include the feature.
    PlanRequired,
    /// The plan's limit is reached.
    PlanLimit,
    /// The link is locked.
    LinkLocked,
    /// The resource does not exist, or the caller must not know that it does.
    NotFound,
    /// Another link has the slug.
    SlugTaken,
    /// Another link has the external id.
    ExternalIdTaken,
    /// Another member has the email address.
    EmailTaken,
    /// The idempotency key was used for a different request.
    IdempotencyConflict,
    /// The click already has a conversion.
    ConversionExists,
    /// The body is too large.
    PayloadTooLarge,
    /// The endpoint does not accept the body's content type.
    UnsupportedMediaType,
    /// The path does not support the method.
    MethodNotAllowed,
    /// The caller sends too many requests.
    RateLimited,
    /// A dependency is temporarily down.
    Unavailable,
    /// An internal error.
    Internal,
}

impl Code {
    /// Returns the status of the code.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::BadRequest | Self::InvalidDate | Self::InvalidLimit => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden | Self::ReadOnlyKey | Self::PlanRequired | Self::PlanLimit | Self::LinkLocked => {
                StatusCode::FORBIDDEN
            }
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::SlugTaken
            | Self::ExternalIdTaken
            | Self::EmailTaken
            | Self::IdempotencyConflict
            | Self::ConversionExists => StatusCode::CONFLICT,
            Self::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::RateLimited => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns the code as in responses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "BAD_REQUEST",
            Self::InvalidDate => "INVALID_DATE",
            Self::InvalidLimit => "INVALID_LIMIT",
            Self::Unauthorized => "UNAUTHORIZED",
            Self::Forbidden => "FORBIDDEN",
            Self::ReadOnlyKey => "READ_ONLY_KEY",
            Self::PlanRequired => "PLAN_REQUIRED",
            Self::PlanLimit => "PLAN_LIMIT",
            Self::LinkLocked => "LINK_LOCKED",
            Self::NotFound => "NOT_FOUND",
            Self::SlugTaken => "SLUG_TAKEN",
            Self::ExternalIdTaken => "EXTERNAL_ID_TAKEN",
            Self::EmailTaken => "EMAIL_TAKEN",
            Self::IdempotencyConflict => "IDEMPOTENCY_CONFLICT",
            Self::ConversionExists => "CONVERSION_EXISTS",
            Self::PayloadTooLarge => "PAYLOAD_TOO_LARGE",
            Self::UnsupportedMediaType => "UNSUPPORTED_MEDIA_TYPE",
            Self::MethodNotAllowed => "METHOD_NOT_ALLOWED",
            Self::RateLimited => "RATE_LIMITED",
            Self::Unavailable => "UNAVAILABLE",
            Self::Internal => "INTERNAL",
        }
    }
}
