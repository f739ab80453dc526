//! A process and its descendants, from `/proc`.

use std::fs;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Kills a child process that leads a process group, and all its descendants. It must not have been reaped yet.
pub(super) fn kill_family(pid: u32) -> Vec<Member> {
    let family = family(pid);
    let _ = killpg(pid_of(pid), Signal::SIGKILL);
    // Descendants outside the group, such as Postgres's backends.
    for member in family.iter().filter(|member| member.pid != pid && member.is_alive()) {
        let _ = kill(pid_of(member.pid), Signal::SIGKILL);
    }
    family
}

/// A process. Its start time distinguishes it from a later one with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member {
    pid: u32,
    parent: u32,
    started: u64,
    is_paused: bool,
}

impl Member {
    /// Reads `/proc/PID/stat`; returns `None` when there is no such process or it is a zombie.
    fn read(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in brackets, may itself contain spaces and brackets.
        let fields: Vec<&str> = stat.get(stat.rfind(')')? + 2..)?.split(' ').collect();
        // proc(5): field 3 is the state, 4 the parent, 22 the start time.
        match *fields.first()? {
            "Z" | "X" => None,
            state => Some(Self {
                pid,
                is_paused: state == "T",
                parent: fields.get(1)?.parse().ok()?,
                started: fields.get(19)?.parse().ok()?,
            }),
        }
    }

    pub(super) fn is_alive(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.started == self.started)
    }
}

/// Returns the process and all its descendants.
fn family(pid: u32) -> Vec<Member> {
    let all: Vec<Member> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Member::read(entry.file_name().to_str()?.parse().ok()?))
        .collect();
    let mut family: Vec<Member> = all.iter().filter(|member| member.pid == pid).copied().collect();
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        family.extend(all.iter().filter(|member| member.parent == parent.pid));
        next += 1;
    }
    family
}

/// Pauses those of a process and its descendants that still run; returns whether none did.
pub(super) fn pause_family(pid: u32) -> bool {
    let running: Vec<Member> = family(pid).into_iter().filter(|member| !member.is_paused).collect();
    for member in &running {
        // Fails when it has ended.
        let _ = kill(pid_of(member.pid), Signal::SIGSTOP);
    }
    running.is_empty()
}

/// Lets a process and its descendants continue.
pub(super) fn resume_family(pid: u32) {
    for member in family(pid) {
        // Fails when it has ended.
        let _ = kill(pid_of(member.pid), Signal::SIGCONT);
    }
}

/// Returns whether a process with this id is paused.
pub fn is_paused(pid: u32) -> bool {
    Member::read(pid).is_some_and(|process| process.is_paused)
}

/// Returns the ids of all descendants of a process.
pub fn descendants(pid: u32) -> Vec<u32> {
    family(pid).into_iter().map(|member| member.pid).filter(|member| *member != pid).collect()
}

/// Returns whether a process with this id runs.
pub fn is_alive(pid: u32) -> bool {
    Member::read(pid).is_some()
}

/// Returns the id in the type of system calls.
pub(super) fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed())
}
