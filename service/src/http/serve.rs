//! The HTTP server: accepts connections and serves routes.

use std::cell::Cell;
use std::convert::Infallible;
use std::error::Error as _;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::header::{CONNECTION, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use tower_service::Service as _;
use tracing::{Instrument as _, Span};
use warp::reply::Response;
use warp::{Filter as _, Reply as _};

use super::client_address::{client_network, is_internal};
use super::compress::{accepts_gzip, compress};
use super::error::{LoggedError, chain, recover};
use super::head::{Heads, MAX_HEAD, Progress};
use super::host::check_host;
use super::linger::{self, Unread, Watched};
use super::pace::Paced;
use super::request::{Peer, RequestId, X_REQUEST_ID};
use super::{ApiError, Code, Middleware, Route};
use crate::config::Cidrs;
use crate::process::open_files_limit;
use crate::slots::{Full, Slot, Slots};
use crate::{LogLimit, Shutdown, config};

/// Pause after a failed accept, when the process is out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// While this many bytes are in the HTTP library and not parsed, or are unsent, a connection reads and takes nothing
/// further. Beside them it may hold a head that is still arriving.
const MAX_BUFFERED: usize = MAX_HEAD;

/// Unsent bytes that the kernel takes for a connection. Otherwise it takes megabytes, and asks for more only when a
/// third of them is sent, so that a steady but slow reader looks like one that has stopped.
const MAX_UNSENT: u32 = 64 << 10;

/// Open files that connections leave for everything else: engines, segments, other listeners.
const RESERVED_FILES: usize = 256;

/// The limits of a listener; flatten it into the service's `Config`.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "HTTP")]
pub struct Limits {
    /// Maximum number of open connections; others wait in the kernel's backlog.
    #[arg(long, value_name = "COUNT", env = "HOPLINE_MAX_CONNECTIONS", default_value = "10000",
          value_parser = connections)]
    pub max_connections: usize,

    /// Maximum number of open connections of one client address, or one IPv6 /64; 0 is no limit. Trusted proxies and
    /// internal addresses have none.
    #[arg(long, value_name = "COUNT", env = "HOPLINE_CONNECTIONS_PER_CLIENT", default_value = "500")]
    pub connections_per_client: usize,

    /// Proxies whose connections are those of many clients.
    #[arg(skip)]
    pub proxies: Cidrs,

    /// Seconds that a connection may take to send a request's headers, or stay idle between requests.
    #[arg(long = "header-timeout-seconds", value_name = "SECONDS", env = "HOPLINE_HEADER_TIMEOUT_SECONDS",
          default_value = "5", value_parser = config::seconds)]
    pub header_timeout: Duration,

    /// Seconds that a client may take to read 64 KiB of an answer, or what is left of it, before its connection is
    /// closed.
    #[arg(long = "write-timeout-seconds", value_name = "SECONDS", env = "HOPLINE_WRITE_TIMEOUT_SECONDS",
          default_value = "30", value_parser = config::seconds)]
    pub write_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            connections_per_client: 500,
            proxies: Cidrs::default(),
            header_timeout: Duration::from_secs(5),
            write_timeout: Duration::from_secs(30),
        }
    }
}

fn connections(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=Semaphore::MAX_PERMITS).contains(count))
        .ok_or_else(|| "expected a whole number, at least 1".to_owned())
}

/// Serves routes over HTTP/1.1 until a shutdown is requested and the requests in flight are answered.
///
/// Each request has a [`Peer`] and a [`RequestId`] in its extensions; each response has `X-Request-Id`, and errors have
/// the body of [`ApiError`]. Connections still open after [`Shutdown::wait_clients_deadline`] are closed.
pub async fn serve(listener: TcpListener, routes: Route, limits: Limits, shutdown: Shutdown) {
    serve_with_middleware((), listener, routes, limits, shutdown).await;
}

