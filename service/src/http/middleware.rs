//! Middleware of a listener.

use http::Request;
use warp::reply::Response;

/// Code that runs before routing and on every response, including errors and panics.
pub trait Middleware: Send + Sync + 'static {
    /// The data of one request, passed from `before` to `after`.
    type State: Send;

    /// Inspects a request before routing; extractors can read the extensions that it adds.
    fn before<B>(&self, request: &mut Request<B>) -> Self::State;

    /// Returns whether all log lines of a request carry its id.
    ///
    /// That costs half a microsecond per request. The server's own log lines about errors carry the id in any case.
    fn is_traced<B>(&self, _request: &Request<B>) -> bool {
        true
    }

    /// Completes the response.
    fn after(&self, state: Self::State, response: &mut Response);
}

/// Does nothing.
impl Middleware for () {
    type State = ();

    fn before<B>(&self, _request: &mut Request<B>) {}

    fn after(&self, (): (), _response: &mut Response) {}
}
