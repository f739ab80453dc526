//! Operations: the rows of the route table.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{Method, StatusCode};
use metrics::{Counter, counter};
use serde::Serialize;
use service::http::{ApiError, json};
use warp::reply::{Reply as _, Response};

use super::request::{Argument, Request};

/// A method on a path, who may call it, and its handler.
pub(crate) struct Operation {
    pub(crate) method: Method,
    /// The path below the place where it is mounted; a name in braces stands for one segment.
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    /// The status of a success.
    pub(crate) status: StatusCode,
    run: Box<dyn Fn(Request, StatusCode) -> BoxFuture<'static, Response> + Send + Sync>,
}

/// The first digits of statuses, and their metric labels.
const CLASSES: [(u16, &str); 4] = [(2, "2xx"), (3, "3xx"), (4, "4xx"), (5, "5xx")];

/// Who may call an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anyone, within the limit of the client's address.
    Anyone,
    /// A key of the workspace, or a member of its account.
    Caller,
    /// A key with write scope on a plan with write access, or a member.
    Editor,
    /// A key with write scope, or an owner or editor, on a plan with write access.
    Writer,
    /// A member who is signed in.
    Member,
    /// A member who may change members and workspaces.
    Owner,
}

/// The first argument of a handler: the party that may call it.
pub(crate) trait Principal: Sized + Send + 'static {
    const ACCESS: Access;

    /// Identifies the caller of a request.
    ///
    /// # Errors
    /// The answer to everybody else.
    fn admit(request: &mut Request) -> impl Future<Output = Result<Self, ApiError>> + Send;
}

/// An async function from a principal and arguments to an answer.
pub(crate) trait Handler<P, Arguments>: Clone + Send + Sync + 'static {
    fn call(self, request: Request, status: StatusCode) -> BoxFuture<'static, Result<Response, ApiError>>;
}

/// What a handler returns.
pub(crate) trait Answer {
    /// Makes the response; `status` is the one that the table states.
    fn respond(self, status: StatusCode) -> Response;
}

/// A value is answered as JSON. A status that has no body gets none.
impl<T: Serialize> Answer for T {
    fn respond(self, status: StatusCode) -> Response {
        if status == StatusCode::NO_CONTENT { status.into_response() } else { json(status, &self) }
    }
}

/// Implements [`Handler`] for functions with this number of arguments.
macro_rules! handlers {
    ($(($($argument:ident)*))+) => {
        $(
            impl<F, Answered, T, P, $($argument),*> Handler<P, ($($argument,)*)> for F
            where
                F: Fn(P, $($argument),*) -> Answered + Clone + Send + Sync + 'static,
                Answered: Future<Output = Result<T, ApiError>> + Send + 'static,
                T: Answer,
                P: Principal,
                $($argument: Argument,)*
            {
                #[allow(non_snake_case, reason = "arguments are named by their types")]
                fn call(
                    self,
                    mut request: Request,
                    status: StatusCode,
                ) -> BoxFuture<'static, Result<Response, ApiError>> {
                    async move {
                        let principal = P::admit(&mut request).await?;
                        $(let $argument = $argument::take(&mut request).await?;)*
                        request.check_rest()?;
                        self(principal, $($argument),*).await.map(|answer| answer.respond(status))
                    }
                    .boxed()
                }
            }
        )+
    };
}

handlers! {
    (A)
    (A B)
    (A B C)
    (A B C D)
}

/// Makes each method's constructor of a row.
macro_rules! rows {
    ($($name:ident: $method:ident,)+) => {
        $(
            #[doc = concat!("A row for `", stringify!($method), "`. `P` is who may call it.")]
            pub(crate) fn $name<P: Principal, Arguments>(
                path: &'static str,
                handler: impl Handler<P, Arguments>,
                status: StatusCode,
            ) -> Operation {
                Operation::new(Method::$method, path, handler, status)
            }
        )+
    };
}

rows! {
    get: GET,
    post: POST,
    put: PUT,
    patch: PATCH,
    delete: DELETE,
}

impl Operation {
    fn new<P: Principal, Arguments>(
        method: Method,
        path: &'static str,
        handler: impl Handler<P, Arguments>,
        status: StatusCode,
    ) -> Self {
        let operation = format!("{method} /{path}");
        let requests: Arc<[Counter]> = CLASSES
            .map(|(_, class)| {
                counter!("hopline_api_requests_total", "operation" => operation.clone(), "status" => class)
            })
            .into();
        let run = move |request, status| {
            let requests = Arc::clone(&requests);
            handler
                .clone()
                .call(request, status)
                .map(move |answer| {
                    let answer = answer.unwrap_or_else(ApiError::into_response);
                    let class = answer.status().as_u16() / 100;
                    if let Some(index) = CLASSES.iter().position(|(first, _)| *first == class) {
                        requests[index].increment(1);
                    }
                    answer
                })
                .boxed()
        };
        Self { method, path, access: P::ACCESS, status, run: Box::new(run) }
    }

    /// Answers a request.
    pub(crate) fn call(&self, request: Request) -> BoxFuture<'static, Response> {
        (self.run)(request, self.status)
    }
}
