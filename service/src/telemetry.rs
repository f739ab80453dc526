//! Logging to standard error; standard output is for the output of commands.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, fmt};

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// One JSON object per line.
    Json,
    /// One line of text.
    Text,
}

/// Checks the value of `RUST_LOG`; a clap value parser.
///
/// # Errors
/// When it is not a list of directives such as `info,ingest=debug`.
pub fn parse_filter(directives: &str) -> Result<String, String> {
    EnvFilter::try_new(directives)
        .map(|_| directives.to_owned())
        .map_err(|error| format!("{error}; an example is info,ingest=debug"))
}

/// Starts logging for the process, including panics.
///
/// # Errors
/// When `filter` is malformed, or logging has been started already.
pub fn init(format: LogFormat, filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).context("cannot read the log filter")?;
    let text = match format {
        LogFormat::Auto => std::io::stderr().is_terminal(),
        LogFormat::Json => false,
        LogFormat::Text => true,
    };
    let registry = tracing_subscriber::registry().with(filter);
    if text {
        registry
            .with(fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal()))
            .try_init()
    } else {
        let json = fmt::layer()
            .json()
            .with_writer(std::io::stderr)
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false);
        registry.with(json).try_init()
    }
    .context("cannot start logging")?;
    log_panics();
    Ok(())
}

/// Logs panics, in the format of all log lines.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload_as_str().unwrap_or("no message");
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("unnamed");
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(thread, location, "panicked: {message}");
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_filter_is_rejected_with_an_example() {
        assert_eq!(parse_filter("info,ingest=debug").as_deref(), Ok("info,ingest=debug"));
        let fault = parse_filter("ingest=loud").unwrap_err();
        assert!(fault.contains("an example is"), "{fault}");
    }
}
