//! The status of the stack, as a table and as JSON.

use std::fmt::Write as _;
use std::path::PathBuf;

use devstack::kafka;
use rdkafka::ClientConfig;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::access::Access;
use crate::members::Topology;
use crate::state::DemoAccount;

/// The status of the stack. A field is null while its value is not known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Whether every service and engine is ready, and the demo account exists.
    pub(crate) ready: bool,
    pub(crate) api: Option<String>,
    pub(crate) edge: Option<String>,
    pub(crate) kafka: Option<String>,
    pub(crate) clickhouse: Option<String>,
    pub(crate) postgres: Option<String>,
    pub(crate) account_id: Option<String>,
    pub(crate) workspace_id: Option<String>,
    pub(crate) api_key: Option<String>,
    pub(crate) edge_token: Option<String>,
    /// All services and engines, always.
    pub(crate) services: Vec<ServerStatus>,
    /// The URL of the dashboard.
    pub(crate) dashboard: Option<String>,
    /// The token that signs the first owner up, until there is one.
    pub(crate) setup_token: Option<String>,
    /// The URL of a webhook receiver that accepts everything.
    pub(crate) receiver: Option<String>,
    /// Postgres's data folder, which may be outside `.dev`.
    pub(crate) postgres_folder: Option<PathBuf>,
    #[serde(flatten)]
    pub(crate) cluster: Option<ClusterStatus>,
}

/// What only the status of a cluster has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClusterStatus {
    pub(crate) edges: Vec<String>,
    pub(crate) apis: Vec<String>,
    /// The settings of librdkafka for a client of Kafka, of the administrator.
    pub(crate) kafka_client: Option<Value>,
    /// The authority that signed the engines' certificate.
    pub(crate) ca_file: Option<PathBuf>,
}

impl ClusterStatus {
    /// Returns the status with the addresses that are known so far.
    pub(crate) fn new(
        edges: Vec<String>,
        apis: Vec<String>,
        kafka: Option<&str>,
        access: Option<&Access>,
    ) -> Self {
        let client = kafka.zip(access).map(|(brokers, access)| access.kafka(brokers, None));
        let kafka_client = client.map(|client| json!(client));
        Self { edges, apis, kafka_client, ca_file: access.map(|access| access.tls.ca.clone()) }
    }
}

/// The status of a service or an engine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerStatus {
    pub(crate) name: String,
    /// Null for one that does not run and for an external engine.
    pub(crate) pid: Option<u32>,
    pub(crate) ready: bool,
    /// The URL of `/healthz`, `/readyz` and `/metrics`; null for engines.
    pub(crate) operations: Option<String>,
    /// The address for users; only in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    /// `primary` or `standby`, for a server of Postgres in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<String>,
    /// Why it is not ready.
    pub(crate) reason: Option<String>,
}

impl Status {
    /// Returns the status of a stack that is not running.
    pub(crate) fn not_running(
        topology: Topology,
        demo: Option<DemoAccount>,
        postgres_folder: Option<PathBuf>,
    ) -> Self {
        let services = topology.members().into_iter().map(|member| ServerStatus {
            name: member.name,
            reason: Some("not running".to_owned()),
            ..ServerStatus::default()
        });
        let cluster = (topology == Topology::Cluster).then(ClusterStatus::default);
        let mut status = Self { services: services.collect(), postgres_folder, cluster, ..Self::default() };
        if let Some(demo) = demo {
            status.account_id = Some(demo.account_id);
            status.workspace_id = Some(demo.workspace_id);
            status.api_key = Some(demo.api_key);
            status.edge_token = Some(demo.edge_token);
        }
        status
    }

    /// Returns the output of `status --json`, whose keys are a contract.
    pub(crate) fn json(&self) -> anyhow::Result<String> {
        let mut json = serde_json::to_value(self)?;
        for key in ["receiver", "postgres_folder"] {
            remove(&mut json, key);
        }
        for service in json.get_mut("services").and_then(Value::as_array_mut).into_iter().flatten() {
            remove(service, "reason");
        }
        Ok(serde_json::to_string_pretty(&json)?)
    }

