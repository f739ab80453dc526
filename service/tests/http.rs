//! The HTTP server over real sockets: timeouts, limits, drain, panics and error bodies.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::http::StatusCode;
use serde::Deserialize;
use service::http::route::methods;
use service::http::{ApiError, BODY_LIMIT, Limits, Peer, RequestId, Route};
use service::{Shutdown, http};
use tests::{PATIENCE, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use warp::reply::Response;
use warp::{Filter as _, Reply as _};

/// Bytes of an answer that no socket buffers hold.
const LARGE: usize = 64 << 20;

/// A running server; its slow route notifies `entered` and waits for `release`.
struct Server {
    address: SocketAddr,
    shutdown: Shutdown,
    entered: Arc<Notify>,
    release: Arc<Notify>,
    task: JoinHandle<()>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

fn routes(entered: Arc<Notify>, release: Arc<Notify>) -> Route {
    let hello = warp::path!("hello").and(methods("GET, HEAD")).map(|| Response::new("hello".into())).boxed();
    let who = warp::path!("who")
        .and(methods("GET, HEAD"))
        .and(warp::ext::get::<Peer>())
        .and(warp::ext::get::<RequestId>())
        .map(|Peer(peer), id: RequestId| Response::new(format!("{} {id}", peer.ip()).into()))
        .boxed();
    let slow = warp::path!("slow")
        .and(methods("GET, HEAD"))
        .then(move || {
            let (entered, release) = (Arc::clone(&entered), Arc::clone(&release));
            async move {
                entered.notify_one();
                release.notified().await;
                Response::new("done".into())
            }
        })
        .boxed();
    let panics = warp::path!("panics")
        .and(methods("GET, HEAD"))
        .then(|| async { panic!("on purpose") })
        .map(|never: std::convert::Infallible| match never {})
        .boxed();
    let names = warp::path!("names")
        .and(methods("POST"))
        .and(warp::header::headers_cloned())
        .and(warp::body::stream())
        .then(|headers, body| async move { http::read_json::<Named, _>(&headers, body, BODY_LIMIT).await })
        .map(|named: Result<Named, ApiError>| {
            named.map_or_else(ApiError::into_response, |named| Response::new(named.name.into()))
        })
        .boxed();
    let broken = warp::path!("broken")
        .and(methods("GET, HEAD"))
        .map(|| ApiError::internal("the password is hunter2").into_response())
        .boxed();
    let large = warp::path!("large")
        .and(methods("GET, HEAD"))
        .map(|| Response::new(vec![b'x'; LARGE].into()))
        .boxed();
    let secret =
        warp::path!("secret").map(|| ApiError::unauthorized("A key is required.").into_response()).boxed();
    let long = warp::path!("long").map(|| http::json(StatusCode::OK, &"x".repeat(4_998))).boxed();
    http::route::any_of([hello, large, who, slow, panics, names, broken, secret, long])
}

async fn start(limits: Limits, drain: Duration) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = Shutdown::new(drain);
    let (entered, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let routes = routes(Arc::clone(&entered), Arc::clone(&release));
    let task = tokio::spawn(http::serve(listener, routes, limits, shutdown.clone()));
    Server { address, shutdown, entered, release, task }
}

async fn start_default() -> Server {
    start(Limits::default(), PATIENCE).await
}

impl Server {
    async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }

    /// Sends one request on a new connection and reads the response.
    async fn ask(&self, request: &str) -> Answer {
        let mut client = self.connect().await;
        client.send(request).await;
        client.read_answer().await
    }
}

struct Client(TcpStream);

impl Client {
    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    async fn get(&mut self, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).await;
        self.read_answer().await
    }

    /// Reads one response, which must have a content length.
    async fn read_answer(&mut self) -> Answer {
        timeout(PATIENCE, async {
            let mut received = Vec::new();
            let head_end = loop {
                if let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") {
                    break end + 4;
                }
                let count = self.0.read_buf(&mut received).await.unwrap();
                assert_ne!(count, 0, "closed before an answer: {}", String::from_utf8_lossy(&received));
            };
            let head = String::from_utf8(received[..head_end].to_vec()).unwrap();
            let mut answer = Answer { head, body: String::new() };
            let length: usize = answer.header("content-length").unwrap().parse().unwrap();
            while received.len() < head_end + length {
                assert_ne!(self.0.read_buf(&mut received).await.unwrap(), 0, "closed within an answer");
            }
            answer.body = String::from_utf8(received[head_end..head_end + length].to_vec()).unwrap();
            answer
        })
        .await
        .unwrap()
    }

    /// Waits until the server closes the connection; returns the remaining bytes.
    async fn until_closed(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match timeout(PATIENCE, self.0.read_to_end(&mut rest)).await.unwrap() {
            Ok(_) => rest,
            // Closing a connection may reset it.
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                rest
            }
        }
    }
}

