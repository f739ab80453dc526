//! ClickHouse: the installed `clickhouse` program, or else the library of an npm package.

mod place;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemas::grants::User;

pub use self::place::CLUSTER;
pub(crate) use self::place::Place;
pub use crate::probe::query;
use crate::process::Launch;
use crate::readiness::until;
use crate::{Error, Options, Probe, Server, libchdb, ports, programs};

/// The name of the user and of the database.
const NAME: &str = "hopline";

/// The number of databases with users: more than tests.
const DATABASES: u32 = 1_000;

/// The library's query: opens the ports, then waits for ever.
const SERVE: &str = "SYSTEM START LISTEN HTTP; SYSTEM START LISTEN TCP; \
     SELECT sleepEachRow(1) FROM system.numbers SETTINGS max_block_size=1, \
     function_sleep_max_microseconds_per_block=100000000000 FORMAT Null";

/// Starts a server and waits until it answers; its URL is `http://user:password@host:port/database`.
///
/// # Errors
/// The reason why it cannot be installed or started.
pub async fn start(options: Options) -> Result<Server, Error> {
    start_at(options, None).await
}

/// Like [`start`], at a place in a cluster.
pub(crate) async fn start_at(options: Options, place: Option<&Place>) -> Result<Server, Error> {
    let folder = &options.folder;
    fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
    let port = ports::prefer(options.port)?;
    let native = place.map_or_else(ports::free, |place| Ok(place.native()))?;
    let users = folder.join("users.xml");
    write(&users, &users_xml(&options.password, options.users, place.is_some())?)?;
    let config = folder.join("config.xml");
    let in_cluster = match place {
        Some(place) => place.settings(NAME, &options, ports::free()?),
        None => String::new(),
    };
    write(&config, &config_xml(folder, &users, port, native, &in_cluster))?;

    let launch = match programs::on_path("clickhouse") {
        Some(program) => Launch::new(program, options.log).arguments([
            "server".into(),
            "--config-file".into(),
            config.into_os_string(),
        ]),
        None => {
            let library = options.cache.clickhouse().await?;
            Launch::new(libchdb::devstack_program()?, options.log).arguments(library_arguments(
                library,
                folder,
                &config,
                (port, native),
                place,
            ))
        }
    };
    let url = format!("http://{NAME}:{}@127.0.0.1:{port}/{NAME}", options.password);
    // Tests start replicas also without ZooKeeper.
    let probe = match place {
        Some(_) if options.durable => Probe::Replica { url: url.clone() },
        _ => Probe::ClickHouse { url: url.clone() },
    };
    let server = Server::start_engine(&options.name, &url, launch, probe, options.scratch).await?;
    let create = format!("CREATE DATABASE IF NOT EXISTS {NAME}");
    until("ClickHouse's database", Duration::from_secs(20), || query(&url, &create)).await?;
    Ok(server)
}

fn library_arguments(
    library: PathBuf,
    folder: &Path,
    config: &Path,
    (port, native): (u16, u16),
    place: Option<&Place>,
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec![libchdb::SUBCOMMAND.into()];
    if place.is_some() {
        arguments.push(format!("--replicates-at={}", Place::for_replicas(port)).into());
    }
    arguments.push(library.into());
    let options = [
        "--multiquery".to_owned(),
        format!("--path={}", folder.join("data").display()),
        format!("--http_port={port}"),
        format!("--tcp_port={native}"),
        format!("--config-file={}", config.display()),
        // The level of the configuration file does not apply to the console.
        "--log-level=warning".to_owned(),
        format!("--query={SERVE}"),
    ];
    arguments.extend(options.map(OsString::from));
    arguments
}

/// Returns the server's settings. The library takes the folder and the ports from its arguments instead.
fn config_xml(folder: &Path, users: &Path, port: u16, native: u16, in_cluster: &str) -> String {
    format!(
        "\
<clickhouse>
    <logger><level>warning</level><console>1</console></logger>
    <path>{data}/</path>
    <tmp_path>{data}/tmp/</tmp_path>
    <http_port>{port}</http_port>
    <tcp_port>{native}</tcp_port>
    <listen_host>127.0.0.1</listen_host>
{in_cluster}    <user_directories><users_xml><path>{users}</path></users_xml></user_directories>
</clickhouse>
",
        data = folder.join("data").display(),
        users = users.display(),
    )
}

/// Returns the users: ours with all rights, and `default`, which the library uses to open its ports and nothing else.
fn users_xml(password: &str, with_grants: bool, in_cluster: bool) -> Result<String, Error> {
    if !password.chars().all(|character| character.is_ascii_alphanumeric()) {
        return Err(Error::Invalid("the ClickHouse password may contain letters and digits only".to_owned()));
    }
    let users_of_databases: String = if with_grants {
        databases().map(|name| users_of(&name, password, in_cluster)).collect()
    } else {
        String::new()
    };
    // http_receive_timeout: an insert whose client stops half-way fails after 5 s instead of 30 s.
    // async_insert: an acknowledged insert is in the table.
    Ok(format!(
        "\
<clickhouse>
    <profiles>
        <default>
            <async_insert>0</async_insert>
            <http_receive_timeout>5</http_receive_timeout>
        </default>
    </profiles>
    <quotas><default/></quotas>
    <users>
        <{NAME}>
            <password>{password}</password>
            <networks><ip>127.0.0.1</ip></networks>
            <profile>default</profile>
            <quota>default</quota>
            <access_management>1</access_management>
            <named_collection_control>1</named_collection_control>
        </{NAME}>
        {users_of_databases}
        <default>
            <password/>
            <networks><ip>127.0.0.1</ip></networks>
            <profile>default</profile>
            <quota>default</quota>
            <grants>
                <query>GRANT SYSTEM LISTEN ON *.*</query>
                <query>GRANT SELECT ON system.numbers</query>
            </grants>
        </default>
    </users>
</clickhouse>
"
    ))
}

/// Returns the names of the databases that have users of their own: the library cannot make users while it runs.
pub fn databases() -> impl Iterator<Item = String> {
    (0..DATABASES).map(|number| format!("t{number}"))
}

/// Returns the name of a database's user.
pub fn user_of(database: &str, user: User) -> String {
    format!("{database}_{}", user.name())
}

/// Returns the users of a database, with the rights of [`schemas::grants::clickhouse`].
fn users_of(database: &str, password: &str, in_cluster: bool) -> String {
    let grants = schemas::grants::clickhouse(database, in_cluster);
    let user = |user: User| {
        let own = grants.iter().filter(|(of, _)| *of == user);
        let queries: String = own.map(|(_, grant)| format!("<query>{grant}</query>")).collect();
        let name = user_of(database, user);
        format!(
            "<{name}><password>{password}</password><networks><ip>127.0.0.1</ip></networks><profile>default</profile>\
             <quota>default</quota><grants>{queries}</grants></{name}>\n"
        )
    };
    [User::Migrate, User::Api, User::Processor].map(user).concat()
}

/// Writes a file that other users cannot read, because `users.xml` contains a password.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(Error::file("write", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(Error::file("set the mode of", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_that_would_break_the_xml_is_rejected() {
        assert!(users_xml("a<b", false, false).is_err());
        assert!(users_xml("abc123", false, false).unwrap().contains("<password>abc123</password>"));
    }
}
