//! Error codes.

use http::StatusCode;

macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $status:ident $text:literal,)+) => {
        /// The machine-readable code of an error; each code has one status.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[$doc])* $code,)+
        }

        impl Code {
            /// Returns the status of the code.
            #[must_use]
            pub fn status(self) -> StatusCode {
                match self {
                    $(Self::$code => StatusCode::$status,)+
                }
            }

            /// Returns the code as in responses.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$code => $text,)+
                }
            }
        }
    };
}

codes! {
    /// The request cannot be understood.
    BadRequest = BAD_REQUEST "BAD_REQUEST",
    /// A date in the request is not valid.
    InvalidDate = BAD_REQUEST "INVALID_DATE",
    /// A page size is out of range.
    InvalidLimit = BAD_REQUEST "INVALID_LIMIT",
    /// No valid credentials.
    Unauthorized = UNAUTHORIZED "UNAUTHORIZED",
    /// The password is right, and a code of the second factor is missing.
    TwoFactorRequired = UNAUTHORIZED "TWO_FACTOR_REQUIRED",
    /// The caller is authenticated but not allowed to do this.
    Forbidden = FORBIDDEN "FORBIDDEN",
    /// The key may only read.
    ReadOnlyKey = FORBIDDEN "READ_ONLY_KEY",
    /// The plan does not include the feature.
    PlanRequired = FORBIDDEN "PLAN_REQUIRED",
    /// The plan's limit is reached.
    PlanLimit = FORBIDDEN "PLAN_LIMIT",
    /// An operator disabled the link.
    LinkBlocked = FORBIDDEN "LINK_BLOCKED",
    /// An operator suspended the account.
    AccountSuspended = FORBIDDEN "ACCOUNT_SUSPENDED",
    /// The link is locked.
    LinkLocked = FORBIDDEN "LINK_LOCKED",
    /// The resource does not exist, or the caller must not know that it does.
    NotFound = NOT_FOUND "NOT_FOUND",
    /// Another link has the slug.
    SlugTaken = CONFLICT "SLUG_TAKEN",
    /// Another link has the external id.
    ExternalIdTaken = CONFLICT "EXTERNAL_ID_TAKEN",
    /// Another member has the email address.
    EmailTaken = CONFLICT "EMAIL_TAKEN",
    /// The idempotency key was used for a different request.
    IdempotencyConflict = CONFLICT "IDEMPOTENCY_CONFLICT",
    /// The click already has a conversion.
    ConversionExists = CONFLICT "CONVERSION_EXISTS",
    /// The body is too large.
    PayloadTooLarge = PAYLOAD_TOO_LARGE "PAYLOAD_TOO_LARGE",
    /// The endpoint does not accept the body's content type.
    UnsupportedMediaType = UNSUPPORTED_MEDIA_TYPE "UNSUPPORTED_MEDIA_TYPE",
    /// The body is encoded, for example compressed.
    UnsupportedEncoding = UNSUPPORTED_MEDIA_TYPE "UNSUPPORTED_ENCODING",
    /// The resource has changed since the caller read it.
    PreconditionFailed = PRECONDITION_FAILED "PRECONDITION_FAILED",
    /// The path and query are too long.
    UriTooLong = URI_TOO_LONG "URI_TOO_LONG",
    /// The request's head is too large.
    HeadersTooLarge = REQUEST_HEADER_FIELDS_TOO_LARGE "HEADERS_TOO_LARGE",
    /// The path does not support the method.
    MethodNotAllowed = METHOD_NOT_ALLOWED "METHOD_NOT_ALLOWED",
    /// The caller sends too many requests.
    RateLimited = TOO_MANY_REQUESTS "RATE_LIMITED",
    /// A dependency is temporarily down.
    Unavailable = SERVICE_UNAVAILABLE "UNAVAILABLE",
    /// An internal error.
    Internal = INTERNAL_SERVER_ERROR "INTERNAL",
}
