//! The servers of a stack, by name: one of each service and engine, or several in a cluster.

use serde::{Deserialize, Serialize};

use crate::compile::SERVICES;

/// What replicas of ClickHouse agree by.
pub(crate) const ZOOKEEPER: &str = "zookeeper";

/// How many servers of each service and engine a stack has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Topology {
    /// One of each.
    #[default]
    Single,
    /// Several, so that one of each may be away.
    Cluster,
}

/// A server of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// Such as `ingest` or, in a cluster, `ingest-2`.
    pub(crate) name: String,
    /// The service or engine, such as `ingest`.
    pub(crate) group: &'static str,
}

impl Member {
    pub(crate) fn is_service(&self) -> bool {
        SERVICES.contains(&self.group)
    }
}

impl Topology {
    /// How many servers each service has.
    fn instances(self) -> usize {
        self.choose(1, 2)
    }

    /// How many brokers Kafka has, and replicas each topic.
    pub(crate) fn brokers(self) -> usize {
        self.choose(1, 3)
    }

    /// How many shards ClickHouse has.
    pub(crate) fn shards(self) -> usize {
        self.choose(1, 2)
    }

    /// How many replicas each shard has.
    pub(crate) fn replicas(self) -> usize {
        self.choose(1, 2)
    }

    fn choose(self, single: usize, cluster: usize) -> usize {
        match self {
            Self::Single => single,
            Self::Cluster => cluster,
        }
    }

    /// Returns all servers: the services, then the engines.
    pub(crate) fn members(self) -> Vec<Member> {
        if self == Self::Single {
            let groups = SERVICES.into_iter().chain(["kafka", "clickhouse", "postgres"]);
            return groups.map(|group| Member { name: group.to_owned(), group }).collect();
        }
        let numbered = |group: &'static str, count: usize| {
            (1..=count).map(move |number| Member { name: format!("{group}-{number}"), group })
        };
        let shard = |shard| {
            let of_shard = numbered("clickhouse", self.replicas());
            of_shard.map(move |member| Member {
                name: member.name.replacen('-', &format!("-{shard}-"), 1),
                ..member
            })
        };
        SERVICES
            .into_iter()
            .flat_map(|service| numbered(service, self.instances()))
            .chain(numbered("kafka", self.brokers()))
            .chain((1..=self.shards()).flat_map(shard))
            .chain(numbered(ZOOKEEPER, 1))
            .chain(numbered("postgres", 2))
            .collect()
    }

    /// Returns the servers that a name means: one by its own name, or all of a service or an engine; none when it is
    /// unknown.
    pub(crate) fn named(self, name: &str) -> Vec<Member> {
        let is_meant = |member: &Member| member.name == name || member.group == name;
        self.members().into_iter().filter(is_meant).collect()
    }

    /// Returns the names of all servers, for an error.
    pub(crate) fn names(self) -> String {
        self.members().into_iter().map(|member| member.name).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(members: Vec<Member>) -> String {
        members.into_iter().map(|member| member.name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_server_of_a_cluster_has_a_name() {
        let all = "ingest-1 ingest-2 processor-1 processor-2 api-1 api-2 dispatcher-1 dispatcher-2 \
                   kafka-1 kafka-2 kafka-3 clickhouse-1-1 clickhouse-1-2 \
                   clickhouse-2-1 clickhouse-2-2 zookeeper-1 postgres-1 postgres-2";
        assert_eq!(names(Topology::Cluster.members()), all);
    }

    #[test]
    fn a_name_means_one_server_or_all_of_a_group() {
        let cluster = |name| names(Topology::Cluster.named(name));
        assert_eq!(cluster("kafka-2"), "kafka-2");
        assert_eq!(cluster("kafka"), "kafka-1 kafka-2 kafka-3");
        assert_eq!(cluster("clickhouse"), "clickhouse-1-1 clickhouse-1-2 clickhouse-2-1 clickhouse-2-2");
        assert_eq!(cluster("ingest"), "ingest-1 ingest-2");
        assert_eq!(cluster("ingest-3"), "");
        assert_eq!(names(Topology::Single.named("ingest")), "ingest");
        assert_eq!(names(Topology::Single.named("ingest-1")), "");
    }
}