#[derive(Debug)]
struct Answer {
    head: String,
    body: String,
}

impl Answer {
    fn status(&self) -> u16 {
        self.head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    /// Asserts an error body and returns its message.
    fn error_message(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status(), status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        assert!(self.header("x-request-id").is_some());
        let body: serde_json::Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!((&body["statusCode"], &body["code"]), (&status.into(), &code.into()), "{self:?}");
        body["message"].as_str().unwrap().to_owned()
    }
}

fn post(content_type: &str, body: &str) -> String {
    format!(
        "POST /names HTTP/1.1\r\nhost: x\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn a_request_has_a_peer_and_an_id_that_the_response_repeats() {
    let server = start_default().await;
    let answer = server.ask("GET /who HTTP/1.1\r\nhost: x\r\nx-request-id: mine-1\r\n\r\n").await;
    assert_eq!(answer.body, "127.0.0.1 mine-1");
    assert_eq!(answer.header("x-request-id"), Some("mine-1"));

    let answer = server.ask("GET /who HTTP/1.1\r\nhost: x\r\nx-request-id: not mine\r\n\r\n").await;
    let id = answer.header("x-request-id").unwrap();
    assert_ne!(id, "not mine");
    assert_eq!(answer.body, format!("127.0.0.1 {id}"));
}

#[tokio::test]
async fn a_request_needs_one_valid_host() {
    let server = start_default().await;
    for hosts in [
        "",
        "host: a\r\nhost: a\r\n",
        "host: a\r\nHost: b\r\n",
        "host:\r\n",
        "host: a b\r\n",
        "host: u@a\r\n",
    ] {
        let answer = server.ask(&format!("GET /hello HTTP/1.1\r\n{hosts}\r\n")).await;
        let message = answer.error_message(400, "BAD_REQUEST");
        assert_eq!(message, "A request must have one valid Host header.", "{hosts:?}");
    }
    assert_eq!(server.ask("GET /hello HTTP/1.1\r\nhost: [::1]:8080\r\n\r\n").await.body, "hello");
    assert_eq!(server.ask("GET /hello HTTP/1.0\r\n\r\n").await.body, "hello", "HTTP/1.0 has none");
}

#[tokio::test]
async fn connections_without_a_complete_head_are_closed() {
    // Long enough for a client on a busy machine to send its request.
    let limits = Limits { header_timeout: Duration::from_secs(4), ..Limits::default() };
    let server = start(limits, PATIENCE).await;
    let incomplete = async |sent: &str| {
        let started = Instant::now();
        let mut client = server.connect().await;
        client.send(sent).await;
        client.until_closed().await;
        assert!(started.elapsed() >= Duration::from_millis(3_900), "{sent:?} was closed too early");
    };
    let idle = async {
        let mut idle = server.connect().await;
        assert_eq!(idle.get("/hello").await.body, "hello");
        assert_eq!(idle.until_closed().await, b"", "an idle connection is closed without a response");
    };
    let trickle = async {
        let started = Instant::now();
        let mut slow = server.connect().await;
        slow.send("GET /hello HTTP/1.1\r\nhost: x\r\nx-slow: ").await;
        // A byte a second until the server closes the connection, or answers with the reason.
        while timeout(Duration::from_secs(1), slow.0.read_u8()).await.is_err() {
            assert!(started.elapsed() < PATIENCE, "a slow client is not disconnected");
            if slow.0.write_all(b"a").await.is_err() {
                break;
            }
        }
        assert!(
            started.elapsed() >= Duration::from_millis(3_900),
            "a slow client was disconnected too early"
        );
    };
    tokio::join!(
        incomplete(""),
        incomplete("GET /hel"),
        incomplete("GET /hello HTTP/1.1\r\nhost: x\r\n"),
        trickle,
        idle
    );
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_disconnected() {
    let limits = Limits { max_connections: 1, write_timeout: Duration::from_secs(4), ..Limits::default() };
    let server = start(limits, PATIENCE).await;
    let mut stalled = server.connect().await;
    stalled.send("GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await;
    // The only connection is free again, although the first client has closed nothing.
    assert_eq!(server.connect().await.get("/hello").await.body, "hello");
    let mut slow = server.connect().await;
    slow.send("GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    let mut received = 0;
    let mut part = vec![0; 1 << 20];
    while let Ok(length @ 1..) = timeout(PATIENCE, slow.0.read(&mut part)).await.unwrap() {
        received += length;
    }
    assert!(received > LARGE, "a client that reads gets everything: {received}");
}

#[tokio::test]
async fn a_client_that_reads_slowly_and_steadily_gets_everything() {
    let limits = Limits { write_timeout: Duration::from_secs(8), ..Limits::default() };
    let server = start(limits, PATIENCE).await;
    let mut slow = server.connect().await;
    slow.send("GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    let mut part = vec![0; 100 << 10];
    let mut received = 0;
    // Longer than the timeout, at eight times the rate that it asks for.
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        received += timeout(PATIENCE, slow.0.read(&mut part)).await.unwrap().unwrap();
    }
    while let Ok(length @ 1..) = timeout(PATIENCE, slow.0.read(&mut part)).await.unwrap() {
        received += length;
    }
    assert!(received > LARGE, "disconnected after {received} bytes");
}

#[tokio::test]
async fn a_target_with_characters_that_browsers_encode_is_answered() {
    let server = start_default().await;
    let mut client = server.connect().await;
    assert_eq!(client.get("/hello?a=<b>&c=\"d\"`").await.body, "hello");
    assert_eq!(client.get("/hello?<").await.body, "hello", "also on the next request of a connection");
}

#[tokio::test]
async fn connections_above_the_limit_wait() {
    let limits = Limits { max_connections: 1, ..Limits::default() };
    let server = start(limits, PATIENCE).await;
    let mut first = server.connect().await;
    first.send("GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    timeout(PATIENCE, server.entered.notified()).await.unwrap();

    let mut second = server.connect().await;
    second.send("GET /hello HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let early = timeout(Duration::from_millis(200), second.0.read_u8()).await;
    assert!(early.is_err(), "answered although the limit was reached");

    server.release.notify_one();
    assert_eq!(first.read_answer().await.body, "done");
    assert_eq!(second.read_answer().await.body, "hello");
}

#[tokio::test]
async fn a_drain_finishes_requests_in_flight_and_accepts_no_others() {
    let server = start_default().await;
    let mut idle = server.connect().await;
    idle.get("/hello").await;
    let mut silent = server.connect().await;
    let mut busy = server.connect().await;
    busy.send("GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await;
    timeout(PATIENCE, server.entered.notified()).await.unwrap();

    server.shutdown.request();
    assert_eq!(idle.until_closed().await, b"");
    assert_eq!(silent.until_closed().await, b"");
    eventually("the listener is closed", async || {
        TcpStream::connect(server.address).await.err().ok_or("it accepts connections")
    })
    .await;
    assert!(!server.task.is_finished(), "the request in flight was abandoned");

    server.release.notify_one();
    let answer = busy.read_answer().await;
    assert_eq!(answer.body, "done");
    assert_eq!(answer.header("connection"), Some("close"));
    timeout(PATIENCE, server.task).await.unwrap().unwrap();
    assert!(server.shutdown.unfinished().is_empty());
}

#[tokio::test]
async fn a_drain_ends_at_its_deadline() {
    let server = start(Limits::default(), Duration::from_millis(200)).await;
    let mut busy = server.connect().await;
    busy.send("GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await;
    timeout(PATIENCE, server.entered.notified()).await.unwrap();
    server.shutdown.request();
    assert_eq!(server.shutdown.unfinished(), ["HTTP requests"]);
    timeout(PATIENCE, server.task).await.unwrap().unwrap();
    assert_eq!(busy.until_closed().await, b"");
}

#[tokio::test]
async fn a_panic_is_an_internal_error_and_the_connection_stays_open() {
    let server = start_default().await;
    let mut client = server.connect().await;
    let message = client.get("/panics").await.error_message(500, "INTERNAL");
    assert!(!message.contains("on purpose"), "{message}");
    assert_eq!(client.get("/hello").await.body, "hello");
}

#[tokio::test]
async fn the_cause_of_an_internal_error_is_not_in_the_response() {
    let answer = start_default().await.ask("GET /broken HTTP/1.1\r\nhost: x\r\n\r\n").await;
    answer.error_message(500, "INTERNAL");
    assert!(!answer.body.contains("hunter2"), "{answer:?}");
}

#[tokio::test]
async fn unknown_paths_and_methods_have_an_error_body() {
    let server = start_default().await;
    server.ask("GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n").await.error_message(404, "NOT_FOUND");
    let put = "PUT /hello HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
    let answer = server.ask(put).await;
    answer.error_message(405, "METHOD_NOT_ALLOWED");
    assert_eq!(answer.header("allow"), Some("GET, HEAD"));
}

#[tokio::test]
async fn an_answer_to_a_missing_key_names_the_scheme() {
    let answer = start_default().await.ask("GET /secret HTTP/1.1\r\nhost: x\r\n\r\n").await;
    answer.error_message(401, "UNAUTHORIZED");
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
}

#[tokio::test]
async fn a_long_answer_is_compressed_for_clients_that_accept_it() {
    let server = start_default().await;
    let ask =
        |accepted: &str| format!("GET /long HTTP/1.1\r\nhost: x\r\naccept-encoding: {accepted}\r\n\r\n");
    let plain = server.ask(&ask("br")).await;
    assert_eq!((plain.body.len(), plain.header("vary")), (5_000, Some("Accept-Encoding")));
    let mut client = server.connect().await;
    client.send(&ask("gzip").replace("GET", "HEAD")).await;
    client.send(&ask("gzip").replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n")).await;
    let received = client.until_closed().await;
    let text = String::from_utf8_lossy(&received);
    assert_eq!(text.matches("content-encoding: gzip\r\n").count(), 2, "{text}");
    assert!((200..1_000).contains(&received.len()), "{} bytes", received.len());
}

#[tokio::test]
async fn an_invalid_request_line_gets_a_response() {
    let server = start_default().await;
    let mut client = server.connect().await;
    client.send("GET /hel\0lo HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(client.read_answer().await.status(), 400);
}

#[tokio::test]
async fn large_and_malformed_heads_are_rejected() {
    let server = start_default().await;
    let header = |bytes| format!("GET /hello HTTP/1.1\r\nhost: x\r\nx-large: {}\r\n\r\n", "x".repeat(bytes));
    let target = |bytes| format!("GET /hello?{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(bytes));
    for head in [header(31 << 10), target(15 << 10)] {
        assert_eq!(server.ask(&head).await.status(), 200);
    }
    let many = format!("GET /hello HTTP/1.1\r\nhost: x\r\n{}\r\n", "x-many: a\r\n".repeat(200));
    for (large, status, code) in [
        (header(33 << 10), 431, "HEADERS_TOO_LARGE"),
        (header(1 << 20), 431, "HEADERS_TOO_LARGE"),
        (many, 431, "HEADERS_TOO_LARGE"),
        (target(17 << 10), 414, "URI_TOO_LONG"),
        (target(1 << 20), 414, "URI_TOO_LONG"),
    ] {
        let answer = server.ask(&large).await;
        answer.error_message(status, code);
        assert_eq!(answer.header("connection"), Some("close"));
    }
    let mut client = server.connect().await;
    client.send(&target(17 << 10).replace("GET", "HEAD")).await;
    let answer = client.until_closed().await;
    assert!(
        answer.starts_with(b"HTTP/1.1 414 ") && answer.ends_with(b"\r\n\r\n"),
        "{}",
        answer.escape_ascii()
    );
    let mut client = server.connect().await;
    client.send(&format!("{}{}", target(9), target(17 << 10))).await;
    let answers = String::from_utf8(client.until_closed().await).unwrap();
    let (first, second) = answers.split_once("hello").expect("what came before is answered");
    assert!(first.starts_with("HTTP/1.1 200 ") && second.starts_with("HTTP/1.1 414 "), "{answers}");

    let tls = "\x16\x03\x01\x02\x00\x01\x00";
    for (head, status) in [(tls, 400), ("GET\r\n\r\n", 400), ("GET / HTTP/9.9\r\n\r\n", 400)] {
        let mut client = server.connect().await;
        client.send(head).await;
        let answer = client.until_closed().await;
        let expected = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(expected.as_bytes()), "{head:?}: {}", answer.escape_ascii());
    }
    assert_eq!(server.ask("GET /hello HTTP/1.1\r\nhost: x\r\n\r\n").await.body, "hello");
}

#[tokio::test]
async fn a_body_must_be_valid_json_of_its_type() {
    let server = start_default().await;
    let json = "application/json";
    assert_eq!(server.ask(&post(json, r#"{"name":"anna"}"#)).await.body, "anna");
    server.ask(&post("text/plain", "{}")).await.error_message(415, "UNSUPPORTED_MEDIA_TYPE");
    server.ask(&post(json, "{")).await.error_message(400, "BAD_REQUEST");
    let message =
        server.ask(&post(json, r#"{"name":"anna","colour":1}"#)).await.error_message(400, "BAD_REQUEST");
    assert!(message.contains("Colour"), "{message}");
}

#[tokio::test]
async fn a_large_body_is_rejected_with_and_without_a_length() {
    let server = start_default().await;
    let fitting = format!(r#"{{"name":"{}"}}"#, "x".repeat(BODY_LIMIT - 11));
    assert_eq!(fitting.len(), BODY_LIMIT);
    assert_eq!(server.ask(&post("application/json", &fitting)).await.status(), 200);

    // Rejected by the head: the body is never sent.
    let mut with_length = server.connect().await;
    with_length
        .send("POST /names HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 65537\r\n\r\n")
        .await;
    with_length.read_answer().await.error_message(413, "PAYLOAD_TOO_LARGE");

    let head = "POST /names HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
        transfer-encoding: chunked\r\n\r\n";
    let chunk = format!("8000\r\n{}\r\n", "x".repeat(0x8000));
    let mut chunked = server.connect().await;
    chunked.send(&format!("{head}{chunk}{chunk}1\r\nx\r\n")).await;
    chunked.read_answer().await.error_message(413, "PAYLOAD_TOO_LARGE");
}

#[tokio::test]
async fn a_client_that_sends_a_body_first_and_reads_then_gets_its_answer() {
    let server = start_default().await;
    let mut client = server.connect().await;
    let length = 8 << 20;
    let head = "POST /names HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    client.send(&format!("{head}content-length: {length}\r\n\r\n")).await;
    client.send(&"x".repeat(length)).await;
    client.read_answer().await.error_message(413, "PAYLOAD_TOO_LARGE");
    assert_eq!(client.0.read(&mut [0; 1]).await.unwrap(), 0, "closed and not reset");

    // The HTTP library ends such a connection in another way, and a malformed request in a third.
    let upgrade = format!("{head}upgrade: h2c\r\ncontent-length: {length}\r\n\r\n");
    let malformed = "POST /names HTTP/1.1\r\nhost: x\r\ncontent-length: +1\r\n\r\n".to_owned();
    for (head, status) in [(upgrade, 413), (malformed, 400)] {
        let mut client = server.connect().await;
        client.send(&format!("{head}{}", "x".repeat(length))).await;
        let mut answer = Vec::new();
        timeout(PATIENCE, client.0.read_to_end(&mut answer)).await.unwrap().expect("closed and not reset");
        assert!(answer.starts_with(format!("HTTP/1.1 {status} ").as_bytes()), "{}", answer.escape_ascii());
    }
}

#[tokio::test]
async fn a_head_that_is_arriving_at_a_shutdown_is_answered() {
    let server = start_default().await;
    let mut client = server.connect().await;
    client.send("GET /hello HTTP/1.1\r\n").await;
    // A second connection is answered, so the server has had time to read of the first.
    assert_eq!(server.ask("GET /hello HTTP/1.1\r\nhost: x\r\n\r\n").await.body, "hello");
    server.shutdown.request();
    client.send("host: x\r\n\r\n").await;
    let answer = client.read_answer().await;
    assert_eq!((&*answer.body, answer.header("connection")), ("hello", Some("close")));
    timeout(PATIENCE, server.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_target_behind_a_body_is_encoded_as_well() {
    let server = start_default().await;
    let mut client = server.connect().await;
    client.send(&post("application/json", r#"{"name":"<anna>"}"#)).await;
    assert_eq!(client.read_answer().await.body, "<anna>");
    assert_eq!(client.get("/hello?<").await.body, "hello");
    let long = format!("GET /hello?{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(17 << 10));
    client.send(&long).await;
    client.read_answer().await.error_message(414, "URI_TOO_LONG");
}

#[tokio::test]
async fn a_compressed_body_is_rejected() {
    let server = start_default().await;
    let with = |coding: &str| {
        post("application/json", r#"{"name":"anna"}"#)
            .replace("content-type", &format!("content-encoding: {coding}\r\ncontent-type"))
    };
    assert_eq!(server.ask(&with("Identity")).await.body, "anna");
    for coding in [
        "gzip",
        "br",
        "identity, gzip",
        "identity\r\ncontent-encoding: gzip",
        "identity\r\ntransfer-encoding: gzip, chunked",
    ] {
        let answer = server.ask(&with(coding)).await;
        answer.error_message(415, "UNSUPPORTED_ENCODING");
        assert_eq!(answer.header("accept-encoding"), Some("identity"));
    }
}

#[tokio::test]
async fn readyz_reports_a_drain() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut server = start_default().await;
    server.address = listener.local_addr().unwrap();
    let health = service::Health::new(&server.shutdown);
    let kafka = health.check("kafka");
    let metrics = service::metrics::Metrics::install("test", &[]).unwrap();
    let operations = http::serve_operations(listener, &health, &metrics);

    let mut probe = server.connect().await;
    assert_eq!(probe.get("/readyz").await.status(), 503);
    kafka.ready();
    let ready = probe.get("/readyz").await;
    assert_eq!(ready.status(), 200);
    assert_eq!(
        ready.body,
        r#"{"ready":true,"checks":{"kafka":{"ready":true,"required":true,"detail":"ok"}}}"#
    );
    server.shutdown.request();
    let draining = probe.get("/readyz").await;
    assert_eq!(draining.status(), 503);
    assert!(draining.body.contains(r#""detail":"draining""#), "{draining:?}");
    assert_eq!(probe.get("/healthz").await.status(), 200);
    probe.send("DELETE /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(probe.read_answer().await.header("allow"), Some("GET, HEAD"));
    assert!(probe.get("/metrics").await.body.contains("hopline_build_info"));
    drop(operations);
}