/// Serves routes as [`serve`] does, with middleware for each request.
pub async fn serve_with_middleware<M: Middleware>(
    middleware: M,
    listener: TcpListener,
    routes: Route,
    limits: Limits,
    shutdown: Shutdown,
) {
    let _guard = shutdown.track_work("HTTP requests");
    let server = Arc::new(Server::new(&routes, middleware, &limits, shutdown.clone()));
    let permits = Arc::new(Semaphore::new(max_connections(limits.max_connections)));
    let clients = Clients::new(&limits);
    let connections = TaskTracker::new();
    let accept = async {
        let log_limit = LogLimit::default();
        loop {
            // Before the accept, so that a connection above the limit is not accepted. The semaphore is never closed.
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            let (stream, peer) = accept(&listener, &log_limit).await;
            let Ok(slot) = clients.admit(peer.ip()) else {
                metrics::counter!("hopline_http_connections_refused_total").increment(1);
                continue;
            };
            let connection = connection(Arc::clone(&server), stream, peer, shutdown.clone());
            connections.spawn(async move {
                connection.await;
                drop((permit, slot));
            });
        }
    };
    tokio::select! {
        biased;
        () = shutdown.wait() => {}
        () = accept => {}
    }
    // Closed before the drain, so that new connections go to other instances.
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// The open connections of each client.
struct Clients {
    open: Slots<u64>,
    most: usize,
    proxies: Cidrs,
}

impl Clients {
    fn new(limits: &Limits) -> Self {
        Self {
            open: Slots::unlimited(),
            most: limits.connections_per_client,
            proxies: limits.proxies.clone(),
        }
    }

    /// Counts a connection of a client until the slot is dropped. A proxy has none: its connections are of many
    /// clients.
    fn admit(&self, peer: IpAddr) -> Result<Option<Slot<u64>>, Full> {
        let peer = peer.to_canonical();
        if self.most == 0 || is_internal(peer) || self.proxies.contains(peer) {
            return Ok(None);
        }
        self.open.take(client_network(peer), self.most).map(Some)
    }
}

struct Server<M> {
    http: http1::Builder,
    routes: Route,
    middleware: M,
    write_timeout: Duration,
    shutdown: Shutdown,
}

impl<M> Server<M> {
    fn new(routes: &Route, middleware: M, limits: &Limits, shutdown: Shutdown) -> Self {
        let mut http = http1::Builder::new();
        // Also closes connections that send nothing, and those idle between requests.
        http.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout);
        http.max_header_size(MAX_HEAD).max_buf_size(MAX_BUFFERED);
        // Responses are small, so writing one buffer is faster. `pipeline_flush` stays off: with it, hyper never sends
        // its own response to a malformed request.
        http.writev(false);
        let routes = routes.clone().recover(recover).unify().boxed();
        Self { http, routes, middleware, write_timeout: limits.write_timeout, shutdown }
    }
}

/// Returns the maximum number of connections that also leaves open files for the rest of the process.
fn max_connections(configured: usize) -> usize {
    let possible = open_files_limit().saturating_sub(RESERVED_FILES).max(1);
    if configured > possible {
        tracing::warn!(
            configured,
            possible,
            "HOPLINE_MAX_CONNECTIONS is {configured}, but the limit of open files allows only {possible} connections"
        );
    }
    configured.min(possible)
}

