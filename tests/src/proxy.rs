//! A way to ClickHouse with a trap in it: one statement is held at a chosen moment, until a test says what becomes
//! of it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::engines::Isolated;

/// How an insert of clicks begins on the wire, where its rows follow in the body.
pub const CLICKS: &[u8] = b"INSERT+INTO+clicks";

/// How a higher epoch begins on the wire.
pub const OWNERS: &[u8] = b"INSERT INTO owners";

/// How the end of a body that was sent in chunks looks.
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

/// How long anything may take that is waited for here. A deadline for a broken system.
const DEADLINE: Duration = Duration::from_secs(90);

/// When a statement is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The server has got nothing of it.
    Before,
    /// The server has got half of it.
    Half,
    /// The server has answered, and the sender has got nothing of the answer.
    Answered,
}

/// What becomes of a statement that was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It goes on its way, also when its sender has given up or is dead.
    GoesOn,
    /// Both connections are closed.
    IsCut,
}

#[derive(Debug, Clone)]
enum State {
    /// Everything passes.
    Open,
    /// The next such statement is held.
    Set(&'static [u8], Moment),
    /// One is held.
    Sprung,
    /// What is held is let go.
    Released(Fate),
    /// What the server answered to a statement that went on.
    Answered(String),
}

/// Whether inserts of clicks keep the check of their epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    Kept,
    TakenOut,
}

impl Guard {
    /// Turns `throwIf(…) = 0` into `ignore(…) = 0`, which lets every insert through.
    fn treat(self, bytes: &mut Vec<u8>) {
        const CHECK: &[u8] = b"throwIf";
        const NONE: &[u8] = b"ignore";
        if self == Self::TakenOut && contains(bytes, CLICKS) {
            let at = bytes.windows(CHECK.len()).position(|window| window == CHECK);
            let at = at.expect("an insert of clicks has its check in the request's first line");
            bytes.splice(at..at + CHECK.len(), NONE.iter().copied());
        }
    }
}

/// A proxy before ClickHouse. It ends with its test.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<watch::Sender<State>>,
}

impl Proxy {
    /// Listens on any free port.
    ///
    /// # Panics
    /// When there is none.
    pub async fn start(engines: &Isolated) -> Self {
        Self::start_with(engines, Guard::Kept).await
    }

    /// The same for an experiment: what passes has lost the check of its epoch, as if the processor had none.
    ///
    /// # Panics
    /// As [`Proxy::start`].
    pub async fn without_epoch_check(engines: &Isolated) -> Self {
        Self::start_with(engines, Guard::TakenOut).await
    }

    async fn start_with(engines: &Isolated, guard: Guard) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = host(&engines.clickhouse_url).to_owned();
        let state = Arc::new(watch::Sender::new(State::Open));
        let trap = Trap { state: Arc::clone(&state), turn: Arc::default() };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                tokio::spawn(pass(client, server, trap.clone(), guard));
            }
        });
        Self { address, state }
    }

    /// The same engines, with ClickHouse behind the proxy.
    pub fn before(&self, engines: &Isolated) -> Isolated {
        let url = &engines.clickhouse_url;
        let clickhouse_url = url.replace(host(url), &self.address.to_string());
        Isolated { clickhouse_url, ..engines.clone() }
    }

    /// Sets the trap for the next statement that begins so.
    pub fn set(&self, statement: &'static [u8], moment: Moment) {
        self.state.send_replace(State::Set(statement, moment));
    }

    /// Waits until a statement is held.
    ///
    /// # Panics
    /// When none comes.
    pub async fn holds(&self) {
        let mut state = self.state.subscribe();
        let held = state.wait_for(|state| matches!(state, State::Sprung));
        timeout(DEADLINE, held).await.expect("a statement is held").unwrap();
    }

    /// Lets go what is held.
    pub fn release(&self, fate: Fate) {
        self.state.send_replace(State::Released(fate));
    }

    /// Waits for the server's answer to a statement that was held before it and went on.
    ///
    /// # Panics
    /// When there is none.
    pub async fn answer(&self) -> String {
        let mut state = self.state.subscribe();
        let answered = state.wait_for(|state| matches!(state, State::Answered(_)));
        let answered = timeout(DEADLINE, answered).await.expect("the server answers").unwrap();
        match &*answered {
            State::Answered(text) => text.clone(),
            other => panic!("{other:?}"),
        }
    }
}

