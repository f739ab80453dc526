//! The program's arguments.

use clap::Parser;
use service::process::{self, Settings};

use crate::config::Config;
use crate::operate::Command;

/// Turns clicks on the topic into ClickHouse rows, exactly once.
///
/// Without a command it consumes until SIGTERM. Settings come from the environment.
#[derive(Debug, Clone, Parser)]
#[command(name = "processor", version)]
pub struct Program {
    /// What to do instead of consuming.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// The settings.
    #[command(flatten)]
    pub config: Config,
}

impl process::Program for Program {
    fn settings(&self) -> &Settings {
        &self.config.process
    }

    fn is_command(&self) -> bool {
        self.command.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_listed() {
        service::config::assert_listed::<Program>();
    }
}
