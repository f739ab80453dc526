//! The `api` program.

use std::io::Write as _;
use std::process::ExitCode;

use api::{Command, Config};
use service::process::{self, Context, bind};

fn main() -> ExitCode {
    process::main("api", api::METRICS, |config: Config, context: Context| async move {
        match config.command.clone() {
            None => {
                let listener = bind("HOPLINE_API_LISTEN", config.listen).await?;
                let operations = bind("HOPLINE_API_OPERATIONS_LISTEN", config.operations_listen).await?;
                api::run(config, listener, operations, context.metrics, context.shutdown).await
            }
            Some(Command::Migrate { plan: true, .. }) => {
                write!(std::io::stdout(), "{}", api::plan_migration(&config).await?)?;
                Ok(())
            }
            Some(Command::Migrate { print_grants: None, add_acls, partitions, replace_replica, .. }) => {
                api::migrate(&config, add_acls, partitions, replace_replica.as_deref()).await
            }
            Some(Command::Migrate { print_grants: Some(engine), .. }) => {
                write!(std::io::stdout(), "{}", api::grants(&config, engine))?;
                Ok(())
            }
            Some(Command::Admin(admin)) => {
                let answer = api::administer(&config, admin).await?;
                // Answers are for standard output, logs are not: scripts read the one and people the other.
                writeln!(std::io::stdout(), "{}", answer.trim_end())?;
                Ok(())
            }
        }
    })
}
