//! `GET` and `HEAD` on the edge's port: from a slug to its destination.

pub mod destination;
mod pages;

use std::{net::IpAddr, sync::Arc};

use chrono::{DateTime, Utc};
use http::{
    HeaderMap, HeaderValue, Method, Request as HttpRequest, StatusCode,
    header::{CACHE_CONTROL, LOCATION},
};
use metrics::{Counter, counter};
use schemas::{click_id::ClickIdKeys, message::Class};
use service::{
    config::Cidrs,
    http::{Around, Peer, Route, client_address},
};
use warp::{Filter as _, reply::Response};

use crate::{
    click::{Clicks, Visit},
    intake::Intake,
    links::{Links, Target, look_up::LookUp},
};

/// What a redirect needs.
#[derive(Debug)]
pub struct Edge {
    /// Where the slugs lead.
    pub links: Links,
    /// Where slugs are asked for that are not known here yet.
    pub look_up: Option<LookUp>,
    /// Where the clicks go.
    pub intake: Arc<Intake>,
    /// Makes click ids.
    pub click_ids: ClickIdKeys,
    /// Makes clicks of visits.
    pub clicks: Clicks,
    /// Who is believed about client addresses.
    pub trusted_proxies: Cidrs,
    /// What happened.
    pub counts: Counts,
}

/// The statuses that a link may redirect with.
const REDIRECTS: [(u16, &str); 4] = [(302, "302"), (301, "301"), (307, "307"), (308, "308")];

/// Counters of answers and clicks.
pub struct Counts {
    human: Counter,
    bot: Counter,
    preview: Counter,
    /// By status, in the order of [`REDIRECTS`].
    redirected: [Counter; 4],
    not_found: Counter,
    gone: Counter,
}

impl std::fmt::Debug for Counts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Counts").finish_non_exhaustive()
    }
}

impl Default for Counts {
    /// Registers the counters once: looking them up by name for each request costs more than counting.
    fn default() -> Self {
        let clicks = |class: Class| counter!("hopline_clicks_total", "class" => class.as_str());
        let redirects = |status| counter!("hopline_redirects_total", "status" => status);
        Self {
            human: clicks(Class::Human),
            bot: clicks(Class::Bot),
            preview: clicks(Class::Preview),
            redirected: REDIRECTS.map(|(_, status)| redirects(status)),
            not_found: redirects("404"),
            gone: redirects("410"),
        }
    }
}

impl Counts {
    fn redirect(&self, status: u16) {
        if let Some(index) = REDIRECTS.iter().position(|(known, _)| *known == status) {
            self.redirected[index].increment(1);
        }
    }

    fn of(&self, class: Class) -> &Counter {
        match class {
            Class::Human => &self.human,
            Class::Bot => &self.bot,
            Class::Preview => &self.preview,
        }
    }
}

/// Hands a redirect the request's headers: a route could only have a copy, which costs more than the look-up.
///
/// [`routes`] work only where this is around them.
#[derive(Debug, Clone, Copy)]
pub struct HandOver;

/// The headers of a request, taken out of it.
#[derive(Debug, Clone)]
struct Headers(Arc<HeaderMap>);

impl Around for HandOver {
    type Visit = ();

    fn before<B>(&self, request: &mut HttpRequest<B>) {
        if is_redirect(request.method()) {
            let headers = std::mem::take(request.headers_mut());
            request.extensions_mut().insert(Headers(Arc::new(headers)));
        }
    }

    // A redirect logs no line of its own.
    fn is_traced<B>(&self, request: &HttpRequest<B>) -> bool {
        !is_redirect(request.method())
    }

    fn after(&self, (): (), _response: &mut Response) {}
}

fn is_redirect(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Builds the edge's routes.
pub fn routes(edge: &Arc<Edge>) -> Route {
    let edge = Arc::clone(edge);
    // One route for every path: whatever a visitor asks for is answered with a page, never with an API's error.
    warp::get()
        .or(warp::head())
        .unify()
        .and(warp::method())
        .and(warp::path::full())
        .and(raw_query())
        .and(warp::ext::get::<Headers>())
        .and(warp::ext::get::<Peer>())
        .then(
            move |method: Method,
                  path: warp::path::FullPath,
                  query: Option<String>,
                  Headers(headers): Headers,
                  peer: Peer| {
                let edge = Arc::clone(&edge);
                async move {
                    let request = Request {
                        counted: method != Method::HEAD,
                        query: query.as_deref(),
                        headers: &headers,
                        address: client_address(peer.0.ip(), &headers, &edge.trusted_proxies),
                    };
                    edge.answer(path.as_str(), &request).await
                }
            },
        )
        .boxed()
}

/// Extracts the query as it was sent.
fn raw_query() -> impl warp::Filter<Extract = (Option<String>,), Error = std::convert::Infallible> + Copy {
    warp::query::raw().map(Some).or(warp::any().map(|| None)).unify()
}

/// A request as far as redirects care.
struct Request<'a> {
    counted: bool,
    query: Option<&'a str>,
    headers: &'a HeaderMap,
    address: IpAddr,
}

impl Edge {
    async fn answer(&self, path: &str, request: &Request<'_>) -> Response {
        match path {
            "/" => return pages::root(),
            "/robots.txt" => return pages::robots(),
            "/favicon.ico" => return pages::favicon(),
            _ => {}
        }
        let slug = path.trim_start_matches('/');
        let target = match (self.links.find(slug), &self.look_up) {
            (None, Some(look_up)) => look_up.find(slug).await,
            (target, _) => target,
        };
        let now = schemas::time::to_millis(Utc::now());
        match target {
            Some(target) if target.is_active => {
                if target.expires_at.is_some_and(|expires_at| expires_at <= now) {
                    self.counts.gone.increment(1);
                    pages::expired()
                } else {
                    self.counts.redirect(target.redirect_status);
                    self.redirect(slug, &target, request, now)
                }
            }
            _ => {
                self.counts.not_found.increment(1);
                pages::not_found()
            }
        }
    }

    fn redirect(&self, slug: &str, target: &Target, request: &Request<'_>, now: DateTime<Utc>) -> Response {
        let click_id = self.click_ids.mint(target.link_id, now, rand::random());
        let location = destination::location(
            target.destination(),
            target.forward_query,
            request.query,
            target.append_click_id.then_some(click_id.as_str()),
        );
        if request.counted {
            let Request { query, headers, address, .. } = *request;
            let visit = Visit::new(slug, query, headers, address, now);
            let click = self.clicks.click(&visit, target, click_id);
            // Before the answer: a click that the visitor knows of must survive whatever comes next.
            self.intake.keep(&click);
            self.counts.of(click.class).increment(1);
        }
        to(target.redirect_status, &location)
    }
}

fn to(status: u16, location: &str) -> Response {
    let mut response = Response::default();
    // Both are checked when a link is loaded; the fallbacks only spare a panic.
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::FOUND);
    let Ok(location) = HeaderValue::try_from(location) else {
        tracing::error!("a destination does not fit into a header");
        return pages::not_found();
    };
    let headers = response.headers_mut();
    headers.insert(LOCATION, location);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
    response
}
