//! `logs`: prints the logs of services and engines.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use devstack::process;

use crate::cli::Logs;
use crate::folder::Folder;
use crate::terminal::print_line;

/// The log of the stack itself.
const STACK: &str = "devstack";

/// How often to read new lines.
const INTERVAL: Duration = Duration::from_millis(200);

/// Prints the last lines, and with `--follow` new lines until Ctrl-C.
pub(crate) async fn show(folder: &Folder, options: &Logs) -> anyhow::Result<()> {
    let topology = folder.topology();
    let members = match options.service.as_deref() {
        None => topology.members(),
        Some(name) => topology.named(name),
    };
    let mut names: Vec<String> = members.into_iter().map(|member| member.name).collect();
    if options.service.as_deref().is_none_or(|name| name == STACK) {
        names.push(STACK.to_owned());
    }
    ensure!(!names.is_empty(), "no such log; choose one of {}, {STACK}", topology.names());
    let longest = names.iter().map(String::len).max().unwrap_or_default();
    let prefix = (names.len() > 1).then_some(longest.max(10));
    let logs: Vec<(&str, PathBuf)> = names.iter().map(|name| (name.as_str(), folder.log(name))).collect();
    let mut positions: Vec<u64> =
        logs.iter().map(|(_, log)| log.metadata().map_or(0, |metadata| metadata.len())).collect();
    for (name, log) in logs.iter().filter(|(_, log)| log.exists()) {
        print(name, &process::tail(log, options.lines), prefix);
    }
    if !options.follow {
        return Ok(());
    }
    loop {
        for ((name, log), position) in logs.iter().zip(&mut positions) {
            print(name, &read_new_lines(log, position), prefix);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Prints lines, after the name in this width if there is one.
fn print(name: &str, text: &str, prefix: Option<usize>) {
    for line in text.lines() {
        match prefix {
            Some(width) => print_line(&format!("{name:<width$} | {line}")),
            None => print_line(line),
        }
    }
}

/// Reads a log's complete lines after `position`, and moves `position` behind them.
///
/// A log that is shorter than `position` has been replaced, and is read from its beginning. One that cannot be read
/// counts as empty.
pub(crate) fn read_new_lines(path: &Path, position: &mut u64) -> String {
    let mut read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        if file.metadata()?.len() < *position {
            *position = 0;
        }
        file.seek(SeekFrom::Start(*position))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        *position += bytes.len() as u64;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use devstack::scratch::Scratch;

    use super::*;

    #[test]
    fn a_log_is_read_by_whole_lines_and_again_when_replaced() {
        let scratch = Scratch::new("log").unwrap();
        let log = scratch.path().join("log");
        let mut position = 0;
        assert_eq!(read_new_lines(&log, &mut position), "");
        std::fs::write(&log, "one\ntw").unwrap();
        assert_eq!(read_new_lines(&log, &mut position), "one\n");
        std::fs::write(&log, "one\ntwo\n").unwrap();
        assert_eq!(read_new_lines(&log, &mut position), "two\n");
        std::fs::write(&log, "new\n").unwrap();
        assert_eq!(read_new_lines(&log, &mut position), "new\n");
    }
}
