//! Permits in use of a process or an account, and how many remain for each standing.

use super::standing::{AHEAD, Standing};

/// Permits in use, by the groups that are limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pool {
    /// All permits.
    pub(super) total: usize,
    /// Permits of first attempts.
    pub(super) firsts: usize,
    /// Permits of endpoints without a recent success.
    unproven: usize,
    /// Of these, permits of failing endpoints.
    failing: usize,
}

impl Pool {
    /// Takes permits, `firsts` of them for first attempts.
    pub(super) fn take(&mut self, standing: Standing, permits: usize, firsts: usize) {
        self.total += permits;
        self.firsts += firsts;
        self.enter(standing, permits);
    }

    /// Returns permits.
    pub(super) fn give(&mut self, standing: Standing, permits: usize, firsts: usize) {
        self.total -= permits;
        self.firsts -= firsts;
        self.leave(standing, permits);
    }

    /// Moves permits to the endpoint's new standing.
    pub(super) fn move_to(&mut self, from: Standing, to: Standing, permits: usize) {
        self.leave(from, permits);
        self.enter(to, permits);
    }

    /// Returns how many permits an endpoint of this standing may still take with a limit of `limit` requests in flight.
    ///
    /// Half of the limit is reserved for endpoints with a recent success, and three quarters for endpoints that do not
    /// fail. Only endpoints with a recent success claim ahead.
    pub(super) fn room(&self, standing: Standing, limit: usize) -> usize {
        let all = (limit * AHEAD).saturating_sub(self.total);
        let unproven = (limit / 2).saturating_sub(self.unproven);
        match standing {
            Standing::Proven => all,
            Standing::Unknown => all.min(unproven),
            Standing::Failing => all.min(unproven).min((limit / 4).saturating_sub(self.failing)),
        }
    }

    /// Returns how many first attempts may still begin; a quarter of the limit is reserved for retries.
    pub(super) fn room_for_firsts(&self, limit: usize) -> usize {
        (limit * AHEAD * 3 / 4).saturating_sub(self.firsts)
    }

    fn enter(&mut self, standing: Standing, permits: usize) {
        self.unproven += if standing == Standing::Proven { 0 } else { permits };
        self.failing += if standing == Standing::Failing { permits } else { 0 };
    }

    fn leave(&mut self, standing: Standing, permits: usize) {
        self.unproven -= if standing == Standing::Proven { 0 } else { permits };
        self.failing -= if standing == Standing::Failing { permits } else { 0 };
    }
}
