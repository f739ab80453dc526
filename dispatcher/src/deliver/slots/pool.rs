//! Permits in use of a process or of a workspace, and what is left of them for whom.

use super::standing::{AHEAD, Standing};

/// Permits in use, counted in the ways in which they are bounded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pool {
    /// All of them.
    pub(super) total: usize,
    /// Those of first attempts.
    pub(super) firsts: usize,
    /// Those of endpoints without a recent success.
    unproven: usize,
    /// Of these, those of endpoints that fail.
    failing: usize,
}

impl Pool {
    /// Takes permits, `firsts` of them for first attempts.
    pub(super) fn take(&mut self, standing: Standing, permits: usize, firsts: usize) {
        self.total += permits;
        self.firsts += firsts;
        self.enter(standing, permits);
    }

    /// Gives permits back.
    pub(super) fn give(&mut self, standing: Standing, permits: usize, firsts: usize) {
        self.total -= permits;
        self.firsts -= firsts;
        self.leave(standing, permits);
    }

    /// Counts permits under the endpoint's new standing.
    pub(super) fn move_to(&mut self, from: Standing, to: Standing, permits: usize) {
        self.leave(from, permits);
        self.enter(to, permits);
    }

    /// Returns how many permits an endpoint of this standing may still take where `bound` requests may be under way.
    ///
    /// Half of the bound is kept for endpoints with a recent success, and three quarters for those that do not fail.
    /// Only endpoints with a recent success claim ahead.
    pub(super) fn room(&self, standing: Standing, bound: usize) -> usize {
        let all = (bound * AHEAD).saturating_sub(self.total);
        let unproven = (bound / 2).saturating_sub(self.unproven);
        match standing {
            Standing::Proven => all,
            Standing::Unknown => all.min(unproven),
            Standing::Failing => all.min(unproven).min((bound / 4).saturating_sub(self.failing)),
        }
    }

    /// Returns how many first attempts may still begin: a quarter of the bound is kept for retries.
    pub(super) fn room_for_firsts(&self, bound: usize) -> usize {
        (bound * AHEAD * 3 / 4).saturating_sub(self.firsts)
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
