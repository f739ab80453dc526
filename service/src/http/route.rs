//! Boxed routes and JSON responses.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, StatusCode};
use serde::Serialize;
use warp::filters::BoxedFilter;
use warp::reply::Response;
use warp::{Filter as _, Rejection, Reply as _};

use super::ApiError;

/// A boxed route. Unboxed, forty routes do not compile.
pub type Route = BoxedFilter<(Response,)>;

/// Returns a route that tries the routes in order.
pub fn any_of(routes: impl IntoIterator<Item = Route>) -> Route {
    let mut routes: Vec<Route> = routes.into_iter().collect();
    // A balanced tree: a chain would take n steps to the last of n routes.
    while routes.len() > 1 {
        let mut pairs = Vec::with_capacity(routes.len().div_ceil(2));
        let mut rest = routes.into_iter();
        while let Some(first) = rest.next() {
            pairs.push(match rest.next() {
                Some(second) => first.or(second).unify().boxed(),
                None => first,
            });
        }
        routes = pairs;
    }
    routes.pop().unwrap_or_else(|| {
        warp::any().and_then(|| async { Err::<Response, _>(warp::reject::not_found()) }).boxed()
    })
}

/// Rejects all methods but `methods`, such as "GET, HEAD", with 405. It stands behind the path, so that the answer is
/// about this path; warp's own filters of methods do not tell which methods there are (RFC 9110, 15.5.6).
pub fn methods(
    methods: &'static str,
) -> impl warp::Filter<Extract = (), Error = Rejection> + Clone + Send + Sync + 'static {
    warp::method()
        .and_then(move |method: Method| {
            let is_allowed = methods.split(", ").any(|allowed| allowed == method.as_str());
            std::future::ready(match is_allowed {
                true => Ok(()),
                false => Err(warp::reject::custom(ApiError::method_not_allowed(methods))),
            })
        })
        .untuple_one()
}

/// Returns a response with a value as JSON.
#[must_use]
pub fn json<T: Serialize + ?Sized>(status: StatusCode, value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => {
            let mut response = Response::new(body.into());
            *response.status_mut() = status;
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(error) => ApiError::internal(error).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &'static str) -> Route {
        warp::path(text).and(warp::path::end()).map(move || Response::new(text.into())).boxed()
    }

    #[tokio::test]
    async fn each_of_many_routes_is_found() {
        let words = ["a", "b", "c", "d", "e", "f", "g"];
        for count in 0..=words.len() {
            let route = any_of(words[..count].iter().map(|text| word(text)));
            for (index, text) in words.iter().enumerate() {
                let request = http::Request::get(format!("/{text}")).body(String::new()).unwrap();
                let status = tower_service::Service::call(&mut warp::service(route.clone()), request)
                    .await
                    .unwrap()
                    .status();
                assert_eq!(status.is_success(), index < count, "{text} among {count}");
            }
        }
    }
}
