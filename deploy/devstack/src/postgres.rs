//! Postgres: the installed server, or else the one of an npm package.

mod standby;
mod verifier;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use schemas::grants::User;

use crate::process::{Launch, run, run_with_input};
use crate::{Account, Error, Options, Probe, Server, install, ports, private, random};

pub use standby::{copy_data, promote, set_synchronous, start_standby};

/// The name of the superuser and of the database.
const NAME: &str = "hopline";

/// The copies of [`Tls`](crate::Tls)'s files in the data folder.
const SERVER: &str = "server.pem";
const CA: &str = "ca.pem";

/// Starts a server and waits until it answers; its URL is `postgres://user:password@host:port/database`.
///
/// When run by root, it starts as another account, because Postgres refuses to run as root.
///
/// # Errors
/// The reason why it cannot be installed or started.
pub async fn start(options: Options) -> Result<Server, Error> {
    let programs = options.cache.postgres().await?;
    start_from(programs, options).await
}

/// Like [`start`], with the Postgres programs in a specific folder.
///
/// # Errors
/// As [`start`].
pub async fn start_from(programs: PathBuf, options: Options) -> Result<Server, Error> {
    let account = Account::unprivileged()?;
    let folder = &options.folder;
    create_folder(folder, account.as_ref())?;
    let data = folder.join("data");
    if !data.exists() {
        create_data(&programs, account.as_ref(), folder, &options).await?;
    }
    if let Some(tls) = &options.tls {
        own_copy(&tls.server, &data.join(SERVER), account.as_ref())?;
        own_copy(&tls.ca, &data.join(CA), account.as_ref())?;
    }
    let port = ports::prefer(options.port)?;
    let mut launch = Launch::new(programs.join("postgres"), options.log).arguments([
        "-D".into(),
        data.into_os_string(),
        "-c".into(),
        format!("port={port}").into(),
    ]);
    // A Unix socket would need a folder that every account can use.
    launch = launch.arguments(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
    // Each service of each test has a connection pool.
    launch = launch.arguments(["-c", "max_connections=400"]);
    if options.tls.is_some() {
        let files = ["ssl_cert_file", "ssl_key_file"].map(|name| format!("--{name}={SERVER}"));
        launch = launch.arguments(["--ssl=on"]).arguments(files);
    }
    if !options.durable {
        // Commits survive a killed server; only a crash of the machine loses them.
        launch = launch.arguments(["-c", "fsync=off", "-c", "full_page_writes=off"]);
    }
    launch.account = account;
    // "Fast" shutdown: rolls open transactions back instead of waiting for them.
    launch.stop_signal = Signal::SIGINT;
    // "Immediate" shutdown: the postmaster ends its backends; after a SIGKILL they would run on for a while.
    launch.orphan_signal = Signal::SIGQUIT;
    let verified = options.tls.map_or_else(String::new, |tls| verified(&tls.ca));
    let url = format!("postgres://{NAME}:{}@127.0.0.1:{port}/{NAME}{verified}", options.password);
    let probe = Probe::Postgres { url: url.clone() };
    Server::start_engine(&options.name, &url, launch, probe, options.scratch).await
}

/// Returns `preferred` when Postgres's account can enter it, or else a new name under `/var/lib`.
///
/// # Errors
/// [`Error::Missing`] when there is no such account.
pub fn folder_for(preferred: &Path) -> Result<PathBuf, Error> {
    match Account::unprivileged()? {
        Some(account) if !account.reaches(preferred) => {
            // Random instead of derived from the path: later another clone may be at the same path.
            Ok(Path::new(install::REACHABLE).join(format!("postgres-{}", random::hex::<8>()?)))
        }
        _ => Ok(preferred.to_path_buf()),
    }
}

/// Creates the folder of a server, which Postgres's account must be able to enter.
fn create_folder(folder: &Path, account: Option<&Account>) -> Result<(), Error> {
    match account {
        Some(account) if !account.reaches(folder) => {
            let (name, folder) = (&account.name, folder.display());
            Err(Error::Invalid(format!("Postgres runs as the user {name}, who has no access to {folder}")))
        }
        Some(account) => account.create_folder(folder),
        None => private::create_folder(folder),
    }
}

/// Returns the query of a URL whose clients want a certificate of this authority.
fn verified(ca: &Path) -> String {
    // What would end the path in a query.
    let path = ca.display().to_string().replace('%', "%25").replace('&', "%26").replace(' ', "%20");
    format!("?sslmode=verify-full&sslrootcert={path}")
}

/// Copies a file into the data folder for Postgres alone: it refuses a private key that others may read, and its
/// account may have no access to the original.
fn own_copy(file: &Path, copy: &Path, account: Option<&Account>) -> Result<(), Error> {
    fs::copy(file, copy).map_err(Error::file("copy", file))?;
    fs::set_permissions(copy, fs::Permissions::from_mode(0o600))
        .map_err(Error::file("set the mode of", copy))?;
    if let Some(account) = account {
        chown(copy, Some(account.uid), Some(account.gid)).map_err(Error::file("set the owner of", copy))?;
    }
    Ok(())
}

/// Creates `folder/data` with the user and the database; it gets this name when complete.
async fn create_data(
    programs: &Path,
    account: Option<&Account>,
    folder: &Path,
    options: &Options,
) -> Result<(), Error> {
    let password = &options.password;
    if !password.chars().all(|character| character.is_ascii_alphanumeric()) {
        return Err(Error::Invalid("the Postgres password may contain letters and digits only".to_owned()));
    }
    let command = |program: &str| {
        let mut command = Command::new(programs.join(program));
        // The account may have no access to the current folder.
        command.current_dir("/").env("LC_ALL", "C");
        if let Some(account) = account {
            command.uid(account.uid).gid(account.gid);
        }
        command
    };
    let partial = folder.join("data.partial");
    if partial.exists() {
        fs::remove_dir_all(&partial).map_err(Error::file("remove", &partial))?;
    }
    let mut initdb = command("initdb");
    initdb.args(["-U", NAME, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"]);
    initdb.arg(&partial);
    run("creating Postgres' data folder", initdb).await?;

    // Single-user mode needs no port, no client program and no password.
    let mut single = command("postgres");
    single.args(["--single", "-j", "-D"]).arg(&partial).arg("postgres");
    // A stack's keep Postgres' own iterations: some drivers refuse fewer.
    let stored = |password: &str| {
        if options.durable { Ok(password.to_owned()) } else { verifier::of(password) }
    };
    let users = options.users.iter().map(|(user, password)| {
        Ok(format!("CREATE ROLE {} LOGIN PASSWORD '{}'\n;\n\n", user.name(), stored(password)?))
    });
    let users = users.collect::<Result<String, Error>>()?;
    let has_owner = options.users.iter().any(|(user, _)| *user == User::Migrate);
    let owner = if has_owner { User::Migrate.name() } else { NAME };
    let statements = format!(
        "ALTER ROLE {NAME} PASSWORD '{}'\n;\n\n{users}CREATE DATABASE {NAME} OWNER {owner}\n;\n\n",
        stored(password)?
    );
    run_with_input("creating Postgres' database", single, statements.into_bytes()).await?;

    let rules = partial.join("pg_hba.conf");
    let kind = if options.tls.is_some() { "hostssl" } else { "host" };
    let rule = format!(
        "# Without a password any user of this machine could connect.\n\
         {kind} all all 127.0.0.1/32 scram-sha-256\n\
         {kind} replication {NAME} 127.0.0.1/32 scram-sha-256\n"
    );
    fs::write(&rules, rule).map_err(Error::file("write", &rules))?;
    fs::rename(&partial, folder.join("data")).map_err(Error::file("rename", &partial))
}
