//! What a listener does around every request, whatever its routes do.

use http::Request;
use warp::reply::Response;

/// Runs before the routes and after the answer, refusals and panics included: for what every answer carries.
pub trait Around: Send + Sync + 'static {
    /// What is known of one request from before to after.
    type Visit: Send;

    /// Looks at a request before it is routed; what it puts into the extensions, extractors can read.
    fn before<B>(&self, request: &mut Request<B>) -> Self::Visit;

    /// Tells whether lines that are logged while the request is answered carry its id.
    ///
    /// That costs half a microsecond for each request, whether or not there is a line. What the server itself logs
    /// of a refusal carries the id anyway.
    fn is_traced<B>(&self, _request: &Request<B>) -> bool {
        true
    }

    /// Completes the answer.
    fn after(&self, visit: Self::Visit, response: &mut Response);
}

/// Does nothing.
impl Around for () {
    type Visit = ();

    fn before<B>(&self, _request: &mut Request<B>) {}

    fn after(&self, (): (), _response: &mut Response) {}
}
