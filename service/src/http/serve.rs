//! The accept loop, and what it adds to every request and answer.

use std::convert::Infallible;
use std::error::Error as _;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use tower_service::Service as _;
use tracing::{Instrument as _, Span};
use warp::reply::Response;
use warp::{Filter as _, Reply as _};

use super::error::{Refused, chain, recover};
use super::request::{Peer, RequestId, X_REQUEST_ID};
use super::{ApiError, Around, Code, Route};
use crate::{Shutdown, config};

/// How long to leave the backlog alone when the process is out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Least time between two log lines about failing accepts.
const ACCEPT_LOG_INTERVAL: Duration = Duration::from_secs(5);

/// What one listener grants its connections; flatten it into the service's `Config`.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "HTTP")]
pub struct Limits {
    /// Connections open at once; further ones wait in the kernel's backlog.
    #[arg(long, value_name = "COUNT", env = "HOPLINE_MAX_CONNECTIONS", default_value = "10000",
          value_parser = connections)]
    pub max_connections: usize,

    /// Seconds that a connection may take to send a request's headers, or stay idle between requests.
    #[arg(long = "header-timeout-seconds", value_name = "SECONDS", env = "HOPLINE_HEADER_TIMEOUT_SECONDS",
          default_value = "5", value_parser = config::seconds)]
    pub header_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_connections: 10_000, header_timeout: Duration::from_secs(5) }
    }
}

fn connections(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=Semaphore::MAX_PERMITS).contains(count))
        .ok_or_else(|| "expected a whole number, at least 1".to_owned())
}

/// Serves routes over HTTP/1.1 until a stop is requested and the requests in flight are answered.
///
/// Each request carries a [`Peer`] and a [`RequestId`] in its extensions; each answer has `X-Request-Id`, and the
/// house's body where it refuses. Connections still open after [`Shutdown::wait_clients_deadline`] are cut.
pub async fn serve(listener: TcpListener, routes: Route, limits: Limits, shutdown: Shutdown) {
    serve_around((), listener, routes, limits, shutdown).await;
}

/// Does what [`serve`] does, and `around` for each request.
pub async fn serve_around<A: Around>(
    around: A,
    listener: TcpListener,
    routes: Route,
    limits: Limits,
    shutdown: Shutdown,
) {
    let _hold = shutdown.hold("HTTP requests");
    let server = Arc::new(Server::new(&routes, around, &limits));
    let permits = Arc::new(Semaphore::new(limits.max_connections));
    let connections = TaskTracker::new();
    let accept = async {
        let mut logged = None;
        loop {
            // The permit comes first: a connection above the cap is not even accepted. It is never closed.
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            let (stream, peer) = accept(&listener, &mut logged).await;
            let connection = connection(Arc::clone(&server), stream, peer, shutdown.clone());
            connections.spawn(async move {
                connection.await;
                drop(permit);
            });
        }
    };
    tokio::select! {
        biased;
        () = shutdown.wait() => {}
        () = accept => {}
    }
    // Closed before the drain, so that new connections go to another instance at once.
    drop(listener);
    connections.close();
    connections.wait().await;
}

struct Server<A> {
    http: http1::Builder,
    routes: Route,
    around: A,
}

impl<A> Server<A> {
    fn new(routes: &Route, around: A, limits: &Limits) -> Self {
        let mut http = http1::Builder::new();
        // This timer also ends connections that send nothing, and idle ones between requests.
        http.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout);
        // Answers are small: one buffer is written faster than a list of them. Answers to pipelined requests are not
        // gathered (`pipeline_flush`): hyper would never send its own to a request that it cannot read.
        http.writev(false);
        Self { http, routes: routes.clone().recover(recover).unify().boxed(), around }
    }
}

/// Waits for the next connection, whatever goes wrong in between.
///
/// `logged` is when a failure was last written to the log.
async fn accept(listener: &TcpListener, logged: &mut Option<Instant>) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // That client has gone; the next one is unaffected.
            Err(error) if is_of_one_connection(&error) => {}
            // Out of descriptors or memory: trying at once would spin until a connection ends.
            Err(error) => {
                metrics::counter!("hopline_http_accept_errors_total").increment(1);
                if logged.is_none_or(|at| at.elapsed() > ACCEPT_LOG_INTERVAL) {
                    tracing::error!("cannot accept connections: {error}");
                    *logged = Some(Instant::now());
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}

/// Serves one connection to its end, or to the moment of a shutdown when clients are cut.
async fn connection<A: Around>(
    server: Arc<Server<A>>,
    stream: TcpStream,
    peer: SocketAddr,
    shutdown: Shutdown,
) {
    // Answers are small and complete: waiting to fill a packet only delays them. A failure costs no more than that.
    let _ = stream.set_nodelay(true);
    let answering = Arc::clone(&server);
    let answers = service_fn(move |request| answer(Arc::clone(&answering), request, peer));
    let mut connection = std::pin::pin!(server.http.serve_connection(TokioIo::new(stream), answers));
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = shutdown.wait() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                biased;
                ended = connection => ended,
                () = shutdown.wait_clients_deadline() => {
                    tracing::warn!("cut a connection whose request did not end in time");
                    Ok(())
                }
            }
        }
    };
    // Clients that leave, time out or send garbage are everyday life.
    if let Err(error) = ended {
        tracing::debug!("a connection ended: {}", chain(&error));
    }
}

/// Answers one request, even if its handler panics.
fn answer<A: Around>(
    server: Arc<Server<A>>,
    mut request: Request<Incoming>,
    peer: SocketAddr,
) -> impl Future<Output = Result<Response, Infallible>> {
    let id = RequestId::of(request.headers());
    request.extensions_mut().insert(Peer(peer));
    request.extensions_mut().insert(id.clone());
    let visit = server.around.before(&mut request);
    let traced = server.around.is_traced(&request);
    let span = if traced { span_of(&id) } else { Span::none() };
    let answered = async move {
        // Inside the guard, because filters already run when the service is called.
        let handled = AssertUnwindSafe(async { warp::service(server.routes.clone()).call(request).await })
            .catch_unwind();
        let mut response = match handled.await {
            Ok(Ok(response)) => response,
            // The panic itself is in the log already, by the panic hook.
            Err(_) => ApiError::internal("the handler panicked").into_response(),
        };
        if let Some(refused) = response.extensions_mut().remove::<Refused>() {
            if traced {
                log(&refused);
            } else {
                span_of(&id).in_scope(|| log(&refused));
            }
        }
        response.headers_mut().insert(X_REQUEST_ID, id.into_header());
        server.around.after(visit, &mut response);
        Ok(response)
    };
    answered.instrument(span)
}

/// Makes what log lines carry of a request.
fn span_of(id: &RequestId) -> Span {
    tracing::info_span!("request", request_id = id.as_str())
}

/// Logs a refusal whose cause operators must know; runs inside the request's span.
fn log(refused: &Refused) {
    let Refused(error) = refused;
    let code = error.code().as_str();
    let cause = error.source().map_or_else(|| error.message().to_owned(), chain);
    match error.code() {
        Code::Internal => tracing::error!(code, "answered {code}: {cause}"),
        Code::Unavailable => tracing::warn!(code, "answered {code}: {cause}"),
        // The caller's own doing; the answer told them.
        _ => tracing::debug!(code, "answered {code}: {cause}"),
    }
}
