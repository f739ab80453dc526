//! The limit of a server: the services' HTTP server with a constant answer.

use std::net::SocketAddr;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION};
use http::{HeaderValue, StatusCode};
use service::http::{Limits, Route, serve, serve_operations};
use service::metrics::Metrics;
use service::process::bind;
use service::telemetry::{self, LogFormat};
use service::{Health, Shutdown};
use warp::Filter as _;
use warp::reply::Response;

use crate::server::LOG_FILTER;

/// The answer and the addresses.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Address for requests
    #[arg(long)]
    listen: SocketAddr,
    /// Address for operators
    #[arg(long)]
    operations_listen: SocketAddr,
    /// Answer with this number of bytes of JSON instead of a redirect
    #[arg(long)]
    json_bytes: Option<usize>,
}

/// Serves until SIGTERM, with the services' logs and metrics.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    telemetry::init(LogFormat::Json, LOG_FILTER)?;
    let metrics = Metrics::install("constant", &[])?;
    let shutdown = Shutdown::on_signals(Duration::from_secs(5))?;
    let health = Health::new(&shutdown);
    let listener = bind("--listen", options.listen).await?;
    let operations = bind("--operations-listen", options.operations_listen).await?;
    let _operations = serve_operations(operations, &health, &metrics);
    let routes = match options.json_bytes {
        Some(bytes) => json(document(bytes)),
        None => redirect()?,
    };
    serve(listener, routes, Limits::default(), shutdown).await;
    Ok(())
}

/// Redirects to a destination as long as the edge's, so that both answers have the same size.
fn redirect() -> anyhow::Result<Route> {
    let click_id = "x".repeat(schemas::click_id::TEXT_LEN);
    let location = HeaderValue::try_from(format!("{}?click_id={click_id}", ::tests::links::DESTINATION))?;
    let answer = move || {
        let mut response = Response::default();
        *response.status_mut() = StatusCode::FOUND;
        response.headers_mut().insert(LOCATION, location.clone());
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
        response
    };
    Ok(warp::any().map(answer).boxed())
}

/// Returns a JSON text of this number of bytes, at least two.
fn document(bytes: usize) -> String {
    format!("\"{}\"", "x".repeat(bytes.saturating_sub(2)))
}

fn json(document: String) -> Route {
    let answer = move || {
        let mut response = Response::new(document.clone().into());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    };
    warp::any().map(answer).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_json_of_the_given_length() {
        for bytes in [2, 3, 30_000] {
            assert_eq!(document(bytes).len(), bytes);
            assert!(serde_json::from_str::<String>(&document(bytes)).is_ok());
        }
    }
}
