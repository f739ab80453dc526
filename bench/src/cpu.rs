//! The CPU time of a process and of its threads, from `/proc`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

/// The unit of times in `/proc`: Linux shows a hundred ticks per second.
const TICK: Duration = Duration::from_millis(10);

/// Returns the CPU time that all threads of a process have used, in user mode and in the kernel.
pub(crate) fn process(id: u32) -> anyhow::Result<Duration> {
    Ok(read(Path::new(&format!("/proc/{id}/stat")))?.1)
}

/// Returns the CPU time of those threads of a process whose name `is_wanted`.
pub(crate) fn threads(id: u32, is_wanted: impl Fn(&str) -> bool) -> anyhow::Result<Duration> {
    let folder = format!("/proc/{id}/task");
    let mut sum = Duration::ZERO;
    for thread in fs::read_dir(&folder).with_context(|| format!("cannot read {folder}"))? {
        // A thread may have ended since the listing.
        if let Ok((name, time)) = read(&thread?.path().join("stat"))
            && is_wanted(&name)
        {
            sum += time;
        }
    }
    Ok(sum)
}

/// Returns the process of this machine that listens on a TCP port; `None` if this program sees none.
pub(crate) fn listener(port: u16) -> Option<u32> {
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().filter_map(|file| fs::read_to_string(file).ok());
    let sockets: Vec<String> =
        tables.flat_map(|table| listening(&table, port)).map(|inode| format!("socket:[{inode}]")).collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut ids = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    ids.find(|id| {
        let files = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
        let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
        links.any(|link| sockets.iter().any(|socket| link.as_os_str() == socket.as_str()))
    })
}

/// Reads the inodes of listening sockets from a table of `/proc/net` (proc(5)).
fn listening(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let port = format!(":{port:04X}");
    let inode = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_wanted = fields.get(1)?.ends_with(&port) && *fields.get(3)? == LISTEN;
        is_wanted.then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
    };
    table.lines().filter_map(inode).collect()
}

/// Returns the CPU time that this machine has been busy since its start, over all cores.
pub(crate) fn machine() -> anyhow::Result<Duration> {
    const FILE: &str = "/proc/stat";
    let text = fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
    parse_busy(&text).with_context(|| format!("cannot parse {FILE}"))
}

fn read(path: &Path) -> anyhow::Result<(String, Duration)> {
    let shown = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    parse(&text).with_context(|| format!("cannot parse {shown}"))
}

/// Reads name and CPU time from the text of a `stat` file (proc(5)).
fn parse(text: &str) -> Option<(String, Duration)> {
    // The name is in parentheses and may contain blanks and parentheses.
    let (front, rest) = text.rsplit_once(") ")?;
    let (_, name) = front.split_once('(')?;
    // utime and stime are fields 14 and 15; the rest begins with field 3.
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some((name.to_owned(), TICK * user + TICK * system))
}

/// Reads the busy time from the text of `/proc/stat` (proc(5)).
fn parse_busy(text: &str) -> Option<Duration> {
    let mut fields = text.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
    let mut next = || fields.next()?.parse::<u64>().ok();
    let [user, nice, system, _idle, _waiting, interrupts, soft_interrupts] =
        [next()?, next()?, next()?, next()?, next()?, next()?, next()?];
    let ticks = user + nice + system + interrupts + soft_interrupts;
    Some(Duration::from_millis(ticks * TICK.as_millis() as u64))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn user_and_kernel_time_of_a_process_are_added() {
        let text = "42 (rdk:a) (b)) S 1 42 42 0 -1 4194560 1 2 3 4 250 50 7 8 20 0 9 0 123 456 789";
        assert_eq!(parse(text), Some(("rdk:a) (b)".to_owned(), Duration::from_secs(3))));
        assert_eq!(parse("42 (cut"), None);
    }

    #[test]
    fn idle_and_disk_wait_times_are_not_busy() {
        let text = "cpu  100 20 30 9999 8888 4 6 77 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(parse_busy(text), Some(Duration::from_millis(1_600)));
        assert_eq!(parse_busy("intr 1 2 3"), None);
    }

    #[test]
    fn the_process_behind_a_port_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(super::listener(port), Some(std::process::id()));
        drop(listener);
        assert_eq!(super::listener(port), None);
    }

    #[test]
    fn a_thread_is_found_by_its_name() {
        let done = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&done);
        let spin = move || while !seen.load(Ordering::Relaxed) {};
        let spinning = thread::Builder::new().name("spinning".to_owned()).spawn(spin).unwrap();
        let own = std::process::id();
        let deadline = Instant::now() + ::tests::PATIENCE;
        while threads(own, |name| name == "spinning").unwrap() < TICK && Instant::now() < deadline {}
        let found = threads(own, |name| name == "spinning").unwrap();
        done.store(true, Ordering::Relaxed);
        spinning.join().unwrap();
        assert!(found >= TICK);
        assert!(process(own).unwrap() >= TICK);
        assert_eq!(threads(own, |name| name == "no such").unwrap(), Duration::ZERO);
    }
}
