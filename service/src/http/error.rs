//! The one shape in which every endpoint says no.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use warp::reject::{
    InvalidHeader, InvalidQuery, LengthRequired, MethodNotAllowed, MissingHeader, PayloadTooLarge, Reject,
    UnsupportedMediaType,
};
use warp::reply::Response;
use warp::{Rejection, Reply};

use super::route::json;

/// What went wrong, for programs; the list is closed and each code has one status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The request cannot be understood.
    BadRequest,
    /// A date of the request cannot be read.
    InvalidDate,
    /// A page size is out of range.
    InvalidLimit,
    /// No valid credentials.
    Unauthorized,
    /// The caller is known, and may not do this.
    Forbidden,
    /// The key may only read.
    ReadOnlyKey,
    /// The plan lacks the feature.
    PlanRequired,
    /// The plan's cap is reached.
    PlanLimit,
    /// The link is locked.
    LinkLocked,
    /// Nothing is here, or nothing the caller may know of.
    NotFound,
    /// Another link has the slug.
    SlugTaken,
    /// Another link has the external id.
    ExternalIdTaken,
    /// Another member has the email address.
    EmailTaken,
    /// The idempotency key was used for another request.
    IdempotencyConflict,
    /// The click has converted before.
    ConversionExists,
    /// The body is too large.
    PayloadTooLarge,
    /// The body is of a type that the endpoint does not read.
    UnsupportedMediaType,
    /// The path exists, the method on it does not.
    MethodNotAllowed,
    /// The caller asks too often.
    RateLimited,
    /// Something that the answer needs is down for now.
    Unavailable,
    /// A fault of ours.
    Internal,
}

impl Code {
    /// Returns the status that goes with the code.
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

    /// Returns the code as it is written in an answer.
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

/// What is wrong with one field of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// The path of the field, such as `tags[2]`.
    pub field: String,
    /// What is wrong with it, as a sentence that names it: "Tags must be a list."
    pub message: String,
}

/// An answer that says no: a code and a message for the caller, and the cause for the log alone.
#[derive(Debug, Clone)]
pub struct ApiError {
    code: Code,
    message: String,
    details: Vec<FieldError>,
    retry_after: Option<Duration>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// How long a caller should wait when nothing better is known.
const RETRY_SOON: Duration = Duration::from_secs(1);

impl ApiError {
    /// Makes an error whose message the caller may read.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Vec::new(), retry_after: None, source: None }
    }

    /// Makes a [`Code::BadRequest`] about one field. `fault` is a predicate such as "must be true or false".
    pub fn invalid_field(field: impl Into<String>, fault: impl Into<String>) -> Self {
        Self::invalid_fields(Code::BadRequest, [(field.into(), fault.into())])
    }

    /// Makes an error of status 400 about fields, with what is wrong with each: a predicate such as "must be true or
    /// false", which becomes a sentence.
    pub fn invalid_fields(code: Code, faults: impl IntoIterator<Item = (String, String)>) -> Self {
        let detail = |(field, fault): (String, String)| {
            let message = sentence(&format!("{} {fault}", spoken(&field)));
            FieldError { field, message }
        };
        let details: Vec<FieldError> = faults.into_iter().map(detail).collect();
        let message = match details.as_slice() {
            [only] => only.message.clone(),
            more => {
                let names: Vec<&str> = more.iter().map(|detail| detail.field.as_str()).collect();
                format!("Invalid fields: {}.", names.join(", "))
            }
        };
        Self { details, ..Self::new(code, message) }
    }

    /// Makes a [`Code::Internal`], whose cause is logged and never shown.
    pub fn internal(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(
            Code::Internal,
            "Something went wrong on our side. To report it, include the X-Request-Id header.",
        )
        .with_source(source)
    }

    /// Makes a [`Code::Unavailable`] that asks to try again, whose cause is logged and never shown.
    pub fn unavailable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(Code::Unavailable, "Temporarily unavailable. Try again in a moment.")
            .with_retry_after(RETRY_SOON)
            .with_source(source)
    }

    /// Adds a `Retry-After` header, rounded up to whole seconds, at least one.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Keeps the cause, for the log alone.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// Returns what went wrong.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.code.status()
    }

    /// Returns the message for the caller.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the body of the answer, for places that put it inside another answer.
    #[must_use]
    pub fn body(&self) -> serde_json::Value {
        let body = Body {
            status_code: self.status().as_u16(),
            code: self.code.as_str(),
            message: &self.message,
            details: if self.status() == StatusCode::BAD_REQUEST { &self.details } else { &[] },
        };
        // Strings and numbers always become JSON.
        serde_json::to_value(body).unwrap_or_default()
    }
}

/// A field's name as words: `link_id` is "link ID".
fn spoken(field: &str) -> String {
    let word = |word: &str| match word {
        "id" | "ip" | "url" => word.to_uppercase(),
        "ids" => "IDs".to_owned(),
        _ => word.to_owned(),
    };
    field.split('_').map(word).collect::<Vec<_>>().join(" ")
}

/// Begins with a capital letter and ends with a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).chain(['.']).collect()
}

/// Gives each code that a caller may be told about a constructor of its name.
macro_rules! constructors {
    ($($name:ident => $code:ident,)+) => {
        impl ApiError {
            $(
                #[doc = concat!("Makes a [`Code::", stringify!($code), "`] with a message for the caller.")]
                pub fn $name(message: impl Into<String>) -> Self {
                    Self::new(Code::$code, message)
                }
            )+
        }
    };
}

