//! A proxy in front of ClickHouse that holds one statement at a chosen moment until the test decides its fate.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::PATIENCE;
use crate::engines::Isolated;

/// How the request of an insert of clicks begins; its rows follow in the body.
pub const CLICKS: &[u8] = b"INSERT+INTO+clicks";

/// How the request of the insert that activates rollups begins.
pub const SLICES: &[u8] = b"INSERT INTO slices";

/// How the request that raises an epoch begins.
pub const OWNERS: &[u8] = b"INSERT INTO owners";

/// The end of a chunked body.
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

/// When a statement is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Before the server has received any of it.
    Before,
    /// After the server has received half of it.
    Half,
    /// After the server has answered, before the sender has received any of the answer.
    Answered,
}

/// What happens to a held statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It continues, also when its sender has timed out or is dead.
    GoesOn,
    /// Both connections are closed.
    IsCut,
}

#[derive(Debug)]
enum State {
    /// Every statement passes.
    Open,
    /// The next statement with this beginning is held.
    Set(&'static [u8], Moment),
    /// A statement is held until its fate is sent.
    Held(oneshot::Sender<Fate>),
    /// The held statement is released.
    Released,
    /// The server's answer to the released statement.
    Answered(String),
}

/// Whether inserts of clicks keep the check of their epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    Kept,
    TakenOut,
}

impl Guard {
    /// Replaces `throwIf(…) = 0` with `ignore(…) = 0`, which accepts every insert.
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

/// A proxy in front of ClickHouse. It ends with its test.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<watch::Sender<State>>,
}

impl Proxy {
    /// Listens on any free port.
    ///
    /// # Panics
    /// When there is none in time.
    pub async fn start(engines: &Isolated) -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").await.unwrap(), engines)
    }

    /// Listens on `listener`.
    ///
    /// # Panics
    /// When `listener` has no address.
    pub fn start_on(listener: TcpListener, engines: &Isolated) -> Self {
        Self::start_with(listener, engines, Guard::Kept)
    }

    /// The same for an experiment: removes the check of the epoch from inserts, as if the processor had none.
    ///
    /// # Panics
    /// As [`Proxy::start`].
    pub async fn without_epoch_check(engines: &Isolated) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::start_with(listener, engines, Guard::TakenOut)
    }

    fn start_with(listener: TcpListener, engines: &Isolated, guard: Guard) -> Self {
        let address = listener.local_addr().unwrap();
        let server = engines.clickhouse_host();
        let state = Arc::new(watch::Sender::new(State::Open));
        let trap = Trap { state: Arc::clone(&state) };
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
        engines.with_clickhouse_at(self.address)
    }

    /// Holds the next statement with this beginning.
    pub fn set(&self, statement: &'static [u8], moment: Moment) {
        self.state.send_replace(State::Set(statement, moment));
    }

    /// Waits until a statement is held.
    ///
    /// # Panics
    /// When none comes in time.
    pub async fn holds(&self) {
        let mut state = self.state.subscribe();
        let held = state.wait_for(|state| matches!(state, State::Held(_)));
        timeout(PATIENCE, held).await.expect("a statement is held").unwrap();
    }

    /// Releases the held statement.
    pub fn release(&self, fate: Fate) {
        if let State::Held(held) = self.state.send_replace(State::Released) {
            // The connection may have ended meanwhile.
            let _ = held.send(fate);
        }
    }

    /// Holds the next statement with this beginning, and then closes its connections.
    ///
    /// # Panics
    /// As [`Proxy::holds`].
    pub async fn break_next(&self, statement: &'static [u8], moment: Moment) {
        self.set(statement, moment);
        self.holds().await;
        self.release(Fate::IsCut);
    }

    /// Waits for the server's answer to a statement that was held before the server received it, and then continued.
    ///
    /// # Panics
    /// When there is none.
    pub async fn answer(&self) -> String {
        let mut state = self.state.subscribe();
        let answered = state.wait_for(|state| matches!(state, State::Answered(_)));
        let answered = timeout(PATIENCE, answered).await.expect("the server answers").unwrap();
        match &*answered {
            State::Answered(text) => text.clone(),
            other => panic!("{other:?}"),
        }
    }
}

/// The trap, as used by the connections.
#[derive(Clone)]
struct Trap {
    state: Arc<watch::Sender<State>>,
}

impl Trap {
    /// Returns when this statement must be held, if it must. Then the trap belongs to this connection.
    fn step_on(&self, bytes: &[u8]) -> Option<Moment> {
        let mut held = None;
        self.state.send_if_modified(|state| match state {
            State::Set(statement, moment) if contains(bytes, statement) => {
                held = Some(*moment);
                *state = State::Open;
                true
            }
            _ => false,
        });
        held
    }

    async fn hold(&self) -> Fate {
        let (held, released) = oneshot::channel();
        self.state.send_replace(State::Held(held));
        released.await.unwrap_or(Fate::IsCut)
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
                        // The server has closed the connection because it was idle.
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
                        // The server has received the header of the insert and waits for the rest of its body.
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
                // The server answers at the end of the statement, so its effects are complete.
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

/// Reads the rest of a request, so that it is complete even if its sender dies.
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

/// Sends a request and returns its answer at least to the end of the headers.
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
