//! `GET` and `HEAD` on the edge's port: redirects from a slug to its destination.

mod pages;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use chrono::{DateTime, Utc};
use http::header::{CACHE_CONTROL, LOCATION};
use http::{HeaderMap, HeaderValue, Method, Request as HttpRequest, StatusCode};
use metrics::{Counter, Histogram, counter, histogram};
use percent_encoding::percent_decode_str;
use schemas::click_id::ClickIdKeys;
use schemas::message::{Class, Click};
use service::agent;
use service::config::Cidrs;
use service::http::route::methods;
use service::http::{Middleware, Peer, Route, came_over_tls, client_address, require_tls};
use service::traces::{Kind, Tracer};
use warp::Filter as _;
use warp::reply::Response;

use crate::click::{Clicks, Visit};
use crate::client_limit::ClientLimit;
use crate::destination;
use crate::intake::Intake;
use crate::links::lookup::Lookup;
use crate::links::{Links, Target};

/// The state of the redirect edge, shared by all requests.
#[derive(Debug)]
pub struct Edge {
    /// The links.
    pub links: Links,
    /// Finds links that have not reached this edge through the topic.
    pub lookup: Option<Lookup>,
    /// Stores the clicks.
    pub intake: Arc<Intake>,
    /// Signs click ids.
    pub click_ids: ClickIdKeys,
    /// Creates clicks from visits.
    pub clicks: Clicks,
    /// The clicks of one client that count by their class.
    pub client_limit: ClientLimit,
    /// Proxies whose `Forwarded` and `X-Forwarded-For` headers are trusted.
    pub trusted_proxies: Cidrs,
    /// Counters of answers and clicks.
    pub counts: Counts,
    /// Traces clicks.
    pub tracer: Tracer,
}

/// The statuses that a link may redirect with, and their metric labels.
const REDIRECTS: [(u16, &str); 4] = [(302, "302"), (301, "301"), (307, "307"), (308, "308")];

/// Counters of answers and clicks.
#[derive(Debug)]
pub struct Counts {
    human: Counter,
    bot: Counter,
    preview: Counter,
    /// By status, in the order of [`REDIRECTS`].
    redirected: [Counter; 4],
    not_found: Counter,
    gone: Counter,
    seconds: Histogram,
}

impl Default for Counts {
    /// Registers the counters. Looking them up by name on each request would cost more than counting.
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
            seconds: histogram!("hopline_redirect_seconds"),
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

/// Middleware that moves a redirect's headers into the request's extensions. A route could only get a copy of the
/// headers, which costs more than finding the link.
///
/// [`routes`] work only with this middleware.
#[derive(Debug, Clone, Copy)]
pub struct MoveHeaders;

/// The headers that [`MoveHeaders`] took out of a request.
#[derive(Debug, Clone)]
struct Headers(Arc<HeaderMap>);

impl Middleware for MoveHeaders {
    type State = ();

    fn before<B>(&self, request: &mut HttpRequest<B>) {
        if is_redirect(request.method()) {
            let headers = std::mem::take(request.headers_mut());
            request.extensions_mut().insert(Headers(Arc::new(headers)));
        }
    }

    // A redirect logs nothing.
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
    // One route for all paths, so that an unknown path gets a page and not an API error.
    methods("GET, HEAD")
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
                        traced_since: edge.tracer.is_on().then(SystemTime::now),
                        is_counted: method != Method::HEAD,
                        query: query.as_deref(),
                        headers: &headers,
                        address: client_address(peer.0.ip(), &headers, &edge.trusted_proxies),
                    };
                    let began = Instant::now();
                    let mut response = edge.answer(path.as_str(), &request).await;
                    edge.counts.seconds.record(began.elapsed());
                    if came_over_tls(peer.0.ip(), &headers, &edge.trusted_proxies) {
                        require_tls(response.headers_mut());
                    }
                    response
                }
            },
        )
        .boxed()
}

/// Extracts the encoded query.
fn raw_query() -> impl warp::Filter<Extract = (Option<String>,), Error = std::convert::Infallible> + Copy {
    warp::query::raw().map(Some).or(warp::any().map(|| None)).unify()
}

/// The parts of a request that a redirect needs.
struct Request<'a> {
    /// When the request arrived, if clicks are traced.
    traced_since: Option<SystemTime>,
    is_counted: bool,
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
        let slug = &*slug(path);
        let target = match (self.links.find(slug), &self.lookup) {
            (None, Some(lookup)) => lookup.find(slug).await,
            (target, _) => target,
        };
        let now = schemas::time::to_millis(Utc::now());
        match target {
            Some(target) if target.is_blocked => {
                self.counts.gone.increment(1);
                pages::blocked()
            }
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
        // Before the answer, so that an answered click survives a crash.
        let click = if request.is_counted { self.store_click(slug, target, request, now) } else { None };
        let click_id = click.as_ref().filter(|_| target.append_click_id).map(|click| click.click_id.as_str());
        let location =
            destination::location(target.destination(), target.forward_query, request.query, click_id);
        redirect_to(target.redirect_status, &location)
    }

    /// Stores the click of a visit. `None` when it was dropped: only the id of a stored click is given out, since a
    /// conversion needs no more than an id.
    fn store_click(
        &self,
        slug: &str,
        target: &Target,
        request: &Request<'_>,
        now: DateTime<Utc>,
    ) -> Option<Click> {
        let Request { query, headers, address, .. } = *request;
        let mut visit = Visit::new(slug, query, headers, address, now);
        if self.client_limit.is_exceeded(address) {
            visit.purpose = agent::OVER_LIMIT.as_bytes();
        }
        let click_id = self.click_ids.mint(target.link_id, now, rand::random());
        let click = self.clicks.click(&visit, target, click_id);
        let is_stored = self.intake.store(&click);
        self.counts.of(click.class).increment(1);
        if let Some(since) = request.traced_since {
            self.trace("redirect", since, &click, target.redirect_status);
        }
        is_stored.then_some(click)
    }

    /// Traces a click that is about to be answered.
    pub(crate) fn trace(&self, name: &'static str, since: SystemTime, click: &Click, status: u16) {
        let Some(trace) = self.tracer.trace(&click.click_id) else { return };
        trace
            .root(name, Kind::Server, since)
            .text("hopline.link.id", click.link_id)
            .text("hopline.workspace.id", click.workspace_id)
            .text("hopline.click.class", click.class)
            .number("http.response.status_code", status)
            .end();
    }
}

/// Returns the slug of a path, which programs write with a slash at its end or with letters that need no encoding
/// percent-encoded (RFC 3986, 6.2.2.2).
pub(crate) fn slug(path: &str) -> Cow<'_, str> {
    let path = path.trim_start_matches('/');
    let path = path.strip_suffix('/').unwrap_or(path);
    // A slug has no character that must be encoded, so that a text with one is none, decoded or not.
    percent_decode_str(path).decode_utf8_lossy()
}

fn redirect_to(status: u16, location: &str) -> Response {
    let mut response = Response::default();
    // Both are checked when a link is loaded; the fallbacks avoid a panic.
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::FOUND);
    let Ok(location) = HeaderValue::try_from(location) else {
        tracing::error!(
            "cannot redirect, answered 404: the destination contains characters that a header may not"
        );
        return pages::not_found();
    };
    let headers = response.headers_mut();
    headers.insert(LOCATION, location);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
    response
}
