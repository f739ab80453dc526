//! Who used the CPU during a round.

use std::time::Duration;

use crate::cpu;

/// CPU times: since the start of each process when read, of one round after [`Usage::since`].
pub(super) struct Usage {
    /// The server, with all its threads.
    pub(super) server: Duration,
    /// Those of the server's threads that bring clicks to Kafka.
    pub(super) shipping: Duration,
    /// This process, which makes the load.
    pub(super) load: Duration,
    /// Everything on this machine.
    pub(super) machine: Duration,
}

impl Usage {
    /// Reads the times up to now; `server` is a process id.
    pub(super) fn read(server: u32) -> anyhow::Result<Self> {
        Ok(Self {
            server: cpu::process(server)?,
            shipping: cpu::threads(server, is_shipping)?,
            load: cpu::process(std::process::id())?,
            machine: cpu::machine()?,
        })
    }

    /// Returns what was used from `begin` to this reading.
    pub(super) fn since(&self, begin: &Self) -> Self {
        Self {
            server: self.server.saturating_sub(begin.server),
            shipping: self.shipping.saturating_sub(begin.shipping),
            load: self.load.saturating_sub(begin.load),
            machine: self.machine.saturating_sub(begin.machine),
        }
    }

    /// What neither the server nor the load used: the kernel's network in interrupts, a Kafka on this machine.
    pub(super) fn elsewhere(&self) -> Duration {
        self.machine.saturating_sub(self.server).saturating_sub(self.load)
    }
}

/// Whether a thread brings clicks to Kafka, by its name: the edge's own, and those of librdkafka.
fn is_shipping(thread: &str) -> bool {
    thread == "publish" || thread.starts_with("rdk:")
}
