//! Headers of every answer: rate limits, CORS, caching.

use http::header::CACHE_CONTROL;
use http::{HeaderName, HeaderValue, Request};
use service::http::require_tls;
use warp::reply::{Reply as _, Response};

use crate::web::limits::{AddressLimits, Visit};
use crate::web::{cors, dashboard};

/// State of a request from before to after its answer.
pub(crate) struct RequestState {
    visit: Visit,
    is_dashboard: bool,
}

/// Completes the answers of the API's listener.
pub(crate) struct Middleware(pub(crate) AddressLimits);

impl service::http::Middleware for Middleware {
    type State = RequestState;

    fn before<B>(&self, request: &mut Request<B>) -> RequestState {
        let visit = self.0.visit(request);
        request.extensions_mut().insert(visit.clone());
        let path = request.uri().path();
        RequestState { visit, is_dashboard: dashboard::is_at(path) }
    }

    fn after(&self, state: RequestState, response: &mut Response) {
        let RequestState { visit, is_dashboard } = state;
        // Requests that reached no operation (an unknown path, a preflight) count for the address. The dashboard's
        // files are free.
        if !is_dashboard
            && visit.budget().is_none()
            && let Err(refusal) = visit.charge_address()
        {
            let name = HeaderName::from_static("x-request-id");
            let id = response.headers_mut().remove(&name);
            *response = refusal.into_response();
            response.headers_mut().extend(id.map(|id| (name, id)));
        }
        let headers = response.headers_mut();
        if visit.is_tls() {
            require_tls(headers);
        }
        if let Some(budget) = visit.budget() {
            budget.write(headers);
        }
        // An answer is for its key or session alone. Files of the page and of the description have their own header.
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("private, no-store"));
        if !is_dashboard {
            cors::open(headers);
        }
    }
}
