//! The limit: a server that knows nothing and answers every request with the same redirect.

use std::{net::SocketAddr, time::Duration};

use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, LOCATION},
};
use service::{
    Health, Shutdown,
    http::{Limits, Route, serve, serve_operations},
    metrics::Metrics,
    process::bind,
    telemetry::{self, LogFormat},
};
use warp::{Filter as _, reply::Response};

use crate::redirect::LOG_FILTER;

/// Where to serve.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Address for visitors.
    #[arg(long)]
    listen: SocketAddr,
    /// Address for operators.
    #[arg(long)]
    operations_listen: SocketAddr,
    /// Serve through `warp::serve`, without what the services' server adds.
    #[arg(long)]
    bare_warp: bool,
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
    let routes = redirect(HeaderValue::try_from(location())?);
    if options.bare_warp {
        #[allow(clippy::disallowed_methods, reason = "it is here to be compared with")]
        let server = warp::serve(routes);
        let stop = async move { shutdown.wait().await };
        server.incoming(listener).graceful(stop).run().await;
    } else {
        serve(listener, routes, Limits::default(), shutdown).await;
    }
    Ok(())
}

/// A destination with as many bytes as those of the edge, so that both servers' answers weigh the same.
pub(crate) fn location() -> String {
    format!("{}?click_id={}", tests::links::DESTINATION, "x".repeat(schemas::click_id::TEXT_LEN))
}

fn redirect(location: HeaderValue) -> Route {
    warp::any()
        .map(move || {
            let mut response = Response::default();
            *response.status_mut() = StatusCode::FOUND;
            response.headers_mut().insert(LOCATION, location.clone());
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
            response
        })
        .boxed()
}
