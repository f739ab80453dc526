//! The error response of all endpoints.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT_ENCODING, ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use warp::reject::{
    InvalidHeader, InvalidQuery, LengthRequired, MissingHeader, PayloadTooLarge, Reject, UnsupportedMediaType,
};
use warp::reply::Response;
use warp::{Rejection, Reply};

use super::Code;

/// The error of one field of a request.
#[derive(Debug, Clone, Serialize)]
struct FieldError {
    /// The path of the field, such as `tags[2]`.
    field: String,
    /// The problem as a sentence with the field's name: "Tags must be a list."
    message: String,
}

/// An error response: a code and a message for the caller, and a cause that is only logged.
#[derive(Debug, Clone)]
pub struct ApiError {
    code: Code,
    message: String,
    details: Vec<FieldError>,
    retry_after: Option<Duration>,
    allow: Option<Box<str>>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// `Retry-After` of [`Code::Unavailable`].
const UNAVAILABLE_RETRY_AFTER: Duration = Duration::from_secs(1);

impl ApiError {
    /// Returns an error with a message for the caller.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: Vec::new(),
            retry_after: None,
            allow: None,
            source: None,
        }
    }

    /// Returns a [`Code::BadRequest`] about one field. `fault` is a predicate such as "must be true or false".
    pub fn invalid_field(field: impl Into<String>, fault: impl Into<String>) -> Self {
        Self::invalid_fields(Code::BadRequest, [(field.into(), fault.into())])
    }

    /// Returns an error of status 400 about fields, each with a predicate such as "must be true or false".
    pub fn invalid_fields(code: Code, faults: impl IntoIterator<Item = (String, String)>) -> Self {
        let detail = |(field, fault): (String, String)| {
            let message = sentence(&format!("{} {fault}", words(&field)));
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

    /// Returns a [`Code::MethodNotAllowed`] for a path that has these methods, such as "GET, HEAD".
    #[must_use]
    pub fn method_not_allowed(methods: &str) -> Self {
        let error = Self::new(Code::MethodNotAllowed, "This method is not allowed here.");
        Self { allow: Some(methods.into()), ..error }
    }

    /// Returns a [`Code::Internal`], whose cause is logged but not shown to the caller.
    pub fn internal(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(
            Code::Internal,
            "An internal error occurred. To report it, include the X-Request-Id header.",
        )
        .with_source(source)
    }

    /// Returns a [`Code::Unavailable`] with `Retry-After`, whose cause is logged but not shown to the caller.
    pub fn unavailable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(Code::Unavailable, "Temporarily unavailable. Try again in a moment.")
            .with_retry_after(UNAVAILABLE_RETRY_AFTER)
            .with_source(source)
    }

    /// Adds a `Retry-After` header, rounded up to whole seconds, at least one.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Adds the cause, which is only logged.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// Returns the code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the status of the response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.code.status()
    }

    /// Returns the message for the caller.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns every problem as one text, for where there are no details: the message of many names only the fields.
    #[must_use]
    pub fn problems(&self) -> String {
        match self.details.as_slice() {
            [] | [_] => self.message.clone(),
            details => details.iter().map(|detail| detail.message.as_str()).collect::<Vec<_>>().join(" "),
        }
    }

    /// Returns the body of the response, for including it in another response.
    #[must_use]
    pub fn body(&self) -> serde_json::Value {
        let body = Body {
            status_code: self.status().as_u16(),
            code: self.code.as_str(),
            message: &self.message,
            details: if self.status() == StatusCode::BAD_REQUEST { &self.details } else { &[] },
        };
        // Never fails for strings and numbers.
        serde_json::to_value(body).unwrap_or_default()
    }
}

/// Returns a field's name as words: `link_id` is "link ID".
fn words(field: &str) -> String {
    let word = |word: &str| match word {
        "id" | "ip" | "url" => word.to_uppercase(),
        "ids" => "IDs".to_owned(),
        _ => word.to_owned(),
    };
    field.split('_').map(word).collect::<Vec<_>>().join(" ")
}

/// Adds an initial capital letter and a final full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).chain(['.']).collect()
}

/// Defines a constructor for each code that takes a message only.
macro_rules! constructors {
    ($($name:ident => $code:ident,)+) => {
        impl ApiError {
            $(
                #[doc = concat!("Returns a [`Code::", stringify!($code), "`] with a message for the caller.")]
                pub fn $name(message: impl Into<String>) -> Self {
                    Self::new(Code::$code, message)
                }
            )+
        }
    };
}

constructors! {
    bad_request => BadRequest,
    unauthorized => Unauthorized,
    two_factor_required => TwoFactorRequired,
    forbidden => Forbidden,
    read_only_key => ReadOnlyKey,
    plan_required => PlanRequired,
    plan_limit => PlanLimit,
    link_blocked => LinkBlocked,
    account_suspended => AccountSuspended,
    link_locked => LinkLocked,
    not_found => NotFound,
    slug_taken => SlugTaken,
    external_id_taken => ExternalIdTaken,
    email_taken => EmailTaken,
    idempotency_conflict => IdempotencyConflict,
    conversion_exists => ConversionExists,
    payload_too_large => PayloadTooLarge,
    unsupported_media_type => UnsupportedMediaType,
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
        let mut response = Response::new(self.body().to_string().into());
        *response.status_mut() = self.status();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let headers = response.headers_mut();
        if let Some(wait) = self.retry_after {
            let seconds = (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        // What RFC 9110 requires of these statuses: 15.5.2, 15.5.6, 15.5.16.
        if self.status() == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(Ok(methods)) = self.allow.as_deref().map(HeaderValue::from_str) {
            headers.insert(ALLOW, methods);
        }
        if self.code == Code::UnsupportedEncoding {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        // The server logs it, because it knows the request id.
        response.extensions_mut().insert(LoggedError(self));
        response
    }
}

/// The error of a response, in the extensions, for the server to log.
#[derive(Debug, Clone)]
pub(super) struct LoggedError(pub(super) ApiError);

/// Returns an error and its causes on one line.
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

/// Turns any rejection into the response of an [`ApiError`]; warp's `recover` requires the `Result`.
pub(super) async fn recover(rejection: Rejection) -> Result<Response, std::convert::Infallible> {
    Ok(error_of(&rejection).into_response())
}

/// Returns the error of a rejection; an error from a route takes precedence over routes that did not match.
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
    if rejection.is_not_found() {
        return ApiError::not_found("There is nothing at this path.");
    }
    ApiError::internal(format!("unexpected rejection: {rejection:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_bodies_have_the_specified_shape() {
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
        let invalid = ApiError::invalid_fields(Code::BadRequest, faults);
        assert_eq!(invalid.problems(), "Name is required. Tags[1] must be a string.");
        assert_eq!(
            invalid.body(),
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
    fn a_cause_is_logged_but_not_in_the_body() {
        let error = ApiError::internal("password=hunter2");
        assert!(chain(&error).ends_with(": password=hunter2"));
        assert!(!error.body().to_string().contains("hunter2"));
    }

    #[test]
    fn retry_after_is_at_least_one_whole_second() {
        for (wait, expected) in [(0, "1"), (1, "1"), (1_000, "1"), (1_001, "2"), (59_900, "60")] {
            let error =
                ApiError::new(Code::RateLimited, "slow down").with_retry_after(Duration::from_millis(wait));
            assert_eq!(error.into_response().headers()[RETRY_AFTER], expected, "{wait} ms");
        }
        assert_eq!(ApiError::unavailable("down").into_response().headers()[RETRY_AFTER], "1");
    }
}
