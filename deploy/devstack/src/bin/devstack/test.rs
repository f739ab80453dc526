//! `test`: runs the tests on separate engines.

use std::ffi::OsString;
use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Instant;

use anyhow::ensure;
use devstack::install::Cache;
use devstack::process::run_attached;
use devstack::{Engine, Error, Kind, Options, Server, USERS_VARIABLE, clickhouse_cluster, kafka, postgres};

use crate::addresses;
use crate::compile::{cargo, exit_code};
use crate::engines::check_externals;
use crate::flaky;
use crate::folder::Folder;
use crate::members::Topology;
use crate::terminal::{Interrupts, print_error};

/// The number of ClickHouse's databases with users for each test at a time: more than one uses and killed ones leave
/// behind.
const DATABASES: u32 = 30;

/// Variable of nextest: how many tests run at a time.
const THREADS: &str = "NEXTEST_TEST_THREADS";

/// Nextest's exit code when no test matches.
const NO_TESTS: i32 = 4;

/// What nextest writes about each test, below the repository: `.config/nextest.toml` names the file.
const JUNIT: &str = "target/nextest/default/junit.xml";

/// Which tests run.
#[derive(Debug)]
pub(crate) struct Selection {
    /// The heavy ones instead of all others.
    pub(crate) heavy: bool,
    /// Arguments of nextest.
    pub(crate) arguments: Vec<OsString>,
}

impl Selection {
    fn is_everything(&self) -> bool {
        !self.heavy && self.arguments.is_empty()
    }
}

/// Starts engines, builds every program, runs the tests, and returns the exit code of nextest.
pub(crate) async fn run(
    folder: &Folder,
    topology: Topology,
    selection: Selection,
) -> anyhow::Result<ExitCode> {
    check_externals(topology)?;
    let mut interrupts = Interrupts::new()?;
    let cache = Cache::new(folder.engines(), Arc::new(print_error));
    let began = Instant::now();
    let options = |name: &str| {
        let mut options = Options::throw_away(name)?;
        options.cache = cache.clone();
        options.databases = DATABASES.saturating_mul(at_a_time());
        Ok(options)
    };
    let engines = async {
        match topology {
            Topology::Single => single(options).await,
            Topology::Cluster => cluster(topology, options).await,
        }
    };
    let ready = async { tokio::try_join!(engines, async { Ok(cache.nextest().await?) }) };
    let (engines, nextest) = tokio::select! {
        ready = ready => ready?,
        () = interrupts.next() => return Ok(ExitCode::from(130)),
    };
    print_error(&format!("engines ready after {:.1} s", began.elapsed().as_secs_f32()));
    tokio::select! {
        code = tests(folder, &engines, &nextest, selection) => code,
        () = interrupts.next() => Ok(ExitCode::from(130)),
    }
}

