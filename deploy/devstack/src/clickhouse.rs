//! ClickHouse: the installed `clickhouse` program, or else the library of an npm package.

mod place;

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemas::grants::User;

pub use self::place::CLUSTER;
pub(crate) use self::place::Place;
use self::place::{FOR_CLIENTS, FOR_REPLICAS};
pub use crate::probe::query;
use crate::process::Launch;
use crate::readiness::until;
use crate::{Error, Options, Probe, Server, Tls, libchdb, ports, private, programs};

/// The name of the user and of the database.
const NAME: &str = "hopline";

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
    private::create_folder(folder)?;
    let port = ports::prefer(options.port)?;
    let native = place.map_or_else(ports::free, |place| Ok(place.native()))?;
    let users = folder.join("users.xml");
    private::write(&users, &users_xml(&options, place.is_some())?)?;
    let config = folder.join("config.xml");
    let in_cluster = match place {
        Some(place) => place.settings(&options, ports::free()?),
        None => String::new(),
    };
    private::write(&config, &config_xml(&options, &users, (port, native), &in_cluster))?;

    let (tls, password) = (options.tls, options.password);
    let mut launch = match programs::on_path("clickhouse") {
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
                (place, tls.as_ref()),
            ))
        }
    };
    if place.is_some() {
        launch.environment.push((libchdb::PASSWORD.to_owned(), password.clone()));
    }
    let (scheme, ca) = match tls {
        Some(tls) => ("https", Some(tls.ca)),
        None => ("http", None),
    };
    let url = format!("{scheme}://{NAME}:{password}@127.0.0.1:{port}/{NAME}");
    // Tests start replicas also without ZooKeeper.
    let probe = match place {
        Some(_) if options.durable => Probe::Replica { url: url.clone(), ca: ca.clone() },
        _ => Probe::ClickHouse { url: url.clone(), ca: ca.clone() },
    };
    let server = Server::start_engine(&options.name, &url, launch, probe, options.scratch).await?;
    let create = format!("CREATE DATABASE IF NOT EXISTS {NAME}");
    let create = || query(&url, ca.as_deref(), &create);
    until("ClickHouse's database", Duration::from_secs(20), create).await?;
    Ok(server)
}

fn library_arguments(
    library: PathBuf,
    folder: &Path,
    config: &Path,
    (port, native): (u16, u16),
    (place, tls): (Option<&Place>, Option<&Tls>),
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec![libchdb::SUBCOMMAND.into()];
    let for_replicas = place.map(|_| SocketAddrV4::new(FOR_REPLICAS, port));
    arguments.extend(for_replicas.map(|address| format!("--replicates-at={address}").into()));
    if let Some(Tls { ca, server }) = tls {
        let encrypted = [port, native].map(|port| SocketAddrV4::new(FOR_CLIENTS, port));
        let encrypted = encrypted.into_iter().chain(for_replicas);
        arguments.extend(encrypted.map(|address| format!("--encrypted={address}").into()));
        arguments.extend(["--ca".into(), ca.into(), "--certificate".into(), server.into()]);
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

/// Returns the server's settings. The library takes the folder and the ports from its arguments instead, and with TLS
/// listens behind what encrypts for it.
///
/// The library's own pools run so few background tasks at once that replicas wait for each other's, and ClickHouse logs
/// each time that one has to wait.
fn config_xml(options: &Options, users: &Path, (port, native): (u16, u16), in_cluster: &str) -> String {
    let (http, tcp, tls) = match &options.tls {
        Some(tls) => ("https_port", "tcp_port_secure", place::open_ssl(tls)),
        None => ("http_port", "tcp_port", String::new()),
    };
    let hosts = if in_cluster.is_empty() { &[FOR_CLIENTS][..] } else { &[FOR_CLIENTS, FOR_REPLICAS] };
    let is_behind = options.tls.is_some() && programs::on_path("clickhouse").is_none();
    let host = |address: &Ipv4Addr| {
        let address = if is_behind { libchdb::behind(*address) } else { *address };
        format!("    <listen_host>{address}</listen_host>\n")
    };
    let hosts: String = hosts.iter().map(host).collect();
    format!(
        "\
<clickhouse>
    <logger><level>warning</level><console>1</console></logger>
    <path>{data}/</path>
    <tmp_path>{data}/tmp/</tmp_path>
    <{http}>{port}</{http}>
    <{tcp}>{native}</{tcp}>
    <background_schedule_pool_size>16</background_schedule_pool_size>
    <background_schedule_pool_max_parallel_tasks_per_type_ratio>1</background_schedule_pool_max_parallel_tasks_per_type_ratio>
    <background_fetches_pool_size>4</background_fetches_pool_size>
{hosts}{tls}{in_cluster}    <user_directories><users_xml><path>{users}</path></users_xml></user_directories>
</clickhouse>
",
        data = options.folder.join("data").display(),
        users = users.display(),
    )
}

/// Returns the users: ours with all rights, and `default`, which the library uses to open its ports and nothing else.
/// That session of it lasts, and there may be no other one: nobody can connect without a password.
fn users_xml(options: &Options, in_cluster: bool) -> Result<String, Error> {
    let password = &options.password;
    if !password.chars().all(|character| character.is_ascii_alphanumeric()) {
        return Err(Error::Invalid("the ClickHouse password may contain letters and digits only".to_owned()));
    }
    let of = |database: &str| users_of(database, &options.users, in_cluster);
    let users_of_databases: String = if options.durable {
        of(NAME)
    } else {
        (0..options.databases).map(|number| of(&format!("t{number}"))).collect()
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
        <opens_ports><max_sessions_for_user>1</max_sessions_for_user></opens_ports>
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
            <profile>opens_ports</profile>
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

/// Returns the name of a database's user.
pub fn user_of(database: &str, user: User) -> String {
    if database == NAME { user.name().to_owned() } else { format!("{database}_{}", user.name()) }
}

/// Returns the users of a database, with the rights of [`schemas::grants::clickhouse`].
fn users_of(database: &str, users: &[(User, String)], in_cluster: bool) -> String {
    let grants = schemas::grants::clickhouse(database, in_cluster);
    let user = |(user, password): &(User, String)| {
        let own = grants.iter().filter(|(of, _)| of == user);
        let queries: String = own.map(|(_, grant)| format!("<query>{grant}</query>")).collect();
        if queries.is_empty() {
            return queries;
        }
        let name = user_of(database, *user);
        format!(
            "<{name}><password>{password}</password><networks><ip>127.0.0.1</ip></networks><profile>default</profile>\
             <quota>default</quota><grants>{queries}</grants></{name}>\n"
        )
    };
    users.iter().map(user).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_that_would_break_the_xml_is_rejected() {
        let mut options = Options::throw_away("clickhouse").unwrap();
        assert!(users_xml(&options, false).unwrap().contains("<password>hopline</password>"));
        options.password = "a<b".to_owned();
        assert!(users_xml(&options, false).is_err());
    }
}
