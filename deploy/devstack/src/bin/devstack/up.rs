//! `up`: starts the stack, watches it, and stops it.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use devstack::install::Cache;
use devstack::process::{Launch, run};
use devstack::{Engine, Kind, Options, Probe, Server};
use tokio::time::sleep;

use crate::cli::Up;
use crate::compile::{self, SERVICES};
use crate::environment::{Addresses, Services, url, variables};
use crate::folder::Folder;
use crate::stack::Stack;
use crate::state::{SECRETS, STATE, Secrets, State};
use crate::terminal::{Interrupts, print_error, print_line};
use crate::{control, dashboard, demo_account, receiver};

/// The variable with the folder of country and browser data.
const DATA_DIR: &str = "HOPLINE_DATA_DIR";

/// The webhook receiver's key among the remembered ports.
const RECEIVER: &str = "receiver";

/// The services' default for `HOPLINE_DRAIN_SECONDS`.
const DEFAULT_DRAIN: Duration = Duration::from_secs(20);

/// Time for a service to exit after its drain deadline.
const AFTER_DRAIN: Duration = Duration::from_secs(5);

/// How long everything may take to be ready together after each part was ready once.
const ALL_READY: Duration = Duration::from_secs(30);
const STATUS_INTERVAL: Duration = Duration::from_millis(200);

/// Before the first release migrations are edited in place.
const OTHER_VERSION: &str = "the database could not be migrated; if another version created the data in .dev/, `./dev reset` starts empty";

