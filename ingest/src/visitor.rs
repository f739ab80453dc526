//! What remains of a client address: a keyed hash.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use arc_swap::ArcSwapOption;
use chrono::{DateTime, Datelike as _, NaiveDate, Utc};
use hmac::{Hmac, KeyInit as _, Mac as _};
use schemas::id::WorkspaceId;
use sha2::Sha256;

/// How long a visitor stays the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Rotation {
    /// As long as the key does.
    Never,
    /// Until the end of the month, by UTC.
    Month,
    /// Until the end of the day, by UTC.
    Day,
}

/// Turns who asked into a visitor, without a way back for those who lack the key.
pub struct VisitorKey {
    root: Keyed,
    rotation: Rotation,
    /// The key of the period that was asked for last, as a rule the present one.
    last: ArcSwapOption<(Period, Keyed)>,
}

/// Prepared state: keying an HMAC costs two hash blocks that need not be paid for each click.
type Keyed = Hmac<Sha256>;

/// The first day of a month, or a day.
type Period = NaiveDate;

impl std::fmt::Debug for VisitorKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("VisitorKey").field("rotation", &self.rotation).finish_non_exhaustive()
    }
}

impl VisitorKey {
    /// Prepares a key.
    pub fn new(key: &[u8; 32], rotation: Rotation) -> Self {
        Self { root: keyed(key), rotation, last: ArcSwapOption::empty() }
    }

    /// Returns the visitor: the first 64 bits of the HMAC-SHA-256 over workspace, address and User-Agent.
    ///
    /// An IPv6 address counts as its /64, because devices change the rest at will; an IPv4 address in IPv6 form
    /// is the IPv4 one. Two workspaces see different visitors, so that nobody can join their clicks. `at` tells the
    /// period where keys rotate.
    pub fn visitor(
        &self,
        workspace: WorkspaceId,
        address: IpAddr,
        user_agent: &[u8],
        at: DateTime<Utc>,
    ) -> u64 {
        let mut state = self.of(at);
        state.update(workspace.uuid().as_bytes());
        // The lengths of both forms differ from each other, so the family's number keeps the parts apart.
        match address.to_canonical() {
            IpAddr::V4(address) => {
                state.update(&[4]);
                state.update(&address.octets());
            }
            IpAddr::V6(address) => {
                state.update(&[6]);
                state.update(&network(address));
            }
        }
        state.update(user_agent);
        let mut first = [0; 8];
        first.copy_from_slice(&state.finalize().into_bytes()[..8]);
        u64::from_be_bytes(first)
    }

    /// Returns the state that is keyed for a moment.
    fn of(&self, at: DateTime<Utc>) -> Keyed {
        let day = at.date_naive();
        let period = match self.rotation {
            Rotation::Never => return self.root.clone(),
            Rotation::Month => day.with_day(1).unwrap_or(day),
            Rotation::Day => day,
        };
        if let Some(last) = &*self.last.load()
            && last.0 == period
        {
            return last.1.clone();
        }
        // The period's key is an HMAC of its own, so every edge with the same key has it without being told.
        let mut state = self.root.clone();
        state.update(format!("visitors of {}", period.format("%Y-%m-%d")).as_bytes());
        let state = keyed(&state.finalize().into_bytes().into());
        self.last.store(Some(Arc::new((period, state.clone()))));
        state
    }
}

fn keyed(key: &[u8; 32]) -> Keyed {
    // HMAC pads a shorter key with zeros to its hash's block.
    let mut block = [0; 64];
    block[..32].copy_from_slice(key);
    Keyed::new(&block.into())
}

/// Returns the /64 of an address.
fn network(address: Ipv6Addr) -> [u8; 8] {
    let mut network = [0; 8];
    network.copy_from_slice(&address.octets()[..8]);
    network
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const FIREFOX: &[u8] = b"Mozilla/5.0 Firefox/140.0";

    fn workspace(id: u128) -> WorkspaceId {
        WorkspaceId::from_uuid(Uuid::from_u128(id))
    }

    fn key(byte: u8) -> VisitorKey {
        VisitorKey::new(&[byte; 32], Rotation::Never)
    }

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn visitor(address: &str) -> u64 {
        key(7).visitor(workspace(1), address.parse().unwrap(), FIREFOX, DateTime::UNIX_EPOCH)
    }

    #[test]
    fn a_visitor_is_one_address_and_agent_in_one_workspace_under_one_key() {
        let one = visitor("192.0.2.1");
        assert_eq!(one, visitor("192.0.2.1"));
        assert_ne!(one, visitor("192.0.2.2"));
        let (address, then) = ("192.0.2.1".parse().unwrap(), DateTime::UNIX_EPOCH);
        assert_ne!(one, key(7).visitor(workspace(2), address, FIREFOX, then));
        assert_ne!(one, key(7).visitor(workspace(1), address, b"other", then));
        assert_ne!(one, key(8).visitor(workspace(1), address, FIREFOX, then));
    }

    #[test]
    fn a_visitor_is_the_same_for_as_long_as_the_rotation_says() {
        let seen = |rotation, moments: &[&str]| {
            // One key for all moments, as in a process, and in an order in which periods come back.
            let (key, address) = (VisitorKey::new(&[7; 32], rotation), "192.0.2.1".parse().unwrap());
            let visitor = |moment: &&str| key.visitor(workspace(1), address, FIREFOX, at(moment));
            moments.iter().map(visitor).collect::<Vec<_>>()
        };
        let moments = [
            "2026-11-30T23:59:59.999Z",
            "2026-11-01T00:00:00Z",
            "2026-12-01T00:00:00Z",
            "2026-11-30T00:00:00Z",
            "2025-11-30T00:00:00Z",
        ];
        let [late, early, next, same_day, year_before] = seen(Rotation::Never, &moments).try_into().unwrap();
        assert_eq!([early, next, same_day, year_before], [late; 4]);
        let [late, early, next, same_day, year_before] = seen(Rotation::Month, &moments).try_into().unwrap();
        assert_eq!([early, same_day], [late; 2]);
        assert!(next != late && year_before != late && next != year_before);
        let [late, early, next, same_day, year_before] = seen(Rotation::Day, &moments).try_into().unwrap();
        assert_eq!(same_day, late);
        assert!(early != late && next != late && next != early && year_before != late);
    }

    #[test]
    fn addresses_of_one_64_network_are_one_visitor() {
        assert_eq!(visitor("2001:db8:1:2::1"), visitor("2001:db8:1:2:ffff::9"));
        assert_ne!(visitor("2001:db8:1:2::1"), visitor("2001:db8:1:3::1"));
    }

    #[test]
    fn an_ipv4_address_in_ipv6_form_is_the_ipv4_one() {
        assert_eq!(visitor("::ffff:192.0.2.1"), visitor("192.0.2.1"));
    }

    #[test]
    fn the_hash_is_fixed_because_uniques_must_survive_an_upgrade() {
        // HMAC-SHA-256 over 16 bytes of workspace, 04, c0000201, the agent; computed with another implementation.
        assert_eq!(format!("{:016x}", visitor("192.0.2.1")), "1175fdb09606abae");
    }
}