constructors! {
    bad_request => BadRequest,
    invalid_date => InvalidDate,
    invalid_limit => InvalidLimit,
    unauthorized => Unauthorized,
    forbidden => Forbidden,
    read_only_key => ReadOnlyKey,
    plan_required => PlanRequired,
    plan_limit => PlanLimit,
    link_locked => LinkLocked,
    not_found => NotFound,
    slug_taken => SlugTaken,
    external_id_taken => ExternalIdTaken,
    email_taken => EmailTaken,
    idempotency_conflict => IdempotencyConflict,
    conversion_exists => ConversionExists,
    payload_too_large => PayloadTooLarge,
    unsupported_media_type => UnsupportedMediaType,
    method_not_allowed => MethodNotAllowed,
    rate_limited => RateLimited,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    status_code: u16,
    code: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "<[FieldError]>::is_empty")]
    details: &'a [FieldError],
}

impl fmt::Display for ApiError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.code.as_str(), self.message)
    }
}

impl Error for ApiError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

impl Reject for ApiError {}

impl Reply for ApiError {
    fn into_response(self) -> Response {
        let mut response = json(self.status(), &self.body());
        if let Some(wait) = self.retry_after {
            let seconds = (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        // The server logs it, once, where the request id is known.
        response.extensions_mut().insert(Refused(self));
        response
    }
}

/// The error behind an answer, on its way to the log.
#[derive(Debug, Clone)]
pub(super) struct Refused(pub(super) ApiError);

/// Writes an error and its causes on one line.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(": ");
        line.push_str(&error.to_string());
        cause = error.source();
    }
    line
}

/// Turns any rejection into the house's answer.
///
/// [`serve`](super::serve) applies it to everything; a service applies it itself only where further wrapping, such
/// as CORS or rate-limit headers, must see the final answer.
///
/// # Errors
/// Never; the type is what warp's `recover` wants.
pub async fn recover(rejection: Rejection) -> Result<Response, std::convert::Infallible> {
    Ok(error_of(&rejection).into_response())
}

/// Decides what a rejection means: what a route said outweighs that others did not match.
fn error_of(rejection: &Rejection) -> ApiError {
    if let Some(error) = rejection.find::<ApiError>() {
        return error.clone();
    }
    if rejection.find::<PayloadTooLarge>().is_some() {
        return ApiError::payload_too_large("The body is too large.");
    }
    if rejection.find::<UnsupportedMediaType>().is_some() {
        return ApiError::unsupported_media_type("The body's content type is not supported.");
    }
    if rejection.find::<InvalidQuery>().is_some() {
        return ApiError::bad_request("The query string is not valid.");
    }
    if let Some(header) = rejection.find::<MissingHeader>() {
        return ApiError::bad_request(format!("The header {} is missing.", header.name()));
    }
    if let Some(header) = rejection.find::<InvalidHeader>() {
        return ApiError::bad_request(format!("The header {} is not valid.", header.name()));
    }
    if rejection.find::<LengthRequired>().is_some() {
        return ApiError::bad_request("The header content-length is missing.");
    }
    if rejection.find::<warp::cors::CorsForbidden>().is_some() {
        return ApiError::bad_request("This cross-origin request is not allowed.");
    }
    if rejection.find::<MethodNotAllowed>().is_some() {
        return ApiError::method_not_allowed("This method is not allowed here.");
    }
    if rejection.is_not_found() {
        return ApiError::not_found("There is nothing at this path.");
    }
    ApiError::internal(format!("unexpected rejection: {rejection:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_has_the_specified_shape() {
        assert_eq!(
            ApiError::new(Code::LinkLocked, "The link is locked.").body(),
            serde_json::json!({"statusCode": 403, "code": "LINK_LOCKED", "message": "The link is locked."})
        );
        assert_eq!(
            ApiError::invalid_field("external_id", "is required").body(),
            serde_json::json!({
                "statusCode": 400, "code": "BAD_REQUEST", "message": "External ID is required.",
                "details": [{"field": "external_id", "message": "External ID is required."}],
            })
        );
        let faults = [("name", "is required"), ("tags[1]", "must be a string")];
        let faults = faults.map(|(field, fault)| (field.to_owned(), fault.to_owned()));
        assert_eq!(
            ApiError::invalid_fields(Code::BadRequest, faults).body(),
            serde_json::json!({
                "statusCode": 400, "code": "BAD_REQUEST", "message": "Invalid fields: name, tags[1].",
                "details": [
                    {"field": "name", "message": "Name is required."},
                    {"field": "tags[1]", "message": "Tags[1] must be a string."},
                ],
            })
        );
    }

    #[test]
    fn a_cause_is_for_the_log_alone() {
        let error = ApiError::internal("password=hunter2");
        assert!(chain(&error).ends_with(": password=hunter2"));
        assert!(!error.body().to_string().contains("hunter2"));
    }

    #[test]
    fn retry_after_is_whole_seconds_and_never_zero() {
        for (wait, expected) in [(0, "1"), (1, "1"), (1_000, "1"), (1_001, "2"), (59_900, "60")] {
            let error =
                ApiError::new(Code::RateLimited, "slow down").with_retry_after(Duration::from_millis(wait));
            assert_eq!(error.into_response().headers()[RETRY_AFTER], expected, "{wait} ms");
        }
        assert_eq!(ApiError::unavailable("down").into_response().headers()[RETRY_AFTER], "1");
    }
}
