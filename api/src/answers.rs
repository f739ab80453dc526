//! What every answer of the API carries, whatever its route does: the headers of limits, of CORS, and `Allow`.

use http::header::ALLOW;
use http::{HeaderName, Request, StatusCode};
use service::http::Around;
use warp::reply::{Reply as _, Response};

use crate::cors;
use crate::limits::{AddressLimits, Visit};
use crate::surface::{Resource, resource_at};

/// Completes the answers of the API's listener.
pub(crate) struct Answers(pub(crate) AddressLimits);

impl Around for Answers {
    type Visit = (Visit, Option<&'static Resource>);

    fn before<B>(&self, request: &mut Request<B>) -> Self::Visit {
        let visit = self.0.visit(request);
        request.extensions_mut().insert(visit.clone());
        (visit, resource_at(request.uri().path()))
    }

    fn after(&self, (visit, resource): Self::Visit, response: &mut Response) {
        // Neither a key nor an open route: an unknown path, a preflight, a body that was refused before.
        if visit.budget().is_none()
            && let Err(refusal) = visit.charge_address()
        {
            let name = HeaderName::from_static("x-request-id");
            let id = response.headers_mut().remove(&name);
            *response = refusal.into_response();
            response.headers_mut().extend(id.map(|id| (name, id)));
        }
        let status = response.status();
        let headers = response.headers_mut();
        if let Some(budget) = visit.budget() {
            budget.write(headers);
        }
        cors::open(headers);
        if status == StatusCode::METHOD_NOT_ALLOWED
            && let Some(resource) = resource
        {
            headers.insert(ALLOW, cors::methods(resource));
        }
    }
}
