//! A process and all those under it, as the kernel lists them.

use std::fs;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Kills a child of ours that leads a process group, with everything under it. It must not have been reaped yet.
pub(super) fn kill_family(pid: u32) -> Vec<Member> {
    let family = family(pid);
    let _ = killpg(pid_of(pid), Signal::SIGKILL);
    // Those that left the group, as Postgres's backends do.
    for member in family.iter().filter(|member| member.pid != pid && member.lives()) {
        let _ = kill(pid_of(member.pid), Signal::SIGKILL);
    }
    family
}

/// A process as the kernel lists it. The start time tells it from a later one with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member {
    pid: u32,
    parent: u32,
    started: u64,
}

impl Member {
    /// Reads `/proc/PID/stat`; `None` when there is no such process, or only its unreaped remains.
    fn read(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in brackets, may hold spaces and brackets itself: fields count from the last bracket.
        let fields: Vec<&str> = stat.get(stat.rfind(')')? + 2..)?.split(' ').collect();
        // proc(5): field 3 is the state, 4 the parent, 22 the start time.
        match fields.first()? {
            &"Z" | &"X" => None,
            _ => Some(Self {
                pid,
                parent: fields.get(1)?.parse().ok()?,
                started: fields.get(19)?.parse().ok()?,
            }),
        }
    }

    pub(super) fn lives(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.started == self.started)
    }
}

/// The process and all its descendants.
fn family(pid: u32) -> Vec<Member> {
    let everyone: Vec<Member> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Member::read(entry.file_name().to_str()?.parse().ok()?))
        .collect();
    let mut family: Vec<Member> = everyone.iter().filter(|member| member.pid == pid).copied().collect();
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        family.extend(everyone.iter().filter(|member| member.parent == parent.pid));
        next += 1;
    }
    family
}

/// The ids of all processes under the one given.
pub fn descendants(pid: u32) -> Vec<u32> {
    family(pid).into_iter().map(|member| member.pid).filter(|member| *member != pid).collect()
}

/// Whether a process with this id runs.
pub fn is_alive(pid: u32) -> bool {
    Member::read(pid).is_some()
}

/// The id as the system's calls take it.
pub(super) fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed())
}
