//! A standby: a copy of a running server that gets every change from it, until it is promoted.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, PgConnection};

use super::{CA, SERVER, create_folder, start_from};
use crate::process::run;
use crate::readiness::until;
use crate::{Account, Cause, Error, Options, Server};

/// How long a copy may take: files that the primary removes meanwhile make it begin again.
const COPY_DEADLINE: Duration = Duration::from_secs(120);

/// How long a running server may take to change its settings.
const SETTING_DEADLINE: Duration = Duration::from_secs(10);

/// How long a standby may take to have all changes, or to become a primary.
const CHANGE_DEADLINE: Duration = Duration::from_secs(60);

/// Starts a standby of a running server that keeps its data in `primary_folder`, and waits until it answers. It begins
/// with a copy, whatever its folder contained.
///
/// # Errors
/// As [`super::start`], and when the primary cannot be copied.
pub async fn start_standby(
    primary: &Server,
    primary_folder: &Path,
    options: Options,
) -> Result<Server, Error> {
    copy_data(primary, primary_folder, &options.folder).await?;
    let programs = options.cache.postgres().await?;
    start_from(programs, options).await
}

/// Replaces the data of a server that does not run by those of a running one, whose standby it becomes.
///
/// # Errors
/// When the primary cannot be copied.
pub async fn copy_data(primary: &Server, primary_folder: &Path, folder: &Path) -> Result<(), Error> {
    let account = Account::unprivileged()?;
    create_folder(folder, account.as_ref())?;
    let (from, to) = (primary_folder.join("data"), folder.join("data"));
    let copied = || async { Ok(copy(primary, &from, &to, account.as_ref()).await?) };
    until("a copy of Postgres' data", COPY_DEADLINE, copied).await
}

/// Copies the data of a running server, as Postgres' documentation describes it for a base backup.
async fn copy(primary: &Server, from: &Path, to: &Path, account: Option<&Account>) -> Result<(), Error> {
    let failed = |error: sqlx::Error| Error::Invalid(format!("Postgres cannot be copied: {error}"));
    if to.exists() {
        fs::remove_dir_all(to).map_err(Error::file("remove", to))?;
    }
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
    // The files in the data folder: by default libpq looks in a home, which its account may have no access to.
    let files = format!(" sslmode=verify-full sslrootcert={CA} sslcert={SERVER} sslkey={SERVER}");
    let verified = if to.join(CA).exists() { &*files } else { "" };
    let settings =
        format!("primary_conninfo = 'host={host} port={port} user={user} password={password}{verified}'\n");
    let own = |name: &str, text: &str| {
        let file = to.join(name);
        fs::write(&file, text)
            .and_then(|()| match account {
                Some(account) => chown(&file, Some(account.uid), Some(account.gid)),
                None => Ok(()),
            })
            .map_err(Error::file("write", &file))
    };
    own("backup_label", &label)?;
    // Instead of the primary's settings: once it is promoted, the standby has none that it could wait for.
    own("postgresql.auto.conf", &settings)?;
    own("standby.signal", "")?;
    let pid = to.join("postmaster.pid");
    fs::remove_file(&pid).map_err(Error::file("remove", &pid))
}

/// Lets a primary confirm a commit only when its standby has it, or without a standby. Waits until the standby has
/// everything that was confirmed before.
///
/// # Errors
/// [`Error::NotReady`] when the primary does not answer, or the standby does not follow within 60 s; the primary
/// then confirms commits without it.
pub async fn set_synchronous(primary: &Server, is_synchronous: bool) -> Result<(), Error> {
    let url = primary.url();
    let set = async |sql: &'static str| {
        let set = || async {
            let mut session = PgConnection::connect(url).await?;
            session.execute(sql).await?;
            session.execute("SELECT pg_reload_conf()").await?;
            Ok(())
        };
        until("a setting of Postgres", SETTING_DEADLINE, set).await
    };
    let follows = async |sql: &'static str| {
        let follows = || async {
            let mut session = PgConnection::connect(url).await?;
            let follows: bool = sqlx::query_scalar(sql).fetch_one(&mut session).await?;
            if follows { Ok(()) } else { Err(Cause::from("it does not follow yet")) }
        };
        until("the standby", CHANGE_DEADLINE, follows).await
    };
    let without = "ALTER SYSTEM SET synchronous_standby_names = ''";
    if !is_synchronous {
        return set(without).await;
    }
    let together = async {
        follows("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming')").await?;
        set("ALTER SYSTEM SET synchronous_standby_names = '*'").await?;
        follows("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')").await
    };
    match together.await {
        Ok(()) => Ok(()),
        Err(error) => set(without).await.and(Err(error)),
    }
}

/// Makes a standby a primary, and waits until it accepts writes; nothing changes when it is one.
///
/// # Errors
/// [`Error::NotReady`] when it does not within 60 s.
pub async fn promote(standby: &Server) -> Result<(), Error> {
    let promoted = || async {
        let mut session = PgConnection::connect(standby.url()).await?;
        let is_standby: bool =
            sqlx::query_scalar("SELECT pg_is_in_recovery()").fetch_one(&mut session).await?;
        if is_standby {
            // Returns at once: the next round looks again.
            session.execute("SELECT pg_promote(wait => false)").await?;
            return Err(Cause::from("it is still a standby"));
        }
        Ok(())
    };
    until("a promotion of Postgres", CHANGE_DEADLINE, promoted).await
}
