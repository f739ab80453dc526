//! Endpoints for operators and orchestrators, on a separate listener.

use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use warp::Filter as _;
use warp::reply::Response;

use super::route::{any_of, json, methods};
use super::{Limits, Route, serve};
use crate::metrics::Metrics;
use crate::{Health, Shutdown, VERSION};

const READ: &str = "GET, HEAD";

/// Returns the routes `/healthz`, `/readyz` and `/metrics`.
fn routes(health: &Health, metrics: &Metrics) -> Route {
    let healthz = warp::path!("healthz")
        .and(methods(READ))
        .map(|| json(StatusCode::OK, &serde_json::json!({"alive": true, "version": VERSION})));

    let health = health.clone();
    let readyz = warp::path!("readyz").and(methods(READ)).map(move || {
        let report = health.report();
        let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let mut response = json(status, &report);
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    });

    let metrics = metrics.clone();
    let metrics = warp::path!("metrics").and(methods(READ)).map(move || {
        let mut response = Response::new(metrics.render().into());
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
        response
    });

    any_of([healthz.boxed(), readyz.boxed(), metrics.boxed()])
}

/// The server of `/healthz`, `/readyz` and `/metrics`; dropping this stops it.
#[derive(Debug)]
#[must_use = "dropping this stops the server"]
pub struct OperationsServer(JoinHandle<()>);

impl Drop for OperationsServer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Serves `/healthz`, `/readyz` and `/metrics` in the background.
///
/// It keeps serving during a drain; drop the result when the drain is over.
pub fn serve_operations(listener: TcpListener, health: &Health, metrics: &Metrics) -> OperationsServer {
    let limits = Limits {
        // Enough for probes and scrapers, few enough to leave file descriptors for the process.
        max_connections: 64,
        ..Limits::default()
    };
    let routes = routes(health, metrics);
    let never = Shutdown::new(Duration::ZERO);
    OperationsServer(tokio::spawn(async move {
        serve(listener, routes, limits, never).await;
    }))
}
