//! `up`: brings the stack up, watches it, and takes it down.

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
use crate::terminal::{Interrupts, complain, say};
use crate::{control, demo, page, receiver};

/// The variable that names the folder of data to the services.
const DATA_DIR: &str = "HOPLINE_DATA_DIR";

/// The name that the port of the webhook receiver is remembered by.
const RECEIVER: &str = "receiver";

/// Time for a service to exit after its own drain deadline.
const AFTER_DRAIN: Duration = Duration::from_secs(5);

/// Runs the stack in this process until it is asked to stop.
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
        () = stack.asked_to_stop() => Ok(false),
    };
    if let Ok(true) = started {
        stack.watch();
        tokio::select! {
            () = interrupts.next() => {}
            () = stack.asked_to_stop() => {}
        }
    }
    if let Err(error) = &started {
        complain(&format!("error: {error:#}"));
    }
    tokio::select! {
        () = stack.stop_all() => stack.tell("stopped"),
        () = interrupts.next() => {
            // Our end kills what is left: every child has asked the kernel for that.
            complain("killed");
            std::process::exit(130);
        }
    }
    Ok(if started.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn start(folder: &Folder, options: &Up, stack: &Arc<Stack>) -> anyhow::Result<()> {
    folder.turn_logs(SERVICES.into_iter().chain(Kind::ALL.map(Kind::name)));
    let secrets = secrets(folder)?;
    // Engines first on the screen, then the compiler: what it prints would be torn by what they say.
    let (data, engines, ()) =
        tokio::join!(data(folder, stack), start_engines(folder, stack, &secrets), async {
            if compile::given().is_none() {
                page::build(folder.repository(), stack).await;
            }
        },);
    engines?;
    if compile::given().is_none() {
        stack.tell("building the services");
    }
    let programs = compile::services(folder.repository(), options.release).await?;

    let addresses = Addresses::choose(options.listen)?;
    let mut variables = variables(stack.engine_variables(), &addresses, &secrets, &folder.data("spool"));
    variables.extend(data.map(|folder| (DATA_DIR.to_owned(), folder.display().to_string())));
    let services = Services { programs, variables };
    stack.set_addresses(addresses.clone());
    stack.set_services(services.clone());

    stack.tell("migrating: `api migrate`");
    let mut migrate = Command::new(services.program("api")?);
    migrate.arg("migrate").envs(&services.variables);
    run("`api migrate`", migrate).await.context(OTHER_VERSION)?;

    start_services(folder, stack, &services, &addresses).await?;
    let demo = demo::ensure(folder, &services, &addresses.api_url()).await?;
    stack.set_demo(demo.clone());
    let mut status = stack.status().await;
    let since = Instant::now();
    // A processor that was ready without partitions is not while it takes those that it was given since.
    while !status.ready && since.elapsed() < ALL_READY {
        sleep(LOOK).await;
        status = stack.status().await;
    }
    ensure!(status.ready, "not everything is ready:\n{}", status.table());
    stack.tell("ready");
    say(&demo::welcome(&status, demo::last_words(options.in_background))?);
    Ok(())
}

/// How long what was ready once may not be, and how often that is looked at.
const ALL_READY: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(200);

/// Before the first release migrations are edited in place.
const OTHER_VERSION: &str = "the database could not be migrated; if another version created the data in .dev/, `./dev reset` starts empty";

/// The folder of data for the services; `None` when the user names one, or when it cannot be had.
async fn data(folder: &Folder, stack: &Arc<Stack>) -> Option<PathBuf> {
    if std::env::var_os(DATA_DIR).is_some() {
        return None;
    }
    let fetched = cache(folder, stack).data().await;
    // The services do without: no countries, and only the common browsers.
    fetched
        .inspect_err(|error| stack.tell(&format!("continuing without country and browser data: {error}")))
        .ok()
}

/// The cache of downloads, which reports long ones.
fn cache(folder: &Folder, stack: &Arc<Stack>) -> Cache {
    let screen = Arc::clone(stack);
    Cache::new(folder.engines(), Arc::new(move |text| screen.tell(text)))
}

/// The stack's keys, drawn at its first start.
fn secrets(folder: &Folder) -> anyhow::Result<Secrets> {
    if let Some(secrets) = folder.read(SECRETS)? {
        return Ok(secrets);
    }
    let secrets = Secrets::draw()?;
    folder.write(SECRETS, &secrets)?;
    Ok(secrets)
}

async fn start_engines(folder: &Folder, stack: &Arc<Stack>, secrets: &Secrets) -> anyhow::Result<()> {
    let mut state: State = folder.read(STATE)?.unwrap_or_default();
    let mut postgres_folder = None;
    if Kind::Postgres.given().is_none() {
        let place = folder.postgres_folder(&mut state)?;
        // Noted before anything is there: `reset` must find it.
        folder.write(STATE, &state)?;
        stack.set_postgres_folder(place.clone());
        postgres_folder = Some(place);
    }
    let cache = cache(folder, stack);
    let engine = async |kind: Kind| -> anyhow::Result<()> {
        let began = Instant::now();
        let name = kind.name();
        let options = |kind: Kind| {
            let data = postgres_folder.clone().filter(|_| kind == Kind::Postgres);
            let data: PathBuf = data.unwrap_or_else(|| folder.data(name));
            let port = state.ports.get(name).copied().unwrap_or(0);
            Ok(Options::in_folder(data, folder.log(name), port, &secrets.engine_password, cache.clone()))
        };
        let engine = Engine::from_env_or_start(kind, options).await?;
        match &engine {
            Engine::Given { .. } => stack.tell(&format!("{name} ready: {} names it", kind.variable())),
            Engine::Started(_) => {
                stack.tell(&format!("{name} ready after {:.1} s", began.elapsed().as_secs_f32()));
            }
        }
        stack.add_engine(kind, engine);
        Ok(())
    };
    stack.tell("starting Kafka, ClickHouse and Postgres");
    tokio::try_join!(engine(Kind::Kafka), engine(Kind::ClickHouse), engine(Kind::Postgres))?;
    for kind in Kind::ALL {
        if let Ok(server) = stack.server(kind.name())
            && let Some(port) = port_of(server.url())
        {
            state.ports.insert(kind.name().to_owned(), port);
        }
    }
    let port = receiver::serve(state.ports.get(RECEIVER).copied().unwrap_or(0)).await?;
    state.ports.insert(RECEIVER.to_owned(), port);
    stack.set_receiver(port);
    folder.write(STATE, &state)
}

/// The port of `host:port` or of a URL.
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
    stack.tell("starting ingest, processor, api and dispatcher");
    let start = async |name: &'static str| -> anyhow::Result<()> {
        let began = Instant::now();
        let mut launch = Launch::new(services.program(name)?, folder.log(name));
        launch.environment = services.variables.clone().into_iter().collect();
        launch.stop_deadline = drain_deadline() + AFTER_DRAIN;
        let operations = url(*addresses.operations.get(name).context("a service without an address")?);
        let probe = Probe::Http { url: format!("{operations}/readyz") };
        let server = Arc::new(Server::new(name, &operations, launch, probe));
        stack.add_server(name, Arc::clone(&server));
        server.start().await.with_context(|| format!("{name} (see `./dev logs {name}`)"))?;
        stack.tell(&format!("{name} ready after {:.1} s", began.elapsed().as_secs_f32()));
        Ok(())
    };
    let [ingest, processor, api, dispatcher] = SERVICES;
    tokio::try_join!(start(ingest), start(processor), start(api), start(dispatcher))?;
    Ok(())
}

/// How long the services take to stop at most: what their environment says, else their default of 20 s.
fn drain_deadline() -> Duration {
    let given = std::env::var("HOPLINE_DRAIN_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(given.unwrap_or(20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_read_from_every_engines_address() {
        assert_eq!(port_of("127.0.0.1:20001"), Some(20_001));
        assert_eq!(port_of("http://user:password@127.0.0.1:20002/hopline"), Some(20_002));
        assert_eq!(port_of("postgres://user:password@127.0.0.1:20003/hopline"), Some(20_003));
    }
}
