//! Mounts a table of operations below a path.

use std::sync::Arc;

use bytes::Buf;
use futures_util::{Stream, StreamExt as _};
use http::Method;
use service::http::{ApiError, Route};
use warp::path::Tail;
use warp::reply::{Reply as _, Response};
use warp::{Filter, Rejection};

use super::cors;
use super::operation::Operation;
use super::request::{Credentials, Head, Request};
use crate::app::App;
use crate::web::limits::visit;

/// Operations by path.
pub(crate) struct Table(Vec<Resource>);

/// The operations of one path.
pub(crate) struct Resource {
    path: &'static str,
    operations: Vec<Operation>,
}

/// Values for the names in braces of a path.
type Parameters = Vec<(&'static str, String)>;

impl Table {
    /// Makes a table of rows in any order.
    pub(crate) fn new(operations: impl IntoIterator<Item = Operation>) -> Self {
        let mut resources: Vec<Resource> = Vec::new();
        for operation in operations {
            match resources.iter_mut().find(|resource| resource.path == operation.path) {
                Some(resource) => resource.operations.push(operation),
                None => resources.push(Resource { path: operation.path, operations: vec![operation] }),
            }
        }
        // A literal segment takes precedence over a name in braces.
        resources.sort_by_key(|resource| resource.path.matches('{').count());
        Self(resources)
    }

    /// Finds what is at a path, which may end with a slash.
    fn find(&self, path: &str) -> Option<(usize, Parameters)> {
        let path = path.strip_suffix('/').unwrap_or(path);
        self.0
            .iter()
            .enumerate()
            .find_map(|(index, resource)| Some((index, parameters(resource.path, path)?)))
    }
}

impl Resource {
    /// Returns the operation of a method. `HEAD` is `GET` without the body (RFC 9110, 9.3.2), which the server leaves
    /// out.
    fn operation(&self, method: &Method) -> Option<&Operation> {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        self.operations.iter().find(|operation| operation.method == method)
    }

    /// Returns its methods, for a header.
    fn methods(&self) -> String {
        let mut methods: Vec<&str> =
            self.operations.iter().map(|operation| operation.method.as_str()).collect();
        if let Some(get) = methods.iter().position(|method| *method == "GET") {
            methods.insert(get + 1, "HEAD");
        }
        methods.join(", ")
    }

    /// Answers a method that it does not have, with the methods it has.
    fn other(&self, head: &Head, credentials: &Credentials) -> Response {
        let is_public = matches!(credentials, Credentials::Key);
        if !is_public || head.method != Method::OPTIONS {
            return ApiError::method_not_allowed(&self.methods()).into_response();
        }
        let access = |method: Method| self.operation(&method).map(|operation| operation.access);
        cors::preflight(&head.headers, &self.methods(), access)
    }
}

/// Matches a path against a pattern. Returns the values of the names in braces.
fn parameters(pattern: &'static str, path: &str) -> Option<Parameters> {
    let (mut names, mut segments) = (pattern.split('/'), path.split('/'));
    let mut found = Vec::new();
    loop {
        match (names.next(), segments.next()) {
            (None, None) => return Some(found),
            (Some(name), Some(segment)) => match name.strip_prefix('{') {
                Some(name) if !segment.is_empty() => {
                    found.push((name.trim_end_matches('}'), segment.to_owned()));
                }
                None if name == segment => {}
                _ => return None,
            },
            _ => return None,
        }
    }
}

/// Serves a table below the path of `at`, which extracts the kind of credentials.
pub(crate) fn mount(
    at: impl Filter<Extract = (Credentials,), Error = Rejection> + Clone + Send + Sync + 'static,
    table: &Arc<Table>,
    app: &App,
) -> Route {
    let (known, table, app) = (Arc::clone(table), Arc::clone(table), app.clone());
    at.and(warp::path::tail())
        .and_then(move |credentials, tail: Tail| {
            // Before the body is taken: the next mount may need it.
            let found = known.find(tail.as_str()).ok_or_else(warp::reject::not_found);
            async move { found.map(|found| (credentials, found)) }
        })
        .and(warp::method())
        .and(warp::header::headers_cloned())
        .and(visit())
        .and(warp::query::raw().or(warp::any().map(String::new)).unify())
        .and(warp::body::stream())
        .then(
            move |(credentials, (index, parameters)): (Credentials, (usize, Parameters)),
                  method,
                  headers,
                  visit,
                  query,
                  body| {
                let resource = &table.0[index];
                let mut head = Head { is_head: method == Method::HEAD, method, headers, visit };
                match resource.operation(&head.method) {
                    Some(operation) => {
                        head.method = operation.method.clone();
                        let app = app.clone();
                        operation.call(Request {
                            app,
                            head,
                            credentials,
                            query,
                            parameters,
                            body: boxed(body),
                        })
                    }
                    None => {
                        let response = resource.other(&head, &credentials);
                        Box::pin(async move { response })
                    }
                }
            },
        )
        .boxed()
}

fn boxed(body: impl Stream<Item = Result<impl Buf, warp::Error>> + Send + 'static) -> super::request::Body {
    body.map(|chunk| chunk.map(|mut chunk| chunk.copy_to_bytes(chunk.remaining()))).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::{of_anyone, of_workspace};

    #[test]
    fn a_path_finds_its_resource() {
        let table = Table::new(of_workspace().into_iter().chain(of_anyone()));
        let found =
            |path: &str| table.find(path).map(|(index, parameters)| (table.0[index].path, parameters));
        let id = || ("id", "lnk_1".to_owned());
        assert_eq!(found("links"), Some(("links", vec![])));
        assert_eq!(found("links/"), Some(("links", vec![])));
        assert_eq!(found("links/lnk_1"), Some(("links/{id}", vec![id()])));
        assert_eq!(found("links/bulk"), Some(("links/bulk", vec![])));
        assert_eq!(
            found("links/lnk_1/stats/os"),
            Some(("links/{id}/stats/{dimension}", vec![id(), ("dimension", "os".to_owned())]))
        );
        for unknown in ["", "nothing", "links//stats", "links/a/b/c"] {
            assert_eq!(found(unknown), None, "{unknown}");
        }
    }
}
