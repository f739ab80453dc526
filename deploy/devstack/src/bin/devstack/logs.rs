//! `logs`: what the services and engines print.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use devstack::{Kind, process};

use crate::cli::Logs;
use crate::compile::SERVICES;
use crate::folder::{Folder, read_on};
use crate::terminal::say;

/// How often to look for new lines.
const LOOK: Duration = Duration::from_millis(200);

/// Prints the last lines, and with `--follow` the new ones until Ctrl-C.
pub(crate) async fn show(folder: &Folder, options: &Logs) -> anyhow::Result<()> {
    let all: Vec<&str> = SERVICES.into_iter().chain(Kind::ALL.map(Kind::name)).chain(["devstack"]).collect();
    let wanted: Vec<&str> = match &options.service {
        Some(service) => all.iter().copied().filter(|name| name == service).collect(),
        None => all.clone(),
    };
    ensure!(!wanted.is_empty(), "no such log; choose one of {}", all.join(", "));
    // One log needs no names before its lines.
    let prefixed = wanted.len() > 1;
    let logs: Vec<(&str, PathBuf)> = wanted.into_iter().map(|name| (name, folder.log(name))).collect();
    let mut positions: Vec<u64> = logs.iter().map(|(_, log)| length(log)).collect();
    for (name, log) in logs.iter().filter(|(_, log)| log.exists()) {
        print(name, &process::tail(log, options.lines), prefixed);
    }
    if !options.follow {
        return Ok(());
    }
    loop {
        for ((name, log), position) in logs.iter().zip(&mut positions) {
            print(name, &read_on(log, position), prefixed);
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn length(log: &Path) -> u64 {
    std::fs::metadata(log).map_or(0, |found| found.len())
}

fn print(name: &str, text: &str, prefixed: bool) {
    for line in text.lines() {
        if prefixed { say(&format!("{name:<10} | {line}")) } else { say(line) }
    }
}
