//! `status`: what runs and where, as observed at this moment.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::compile::SERVICES;
use crate::control::{self, Request};
use crate::folder::Folder;
use crate::state::{DEMO, Demo, STATE, State};

/// The stack as observed. What is not known while it starts or is down is null.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The four services and the three engines, always all of them.
    pub(crate) services: Vec<Service>,
    /// The URL of the dashboard.
    pub(crate) dashboard: Option<String>,
    /// What signs the first owner up, until there is one.
    pub(crate) setup_token: Option<String>,
    /// The URL of a webhook receiver that accepts everything.
    pub(crate) receiver: Option<String>,
    /// Where Postgres keeps its data, which is not always in `.dev`.
    pub(crate) postgres_folder: Option<std::path::PathBuf>,
}

/// One service or engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Service {
    pub(crate) name: String,
    /// Null when it does not run, or is an engine that the environment names.
    pub(crate) pid: Option<u32>,
    pub(crate) ready: bool,
    /// The URL of `/healthz`, `/readyz` and `/metrics`; null for engines.
    pub(crate) operations: Option<String>,
    /// Why it is not ready.
    pub(crate) reason: Option<String>,
}

/// Asks the running stack, or describes one that does not run.
pub(crate) async fn of(folder: &Folder) -> anyhow::Result<Status> {
    if folder.is_running()? {
        return Ok(serde_json::from_value(control::send(folder, &Request::Status).await?)?);
    }
    let demo = folder.read::<Demo>(DEMO)?;
    let state = folder.read::<State>(STATE)?.unwrap_or_default();
    Ok(Status::without_servers(demo, state.postgres_folder))
}

impl Status {
    /// A stack that does not run, or not yet.
    pub(crate) fn without_servers(demo: Option<Demo>, postgres_folder: Option<std::path::PathBuf>) -> Self {
        let names = SERVICES.into_iter().chain(devstack::Kind::ALL.map(devstack::Kind::name));
        let services = names.map(|name| Service {
            name: name.to_owned(),
            pid: None,
            ready: false,
            operations: None,
            reason: Some("not running".to_owned()),
        });
        let (account_id, workspace_id, api_key, edge_token) = match demo {
            Some(demo) => {
                (Some(demo.account_id), Some(demo.workspace_id), Some(demo.api_key), Some(demo.edge_token))
            }
            None => (None, None, None, None),
        };
        Self {
            ready: false,
            api: None,
            edge: None,
            kafka: None,
            clickhouse: None,
            postgres: None,
            account_id,
            workspace_id,
            api_key,
            edge_token,
            services: services.collect(),
            dashboard: None,
            setup_token: None,
            receiver: None,
            postgres_folder,
        }
    }

    /// As `status --json` prints it: with the keys that its contract names and no others.
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

    /// The address that opens the dashboard, and signs the first owner up.
    pub(crate) fn dashboard_address(&self) -> Option<String> {
        let token = self.setup_token.as_ref().map(|token| format!("#setup_token={token}"));
        self.dashboard.as_ref().map(|url| format!("{url}{}", token.unwrap_or_default()))
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from(if self.ready { "ready\n\n" } else { "not ready\n\n" });
        for service in &self.services {
            let pid = service.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
            let state =
                if service.ready { "ready" } else { service.reason.as_deref().unwrap_or("not ready") };
            let operations = service.operations.as_deref().unwrap_or("");
            // Writing to a string does not fail.
            let _ = writeln!(text, "{:<12}{pid:<10}{operations:<24}{state}", service.name);
        }
        let places = [
            ("api", self.api.as_deref()),
            ("edge", self.edge.as_deref()),
            ("kafka", self.kafka.as_deref()),
            ("clickhouse", self.clickhouse.as_deref()),
            ("postgres", self.postgres.as_deref()),
            ("api key", self.api_key.as_deref()),
        ];
        text.push('\n');
        for (name, value) in places {
            let _ = writeln!(text, "{name:<12}{}", value.unwrap_or("-"));
        }
        let _ = writeln!(text, "{:<12}{}", "dashboard", self.dashboard_address().as_deref().unwrap_or("-"));
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
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_stack_that_does_not_run_is_described_with_all_its_parts() {
        let status = Status::without_servers(None, None);
        let json: serde_json::Value = serde_json::from_str(&status.json().unwrap()).unwrap();
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
    fn the_dashboards_address_signs_up_until_somebody_has() {
        let mut status = Status::without_servers(None, None);
        assert_eq!(status.dashboard_address(), None);
        status.dashboard = Some("http://127.0.0.1:8080/app/".to_owned());
        assert_eq!(status.dashboard_address().unwrap(), "http://127.0.0.1:8080/app/");
        status.setup_token = Some("0123".to_owned());
        assert_eq!(status.dashboard_address().unwrap(), "http://127.0.0.1:8080/app/#setup_token=0123");
        let json: serde_json::Value = serde_json::from_str(&status.json().unwrap()).unwrap();
        assert_eq!(json["dashboard"], "http://127.0.0.1:8080/app/");
        assert_eq!(json["setup_token"], "0123");
    }
}
