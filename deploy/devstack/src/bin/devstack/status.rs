//! The status of the stack, as a table and as JSON.

use std::fmt::Write as _;
use std::path::PathBuf;

use devstack::Kind;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::compile::SERVICES;
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
    /// All four services and three engines, always.
    pub(crate) services: Vec<ServerStatus>,
    /// The URL of the dashboard.
    pub(crate) dashboard: Option<String>,
    /// The token that signs the first owner up, until there is one.
    pub(crate) setup_token: Option<String>,
    /// The URL of a webhook receiver that accepts everything.
    pub(crate) receiver: Option<String>,
    /// Postgres's data folder, which may be outside `.dev`.
    pub(crate) postgres_folder: Option<PathBuf>,
}

/// The status of a service or an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerStatus {
    pub(crate) name: String,
    /// Null for one that does not run and for an external engine.
    pub(crate) pid: Option<u32>,
    pub(crate) ready: bool,
    /// The URL of `/healthz`, `/readyz` and `/metrics`; null for engines.
    pub(crate) operations: Option<String>,
    /// Why it is not ready.
    pub(crate) reason: Option<String>,
}

impl Status {
    /// Returns the status of a stack that is not running.
    pub(crate) fn not_running(demo: Option<DemoAccount>, postgres_folder: Option<PathBuf>) -> Self {
        let services = SERVICES.into_iter().chain(Kind::ALL.map(Kind::name)).map(|name| ServerStatus {
            name: name.to_owned(),
            pid: None,
            ready: false,
            operations: None,
            reason: Some("not running".to_owned()),
        });
        let mut status = Self { services: services.collect(), postgres_folder, ..Self::default() };
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

    /// Returns the address that opens the dashboard, or signs the first owner up.
    pub(crate) fn dashboard_address(&self) -> Option<String> {
        let token = self.setup_token.as_ref().map(|token| format!("#setup_token={token}"));
        self.dashboard.as_ref().map(|url| format!("{url}{}", token.unwrap_or_default()))
    }

    /// Returns the output of `status`.
    pub(crate) fn table(&self) -> String {
        // Writing to a string cannot fail.
        let mut text = String::from(if self.ready { "ready\n\n" } else { "not ready\n\n" });
        for service in &self.services {
            let pid = service.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
            let state =
                if service.ready { "ready" } else { service.reason.as_deref().unwrap_or("not ready") };
            let operations = service.operations.as_deref().unwrap_or("");
            let _ = writeln!(text, "{:<12}{pid:<10}{operations:<24}{state}", service.name);
        }
        let dashboard = self.dashboard_address();
        let addresses = [
            ("api", self.api.as_deref()),
            ("edge", self.edge.as_deref()),
            ("kafka", self.kafka.as_deref()),
            ("clickhouse", self.clickhouse.as_deref()),
            ("postgres", self.postgres.as_deref()),
            ("api key", self.api_key.as_deref()),
            ("dashboard", dashboard.as_deref()),
        ];
        text.push('\n');
        for (name, value) in addresses {
            let _ = writeln!(text, "{name:<12}{}", value.unwrap_or("-"));
        }
        if let Some(folder) = &self.postgres_folder {
            let _ = writeln!(text, "{:<12}{}", "data", folder.display());
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
    use super::*;

    #[test]
    fn the_json_of_a_stopped_stack_has_all_keys() {
        let status = Status::not_running(None, None);
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
    fn the_dashboard_address_has_the_setup_token_if_any() {
        let mut status = Status::not_running(None, None);
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
