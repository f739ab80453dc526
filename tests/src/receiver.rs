//! A webhook receiver that records its requests and answers by a script.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use hmac::{Hmac, KeyInit as _, Mac as _};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Response};
use hyper_util::rt::TokioIo;
use sha2::Sha256;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::{PATIENCE, eventually};

/// Maximum difference between a signature's time and now.
const TOLERANCE: Duration = Duration::from_secs(300);

/// Connections that may wait to be accepted. The kernel drops some of those beyond, and their senders retry after
/// seconds.
const BACKLOG: u32 = 4_096;

/// A received request.
#[derive(Debug, Clone)]
pub struct Request {
    /// When it was complete.
    pub at: SystemTime,
    /// Its method.
    pub method: Method,
    /// Its path.
    pub path: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its exact body.
    pub body: Bytes,
    /// Set when it was answered, or when its sender closed the connection.
    pub end: Arc<OnceLock<End>>,
}

/// How a request ended.
#[derive(Debug, Clone, Copy)]
pub struct End {
    /// The time.
    pub at: SystemTime,
    /// Whether it was answered before its sender closed the connection.
    pub answered: bool,
}

impl Request {
    /// Returns a header as text; empty when it is missing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    /// The body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Returns the delivery's id from its header.
    pub fn delivery(&self) -> &str {
        self.header("x-service-delivery")
    }

    /// Returns whether it was answered.
    pub fn was_answered(&self) -> bool {
        self.end.get().is_some_and(|end| end.answered)
    }

    /// Returns when it ended; `None` while it is in flight.
    pub fn ended_at(&self) -> Option<SystemTime> {
        self.end.get().map(|end| end.at)
    }

    /// Returns copies of the request, each with only one of its signatures.
    pub fn signatures(&self) -> Vec<Self> {
        let mut parts = self.header("x-service-signature").split(',');
        let t = parts.next().unwrap_or_default();
        parts
            .map(|v1| {
                let mut alone = self.clone();
                alone.headers.insert("x-service-signature", format!("{t},{v1}").parse().unwrap());
                alone
            })
            .collect()
    }

    /// Returns whether the signature matches this secret and body, with a time close to now.
    ///
    /// Implemented from the documentation and not with the dispatcher's code, to detect errors there.
    pub fn is_signed_with(&self, secret: &str) -> bool {
        let signature = self.header("x-service-signature");
        let Some((t, v1)) = signature.strip_prefix("t=").and_then(|rest| rest.split_once(",v1=")) else {
            return false;
        };
        let signed_at = SystemTime::UNIX_EPOCH + Duration::from_secs(t.parse().unwrap());
        let distance = match self.at.duration_since(signed_at) {
            Ok(later) => later,
            Err(earlier) => earlier.duration(),
        };
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
        mac.update(t.as_bytes());
        mac.update(b".");
        mac.update(&self.body);
        let expected: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        expected == v1 && distance <= TOLERANCE
    }
}

/// The answer to a request.
#[derive(Debug, Clone)]
pub enum Answer {
    /// Answers with a status.
    Status(u16),
    /// Answers with a status, a header and a body.
    Full(u16, (&'static str, String), Vec<u8>),
    /// Answers with a status after a delay.
    Late(Duration, u16),
    /// Answers with a status once the test has sent true, or dropped the sender.
    Held(watch::Receiver<bool>, u16),
    /// Never answers.
    Silence,
}

/// A receiver on this machine. Dropping it stops it.
#[derive(Debug)]
pub struct Receiver {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    _server: JoinSet<()>,
}

impl Receiver {
    /// Starts a receiver. `script` returns the answer to each request; its second argument numbers the requests to the
    /// same path from 0.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn start(script: impl Fn(&Request, usize) -> Answer + Send + Sync + 'static) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let listener = socket.listen(BACKLOG).unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let mut server = JoinSet::new();
        server.spawn(serve(listener, Arc::clone(&requests), Arc::new(script)));
        Self { address, requests, _server: server }
    }

    /// Returns a URL of this receiver; `path` begins with a slash.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns all requests so far, in order of arrival.
    ///
    /// # Panics
    /// When the script panicked.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// The number of requests so far.
    ///
    /// # Panics
    /// When a script panicked.
    pub fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    /// Returns the number of distinct deliveries so far: a delivery may arrive again.
    ///
    /// # Panics
    /// When a script panicked.
    pub fn deliveries(&self) -> usize {
        self.deliveries_of(|_| true)
    }

    /// Returns the number of distinct deliveries of matching requests so far.
    ///
    /// # Panics
    /// When a script panicked.
    pub fn deliveries_of(&self, is_counted: impl Fn(&Request) -> bool) -> usize {
        let requests = self.requests.lock().unwrap();
        let counted = requests.iter().filter(|request| is_counted(request));
        counted.map(Request::delivery).collect::<BTreeSet<_>>().len()
    }

    /// Waits until exactly this number of requests has arrived.
    ///
    /// # Panics
    /// When another number has arrived at the deadline.
    pub async fn receives(&self, count: usize) {
        eventually(&format!("{count} requests arrive"), async || match self.count() {
            seen if seen == count => Ok(()),
            seen => Err(seen),
        })
        .await;
    }

    /// Waits until at least this number of requests has arrived.
    ///
    /// # Panics
    /// When fewer have arrived at the deadline.
    pub async fn receives_at_least(&self, count: usize) {
        eventually(&format!("{count} requests arrive"), async || match self.count() {
            seen if seen >= count => Ok(()),
            seen => Err(seen),
        })
        .await;
    }

    /// Waits until exactly this number of requests to one path has arrived.
    ///
    /// # Panics
    /// When another number has arrived at the deadline.
    pub async fn receives_at(&self, path: &str, count: usize) {
        eventually(&format!("{count} requests to {path}"), async || match self.requests_to(path).len() {
            seen if seen == count => Ok(()),
            seen => Err(seen),
        })
        .await;
    }

    /// Returns the requests to one path so far.
    pub fn requests_to(&self, path: &str) -> Vec<Request> {
        let mut requests = self.requests();
        requests.retain(|request| request.path == path);
        requests
    }
}

/// Starts the documentation's example receiver in Python, and returns it with its URL. Port 0 is any free one.
///
/// # Panics
/// When it does not start.
pub async fn start_example(port: u16, secret: &str, arguments: &[&str]) -> (Child, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/receiver/receiver.py");
    let mut child = Command::new("python3")
        .arg(script)
        .args(["--port", &port.to_string()])
        .args(arguments)
        .env("WEBHOOK_SECRET", secret)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let first = timeout(PATIENCE, BufReader::new(child.stderr.as_mut().unwrap()).lines().next_line()).await;
    let first = first.unwrap().unwrap().unwrap_or_default();
    let url = first.strip_prefix("listening on ").unwrap_or_else(|| panic!("{first}")).to_owned();
    (child, url)
}

/// Records the end of a request when it is dropped.
struct Ending {
    end: Arc<OnceLock<End>>,
    answered: bool,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.end.set(End { at: SystemTime::now(), answered: self.answered });
    }
}

