//! Other servers of a constant 302, printed beside.

use std::{fmt::Write as _, path::PathBuf};

use devstack::scratch::Scratch;
use serde::Serialize;

use super::{report::spread, servers::Server};
use crate::{constant::location, statistics::Spread, terminal::complain};

/// What a peer did in the rounds.
#[derive(Debug, Serialize)]
pub(super) struct Peer {
    name: String,
    requests_per_second: Spread,
    latency_p99_us: Spread,
    /// The edge's rate in parts of this server's, over the rounds.
    redirect_ratio: Spread,
}

/// The rounds of one peer.
pub(super) struct Rounds {
    pub(super) server: Server,
    pub(super) requests_per_second: Vec<f64>,
    pub(super) latency_p99_us: Vec<f64>,
}

impl Rounds {
    fn new(server: Server) -> Self {
        Self { server, requests_per_second: Vec::new(), latency_p99_us: Vec::new() }
    }

    /// Sums up, beside the edge's rates in the same rounds.
    pub(super) fn peer(&self, redirect: impl Iterator<Item = f64>) -> Option<Peer> {
        let ratios = std::iter::zip(redirect, &self.requests_per_second).map(|(of, to)| of / to);
        Some(Peer {
            name: self.server.to_string(),
            requests_per_second: Spread::of(self.requests_per_second.iter().copied())?,
            latency_p99_us: Spread::of(self.latency_p99_us.iter().copied())?,
            redirect_ratio: Spread::of(ratios)?,
        })
    }
}

/// Starts those that this machine has.
pub(super) async fn start() -> anyhow::Result<Vec<Rounds>> {
    let mut peers = vec![Rounds::new(Server::warp().await?)];
    match on_path("nginx") {
        Some(program) => peers.push(Rounds::new(nginx(program).await?)),
        None => complain("nginx is not on the PATH: skipped"),
    }
    Ok(peers)
}

/// Starts nginx with `return 302`.
async fn nginx(program: PathBuf) -> anyhow::Result<Server> {
    Server::start("nginx return 302", program, |address, operations, folder| {
        let config = folder.path().join("nginx.conf");
        std::fs::write(&config, nginx_config(address, operations, folder))?;
        let arguments =
            ["-p".into(), folder.path().display().to_string(), "-c".into(), config.display().to_string()];
        Ok((arguments.to_vec(), Vec::new()))
    })
    .await
}

/// As many worker processes as cores, no log, and connections that stay open as with the others.
fn nginx_config(address: &str, operations: &str, folder: &Scratch) -> String {
    let folder = folder.path().display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("    {name}_temp_path {folder}/{name};\n"))
        .concat();
    format!(
        "daemon off;\nworker_processes auto;\npid {folder}/nginx.pid;\nerror_log stderr;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n    access_log off;\n    keepalive_requests 1000000000;\n{temporary}\
         \x20   server {{\n        listen {address};\n        add_header Cache-Control \"private, no-store\" always;\n\
         \x20       location / {{ return 302 \"{}\"; }}\n    }}\n\
         \x20   server {{\n        listen {operations};\n        location / {{ return 200; }}\n    }}\n}}\n",
        location()
    )
}

fn on_path(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}

impl Peer {
    pub(super) fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "{}, beside", self.name)?;
        writeln!(out, "  {:<29}{}", "requests/s", spread(self.requests_per_second, 0))?;
        writeln!(out, "  {:<29}{}", "latency p99, us", spread(self.latency_p99_us, 0))?;
        writeln!(out, "  {:<29}{}", "redirect in parts of it", spread(self.redirect_ratio, 3))
    }
}
