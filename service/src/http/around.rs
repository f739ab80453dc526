//! What a listener does around every request, whatever its routes do.

use http::Request;
use warp::reply::Response;

/// Runs before the routes and after the answer, refusals and panics included: for what every answer carries.
pub trait Around: Send + Sync + 'static {
    /// What is known of one request from before to after.
    type Visit: Send;

    /// Looks at a request before it is routed; what it puts into the extensions, extractors can read.
    fn before<B>(&self, request: &mut Request<B>) -> Self::Visit;

    /// Completes the answer.
    fn after(&self, visit: Self::Visit, response: &mut Response);
}

/// Does nothing.
impl Around for () {
    type Visit = ();

    fn before<B>(&self, _request: &mut Request<B>) {}

    fn after(&self, (): (), _response: &mut Response) {}
}
