//! The addresses with which programs reach engines of one server or of several.

use std::collections::BTreeMap;

use devstack::Kind;
use devstack::{clickhouse as clickhouse_engine, kafka as kafka_engine};
use schemas::grants::User;

use crate::access::Access;
use crate::members::Topology;

/// Returns the variables of a user with the addresses of the engines, of whose servers `urls` returns the URLs.
pub(crate) fn variables(
    topology: Topology,
    urls: impl Fn(Kind) -> Vec<String>,
    access: Option<&Access>,
    user: User,
) -> BTreeMap<String, String> {
    let clients = kafka(&urls(Kind::Kafka)).map(|brokers| match access {
        Some(access) => access.kafka(&brokers, Some(user)),
        None => kafka_engine::settings(&brokers, None, None),
    });
    let mut variables: BTreeMap<String, String> =
        clients.into_iter().flat_map(kafka_engine::variables).collect();
    for (kind, url) in [
        (Kind::ClickHouse, clickhouse(&urls(Kind::ClickHouse))),
        (Kind::Postgres, postgres(&urls(Kind::Postgres))),
    ] {
        let own = |url: String| access.map_or_else(|| url.clone(), |access| access.as_user(&url, user));
        variables.extend(url.map(|url| (kind.variable().to_owned(), own(url))));
    }
    variables.extend(access.into_iter().flat_map(Access::variables));
    if topology == Topology::Cluster {
        let of_cluster = [
            ("HOPLINE_TOPIC_REPLICAS", topology.brokers().to_string()),
            ("HOPLINE_CLICKHOUSE_CLUSTER", clickhouse_engine::CLUSTER.to_owned()),
        ];
        variables.extend(of_cluster.map(|(name, value)| (name.to_owned(), value)));
    }
    variables
}

/// Returns the address of all brokers; `None` for none.
pub(crate) fn kafka(urls: &[String]) -> Option<String> {
    (!urls.is_empty()).then(|| urls.join(","))
}

/// Returns the URL of all servers of Postgres, of which clients use the one that accepts writes; `None` for none.
pub(crate) fn postgres(urls: &[String]) -> Option<String> {
    match urls {
        [] | [_] => urls.first().cloned(),
        _ => {
            let url = with_hosts(urls)?;
            let before = if url.contains('?') { '&' } else { '?' };
            Some(format!("{url}{before}target_session_attrs=read-write"))
        }
    }
}

/// Returns the URL of all replicas of all shards of ClickHouse; `None` for none.
fn clickhouse(urls: &[String]) -> Option<String> {
    match urls {
        [] | [_] => urls.first().cloned(),
        _ => with_hosts(urls),
    }
}

/// Returns the first of URLs that differ in their hosts, with all hosts.
pub(crate) fn with_hosts(urls: &[String]) -> Option<String> {
    let hosts: Vec<&str> = urls.iter().filter_map(|url| host_of(url)).collect();
    let first = urls.first()?;
    Some(first.replacen(hosts.first()?, &hosts.join(","), 1))
}

/// Returns `host:port` of a URL.
fn host_of(url: &str) -> Option<&str> {
    let (_, after) = url.split_once('@')?;
    after.split('/').next()
}

#[cfg(test)]
mod tests {
    use devstack::scratch::Scratch;

    use super::*;
    use crate::folder::Folder;
    use crate::state::Secrets;

    fn urls(scheme: &str, ports: &[u16]) -> Vec<String> {
        ports.iter().map(|port| format!("{scheme}://u:p@127.0.0.1:{port}/hopline")).collect()
    }

    #[test]
    fn one_server_is_reached_at_its_own_url() {
        let external = ["postgres://u@db/links?sslmode=require".to_owned()];
        assert_eq!(postgres(&external).as_ref(), external.first());
        assert_eq!(clickhouse(&urls("http", &[1])).unwrap(), "http://u:p@127.0.0.1:1/hopline");
        assert_eq!(kafka(&["a:1".to_owned()]).unwrap(), "a:1");
        assert_eq!((kafka(&[]), postgres(&[]), clickhouse(&[])), (None, None, None));
    }

    #[test]
    fn the_url_of_several_servers_names_all() {
        let shards = clickhouse(&urls("http", &[1, 2, 3, 4])).unwrap();
        assert_eq!(shards, "http://u:p@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3,127.0.0.1:4/hopline");
        let both = postgres(&urls("postgres", &[1, 2])).unwrap();
        let read_write = "postgres://u:p@127.0.0.1:1,127.0.0.1:2/hopline?target_session_attrs=read-write";
        assert_eq!(both, read_write);
        assert_eq!(kafka(&["a:1".to_owned(), "b:2".to_owned()]).unwrap(), "a:1,b:2");
    }

    #[test]
    fn the_services_of_a_cluster_know_its_replicas() {
        let of = |topology| variables(topology, |_| vec!["a:1".to_owned()], None, User::Api);
        let names = of(Topology::Single).into_keys().collect::<Vec<_>>();
        assert_eq!(names, ["CLICKHOUSE_URL", "DATABASE_URL", "KAFKA_BROKERS"]);
        assert_eq!(of(Topology::Cluster)["HOPLINE_TOPIC_REPLICAS"], "3");
        assert_eq!(of(Topology::Cluster)["HOPLINE_CLICKHOUSE_CLUSTER"], "hopline");
    }

    #[test]
    fn each_user_of_a_cluster_has_its_own_password() {
        let scratch = Scratch::new("addresses").unwrap();
        let folder = Folder::open(scratch.path()).unwrap();
        let secrets = Secrets::generate().unwrap();
        let access = Access::of(&folder, &secrets).unwrap();
        let urls = |kind: Kind| match kind {
            Kind::Kafka => vec!["a:1".to_owned()],
            Kind::ClickHouse => urls("https", &[1, 2]),
            Kind::Postgres => vec!["postgres://u:p@127.0.0.1:1/hopline?sslmode=verify-full".to_owned(); 2],
        };
        let of = |user| variables(Topology::Cluster, urls, Some(&access), user);
        let (api, password) = (of(User::Api), &secrets.users["hopline_api"]);
        let login = format!("hopline_api:{password}@127.0.0.1:1,127.0.0.1:");
        assert_eq!(api["CLICKHOUSE_URL"], format!("https://{login}2/hopline"));
        let parameters = "sslmode=verify-full&target_session_attrs=read-write";
        assert_eq!(api["DATABASE_URL"], format!("postgres://{login}1/hopline?{parameters}"));
        assert_eq!(&api["KAFKA_CONFIG_SASL_PASSWORD"], password);
        assert_eq!(api["KAFKA_CONFIG_SECURITY_PROTOCOL"], "sasl_ssl");
        assert_ne!(of(User::Ingest)["KAFKA_CONFIG_SASL_PASSWORD"], *password);
    }
}
