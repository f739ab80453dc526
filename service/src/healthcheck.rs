//! The command `healthcheck` of every program, for containers that have neither a shell nor curl.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use clap::CommandFactory;

use crate::config;

/// How long the program may take to accept, and to send each part of its answer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The command line of a program when its first argument is `healthcheck`.
///
/// Separate from the program's configuration, of which it needs only the listener's address.
#[derive(Debug, clap::Parser)]
#[command(version, disable_help_subcommand = true)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Asks the running program whether it works, at the address of its operations listener.
    #[command(after_help = "Exit codes: 0 it works, 1 it does not answer or is not ready, 64 wrong usage.")]
    Healthcheck {
        /// Asks /readyz, whether it can work, instead of /healthz, whether it is alive.
        #[arg(long)]
        ready: bool,
    },
}

/// Runs the command if the first argument of this process names it; `C` has the listener's variable and its default.
pub(crate) fn run_if_requested<C: CommandFactory>(program: &str) -> Option<ExitCode> {
    if std::env::args_os().nth(1).is_none_or(|argument| argument != "healthcheck") {
        return None;
    }
    let Program { command: Command::Healthcheck { ready } } = config::parse();
    Some(match check::<C>(program, ready) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A failure to write to standard error cannot be reported.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    })
}

fn check<C: CommandFactory>(program: &str, ready: bool) -> Result<(), String> {
    let variable = format!("HOPLINE_{}_OPERATIONS_LISTEN", program.to_uppercase());
    let address = match std::env::var(&variable) {
        Ok(set) if !set.is_empty() => set,
        _ => default_of::<C>(&variable).ok_or_else(|| format!("{variable} is not set"))?,
    };
    let address: SocketAddr = address.parse().map_err(|error| format!("{variable}: {error}"))?;
    let path = if ready { "/readyz" } else { "/healthz" };
    let answer = get(reachable(address), path).map_err(|error| format!("{program} at {address}: {error}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer.as_str(), ""));
    match head.split(' ').nth(1) {
        Some("200") => Ok(()),
        _ => Err(format!(
            "{program} at {address}{path}: {} {body}",
            head.lines().next().unwrap_or("no answer")
        )),
    }
}

/// Returns the default of the argument that this variable sets.
fn default_of<C: CommandFactory>(variable: &str) -> Option<String> {
    let command = C::command();
    let argument =
        command.get_arguments().find(|argument| argument.get_env().is_some_and(|env| env == variable))?;
    Some(argument.get_default_values().first()?.to_str()?.to_owned())
}

/// A listener on every address is reached by the loopback one.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    // The answer of a program that is not ready names its checks, which are few.
    stream.take(64 * 1024).read_to_string(&mut answer)?;
    Ok(answer)
}