/// Runs the stack in this process until a stop is requested.
pub(crate) async fn up(folder: Folder, options: Up) -> anyhow::Result<ExitCode> {
    let _lock = folder
        .try_lock()?
        .context("the stack is already running: see `./dev status`, or stop it with `./dev down`")?;
    let mut interrupts = Interrupts::new()?;
    let stack = Arc::new(Stack::new());
    control::serve(&folder, Arc::clone(&stack))?;

    let started = tokio::select! {
        started = start(&folder, &options, &stack) => started.map(|()| true),
        () = interrupts.next() => Ok(false),
        () = stack.stop_requested() => Ok(false),
    };
    if let Ok(true) = started {
        stack.watch();
        tokio::select! {
            () = interrupts.next() => {}
            () = stack.stop_requested() => {}
        }
    }
    if let Err(error) = &started {
        print_error(&format!("error: {error:#}"));
    }
    tokio::select! {
        () = stack.stop_all() => stack.report("stopped"),
        () = interrupts.next() => {
            // The kernel kills all child processes with this one.
            print_error("killed");
            std::process::exit(130);
        }
    }
    Ok(if started.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn start(folder: &Folder, options: &Up, stack: &Arc<Stack>) -> anyhow::Result<()> {
    folder.rotate_logs(SERVICES.into_iter().chain(Kind::ALL.map(Kind::name)));
    let secrets = secrets(folder)?;
    let is_built = compile::prebuilt().is_some();
    // The compiler runs afterwards, so that its output does not mix with these reports.
    let (data, engines, ()) =
        tokio::join!(data(folder, stack), start_engines(folder, stack, &secrets), async {
            if !is_built {
                dashboard::build(folder.repository(), stack).await;
            }
        });
    engines?;
    if !is_built {
        stack.report("building the services");
    }
    let programs = compile::services(folder.repository(), options.release).await?;

    let addresses = Addresses::choose(options.listen)?;
    let mut variables = variables(stack.engine_variables(), &addresses, &secrets, &folder.data("spool"));
    variables.extend(data.map(|folder| (DATA_DIR.to_owned(), folder.display().to_string())));
    let services = Services { programs, variables };
    stack.parts().addresses = Some(addresses.clone());
    stack.parts().services = Some(services.clone());

    stack.report("migrating: `api migrate`");
    let mut migrate = Command::new(services.program("api")?);
    migrate.arg("migrate").envs(&services.variables);
    run("`api migrate`", migrate).await.context(OTHER_VERSION)?;

    start_services(folder, stack, &services, &addresses).await?;
    let demo = demo_account::ensure(folder, &services, &url(addresses.api)).await?;
    stack.parts().demo = Some(demo);
    let mut status = stack.status().await;
    let since = Instant::now();
    // A processor that was ready without partitions is not ready while it takes over new ones.
    while !status.ready && since.elapsed() < ALL_READY {
        sleep(STATUS_INTERVAL).await;
        status = stack.status().await;
    }
    ensure!(status.ready, "not everything is ready:\n{}", status.table());
    stack.report("ready");
    print_line(&demo_account::welcome(&status, demo_account::final_line(options.in_background))?);
    Ok(())
}

/// Returns the folder of country and browser data; `None` when the user sets one, or when the download fails.
async fn data(folder: &Folder, stack: &Arc<Stack>) -> Option<PathBuf> {
    if std::env::var_os(DATA_DIR).is_some() {
        return None;
    }
    let data = cache(folder, stack).data().await;
    data.inspect_err(|error| stack.report(&format!("continuing without country and browser data: {error}")))
        .ok()
}

fn cache(folder: &Folder, stack: &Arc<Stack>) -> Cache {
    let stack = Arc::clone(stack);
    Cache::new(folder.engines(), Arc::new(move |text| stack.report(text)))
}

/// Returns the stack's keys, which its first start generates.
fn secrets(folder: &Folder) -> anyhow::Result<Secrets> {
    if let Some(secrets) = folder.read(SECRETS)? {
        return Ok(secrets);
    }
    let secrets = Secrets::generate()?;
    folder.write(SECRETS, &secrets)?;
    Ok(secrets)
}

async fn start_engines(folder: &Folder, stack: &Arc<Stack>, secrets: &Secrets) -> anyhow::Result<()> {
    let mut state: State = folder.read(STATE)?.unwrap_or_default();
    let mut postgres_folder = None;
    if Kind::Postgres.external_url().is_none() {
        postgres_folder = Some(folder.postgres_folder(&mut state)?);
        // Written before the folder is created, so that `reset` finds it.
        folder.write(STATE, &state)?;
        stack.parts().postgres_folder.clone_from(&postgres_folder);
    }
    let cache = cache(folder, stack);
    let engine = async |kind: Kind| -> anyhow::Result<()> {
        let began = Instant::now();
        let name = kind.name();
        let options = |kind: Kind| {
            let data = postgres_folder.clone().filter(|_| kind == Kind::Postgres);
            let data = data.unwrap_or_else(|| folder.data(name));
            let port = state.ports.get(name).copied().unwrap_or(0);
            Ok(Options::in_folder(data, folder.log(name), port, &secrets.engine_password, cache.clone()))
        };
        let engine = Engine::from_env_or_start(kind, options).await?;
        stack.report(&match &engine {
            Engine::External { .. } => format!("{name} ready: external, by {}", kind.variable()),
            Engine::Started(_) => format!("{name} ready after {:.1} s", began.elapsed().as_secs_f32()),
        });
        stack.add_engine(kind, engine);
        Ok(())
    };
    stack.report("starting Kafka, ClickHouse and Postgres");
    tokio::try_join!(engine(Kind::Kafka), engine(Kind::ClickHouse), engine(Kind::Postgres))?;
    for (name, server) in &stack.parts().servers {
        if let Some(port) = port_of(server.url()) {
            state.ports.insert((*name).to_owned(), port);
        }
    }
    let port = receiver::serve(state.ports.get(RECEIVER).copied().unwrap_or(0)).await?;
    state.ports.insert(RECEIVER.to_owned(), port);
    stack.parts().receiver_port = Some(port);
    folder.write(STATE, &state)
}

/// Returns the port of `host:port` or of a URL.
fn port_of(url: &str) -> Option<u16> {
    let (_, after) = url.rsplit_once(':')?;
    after.split('/').next()?.parse().ok()
}

async fn start_services(
    folder: &Folder,
    stack: &Arc<Stack>,
    services: &Services,
    addresses: &Addresses,
) -> anyhow::Result<()> {
    stack.report("starting ingest, processor, api and dispatcher");
    let drain = drain_time(std::env::var("HOPLINE_DRAIN_SECONDS").ok().as_deref());
    let start = async |name: &'static str| -> anyhow::Result<()> {
        let began = Instant::now();
        let mut launch = Launch::new(services.program(name)?, folder.log(name));
        launch.environment = services.variables.clone().into_iter().collect();
        launch.stop_deadline = drain + AFTER_DRAIN;
        let operations = url(*addresses.operations.get(name).context("a service without an address")?);
        let probe = Probe::Http { url: format!("{operations}/readyz") };
        let server = Arc::new(Server::new(name, &operations, launch, probe));
        stack.parts().servers.insert(name, Arc::clone(&server));
        server.start().await.with_context(|| format!("{name} (see `./dev logs {name}`)"))?;
        stack.report(&format!("{name} ready after {:.1} s", began.elapsed().as_secs_f32()));
        Ok(())
    };
    let [ingest, processor, api, dispatcher] = SERVICES;
    tokio::try_join!(start(ingest), start(processor), start(api), start(dispatcher))?;
    Ok(())
}

/// Returns how long the services may take to drain, from the value of `HOPLINE_DRAIN_SECONDS`.
fn drain_time(seconds: Option<&str>) -> Duration {
    let given = seconds.and_then(|text| text.parse().ok());
    given.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(DEFAULT_DRAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_every_engine_address_is_found() {
        assert_eq!(port_of("127.0.0.1:20001"), Some(20_001));
        assert_eq!(port_of("http://user:password@127.0.0.1:20002/hopline"), Some(20_002));
        assert_eq!(port_of("postgres://user:password@127.0.0.1:20003/hopline"), Some(20_003));
    }

    #[test]
    fn the_drain_time_may_have_fractions_and_is_20_s_by_default() {
        assert_eq!(drain_time(Some("0.5")), Duration::from_millis(500));
        assert_eq!(drain_time(Some("3")), Duration::from_secs(3));
        for invalid in [None, Some("soon"), Some("-1"), Some("inf")] {
            assert_eq!(drain_time(invalid), Duration::from_secs(20));
        }
    }
}
