//! Postgres: the machine's own server, else the one of an npm package.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use reqwest::Url;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::process::{Launch, run, run_with_input};
use crate::server::{Probe, Server};
use crate::{Account, Cause, Error, Options, install, ports, random};

/// The superuser and the database.
const NAME: &str = "hopline";

/// Starts a server and waits until it answers; its URL is `postgres://user:password@host:port/database`.
///
/// Root starts it as another account, because Postgres refuses to run as root.
///
/// # Errors
/// What keeps it from being installed or started.
pub async fn start(options: Options) -> Result<Server, Error> {
    let programs = options.cache.postgres().await?;
    start_from(programs, options).await
}

/// Like [`start`], with the folder of Postgres's programs given.
///
/// # Errors
/// As [`start`].
pub async fn start_from(programs: PathBuf, options: Options) -> Result<Server, Error> {
    let account = Account::unprivileged()?;
    let folder = &options.folder;
    match &account {
        Some(account) => {
            if !account.reaches(folder) {
                let (name, folder) = (&account.name, folder.display());
                return Err(Error::Unusable(format!(
                    "Postgres runs as the user {name}, who cannot enter {folder}"
                )));
            }
            account.create_folder(folder)?;
        }
        None => fs::create_dir_all(folder).map_err(Error::file("create", folder))?,
    }
    let data = folder.join("data");
    if !data.exists() {
        let setup = Setup { programs: &programs, account: account.as_ref() };
        setup.make(&folder.join("data.partial"), &data, &options.password).await?;
    }
    let port = ports::prefer(options.port)?;
    let mut launch = Launch::new(programs.join("postgres"), options.log).arguments([
        "-D".into(),
        data.into_os_string(),
        "-c".into(),
        format!("port={port}").into(),
    ]);
    // Sockets in the file system would need a folder that every account can use.
    launch = launch.arguments(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
    // Each test's services open pools of their own.
    launch = launch.arguments(["-c", "max_connections=400"]);
    if !options.durable {
        // What was answered survives a killed server; only the machine's own crash would lose it.
        launch = launch.arguments(["-c", "fsync=off", "-c", "full_page_writes=off"]);
    }
    launch.account = account;
    // "Fast": open transactions are rolled back instead of waited for.
    launch.stop_signal = Signal::SIGINT;
    // "Immediate": the postmaster takes its backends with it, which a SIGKILL would leave to find out.
    launch.orphan_signal = Signal::SIGQUIT;
    let url = format!("postgres://{NAME}:{}@127.0.0.1:{port}/{NAME}", options.password);
    let server = Server::new("postgres", &url, launch, Probe::Postgres { url: url.clone() });
    let server = server.in_scratch(options.scratch);
    server.start().await?;
    Ok(server)
}

/// Returns `preferred` when the account that Postgres runs as can use it, else a new name under `/var/lib`.
///
/// # Errors
/// [`Error::Missing`] when there is no such account.
pub fn folder_for(preferred: &Path) -> Result<PathBuf, Error> {
    match Account::unprivileged()? {
        Some(account) if !account.reaches(preferred) => {
            // Drawn, not made of the path: another clone may come to stand at the same place.
            Ok(Path::new(install::REACHABLE).join(format!("postgres-{}", random::hex::<8>()?)))
        }
        _ => Ok(preferred.to_path_buf()),
    }
}

/// Makes data folders.
struct Setup<'a> {
    programs: &'a Path,
    account: Option<&'a Account>,
}

impl Setup<'_> {
    /// Makes a data folder with our user and database. It gets its name last: one that was left half made is not
    /// taken for one.
    async fn make(&self, partial: &Path, data: &Path, password: &str) -> Result<(), Error> {
        if !password.chars().all(|character| character.is_ascii_alphanumeric()) {
            return Err(Error::Unusable("a Postgres password here has letters and digits only".to_owned()));
        }
        if partial.exists() {
            fs::remove_dir_all(partial).map_err(Error::file("remove", partial))?;
        }
        let mut initdb = self.command("initdb");
        initdb
            .args(["-U", NAME, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"])
            .arg(partial);
        run("creating Postgres' data folder", initdb).await?;

        // The single-user mode needs no port, no client program and no password.
        let mut single = self.command("postgres");
        single.args(["--single", "-j", "-D"]).arg(partial).arg("postgres");
        let statements =
            format!("ALTER ROLE {NAME} PASSWORD '{password}'\n;\n\nCREATE DATABASE {NAME}\n;\n\n")
                .into_bytes();
        run_with_input("creating Postgres' database", single, statements).await?;

        let rules = partial.join("pg_hba.conf");
        let rule = "# Any user of this machine could connect without a password otherwise.\n\
                    host all all 127.0.0.1/32 scram-sha-256\n";
        fs::write(&rules, rule).map_err(Error::file("write", &rules))?;
        fs::rename(partial, data).map_err(Error::file("rename to", data))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        // The caller's folder may be closed to the account.
        command.current_dir("/").env("LC_ALL", "C");
        if let Some(account) = self.account {
            command.uid(account.uid).gid(account.gid);
        }
        command
    }
}

/// Opens a connection as far as the server's first answer to a start-up message.
///
/// That answer (a request for the password) comes when the server takes connections; before, it is an error.
///
/// # Errors
/// The reason why it does not take one.
pub async fn answers(url: &str) -> Result<(), Cause> {
    let url = Url::parse(url)?;
    let host = url.host_str().ok_or("the address names no host")?;
    let mut connection = TcpStream::connect((host, url.port().unwrap_or(5432))).await?;
    let database = url.path().trim_start_matches('/');
    connection.write_all(&startup_message(url.username(), database)?).await?;

    // PostgreSQL's protocol, "Message Formats": one byte of type, four of length that count themselves.
    let kind = connection.read_u8().await?;
    let length = connection.read_u32().await?;
    match kind {
        b'R' => Ok(()),
        b'E' => {
            let mut fields = Vec::new();
            connection.take(u64::from(length.saturating_sub(4))).read_to_end(&mut fields).await?;
            Err(error_message(&fields).into())
        }
        other => Err(format!("an answer of type {:?}", char::from(other)).into()),
    }
}

/// The first message of a connection, for protocol 3.0.
fn startup_message(user: &str, database: &str) -> Result<Vec<u8>, Cause> {
    let mut body = 196_608_u32.to_be_bytes().to_vec();
    for text in ["user", user, "database", database] {
        body.extend_from_slice(text.as_bytes());
        body.push(0);
    }
    body.push(0);
    let mut message = u32::try_from(body.len() + 4)?.to_be_bytes().to_vec();
    message.append(&mut body);
    Ok(message)
}

/// The text of an error's message field (`M`).
fn error_message(fields: &[u8]) -> String {
    fields.split(|byte| *byte == 0).find_map(|field| field.strip_prefix(b"M")).map_or_else(
        || "an error without a message".to_owned(),
        |text| String::from_utf8_lossy(text).into_owned(),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_startup_message_counts_its_own_length() {
        let message = startup_message("u", "d").unwrap();
        assert_eq!(message, b"\0\0\0\x1b\0\x03\0\0user\0u\0database\0d\0\0");
        assert_eq!(message.len(), 0x1b);
    }

    #[test]
    fn an_error_is_shown_by_its_message_field() {
        let fields = b"SFATAL\0C57P03\0Mthe database system is starting up\0\0";
        assert_eq!(error_message(fields), "the database system is starting up");
    }
}
