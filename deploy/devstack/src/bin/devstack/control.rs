//! The protocol between a running stack and other commands: one JSON line as the request and some as the answer, over
//! a Unix socket.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::sleep;

use crate::action::Action;
use crate::environment::Services;
use crate::folder::Folder;
use crate::stack::Stack;
use crate::state::{DEMO, STATE, State};
use crate::status::Status;
use crate::terminal::print_line;

const SOCKET: &str = "control.sock";

/// Pause before another attempt to reach a stack that does not listen yet.
const LISTENS_SOON: Duration = Duration::from_millis(20);

/// A request to a running stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub(crate) enum Request {
    /// Return the status.
    Status,
    /// Return the services' programs and environment.
    Environment,
    /// Do something with a server, or with all of a service or an engine.
    Apply { action: Action, name: String },
    /// Make a standby of Postgres the primary.
    Promote { name: String },
    /// Stop everything.
    Down,
}

/// A line of the answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// A line to show; more lines follow.
    Progress(String),
    /// Success, with the result.
    Done(Value),
    /// Failure, with the reason.
    Failed(String),
}

/// An open folder, which gives the socket a short path under `/proc`: a socket's path may have only 107 bytes.
struct SocketFolder(fs::File);

impl SocketFolder {
    fn open(folder: &Folder) -> anyhow::Result<Self> {
        Ok(Self(
            fs::File::open(folder.path())
                .with_context(|| format!("could not open {}", folder.path().display()))?,
        ))
    }

    fn path(&self) -> String {
        format!("/proc/self/fd/{}/{SOCKET}", self.0.as_raw_fd())
    }
}

/// Answers requests until the process ends. The caller holds the folder's lock.
pub(crate) fn serve(folder: &Folder, stack: Arc<Stack>) -> anyhow::Result<()> {
    let socket = SocketFolder::open(folder)?;
    // A killed stack leaves its socket behind; the lock excludes a running one.
    let _ = fs::remove_file(socket.path());
    let listener = UnixListener::bind(socket.path()).context("could not open the control socket")?;
    fs::set_permissions(socket.path(), fs::Permissions::from_mode(0o600))?;
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let stack = Arc::clone(&stack);
            // Fails when the client is gone.
            tokio::spawn(async move { answer(connection, &stack).await.ok() });
        }
    });
    Ok(())
}

async fn answer(connection: UnixStream, stack: &Stack) -> anyhow::Result<()> {
    let (reader, mut writer) = connection.into_split();
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).await?;
    let last = match serde_json::from_str(&line) {
        Ok(Request::Down) => {
            // The connection stays open until the process ends, which is the answer.
            let mut reports = stack.request_stop();
            loop {
                match reports.recv().await {
                    Ok(text) => write(&mut writer, &Answer::Progress(text)).await?,
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return Ok(()),
                }
            }
        }
        Ok(request) => match handle(request, stack).await {
            Ok(value) => Answer::Done(value),
            Err(error) => Answer::Failed(format!("{error:#}")),
        },
        Err(error) => Answer::Failed(format!("invalid request: {error}")),
    };
    write(&mut writer, &last).await
}

async fn handle(request: Request, stack: &Stack) -> anyhow::Result<Value> {
    match request {
        Request::Status => return Ok(serde_json::to_value(stack.status().await)?),
        Request::Environment => return Ok(serde_json::to_value(stack.services()?)?),
        Request::Apply { action, name } => stack.apply(action, &name).await?,
        Request::Promote { name } => stack.promote(&name).await?,
        Request::Down => {}
    }
    Ok(Value::Null)
}

async fn write(writer: &mut OwnedWriteHalf, value: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(writer.write_all(&line).await?)
}

/// Returns the status of the stack, running or not.
pub(crate) async fn status(folder: &Folder) -> anyhow::Result<Status> {
    if folder.is_running()? {
        return Ok(serde_json::from_value(send(folder, &Request::Status).await?)?);
    }
    let state = folder.read::<State>(STATE)?.unwrap_or_default();
    Ok(Status::not_running(folder.topology(), folder.read(DEMO)?, state.postgres_folder))
}

/// Returns the services' programs and environment of the running stack.
pub(crate) async fn services(folder: &Folder) -> anyhow::Result<Services> {
    Ok(serde_json::from_value(send(folder, &Request::Environment).await?)?)
}

/// Sends a request to the running stack, prints its progress, and returns the result; null for `down`.
pub(crate) async fn send(folder: &Folder, request: &Request) -> anyhow::Result<Value> {
    let socket = SocketFolder::open(folder)?;
    let connection = loop {
        match UnixStream::connect(socket.path()).await {
            Ok(connection) => break connection,
            // A stack that has just been started holds the lock and does not listen yet.
            Err(_) if folder.is_running()? => sleep(LISTENS_SOON).await,
            Err(_) => bail!("the stack is not running; `./dev up` starts it"),
        }
    };
    let (reader, mut writer) = connection.into_split();
    write(&mut writer, request).await?;
    let mut answers = BufReader::new(reader).lines();
    while let Some(line) = answers.next_line().await? {
        match serde_json::from_str(&line)? {
            Answer::Progress(text) => print_line(&text),
            Answer::Done(value) => return Ok(value),
            Answer::Failed(reason) => bail!(reason),
        }
    }
    if *request != Request::Down {
        bail!("the stack ended without an answer");
    }
    Ok(Value::Null)
}
