//! The redirect edge alone, as a process with its own spool. It can be killed, stopped and started again.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use devstack::process::Launch;
use devstack::scratch::Scratch;
use devstack::{Probe, Server};
use schemas::grants::User;
use serde_json::Value;

use crate::deployment::{binary, edge_knows};
use crate::engines::Isolated;
use crate::signals::stop;
use crate::{eventually, free_address};

/// A shell script that mounts a small disk that only the program sees.
const ON_SMALL_DISK: &str = "mount -t tmpfs -o size=\"$0\" tmpfs \"$HOPLINE_SPOOL_DIR\" && exec \"$1\"";

/// An `ingest` process. Dropping it kills it and removes its spool.
#[derive(Debug)]
pub struct Edge {
    /// The process.
    pub server: Server,
    /// The address for visitors.
    pub address: SocketAddr,
    // Declared after the process, so that the folder is removed after the process has ended.
    folder: Scratch,
}

impl Edge {
    /// Prepares an edge with additional variables, without starting it.
    ///
    /// # Panics
    /// When no port or no folder is available.
    pub fn prepare(engines: &Isolated, variables: &[(&str, &str)]) -> Self {
        Self::prepare_as(binary("ingest"), Vec::new(), engines, variables)
    }

    /// The same with the spool on a disk of this size; `None` where no disk may be mounted.
    ///
    /// # Panics
    /// As [`Edge::prepare`].
    pub fn prepare_on_small_disk(engines: &Isolated, bytes: u64, variables: &[(&str, &str)]) -> Option<Self> {
        const NAMESPACES: &str = "-Urm";
        let allowed = Command::new("unshare").args([NAMESPACES, "true"]).output();
        if !allowed.is_ok_and(|output| output.status.success()) {
            return None;
        }
        let arguments = [NAMESPACES, "sh", "-c", ON_SMALL_DISK, &bytes.to_string()].map(str::to_owned);
        let arguments = [&arguments[..], &[binary("ingest").display().to_string()]].concat();
        Some(Self::prepare_as(PathBuf::from("unshare"), arguments, engines, variables))
    }

    fn prepare_as(
        program: PathBuf,
        arguments: Vec<String>,
        engines: &Isolated,
        variables: &[(&str, &str)],
    ) -> Self {
        let folder = Scratch::new("edge").unwrap();
        let spool = folder.path().join("spool");
        std::fs::create_dir(&spool).unwrap();
        let (visitors, operators) = (free_address(), free_address());
        let mut launch = Launch::new(program, folder.path().join("log")).arguments(arguments);
        let own = [
            ("HOPLINE_EDGE_LISTEN", visitors.to_string()),
            ("HOPLINE_INGEST_OPERATIONS_LISTEN", operators.to_string()),
            ("HOPLINE_TRUSTED_PROXIES", "127.0.0.0/8".to_owned()),
            ("HOPLINE_CLICK_ID_KEYS", format!("1:{}", "11".repeat(32))),
            ("HOPLINE_VISITOR_KEY", "33".repeat(32)),
            ("HOPLINE_SPOOL_DIR", spool.display().to_string()),
            // A killed edge starts with the links of a second ago.
            ("HOPLINE_SNAPSHOT_SECONDS", "1".to_owned()),
        ];
        let more = variables.iter().map(|(name, value)| (*name, (*value).to_owned()));
        launch.environment = engines.variables_of(User::Ingest);
        launch.environment.extend(own.into_iter().chain(more).map(|(name, value)| (name.to_owned(), value)));
        let url = format!("http://{operators}");
        let server = Server::new("ingest", &url, launch, Probe::Http { url: format!("{url}/readyz") });
        Self { server, address: visitors, folder }
    }

    /// Starts an edge and waits until it is ready.
    ///
    /// # Panics
    /// When it does not become ready.
    pub async fn start(engines: &Isolated, variables: &[(&str, &str)]) -> Self {
        let edge = Self::prepare(engines, variables);
        edge.server.start().await.unwrap();
        edge
    }

    /// The folder of its spool.
    pub fn spool(&self) -> PathBuf {
        self.folder.path().join("spool")
    }

    /// Returns its log, including earlier runs.
    ///
    /// # Panics
    /// When it was never started.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Returns the files of its spool with their sizes, for a failing test, also from a disk that only the program
    /// sees.
    pub fn files(&self) -> Vec<String> {
        let pid = self.server.pid().map_or_else(|| "self".to_owned(), |pid| pid.to_string());
        // The program's root folder.
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let spool = self.spool();
        let entries = std::fs::read_dir(root.join(spool.strip_prefix("/").unwrap_or(&spool)));
        let files = entries.into_iter().flatten().flatten();
        files
            .map(|file| {
                let bytes = file.metadata().map_or(0, |metadata| metadata.len());
                format!("{} {bytes}", file.file_name().display())
            })
            .collect()
    }

    /// Waits until it redirects a link.
    ///
    /// # Panics
    /// As [`edge_knows`].
    pub async fn knows(&self, slug: &str) {
        edge_knows(&format!("http://{}", self.address), slug).await;
    }

    /// Returns the output of `ingest spool --json`.
    ///
    /// # Panics
    /// When the command prints no JSON.
    pub fn inspect(&self) -> Value {
        let mut command = Command::new(binary("ingest"));
        let output = command.args(["spool", "--json"]).arg(self.spool()).output().unwrap();
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("ingest spool: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Returns the click ids in the segments of its spool, confirmed or not.
    ///
    /// # Panics
    /// When the spool cannot be read. The edge must not be running.
    pub fn spooled_click_ids(&self) -> BTreeSet<String> {
        const BEFORE: &str = "\"click_id\":\"";
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(self.spool()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "clicks") {
                let bytes = std::fs::read(path).unwrap();
                let text = String::from_utf8_lossy(&bytes);
                let ids = text.split(BEFORE).skip(1).filter_map(|rest| rest.split_once('"'));
                found.extend(ids.map(|(id, _)| id.to_owned()));
            }
        }
        found
    }

    /// Waits until Kafka has confirmed every click of the spool. The edge must get no more clicks.
    ///
    /// # Panics
    /// When it does not.
    pub async fn ships_everything(&self) {
        eventually("every click is confirmed", async || {
            // The gauges are updated once a second, so a 0 may be older than the last click.
            let report = self.inspect();
            let [records, confirmed] = ["records", "confirmed"].map(|name| report[name].as_u64().unwrap());
            if records == confirmed { Ok(()) } else { Err(report) }
        })
        .await;
    }

    /// Stops it with SIGTERM.
    ///
    /// # Panics
    /// When it does not end with exit code 0.
    pub async fn stop(&self) {
        stop(&self.server).await;
    }
}
