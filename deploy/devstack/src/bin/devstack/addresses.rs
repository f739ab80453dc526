//! The addresses with which programs reach engines of one server or of several.

use devstack::{Kind, clickhouse};

use crate::members::Topology;

/// Returns the services' variables with the addresses of the engines, of whose servers `urls` returns the URLs.
pub(crate) fn variables(
    topology: Topology,
    urls: impl Fn(Kind) -> Vec<String>,
) -> Vec<(&'static str, String)> {
    let mut variables: Vec<(&'static str, String)> = [
        (Kind::Kafka, kafka(&urls(Kind::Kafka))),
        (Kind::ClickHouse, clickhouse(&urls(Kind::ClickHouse))),
        (Kind::Postgres, postgres(&urls(Kind::Postgres))),
    ]
    .into_iter()
    .filter_map(|(kind, url)| Some((kind.variable(), url?)))
    .collect();
    if topology == Topology::Cluster {
        variables.push(("HOPLINE_TOPIC_REPLICAS", topology.brokers().to_string()));
        variables.push(("HOPLINE_CLICKHOUSE_CLUSTER", clickhouse::CLUSTER.to_owned()));
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
        _ => Some(format!("{}?target_session_attrs=read-write", with_hosts(urls)?)),
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
    let (_, after) = url.rsplit_once('@')?;
    after.split('/').next()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let of = |topology| variables(topology, |_| vec!["a:1".to_owned()]);
        let names = |topology| of(topology).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(Topology::Single), ["KAFKA_BROKERS", "CLICKHOUSE_URL", "DATABASE_URL"]);
        assert!(of(Topology::Cluster).contains(&("HOPLINE_TOPIC_REPLICAS", "3".to_owned())));
        assert!(of(Topology::Cluster).contains(&("HOPLINE_CLICKHOUSE_CLUSTER", "hopline".to_owned())));
    }
}
