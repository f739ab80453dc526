//! The program behind `./dev`: the whole of Hopline on this machine, with real engines.

mod cli;
mod compile;
mod control;
mod demo;
mod detach;
mod environment;
mod fill;
mod folder;
mod history;
mod logs;
mod page;
mod receiver;
mod soak;
mod stack;
mod state;
mod status;
mod suite;
mod terminal;
mod topic;
mod up;

use std::process::{Command as Program, ExitCode};

use anyhow::Context as _;
use cli::{Cli, Command, Passed};
use control::Request;
use folder::Folder;
use terminal::{complain, say};

const PROCESSOR: &str = "processor";

fn main() -> ExitCode {
    let cli: Cli = devstack::usage::parse();
    if let Command::RunLibchdb { library, arguments } = cli.command {
        // No runtime and no threads of ours in the process that becomes ClickHouse.
        return match devstack::libchdb::run(&library, arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&anyhow::anyhow!(error)),
        };
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::anyhow!(error)),
    };
    runtime.block_on(run(cli)).unwrap_or_else(|error| fail(&error))
}

fn fail(error: &anyhow::Error) -> ExitCode {
    complain(&format!("error: {error:#}"));
    ExitCode::FAILURE
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let folder = Folder::of(&cli.root.context("start this program as `./dev`")?)?;
    match cli.command {
        Command::Up(options) if options.detach => return detach::up(&folder, &options).await,
        Command::Up(options) => return up::up(folder, options).await,
        Command::Down => down(&folder).await?,
        Command::Status { json } => {
            let status = status::of(&folder).await?;
            say(&if json { status.json()? } else { status.table() });
        }
        Command::Logs(options) => logs::show(&folder, &options).await?,
        Command::Reset => reset(&folder)?,
        Command::Demo => fill::fill(&folder).await?,
        Command::Admin(passed) => operate(&folder, "api", "admin", passed).await?,
        Command::Audit(passed) => operate(&folder, PROCESSOR, "audit", passed).await?,
        Command::Lag(passed) => operate(&folder, PROCESSOR, "lag", passed).await?,
        Command::DeadLetters(passed) => operate(&folder, PROCESSOR, "dead-letters", passed).await?,
        Command::Replay(passed) => operate(&folder, PROCESSOR, "replay", passed).await?,
        Command::Recount(passed) => operate(&folder, PROCESSOR, "recount", passed).await?,
        Command::CloseAgain(passed) => operate(&folder, PROCESSOR, "close-again", passed).await?,
        Command::Topic(options) => topic::print(&folder, &options).await?,
        Command::Start { service } => {
            control::send(&folder, &Request::Start { name: service.clone() }).await?;
            say(&format!("{service} is ready"));
        }
        Command::Stop { service } => {
            control::send(&folder, &Request::Stop { name: service.clone() }).await?;
            say(&format!("{service} has stopped"));
        }
        Command::Restart { service } => {
            control::send(&folder, &Request::Restart { name: service.clone() }).await?;
            say(&format!("{service} is ready"));
        }
        Command::Test { arguments } => return suite::run(&folder, arguments).await,
        Command::Soak(options) => return soak::run(&folder, options).await,
        Command::RunLibchdb { .. } => {}
    }
    Ok(ExitCode::SUCCESS)
}

async fn down(folder: &Folder) -> anyhow::Result<()> {
    if !folder.is_running()? {
        say("the stack is not running");
        return Ok(());
    }
    control::send(folder, &Request::Down).await?;
    folder.await_unlocked().await?;
    say("everything has stopped");
    Ok(())
}

fn reset(folder: &Folder) -> anyhow::Result<()> {
    let _lock = folder.try_lock()?.context("the stack is running; stop it first with `./dev down`")?;
    for removed in folder.wipe()? {
        say(&format!("removed {}", removed.display()));
    }
    say("the next `./dev up` starts empty; downloaded engines are kept");
    Ok(())
}

/// Becomes an operator's command of a service, with the environment of the running stack.
async fn operate(folder: &Folder, program: &str, command: &str, passed: Passed) -> anyhow::Result<()> {
    use std::os::unix::process::CommandExt as _;
    let services = match control::send(folder, &Request::Environment).await {
        Ok(answer) => serde_json::from_value(answer)?,
        // Help needs no stack, only the program, which an earlier start has built beside this one.
        Err(error) if !passed.asks_for_help() => return Err(error),
        Err(error) => environment::Services::beside_this_program(program).ok_or(error)?,
    };
    let path = services.program(program)?;
    let error = Program::new(path).arg(command).args(passed.arguments).envs(&services.variables).exec();
    Err(error).with_context(|| format!("could not run {}", path.display()))
}
