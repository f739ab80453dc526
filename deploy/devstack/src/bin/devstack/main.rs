//! The program behind `./dev`: the whole of Hopline on this machine, with real engines.

mod cli;
mod compile;
mod control;
mod demo;
mod detach;
mod environment;
mod folder;
mod logs;
mod page;
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
use clap::Parser as _;
use cli::{Cli, Command};
use control::Request;
use folder::Folder;
use terminal::{complain, say};

fn main() -> ExitCode {
    let cli = Cli::parse();
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
    let folder = Folder::of(&cli.root)?;
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
        Command::Admin { arguments } => admin(&folder, arguments).await?,
        Command::Topic(options) => topic::print(&folder, &options).await?,
        Command::Start { service } => {
            control::send(&folder, &Request::Start { name: service.clone() }).await?;
            say(&format!("{service} is ready"));
        }
        Command::Stop { service } => {
            control::send(&folder, &Request::Stop { name: service.clone() }).await?;
            say(&format!("{service} is stopped"));
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
    if folder.try_lock()?.is_some() {
        say("the stack is not running");
        return Ok(());
    }
    control::send(folder, &Request::Down).await?;
    folder.await_unlocked().await?;
    say("nothing runs any more");
    Ok(())
}

fn reset(folder: &Folder) -> anyhow::Result<()> {
    let _lock = folder.try_lock()?.context("the stack is running: stop it first with `./dev down`")?;
    for removed in folder.wipe()? {
        say(&format!("removed {}", removed.display()));
    }
    say("the next `./dev up` starts empty; downloaded engines were kept");
    Ok(())
}

/// Becomes `api admin …` with the environment of the running stack.
async fn admin(folder: &Folder, arguments: Vec<std::ffi::OsString>) -> anyhow::Result<()> {
    use std::os::unix::process::CommandExt as _;
    let answer = control::send(folder, &Request::Environment).await?;
    let services: environment::Services = serde_json::from_value(answer)?;
    let api = services.program("api")?;
    let error = Program::new(api).arg("admin").args(arguments).envs(services.variables.clone()).exec();
    Err(error).with_context(|| format!("could not run {}", api.display()))
}