    /// Returns the settings of an administrator's client of Kafka; `None` while Kafka is not running.
    pub(crate) fn kafka_client(&self) -> Option<ClientConfig> {
        let of_cluster = self.cluster.as_ref().and_then(|cluster| cluster.kafka_client.as_ref()?.as_object());
        let Some(settings) = of_cluster else {
            let settings = |brokers: &String| kafka::settings(brokers, None, None);
            return self.kafka.as_ref().map(settings).map(ClientConfig::from_iter);
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some(settings.iter().map(|(setting, value)| (setting.clone(), text(value))).collect())
    }

    /// Returns the address that opens the dashboard, or signs the first owner up.
    pub(crate) fn dashboard_address(&self) -> Option<String> {
        let token = self.setup_token.as_ref().map(|token| format!("#setup_token={token}"));
        self.dashboard.as_ref().map(|url| format!("{url}{}", token.unwrap_or_default()))
    }

    /// Returns the output of `status`.
    pub(crate) fn table(&self) -> String {
        // Writing to a string cannot fail.
        let mut text = String::from(if self.ready { "ready\n\n" } else { "not ready\n\n" });
        let longest = self.services.iter().map(|service| service.name.len()).max().unwrap_or_default();
        let width = 12.max(longest + 2);
        for service in &self.services {
            let pid = service.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
            let state =
                if service.ready { "ready" } else { service.reason.as_deref().unwrap_or("not ready") };
            let operations = service.operations.as_deref().unwrap_or("");
            let role = service.role.as_ref().map_or_else(String::new, |role| format!(" ({role})"));
            let _ = writeln!(text, "{:<width$}{pid:<10}{operations:<24}{state}{role}", service.name);
        }
        let dashboard = self.dashboard_address();
        let all = |of: fn(&ClusterStatus) -> &[String]| {
            self.cluster.as_ref().map(|cluster| of(cluster).join(", ")).filter(|all| !all.is_empty())
        };
        let (apis, edges) = (all(|cluster| &cluster.apis), all(|cluster| &cluster.edges));
        let addresses = [
            ("api", apis.as_deref().or(self.api.as_deref())),
            ("edge", edges.as_deref().or(self.edge.as_deref())),
            ("kafka", self.kafka.as_deref()),
            ("clickhouse", self.clickhouse.as_deref()),
            ("postgres", self.postgres.as_deref()),
            ("api key", self.api_key.as_deref()),
            ("dashboard", dashboard.as_deref()),
        ];
        text.push('\n');
        for (name, value) in addresses {
            let _ = writeln!(text, "{name:<width$}{}", value.unwrap_or("-"));
        }
        if let Some(folder) = &self.postgres_folder {
            let _ = writeln!(text, "{:<width$}{}", "data", folder.display());
        }
        text.trim_end().to_owned()
    }
}

/// Removes a field and keeps the order of the others.
fn remove(json: &mut Value, key: &str) {
    if let Value::Object(fields) = json {
        fields.shift_remove(key);
    }
}

#[cfg(test)]
mod tests {
    use devstack::scratch::Scratch;

    use super::*;
    use crate::folder::Folder;
    use crate::state::Secrets;

    #[test]
    fn the_json_of_a_stopped_stack_has_all_keys() {
        let status = Status::not_running(Topology::Single, None, None);
        let json: Value = serde_json::from_str(&status.json().unwrap()).unwrap();
        assert_eq!(json["ready"], false);
        let names: Vec<&str> =
            json["services"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["ingest", "processor", "api", "dispatcher", "kafka", "clickhouse", "postgres"]);
        let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let contract = "ready api edge kafka clickhouse postgres account_id workspace_id api_key edge_token services \
                        dashboard setup_token";
        assert_eq!(keys.join(" "), contract);
        let keys: Vec<&str> = json["services"][0].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys.join(" "), "name pid ready operations");
    }

    #[test]
    fn the_json_of_a_cluster_has_more_keys() {
        let mut status = Status::not_running(Topology::Cluster, None, None);
        let edges = vec!["http://e:1".to_owned(), "http://e:2".to_owned()];
        let scratch = Scratch::new("status").unwrap();
        let folder = Folder::open(scratch.path()).unwrap();
        let access = Access::of(&folder, &Secrets::generate().unwrap()).unwrap();
        status.kafka = Some("k:1,k:2,k:3".to_owned());
        status.cluster = Some(ClusterStatus::new(edges, Vec::new(), status.kafka.as_deref(), Some(&access)));
        let postgres = status.services.last_mut().unwrap();
        (postgres.role, postgres.url) = (Some("standby".to_owned()), Some("postgres://p".to_owned()));
        let json: Value = serde_json::from_str(&status.json().unwrap()).unwrap();
        let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let contract = "ready api edge kafka clickhouse postgres account_id workspace_id api_key edge_token services \
                        dashboard setup_token edges apis kafka_client ca_file";
        assert_eq!(keys.join(" "), contract);
        assert_eq!(json["edges"][1], "http://e:2");
        assert_eq!(json["kafka_client"]["bootstrap.servers"], "k:1,k:2,k:3");
        assert_eq!(json["kafka_client"]["ssl.ca.location"], json["ca_file"]);
        assert_eq!(status.kafka_client().unwrap().get("sasl.username"), Some("hopline"));
        let postgres = json["services"].as_array().unwrap().last().unwrap();
        assert_eq!((&postgres["name"], &postgres["role"]), (&json!("postgres-2"), &json!("standby")));
        assert_eq!(postgres["url"], "postgres://p");
        // What the running stack answers is read by the command.
        let answer = serde_json::to_value(&status).unwrap();
        assert_eq!(serde_json::from_value::<Status>(answer).unwrap(), status);
    }

    #[test]
    fn the_dashboard_address_has_the_setup_token_if_any() {
        let mut status = Status::not_running(Topology::Single, None, None);
        assert_eq!(status.dashboard_address(), None);
        status.dashboard = Some("http://127.0.0.1:8080/app/".to_owned());
        assert_eq!(status.dashboard_address().unwrap(), "http://127.0.0.1:8080/app/");
        status.setup_token = Some("0123".to_owned());
        assert_eq!(status.dashboard_address().unwrap(), "http://127.0.0.1:8080/app/#setup_token=0123");
        let json: Value = serde_json::from_str(&status.json().unwrap()).unwrap();
        assert_eq!(json["dashboard"], "http://127.0.0.1:8080/app/");
        assert_eq!(json["setup_token"], "0123");
    }
}
