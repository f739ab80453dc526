//! A standby: a copy of a running server that gets every change from it, until it is promoted.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use super::{create_folder, start_from};
use crate::process::run;
use crate::{Account, Error, Options, Server};

/// Starts a standby of a running server that keeps its data in `primary_folder`, and waits until it answers.
///
/// The statement `SELECT pg_promote()` makes it a primary.
///
/// # Errors
/// As [`super::start`], and when the primary cannot be copied.
pub async fn start_standby(
    primary: &Server,
    primary_folder: &Path,
    options: Options,
) -> Result<Server, Error> {
    let account = Account::unprivileged()?;
    create_folder(&options.folder, account.as_ref())?;
    let data = options.folder.join("data");
    copy(primary, &primary_folder.join("data"), &data, account.as_ref()).await?;
    let programs = options.cache.postgres().await?;
    start_from(programs, options).await
}

/// Copies the data of a running server, as Postgres' documentation describes it for a base backup.
async fn copy(primary: &Server, from: &Path, to: &Path, account: Option<&Account>) -> Result<(), Error> {
    let failed = |error: sqlx::Error| Error::Invalid(format!("Postgres cannot be copied: {error}"));
    let of: PgConnectOptions = primary.url().parse().map_err(failed)?;
    // The backup ends with the session that began it.
    let mut session = of.connect().await.map_err(failed)?;
    let begin = sqlx::query("SELECT pg_backup_start('standby', true)");
    begin.execute(&mut session).await.map_err(failed)?;
    let mut cp = Command::new("cp");
    cp.arg("-a").args([from, to]);
    run("copying Postgres' data", cp).await?;
    let end = sqlx::query_scalar("SELECT labelfile FROM pg_backup_stop(false)");
    let label: String = end.fetch_one(&mut session).await.map_err(failed)?;
    session.close().await.map_err(failed)?;

    let password = primary.url().split(['@', ':']).nth(2).unwrap_or_default();
    let (host, port, user) = (of.get_host(), of.get_port(), of.get_username());
    let settings = format!("primary_conninfo = 'host={host} port={port} user={user} password={password}'\n");
    let own = |name: &str, text: &str| {
        let file = to.join(name);
        let opened = fs::OpenOptions::new().create(true).append(true).open(&file);
        opened
            .and_then(|mut opened| opened.write_all(text.as_bytes()))
            .and_then(|()| match account {
                Some(account) => chown(&file, Some(account.uid), Some(account.gid)),
                None => Ok(()),
            })
            .map_err(Error::file("write", &file))
    };
    own("backup_label", &label)?;
    own("postgresql.auto.conf", &settings)?;
    own("standby.signal", "")?;
    let pid = to.join("postmaster.pid");
    fs::remove_file(&pid).map_err(Error::file("remove", &pid))
}
