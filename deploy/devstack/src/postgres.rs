//! Postgres: the installed server, or else the one of an npm package.

mod standby;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use schemas::grants::User;

use crate::process::{Launch, run, run_with_input};
use crate::{Account, Error, Options, Probe, Server, install, ports, random};

pub use standby::{copy_data, promote, set_synchronous, start_standby};

/// The name of the superuser and of the database.
const NAME: &str = "hopline";

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
    let tls = options.tls.as_ref().map(|file| own_copy(file, &data, account.as_ref())).transpose()?;
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
    if let Some(file) = tls {
        let setting = |name: &str| format!("{name}={}", file.display());
        launch = launch.arguments([
            "-c".to_owned(),
            "ssl=on".to_owned(),
            "-c".to_owned(),
            setting("ssl_cert_file"),
        ]);
        launch = launch.arguments(["-c".to_owned(), setting("ssl_key_file")]);
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
    let url = format!("postgres://{NAME}:{}@127.0.0.1:{port}/{NAME}", options.password);
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
        None => fs::create_dir_all(folder).map_err(Error::file("create", folder)),
    }
}

/// Copies a private key into the data folder, because Postgres refuses one that others may read.
fn own_copy(file: &Path, data: &Path, account: Option<&Account>) -> Result<PathBuf, Error> {
    let copy = data.join("server.pem");
    fs::copy(file, &copy).map_err(Error::file("copy", file))?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o600))
        .map_err(Error::file("set the mode of", &copy))?;
    if let Some(account) = account {
        chown(&copy, Some(account.uid), Some(account.gid)).map_err(Error::file("set the owner of", &copy))?;
    }
    Ok(copy)
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
    let users = if options.users { &User::ALL[..] } else { &[] };
    let users =
        users.iter().map(|user| format!("CREATE ROLE {} LOGIN PASSWORD '{password}'\n;\n\n", user.name()));
    let statements = format!(
        "ALTER ROLE {NAME} PASSWORD '{password}'\n;\n\nCREATE DATABASE {NAME}\n;\n\n{}",
        users.collect::<String>()
    );
    run_with_input("creating Postgres' database", single, statements.into_bytes()).await?;

    let rules = partial.join("pg_hba.conf");
    let rule = "# Without a password any user of this machine could connect.\n\
                host all all 127.0.0.1/32 scram-sha-256\n\
                host replication all 127.0.0.1/32 scram-sha-256\n";
    fs::write(&rules, rule).map_err(Error::file("write", &rules))?;
    fs::rename(&partial, folder.join("data")).map_err(Error::file("rename", &partial))
}
