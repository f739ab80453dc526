//! The memory use of a process.

use std::{fs, io};

/// The memory of a process: `VmRSS` and `VmHWM` of proc(5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The current size in bytes.
    pub resident: u64,
    /// The largest size so far in bytes.
    pub peak: u64,
}

impl Memory {
    /// Reads the memory use of a running process.
    ///
    /// # Errors
    /// When there is no such process or it is a zombie.
    pub fn of(pid: u32) -> io::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        Self::parse(&status).ok_or_else(|| io::Error::other(format!("process {pid} has ended")))
    }

    fn parse(status: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
        };
        Some(Self { resident: bytes("VmRSS:")?, peak: bytes("VmHWM:")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_kibibytes() {
        let memory = Memory { resident: 2 << 20, peak: 9 << 10 };
        assert_eq!(Memory::parse("Name:\tx\nVmHWM:\t  9 kB\nVmRSS:\t    2048 kB\n"), Some(memory));
        assert_eq!(Memory::parse("Name:\tx\nState:\tZ (zombie)\n"), None);
    }
}
