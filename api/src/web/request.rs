//! A request, and what a handler can take from it.

use std::str::FromStr;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use http::{HeaderMap, Method};
use schemas::id::{EndpointId, ImportId, KeyId, LinkId, SessionId, UserId};
use serde::de::DeserializeOwned;
use service::http::{ApiError, BODY_LIMIT, check_no_query, parse_query, read_json};
use uuid::Uuid;

use crate::app::App;
use crate::web::limits::Visit;

/// A request for an operation.
pub(crate) struct Request {
    pub(crate) app: App,
    pub(crate) head: Head,
    pub(crate) credentials: Credentials,
    /// The query string, without its question mark, until an argument takes it.
    pub(crate) query: String,
    /// What stands in the path for each name in braces.
    pub(crate) parameters: Vec<(&'static str, String)>,
    pub(crate) body: Body,
}

/// The method and headers of a request, and the budget it counts for.
#[derive(Clone)]
pub(crate) struct Head {
    /// The operation's method: `GET` also for `HEAD`.
    pub(crate) method: Method,
    /// Whether the answer is sent without its body.
    pub(crate) is_head: bool,
    pub(crate) headers: HeaderMap,
    pub(crate) visit: Visit,
}

/// What identifies the caller of an operation; the place where the operation is mounted decides.
#[derive(Debug, Clone)]
pub(crate) enum Credentials {
    /// An API key, which belongs to a workspace.
    Key,
    /// The session of a member.
    Session,
    /// The session of a member whose account owns the workspace with this id. The text may be no id at all.
    SessionIn(String),
}

/// The bytes of a body as they arrive.
pub(crate) type Body = BoxStream<'static, Result<Bytes, warp::Error>>;

/// An argument of a handler.
pub(crate) trait Argument: Sized + Send + 'static {
    /// Takes the argument from a request. Arguments are taken in the order of the handler's signature.
    ///
    /// # Errors
    /// The answer to a request that does not have it.
    fn take(request: &mut Request) -> impl Future<Output = Result<Self, ApiError>> + Send;
}

/// A JSON object in the body.
pub(crate) struct Json<T>(pub(crate) T);

/// The query string.
pub(crate) struct Query<T>(pub(crate) T);

/// The last parameter of the path, as text.
pub(crate) struct Segment(pub(crate) String);

impl<T: DeserializeOwned + Send + 'static> Argument for Json<T> {
    async fn take(request: &mut Request) -> Result<Self, ApiError> {
        read_json(&request.head.headers, &mut request.body, BODY_LIMIT).await.map(Self)
    }
}

impl<T: DeserializeOwned + Send + 'static> Argument for Query<T> {
    async fn take(request: &mut Request) -> Result<Self, ApiError> {
        parse_query(&std::mem::take(&mut request.query)).map(Self)
    }
}

impl Argument for Segment {
    async fn take(request: &mut Request) -> Result<Self, ApiError> {
        Ok(Self(request.parameters.pop().map(|(_, text)| text).unwrap_or_default()))
    }
}

impl Argument for App {
    async fn take(request: &mut Request) -> Result<Self, ApiError> {
        Ok(request.app.clone())
    }
}

impl Argument for Head {
    async fn take(request: &mut Request) -> Result<Self, ApiError> {
        Ok(request.head.clone())
    }
}

/// Reads the ids of each type from the path parameter of the given name.
macro_rules! path_ids {
    ($($id:ty: $name:literal,)+) => {
        $(
            impl Argument for $id {
                async fn take(request: &mut Request) -> Result<Self, ApiError> {
                    request.id($name)
                }
            }
        )+
    };
}

path_ids! {
    LinkId: "id",
    EndpointId: "id",
    ImportId: "id",
    KeyId: "id",
    SessionId: "id",
    UserId: "id",
    Uuid: "delivery_id",
}

/// The link of an operation that is there for one link and for the whole workspace.
impl Argument for Option<LinkId> {
    async fn take(request: &mut Request) -> Result<Self, ApiError> {
        if request.parameter("id").is_none() { Ok(None) } else { request.id("id").map(Some) }
    }
}

impl Request {
    /// Checks that no query is left that no argument has taken.
    ///
    /// # Errors
    /// 400 that names a parameter.
    pub(crate) fn check_rest(&self) -> Result<(), ApiError> {
        check_no_query(&self.query)
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(known, _)| *known == name).map(|(_, text)| text.as_str())
    }

    /// Parses an id. An invalid one is answered like one that belongs to somebody else.
    fn id<I: FromStr>(&self, name: &str) -> Result<I, ApiError> {
        let id = self.parameter(name).and_then(|text| text.parse().ok());
        id.ok_or_else(|| ApiError::not_found("There is nothing with this id in this workspace."))
    }
}
