//! How the other commands talk to a running stack: one JSON line over a Unix socket, answered by some.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use devstack::Server;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};

use crate::folder::Folder;
use crate::stack::Stack;
use crate::terminal::say;

const SOCKET: &str = "control.sock";

/// What can be asked of a running stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub(crate) enum Request {
    /// What runs and where.
    Status,
    /// The services' programs and environment, for `admin`.
    Environment,
    /// Start a service or an engine.
    Start { name: String },
    /// Stop one.
    Stop { name: String },
    /// Stop and start one.
    Restart { name: String },
    /// Stop everything.
    Down,
}

/// A line of the answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// Something to show meanwhile.
    Progress(String),
    /// The end, with what was asked for.
    Done(Value),
    /// The end, with the reason.
    Failed(String),
}

/// A folder held open, under a short name of the kernel's: a socket's path may have 107 bytes only, and a
/// repository may lie deep.
struct ShortName(fs::File);

impl ShortName {
    fn of(folder: &Folder) -> anyhow::Result<Self> {
        Ok(Self(
            fs::File::open(folder.path())
                .with_context(|| format!("could not open {}", folder.path().display()))?,
        ))
    }

    fn socket(&self) -> String {
        format!("/proc/self/fd/{}/{SOCKET}", self.0.as_raw_fd())
    }
}

/// Answers the other commands until the process ends. The caller holds the folder's lock.
pub(crate) fn serve(folder: &Folder, stack: Arc<Stack>) -> anyhow::Result<()> {
    let name = ShortName::of(folder)?;
    // One that a killed stack left; ours is the lock.
    let _ = fs::remove_file(name.socket());
    let listener = UnixListener::bind(name.socket()).context("could not open the control socket")?;
    fs::set_permissions(name.socket(), fs::Permissions::from_mode(0o600))?;
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let stack = Arc::clone(&stack);
            // A client that went away needs no answer.
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
            // The connection stays open until the process has ended: its end is the answer.
            let mut news = stack.stop_requested();
            loop {
                match news.recv().await {
                    Ok(text) => write(&mut writer, &Answer::Progress(text)).await?,
                    Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
                    Err(tokio::sync::broadcast::error::RecvError::Closed) => return Ok(()),
                }
            }
        }
        Ok(request) => match handle(request, stack).await {
            Ok(value) => Answer::Done(value),
            Err(error) => Answer::Failed(format!("{error:#}")),
        },
        Err(error) => Answer::Failed(format!("not a request: {error}")),
    };
    write(&mut writer, &last).await
}

async fn handle(request: Request, stack: &Stack) -> anyhow::Result<Value> {
    match request {
        Request::Status => return Ok(serde_json::to_value(stack.status().await)?),
        Request::Environment => return Ok(serde_json::to_value(stack.services()?)?),
        Request::Start { name } => {
            let server = stack.server(&name)?;
            server.start().await.map_err(|error| unready(&server, error))?;
        }
        Request::Stop { name } => stack.stop_one(&name).await?,
        Request::Restart { name } => {
            let server = stack.server(&name)?;
            server.restart().await.map_err(|error| unready(&server, error))?;
        }
        Request::Down => {}
    }
    Ok(Value::Null)
}

/// Says why a server is not ready, and that it runs nevertheless where it does.
fn unready(server: &Server, error: devstack::Error) -> anyhow::Error {
    let error = anyhow::Error::from(error);
    match server.pid() {
        Some(_) => anyhow!("{error:#}; it keeps running and may become ready later"),
        None => error,
    }
}

async fn write(writer: &mut OwnedWriteHalf, answer: &Answer) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    Ok(writer.write_all(&line).await?)
}

/// Asks the running stack, shows its progress, and returns its answer; null when it ended first, as on `down`.
pub(crate) async fn send(folder: &Folder, request: &Request) -> anyhow::Result<Value> {
    let name = ShortName::of(folder)?;
    let connection = UnixStream::connect(name.socket()).await;
    let (reader, mut writer) =
        connection.ok().context("the stack is not running; `./dev up` starts it")?.into_split();
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    writer.write_all(&line).await?;
    let mut answers = BufReader::new(reader).lines();
    while let Some(line) = answers.next_line().await? {
        match serde_json::from_str(&line)? {
            Answer::Progress(text) => say(&text),
            Answer::Done(value) => return Ok(value),
            Answer::Failed(reason) => bail!(reason),
        }
    }
    if *request != Request::Down {
        bail!("the stack ended before it answered");
    }
    Ok(Value::Null)
}
