//! Routes that compile quickly, and answers.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use warp::filters::BoxedFilter;
use warp::reply::Response;
use warp::{Filter as _, Reply as _};

use super::ApiError;

/// A route of any kind under one type.
///
/// Forty routes that are not boxed do not compile at all.
pub type Route = BoxedFilter<(Response,)>;

/// Makes one route of many, tried in their order.
pub fn any_of(routes: impl IntoIterator<Item = Route>) -> Route {
    let mut routes: Vec<Route> = routes.into_iter().collect();
    // Halves instead of a chain: the last of n routes is then log n steps away, not n.
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
    routes.pop().unwrap_or_else(nothing)
}

/// Makes the route that matches nothing.
fn nothing() -> Route {
    warp::any().and_then(|| async { Err::<Response, _>(warp::reject::not_found()) }).boxed()
}

/// Answers with a value as JSON.
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
    async fn every_one_of_many_routes_is_found() {
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