/// The engines of the tests, which end with it.
struct Engines {
    /// What the tests find them by.
    variables: Vec<(&'static str, String)>,
    _started: Vec<Engine>,
}

async fn single(options: impl Fn(&str) -> Result<Options, Error>) -> anyhow::Result<Engines> {
    let engine = |kind| Engine::from_env_or_start(kind, |kind: Kind| options(kind.name()));
    let (kafka, clickhouse, postgres) =
        tokio::try_join!(engine(Kind::Kafka), engine(Kind::ClickHouse), engine(Kind::Postgres))?;
    let started = vec![kafka, clickhouse, postgres];
    let variable = |(kind, engine): (Kind, &Engine)| (kind.variable(), engine.url().to_owned());
    let mut variables: Vec<_> = Kind::ALL.into_iter().zip(&started).map(variable).collect();
    if started.iter().all(|engine| engine.server().is_some()) {
        variables.push((USERS_VARIABLE, "1".to_owned()));
    }
    Ok(Engines { variables, _started: started })
}

/// Starts several servers of each engine. The variables name all of them, the primary of Postgres first.
async fn cluster(
    topology: Topology,
    options: impl Fn(&str) -> Result<Options, Error>,
) -> anyhow::Result<Engines> {
    let pair = async {
        let of_primary = options("postgres-1")?;
        let folder = of_primary.folder.clone();
        let primary = postgres::start(of_primary).await?;
        let standby = postgres::start_standby(&primary, &folder, options("postgres-2")?).await?;
        postgres::set_synchronous(&primary, true).await?;
        Ok([primary, standby])
    };
    let (kafka, clickhouse, postgres) = tokio::try_join!(
        kafka::start_cluster(topology.brokers(), &options),
        clickhouse_cluster::start_cluster(topology.shards(), topology.replicas(), &options),
        pair
    )?;
    let replicas: Vec<Server> = clickhouse.shards.into_iter().flatten().collect();
    let urls = |servers: &[Server]| servers.iter().map(|server| server.url().to_owned()).collect::<Vec<_>>();
    let addresses = [
        (Kind::Kafka, addresses::kafka(&urls(&kafka))),
        (Kind::ClickHouse, addresses::with_hosts(&urls(&replicas))),
        (Kind::Postgres, addresses::with_hosts(&urls(&postgres))),
    ];
    let addresses = addresses.into_iter().filter_map(|(kind, url)| Some((kind.variable(), url?)));
    let variables = addresses.chain([(USERS_VARIABLE, "1".to_owned())]).collect();
    let servers = kafka.into_iter().chain(replicas).chain([clickhouse.zookeeper]).chain(postgres);
    let started = servers.map(|server| Engine::Started(Arc::new(server))).collect();
    Ok(Engines { variables, _started: started })
}

async fn tests(
    folder: &Folder,
    engines: &Engines,
    nextest: &Path,
    selection: Selection,
) -> anyhow::Result<ExitCode> {
    // The build may replace this program's file; afterwards its path cannot be found.
    let this_program = std::env::current_exe()?;
    let repository = folder.repository();
    // The tests start the services' programs, which nextest builds only for the packages that it tests.
    if !selection.arguments.is_empty() {
        let mut build = cargo(repository);
        build.args(["build", "--workspace", "--bins"]);
        let status = run_attached(build).await?;
        ensure!(status.success(), "the build failed: cargo ended with {status}");
    }
    // Nextest does not run these.
    let mut examples_passed = true;
    if selection.is_everything() {
        let mut examples = cargo(repository);
        examples.args(["test", "--workspace", "--doc", "--quiet"]);
        examples_passed = run_attached(examples).await?.success();
    }

    let report = repository.join(JUNIT);
    // A run that does not begin leaves none behind.
    let _ = fs::remove_file(&report);
    let mut test = Command::new(nextest);
    test.args(["nextest", "run"]).current_dir(repository);
    if !has_package_option(&selection.arguments) {
        test.arg("--workspace");
    }
    if selection.heavy {
        test.args(["--ignore-default-filter", "--filterset", "not default()"]);
    }
    test.env(THREADS, at_a_time().to_string());
    test.args(&selection.arguments).envs(engines.variables.iter().map(|(name, value)| (name, value)));
    test.env("DEVSTACK_ENGINES", folder.engines()).env("DEVSTACK_BIN", this_program);
    let status = run_attached(test).await?;
    if status.code() == Some(NO_TESTS) && !selection.heavy {
        print_error("Heavy tests run with `./dev test --heavy`, also by name: `./dev test --heavy -- NAME`.");
    }
    if let Ok(junit) = fs::read_to_string(&report) {
        let lines = flaky::report(&junit).unwrap_or_else(|error| vec![format!("{error:#}")]);
        lines.iter().for_each(|line| print_error(line));
    }
    if !examples_passed {
        print_error("error: the documentation's examples failed, see above");
    }
    Ok(if status.success() && !examples_passed { ExitCode::FAILURE } else { exit_code(status) })
}

/// Returns how many tests run at a time.
fn at_a_time() -> u32 {
    let given = std::env::var(THREADS).ok().and_then(|threads| threads.parse().ok());
    // Tests mostly wait, for engines and for timers: with one for each core the cores would be idle half of the time.
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    given.unwrap_or_else(|| u32::try_from(cores).map_or(2, |cores| cores + 1))
}

/// Returns whether the arguments of nextest, those before a `--`, select packages.
fn has_package_option(arguments: &[OsString]) -> bool {
    let own = arguments.iter().take_while(|argument| *argument != "--");
    own.map(|argument| argument.to_string_lossy()).any(|argument| {
        argument.starts_with("--package") || (argument.starts_with("-p") && !argument.starts_with("--"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_option_counts_only_before_the_double_dash() {
        let has = |text: &str| has_package_option(&text.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(has("-p api"));
        assert!(has("--package=api"));
        assert!(!has("--test it"));
        assert!(!has("--test it -- -p api"));
    }
}