fn host(url: &str) -> &str {
    let rest = url.split_once("://").unwrap().1;
    let rest = rest.split_once('@').map_or(rest, |(_, rest)| rest);
    rest.split_once('/').map_or(rest, |(host, _)| host)
}

/// The trap as a connection sees it.
#[derive(Clone)]
struct Trap {
    state: Arc<watch::Sender<State>>,
    /// Of two connections that step on it at once one springs it.
    turn: Arc<Mutex<()>>,
}

impl Trap {
    /// When these bytes are to be held, if they are. From then on the trap is this connection's alone.
    fn step_on(&self, bytes: &[u8]) -> Option<Moment> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (statement, moment) = match &*self.state.borrow() {
            State::Set(statement, moment) => (*statement, *moment),
            _ => return None,
        };
        if !contains(bytes, statement) {
            return None;
        }
        self.state.send_replace(State::Open);
        Some(moment)
    }

    async fn hold(&self) -> Fate {
        let mut state = self.state.subscribe();
        self.state.send_replace(State::Sprung);
        loop {
            if let State::Released(fate) = &*state.borrow_and_update() {
                return *fate;
            }
            if state.changed().await.is_err() {
                return Fate::IsCut;
            }
        }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

async fn pass(mut client: TcpStream, mut server: TcpStream, trap: Trap, guard: Guard) {
    let Ok(address) = server.peer_addr() else { return };
    let (mut request, mut answer) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let mut hold_answer = false;
    loop {
        tokio::select! {
            read = client.read(&mut request) => {
                let Ok(length @ 1..) = read else { return };
                let mut bytes = request[..length].to_vec();
                guard.treat(&mut bytes);
                let moment = trap.step_on(&bytes);
                hold_answer |= moment == Some(Moment::Answered);
                if matches!(moment, Some(Moment::Before | Moment::Half)) {
                    read_to_end(&mut client, &mut bytes).await;
                }
                match moment {
                    Some(Moment::Before) => {
                        if trap.hold().await == Fate::IsCut {
                            return;
                        }
                        // The server has closed a connection on which it heard nothing for so long.
                        let Ok(connection) = TcpStream::connect(address).await else { return };
                        server = connection;
                        let first = answer_to(&bytes, &mut server).await;
                        let text = String::from_utf8_lossy(&first).into_owned();
                        trap.state.send_replace(State::Answered(text));
                        if client.write_all(&first).await.is_err() {
                            return;
                        }
                        continue;
                    }
                    Some(Moment::Half) => {
                        // The server has seen that an insert was to come, and waits for the rest of its body.
                        let headers = bytes.windows(4).position(|at| at == b"\r\n\r\n").map_or(0, |end| end + 4);
                        let half = headers + (bytes.len() - headers) / 2;
                        let _ = server.write_all(&bytes[..half]).await;
                        trap.hold().await;
                        return;
                    }
                    Some(Moment::Answered) | None => {}
                }
                if server.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answer) => {
                let Ok(length @ 1..) = read else { return };
                // The server answers at the end of the statement, so what it does is done.
                if hold_answer && trap.hold().await == Fate::IsCut {
                    return;
                }
                hold_answer = false;
                if client.write_all(&answer[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Reads the rest of a request, so that all of it is here whatever becomes of its sender.
async fn read_to_end(client: &mut TcpStream, bytes: &mut Vec<u8>) {
    let is_chunked = contains(&bytes.to_ascii_lowercase(), b"transfer-encoding: chunked");
    let mut more = vec![0; 64 << 10];
    while is_chunked && !bytes.ends_with(LAST_CHUNK) {
        match client.read(&mut more).await {
            Ok(length @ 1..) => bytes.extend_from_slice(&more[..length]),
            _ => return,
        }
    }
}

/// Sends a request and returns its answer until the end of the headers, or beyond.
async fn answer_to(request: &[u8], server: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    if server.write_all(request).await.is_ok() {
        while !contains(&answer, b"\r\n\r\n") {
            match server.read_buf(&mut answer).await {
                Ok(1..) => {}
                _ => break,
            }
        }
    }
    answer
}
