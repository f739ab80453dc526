//! The program behind `./dev`: runs all of Hopline on this machine, with real engines.

mod access;
mod action;
mod addresses;
mod cli;
mod compile;
mod control;
mod dashboard;
mod demo_account;
mod demo_data;
mod detach;
mod engines;
mod environment;
mod flaky;
mod folder;
mod history;
mod logs;
mod members;
mod pair;
mod receiver;
mod soak;
mod stack;
mod state;
mod status;
mod terminal;
mod test;
mod topic;
mod up;

use std::os::unix::process::CommandExt as _;
use std::process::{Command as Program, ExitCode};

use action::Action;
use anyhow::Context as _;
use cli::{Cli, Command, ForwardedArguments, ServerName};
use control::Request;
use devstack::Tls;
use devstack::libchdb::Encryption;
use environment::Services;
use folder::Folder;
use members::{Member, Topology};
use schemas::grants::User;
use terminal::{print_error, print_line};

fn main() -> ExitCode {
    let cli: Cli = devstack::usage::parse();
    if let Command::RunLibchdb { library, replicates_at, encrypted, ca, certificate, arguments } = cli.command
    {
        let tls = ca.zip(certificate).map(|(ca, server)| Tls { ca, server });
        let encryption = tls.map(|tls| Encryption { tls, at: encrypted });
        // ClickHouse's process has no async runtime and no thread but the one that encrypts.
        return match devstack::libchdb::run(&library, replicates_at, encryption, arguments) {
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
    print_error(&format!("error: {error:#}"));
    ExitCode::FAILURE
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let folder = Folder::open(&cli.root.context("start this program as `./dev`")?)?;
    match cli.command {
        Command::Up(options) => {
            let topology = if options.cluster { Topology::Cluster } else { Topology::Single };
            let folder = folder.with(topology);
            return if options.detach {
                detach::up(&folder, &options).await
            } else {
                up::up(folder, options).await
            };
        }
        Command::Down => down(&folder).await?,
        Command::Status { json } => {
            let status = control::status(&folder).await?;
            print_line(&if json { status.json()? } else { status.table() });
        }
        Command::Logs(options) => logs::show(&folder, &options).await?,
        Command::Reset => reset(&folder)?,
        Command::Demo => demo_data::fill(&folder).await?,
        Command::Admin(arguments) => operate(&folder, "api", "admin", arguments).await?,
        Command::Audit(arguments) => operate(&folder, "processor", "audit", arguments).await?,
        Command::Lag(arguments) => operate(&folder, "processor", "lag", arguments).await?,
        Command::DeadLetters(arguments) => operate(&folder, "processor", "dead-letters", arguments).await?,
        Command::Replay(arguments) => operate(&folder, "processor", "replay", arguments).await?,
        Command::Recount(arguments) => operate(&folder, "processor", "recount", arguments).await?,
        Command::CloseAgain(arguments) => operate(&folder, "processor", "close-again", arguments).await?,
        Command::Topic(options) => topic::print(&folder, &options).await?,
        Command::Start(server) => apply(&folder, Action::Start, server).await?,
        Command::Stop(server) => apply(&folder, Action::Stop, server).await?,
        Command::Restart(server) => apply(&folder, Action::Restart, server).await?,
        Command::Kill(server) => apply(&folder, Action::Kill, server).await?,
        Command::Pause(server) => apply(&folder, Action::Pause, server).await?,
        Command::Resume(server) => apply(&folder, Action::Resume, server).await?,
        Command::Promote { name } => {
            control::send(&folder, &Request::Promote { name: name.clone() }).await?;
            print_line(&format!("{name} is the primary and accepts writes"));
        }
        Command::Test { cluster, heavy, arguments } => {
            let topology = if cluster { Topology::Cluster } else { Topology::Single };
            return test::run(&folder, topology, test::Selection { heavy, arguments }).await;
        }
        Command::Soak(options) => return soak::run(&folder, options).await,
        Command::RunLibchdb { .. } => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Does something with a server of the running stack, or with all of a service or an engine.
async fn apply(folder: &Folder, action: Action, ServerName { name }: ServerName) -> anyhow::Result<()> {
    let is_service = folder.topology().named(&name).iter().any(Member::is_service);
    if is_service && matches!(action, Action::Start | Action::Restart) {
        // A service starts with the present sources, and although somebody has removed its program.
        let services = control::services(folder).await?;
        compile::services(folder.repository(), services.are_released()).await?;
    }
    control::send(folder, &Request::Apply { action, name: name.clone() }).await?;
    print_line(&format!("{name} {}", action.done()));
    Ok(())
}

async fn down(folder: &Folder) -> anyhow::Result<()> {
    if !folder.is_running()? {
        print_line("the stack is not running");
        return Ok(());
    }
    control::send(folder, &Request::Down).await?;
    folder.await_unlocked().await?;
    print_line("everything has stopped");
    Ok(())
}

fn reset(folder: &Folder) -> anyhow::Result<()> {
    let _lock = folder.try_lock()?.context("the stack is running; stop it first with `./dev down`")?;
    for removed in folder.wipe()? {
        print_line(&format!("removed {}", removed.display()));
    }
    print_line("the next `./dev up` starts empty; downloaded engines are kept");
    Ok(())
}

/// Replaces this process with an operator command of a service, in the environment of the running stack.
async fn operate(
    folder: &Folder,
    program: &str,
    command: &str,
    arguments: ForwardedArguments,
) -> anyhow::Result<()> {
    let services = match control::services(folder).await {
        Ok(services) => services,
        // Help needs only the program, which an earlier start has built beside this one.
        Err(error) if !arguments.has_help() => return Err(error),
        Err(error) => Services::beside_this_program(program).ok_or(error)?,
    };
    let path = services.program(program)?;
    let user = User::of(program).context("every service has a user")?;
    let environment = services.environment(user);
    let error = Program::new(path).arg(command).args(arguments.values).envs(environment).exec();
    Err(error).with_context(|| format!("could not run {}", path.display()))
}
