//! `up`: starts the stack, watches it, and stops it.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use devstack::process::{Launch, run};
use devstack::{Probe, Server};
use futures_util::future::try_join_all;
use schemas::grants::User;
use tokio::time::sleep;

use crate::cli::Up;
use crate::environment::{Instance, Services, public_urls, url, variables};
use crate::folder::Folder;
use crate::members::Topology;
use crate::stack::Stack;
use crate::state::{SECRETS, STATE, Secrets, State};
use crate::terminal::{Interrupts, print_error, print_line};
use crate::{compile, control, dashboard, demo_account, engines};

/// The variable with the folder of country and browser data.
const DATA_DIR: &str = "HOPLINE_DATA_DIR";

/// The services' default for `HOPLINE_DRAIN_SECONDS`.
const DEFAULT_DRAIN: Duration = Duration::from_secs(20);

/// Time for a service to exit after its drain deadline.
const AFTER_DRAIN: Duration = Duration::from_secs(5);

/// How long everything may take to be ready together after each part was ready once.
const ALL_READY: Duration = Duration::from_secs(30);
const STATUS_INTERVAL: Duration = Duration::from_millis(200);

/// Before the first release migrations are edited in place.
const OTHER_VERSION: &str = "the database could not be migrated; if another version created the data in .dev/, \
    `./dev reset` starts empty";

/// Runs the stack in this process until a stop is requested.
pub(crate) async fn up(folder: Folder, options: Up) -> anyhow::Result<ExitCode> {
    engines::check_externals(folder.topology())?;
    let Some(_lock) = folder.try_lock()? else {
        folder.ensure_none_other_runs()?;
        bail!("the stack is already running: see `./dev status`, or stop it with `./dev down`");
    };
    let mut interrupts = Interrupts::new()?;
    let stack = Arc::new(Stack::new(folder.topology()));
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
    let members = stack.topology().members();
    folder.rotate_logs(members.iter().map(|member| &member.name));
    let secrets = secrets(folder)?;
    let is_built = compile::prebuilt().is_some();
    let build = async {
        if !is_built {
            // First, because the API contains it.
            dashboard::build(folder.repository(), stack).await;
            stack.report("building the services");
        }
        compile::services(folder.repository(), options.release).await
    };
    let (data, (), programs) = tokio::try_join!(
        async { Ok(data(folder, stack).await) },
        engines::start(folder, stack, &secrets),
        build
    )?;

    let mut state: State = folder.read(STATE)?.unwrap_or_default();
    let instances = Instance::choose(&members, options.listen, folder, &state.ports)?;
    if stack.topology() == Topology::Cluster {
        state.ports.extend(instances.iter().flat_map(Instance::ports));
        folder.write(STATE, &state)?;
    }
    let mut variables = variables(&instances, &secrets);
    variables.extend(data.map(|folder| (DATA_DIR.to_owned(), folder.display().to_string())));
    let of_user = |user: User| (user.name().to_owned(), stack.engine_variables(user));
    let services = Services { programs, variables, engines: User::ALL.map(of_user).into() };
    stack.parts().instances.clone_from(&instances);
    stack.parts().services = Some(services.clone());

    stack.report("migrating: `api migrate`");
    let mut migrate = Command::new(services.program("api")?);
    migrate.arg("migrate").envs(services.environment(User::Migrate));
    run("`api migrate`", migrate).await.context(OTHER_VERSION)?;

    start_services(folder, stack, &services, &instances).await?;
    let api = public_urls(&instances, "api").into_iter().next().context("the stack has no API")?;
    let demo = demo_account::ensure(folder, &services, &api).await?;
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
    let data = engines::cache(folder, stack).data().await;
    data.inspect_err(|error| stack.report(&format!("continuing without country and browser data: {error}")))
        .ok()
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

async fn start_services(
    folder: &Folder,
    stack: &Arc<Stack>,
    services: &Services,
    instances: &[Instance],
) -> anyhow::Result<()> {
    stack.report("starting ingest, processor, api and dispatcher");
    let drain = drain_time(std::env::var("HOPLINE_DRAIN_SECONDS").ok().as_deref());
    let start = async |instance: &Instance| -> anyhow::Result<()> {
        let began = Instant::now();
        let name = &instance.name;
        let mut launch = Launch::new(services.program(instance.service)?, folder.log(name));
        let user = User::of(instance.service).context("every service has a user")?;
        launch.environment = services.environment(user).into_iter().chain(instance.variables()).collect();
        launch.stop_deadline = drain + AFTER_DRAIN;
        let operations = url(instance.operations);
        let probe = Probe::Http { url: format!("{operations}/readyz") };
        let server = stack.add_server(Server::new(name, &operations, launch, probe));
        server.start().await.with_context(|| format!("{name} (see `./dev logs {name}`)"))?;
        stack.report(&format!("{name} ready after {:.1} s", began.elapsed().as_secs_f32()));
        Ok(())
    };
    try_join_all(instances.iter().map(start)).await?;
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
    fn the_drain_time_may_have_fractions_and_is_20_s_by_default() {
        assert_eq!(drain_time(Some("0.5")), Duration::from_millis(500));
        assert_eq!(drain_time(Some("3")), Duration::from_secs(3));
        for invalid in [None, Some("soon"), Some("-1"), Some("inf")] {
            assert_eq!(drain_time(invalid), Duration::from_secs(20));
        }
    }
}