/// Returns the first request of each delivery.
pub fn first_of_each<'a>(requests: impl IntoIterator<Item = &'a Request>) -> Vec<&'a Request> {
    let mut seen = BTreeSet::new();
    requests.into_iter().filter(|request| seen.insert(request.delivery())).collect()
}

/// Asserts that a delivery was repeated at most as often as attempts of it have failed. `failed` is the number of each
/// delivery's attempts in the failure log. [`Arrivals`](crate::arrivals::Arrivals) also accepts interruptions.
///
/// # Panics
/// When the assertion fails.
pub fn only_failures_are_repeated<'a>(
    requests: impl IntoIterator<Item = &'a Request>,
    failed: &HashMap<String, usize>,
) {
    let mut attempts: HashMap<&str, usize> = HashMap::new();
    for request in requests {
        *attempts.entry(request.delivery()).or_default() += 1;
    }
    for (delivery, count) in attempts {
        let allowed = 1 + failed.get(delivery).copied().unwrap_or_default();
        assert!(count <= allowed, "{delivery} was repeated without a failed attempt");
    }
}

/// Returns the maximum number of these requests that were in flight at the same time.
pub fn most_at_once<'a>(requests: impl IntoIterator<Item = &'a Request>) -> usize {
    let mut changes = Vec::new();
    for request in requests {
        changes.push((request.at, 1));
        changes.extend(request.ended_at().map(|at| (at, -1)));
    }
    // At the same time, ends come before starts.
    changes.sort_unstable();
    let mut under_way = 0_isize;
    let counts = changes.into_iter().map(|(_, change)| {
        under_way += change;
        under_way
    });
    counts.max().unwrap_or_default().unsigned_abs()
}

type Script = dyn Fn(&Request, usize) -> Answer + Send + Sync;

async fn serve(listener: TcpListener, requests: Arc<Mutex<Vec<Request>>>, script: Arc<Script>) {
    let counts = Arc::new(Mutex::new(HashMap::new()));
    // Dropping the set closes open connections.
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(connection(
            stream,
            Arc::clone(&requests),
            Arc::clone(&counts),
            Arc::clone(&script),
        ));
    }
}

async fn connection(
    stream: TcpStream,
    requests: Arc<Mutex<Vec<Request>>>,
    counts: Arc<Mutex<HashMap<String, usize>>>,
    script: Arc<Script>,
) {
    let service = service_fn(|incoming: hyper::Request<Incoming>| {
        let (requests, counts, script) = (Arc::clone(&requests), Arc::clone(&counts), Arc::clone(&script));
        async move {
            let (head, body) = incoming.into_parts();
            // A killed sender may leave an incomplete request, which is ignored.
            let Ok(body) = body.collect().await else { std::future::pending().await };
            let request = Request {
                at: SystemTime::now(),
                method: head.method,
                path: head.uri.path().to_owned(),
                headers: head.headers,
                body: body.to_bytes(),
                end: Arc::default(),
            };
            let mut ending = Ending { end: Arc::clone(&request.end), answered: false };
            let number = {
                let mut counts = counts.lock().unwrap();
                let count = counts.entry(request.path.clone()).or_default();
                *count += 1;
                *count - 1
            };
            let answer = script(&request, number);
            requests.lock().unwrap().push(request);
            let response = act(answer).await;
            // Not reached when the connection ends first.
            ending.answered = true;
            Ok::<_, Infallible>(response)
        }
    });
    // The sender may close the connection at any time.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn act(answer: Answer) -> Response<Full<Bytes>> {
    let (status, header, body) = match answer {
        Answer::Status(status) => (status, None, vec![]),
        Answer::Full(status, header, body) => (status, Some(header), body),
        Answer::Late(wait, status) => {
            tokio::time::sleep(wait).await;
            (status, None, vec![])
        }
        Answer::Held(mut released, status) => {
            let _ = released.wait_for(|is_released| *is_released).await;
            (status, None, vec![])
        }
        Answer::Silence => std::future::pending().await,
    };
    let mut response = Response::builder().status(status);
    if let Some((name, value)) = header {
        response = response.header(name, value);
    }
    response.body(Full::new(Bytes::from(body))).unwrap()
}