/// Waits for the next connection and retries after errors.
async fn accept(listener: &TcpListener, log_limit: &LogLimit) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // The client has disconnected.
            Err(error) if is_connection_error(&error) => {}
            // Out of descriptors or memory; retrying at once would spin.
            Err(error) => {
                metrics::counter!("hopline_http_accept_errors_total").increment(1);
                if log_limit.is_due() {
                    tracing::error!("cannot accept connections: {error}");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}

/// Serves one connection until it ends or the clients' shutdown deadline passes.
async fn connection<M: Middleware>(
    server: Arc<Server<M>>,
    stream: TcpStream,
    peer: SocketAddr,
    shutdown: Shutdown,
) {
    // Responses are small and complete, so waiting to fill a packet only delays them. A failure is harmless.
    let _ = stream.set_nodelay(true);
    // After a failure, slow readers are only cut off earlier.
    let _ = SockRef::from(&stream).set_tcp_notsent_lowat(MAX_UNSENT);
    let (progress, unread) = (Progress::default(), Unread::default());
    let stream = Heads::new(Paced::new(stream, server.write_timeout), progress.clone());
    let service = service_fn({
        let (server, progress, unread) = (Arc::clone(&server), progress.clone(), unread.clone());
        let number = Cell::new(0);
        move |request: Request<Incoming>| {
            let refused = progress.check(number.replace(number.get() + 1));
            let request = request.map(|body| unread.watch(body, refused.is_err()));
            answer(Arc::clone(&server), request, refused, peer)
        }
    });
    let mut connection = server.http.serve_connection(TokioIo::new(stream), service);
    let ended = tokio::select! {
        biased;
        ended = &mut connection => ended,
        () = shutdown.wait() => {
            // The HTTP library does not know of a head that is held back. The next answer ends the connection.
            if !progress.is_arriving() {
                Pin::new(&mut connection).graceful_shutdown();
            }
            tokio::select! {
                biased;
                ended = &mut connection => ended,
                () = shutdown.wait_clients_deadline() => {
                    tracing::warn!("closed a connection whose request did not end before the shutdown deadline");
                    return;
                }
            }
        }
    };
    // Nothing behind a malformed head was read, and of a head that is still arriving a part.
    let is_unread = match &ended {
        Ok(()) => unread.get() || progress.is_arriving(),
        Err(error) => (unread.get() && !error.is_timeout()) || error.is_parse(),
    };
    // At debug level: clients routinely disconnect, time out or send garbage.
    if let Err(error) = ended {
        tracing::debug!("a connection ended: {}", chain(&error));
    }
    let stream = connection.into_parts().io.into_inner().into_inner();
    tokio::select! {
        biased;
        () = linger::end(stream, is_unread) => {}
        () = shutdown.wait_clients_deadline() => {}
    }
}

/// Answers one request, even if its handler panics.
fn answer<M: Middleware>(
    server: Arc<Server<M>>,
    mut request: Request<Watched<Incoming>>,
    refused: Result<(), ApiError>,
    peer: SocketAddr,
) -> impl Future<Output = Result<Response, Infallible>> {
    let id = RequestId::of(request.headers());
    request.extensions_mut().insert(Peer(peer));
    request.extensions_mut().insert(id.clone());
    // Before the middleware, which may take headers.
    let checked = refused.and_then(|()| check_host(&request));
    let accepts_gzip = accepts_gzip(request.headers());
    let state = server.middleware.before(&mut request);
    let traced = server.middleware.is_traced(&request);
    let span = if traced { span_of(&id) } else { Span::none() };
    let answered = async move {
        // The call is inside `catch_unwind`, because it already runs filters.
        let handled = AssertUnwindSafe(async {
            match checked {
                Ok(()) => warp::service(server.routes.clone()).call(request).await,
                Err(error) => Ok(error.into_response()),
            }
        })
        .catch_unwind();
        let mut response = match handled.await {
            Ok(Ok(response)) => response,
            // The panic hook has logged the panic.
            Err(_) => ApiError::internal("the handler panicked").into_response(),
        };
        if let Some(LoggedError(error)) = response.extensions_mut().remove() {
            if traced {
                log(&error);
            } else {
                span_of(&id).in_scope(|| log(&error));
            }
        }
        let headers = response.headers_mut();
        headers.insert(X_REQUEST_ID, id.into_header());
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if server.shutdown.requested() {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        server.middleware.after(state, &mut response);
        Ok(compress(accepts_gzip, response))
    };
    answered.instrument(span)
}

fn span_of(id: &RequestId) -> Span {
    tracing::info_span!("request", request_id = id.as_str())
}

/// Logs the cause of an error response, within the request's span.
fn log(error: &ApiError) {
    let code = error.code().as_str();
    let cause = error.source().map_or_else(|| error.message().to_owned(), chain);
    match error.code() {
        Code::Internal => tracing::error!(code, "answered {code}: {cause}"),
        Code::Unavailable => tracing::warn!(code, "answered {code}: {cause}"),
        // The caller's error, described in the response.
        _ => tracing::debug!(code, "answered {code}: {cause}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_a_limit_of_connections_and_a_proxy_none() {
        let limits = Limits {
            connections_per_client: 2,
            proxies: "198.51.100.0/24".parse().unwrap(),
            ..Limits::default()
        };
        let clients = Clients::new(&limits);
        let admit = |address: &str| clients.admit(address.parse().unwrap());
        let mut open = vec![admit("2001:db8::1").unwrap(), admit("2001:db8::2").unwrap()];
        assert!(admit("2001:db8::3").is_err(), "a /64 is one client");
        open.push(admit("2001:db8:0:1::1").unwrap());
        open.clear();
        assert!(admit("2001:db8::3").unwrap().is_some());
        for proxy in ["198.51.100.7", "::ffff:198.51.100.7", "10.0.0.1", "127.0.0.1", "fd00::1"] {
            let many: Vec<_> = (0..10).map(|_| admit(proxy).unwrap()).collect();
            assert!(many.iter().all(Option::is_none), "{proxy}");
        }
        let unlimited = Clients::new(&Limits { connections_per_client: 0, ..Limits::default() });
        assert!((0..1_000).all(|_| unlimited.admit([203, 0, 113, 1].into()).unwrap().is_none()));
    }
}
