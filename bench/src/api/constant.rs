//! The limit of a list: a server that knows nothing and answers every request with the same bytes of JSON.

use std::{net::SocketAddr, time::Duration};

use http::{HeaderValue, header::CONTENT_TYPE};
use service::{
    Health, Shutdown,
    http::{Limits, Route, serve, serve_operations},
    metrics::Metrics,
    process::bind,
    telemetry::{self, LogFormat},
};
use warp::{Filter as _, reply::Response};

use super::LOG_FILTER;

/// What to serve, and where.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Address for callers.
    #[arg(long)]
    listen: SocketAddr,
    /// Address for operators.
    #[arg(long)]
    operations_listen: SocketAddr,
    /// Length of the answer.
    #[arg(long)]
    bytes: usize,
}

/// Serves until SIGTERM, with logs and metrics set up as every service has them.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    telemetry::init(LogFormat::Json, LOG_FILTER)?;
    let metrics = Metrics::install("constant", env!("CARGO_PKG_VERSION"))?;
    let shutdown = Shutdown::on_signals(Duration::from_secs(5))?;
    let health = Health::new(&shutdown);
    let listener = bind("--listen", options.listen).await?;
    let operations = bind("--operations-listen", options.operations_listen).await?;
    let _operations = serve_operations(operations, &health, &metrics);
    serve(listener, json(document(options.bytes)), Limits::default(), shutdown).await;
    Ok(())
}

/// A JSON text of so many bytes, and of two at least.
fn document(bytes: usize) -> String {
    format!("\"{}\"", "x".repeat(bytes.saturating_sub(2)))
}

fn json(document: String) -> Route {
    warp::any()
        .map(move || {
            let mut response = Response::new(document.clone().into());
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        })
        .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_json_of_the_wanted_length() {
        for bytes in [2, 3, 30_000] {
            assert_eq!(document(bytes).len(), bytes);
            assert!(serde_json::from_str::<String>(&document(bytes)).is_ok());
        }
    }
}
