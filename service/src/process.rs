//! Start, run and exit code of a process.

use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::config::{EXIT_CONFIGURATION, Faults};
use crate::metrics::{Metric, Metrics};
use crate::telemetry::LogFormat;
use crate::{Shutdown, VERSION, config, healthcheck, telemetry};

/// Time from the shutdown deadline until a process that hangs at exit is ended.
const HANG_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for the runtime's remaining tasks to stop.
const RUNTIME_TIMEOUT: Duration = Duration::from_millis(500);

/// The settings of every process; flatten it into the service's `Config`.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Process")]
pub struct Settings {
    /// Filter of log lines, such as `info,ingest=debug`.
    #[arg(long = "log", value_name = "FILTER", env = "RUST_LOG", default_value = "info,librdkafka=warn,rdkafka=warn",
          value_parser = telemetry::parse_filter)]
    pub log_filter: String,

    /// Format of log lines; `auto` is text on a terminal and JSON elsewhere.
    #[arg(long, value_enum, env = "HOPLINE_LOG_FORMAT", default_value = "auto")]
    pub log_format: LogFormat,

    /// Maximum seconds from SIGTERM or SIGINT to the end of the process.
    #[arg(long = "drain-seconds", value_name = "SECONDS", env = "HOPLINE_DRAIN_SECONDS", default_value = "20",
          value_parser = config::seconds)]
    pub drain: Duration,
}

/// The command line of a program.
pub trait Program: clap::Parser {
    /// Returns the settings of every process.
    fn settings(&self) -> &Settings;

    /// Returns whether it runs a command, which answers and ends, instead of the service.
    fn is_command(&self) -> bool {
        false
    }
}

/// What [`main`] passes to a service besides its configuration.
#[derive(Debug, Clone)]
pub struct Context {
    /// Triggered by SIGTERM and SIGINT.
    pub shutdown: Shutdown,
    /// The metrics of this process.
    pub metrics: Metrics,
}

/// Runs a program: reads its configuration, starts logs and metrics, runs `run` and returns the exit code. With the
/// first argument `healthcheck` it asks the program that runs already instead.
///
/// The exit code is 0 when `run` succeeds, 64 when the configuration is invalid or the error's chain contains
/// [`Faults`], else 1. A process that has not finished at its shutdown deadline ends with 1.
/// `name` is the service's name in logs and metrics, `table` the metrics of its crate.
pub fn main<C, R, F>(name: &'static str, table: &[Metric], run: R) -> ExitCode
where
    C: Program,
    R: FnOnce(C, Context) -> F,
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    if let Some(code) = healthcheck::run_if_requested::<C>(name) {
        return code;
    }
    let config: C = config::parse();
    let (settings, is_command) = (config.settings().clone(), config.is_command());
    install_crypto();
    match start(name, table, &settings) {
        Ok((runtime, context)) => {
            runtime.spawn(exit_if_hung(context.shutdown.clone()));
            // A command has only its answer to print.
            if !is_command {
                tracing::info!(service = name, version = VERSION, "starting {name} {VERSION}");
            }
            let code = finish(runtime, context.shutdown.clone(), || run(config, context));
            if !is_command && code == ExitCode::SUCCESS {
                tracing::info!("stopped");
            }
            code
        }
        Err(error) => exit_code(&error),
    }
}

/// Makes ring the TLS provider of this process, unless one is installed.
pub fn install_crypto() {
    // Fails only when a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Opens a listening socket.
///
/// # Errors
/// When the address is in use or not on this machine; the error names `variable`.
pub async fn bind(variable: &'static str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("{variable}: cannot listen on {address}"))
}

fn start(name: &'static str, table: &[Metric], settings: &Settings) -> anyhow::Result<(Runtime, Context)> {
    telemetry::init(settings.log_format, &settings.log_filter)?;
    raise_open_files();
    let metrics = Metrics::install(name, table)?;
    let runtime = Runtime::new().context("cannot start the runtime")?;
    let shutdown = runtime
        .block_on(async { Shutdown::on_signals(settings.drain) })
        .context("cannot listen for signals")?;
    Ok((runtime, Context { shutdown, metrics }))
}

/// Raises the limit of open files to the maximum, because each connection needs one.
fn raise_open_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!("cannot raise the limit of open files from {soft}: {error}");
    }
}

/// Returns how many files this process may have open.
#[must_use]
pub fn open_files_limit() -> usize {
    getrlimit(Resource::RLIMIT_NOFILE)
        .map_or(usize::MAX, |(soft, _)| usize::try_from(soft).unwrap_or(usize::MAX))
}

fn finish<F>(runtime: Runtime, shutdown: Shutdown, run: impl FnOnce() -> F) -> ExitCode
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let code = runtime.block_on(async {
        // A separate task, because work that blocks its thread must not block the deadline.
        let work = tokio::spawn(run());
        tokio::select! {
            biased;
            outcome = work => match outcome.context("the service panicked").flatten() {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => exit_code(&error),
            },
            () = shutdown.wait_deadline() => {
                let unfinished = shutdown.unfinished().join(", ");
                tracing::error!(unfinished, "the shutdown deadline passed before all work was finished: {unfinished}");
                ExitCode::FAILURE
            }
        }
    });
    runtime.shutdown_timeout(RUNTIME_TIMEOUT);
    code
}

/// Ends the process when it hangs after the deadline, for example in the destructor of a native library.
async fn exit_if_hung(shutdown: Shutdown) {
    shutdown.wait().await;
    let Some(deadline) = shutdown.deadline() else { return };
    // A thread, because all threads of the runtime may be blocked or stopped.
    thread::spawn(move || {
        thread::sleep(deadline.saturating_duration_since(tokio::time::Instant::now()) + HANG_TIMEOUT);
        tracing::error!("the process hangs at exit; ending it with exit code 1");
        std::process::exit(1);
    });
}

/// Logs the error that ends a process, and returns its exit code.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    tracing::error!("{error:#}");
    let configuration = error.chain().any(|cause| cause.is::<Faults>());
    if configuration { EXIT_CONFIGURATION.into() } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_to_end<F>(drain: Duration, run: impl FnOnce(Shutdown) -> F) -> ExitCode
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let shutdown = Shutdown::new(drain);
        finish(Runtime::new().unwrap(), shutdown.clone(), || run(shutdown))
    }

    #[test]
    fn exit_codes_are_0_1_and_64() {
        let long = Duration::from_secs(60);
        assert_eq!(run_to_end(long, |_| async { Ok(()) }), ExitCode::SUCCESS);
        assert_eq!(run_to_end(long, |_| async { anyhow::bail!("broken") }), ExitCode::FAILURE);
        assert_eq!(run_to_end(long, |_| async { panic!("a bug") }), ExitCode::FAILURE);
        let faults = || Faults::from(config::Fault::new("KAFKA_CONFIG_X", "no such property"));
        assert_eq!(
            run_to_end(long, |_| async move { Err(faults()).context("cannot start") }),
            ExitCode::from(64)
        );
    }

    #[test]
    fn a_hanging_service_ends_at_the_deadline() {
        let code = run_to_end(Duration::from_millis(10), |shutdown| async move {
            let _guard = shutdown.track_work("endless work");
            shutdown.request();
            std::future::pending().await
        });
        assert_eq!(code, ExitCode::FAILURE);
    }
}
