//! Derives the visitor, a keyed hash, from a client's address and User-Agent.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use chrono::{DateTime, Datelike as _, NaiveDate, Utc};
use hmac::{Hmac, KeyInit as _, Mac as _};
use schemas::id::WorkspaceId;
use sha2::Sha256;

/// How long a visitor stays the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Rotation {
    /// As long as the key is the same.
    Never,
    /// Until the end of the month, by UTC.
    Month,
    /// Until the end of the day, by UTC.
    Day,
}

/// The key that derives visitors. Without it nobody can derive the address from a visitor.
pub struct VisitorKey {
    root: Keyed,
    rotation: Rotation,
    /// The last used period and its key.
    last: ArcSwapOption<(Period, Keyed)>,
}

/// An HMAC with its key set, which saves two hash blocks per click.
type Keyed = Hmac<Sha256>;

/// The first day of a month, or a day.
type Period = NaiveDate;

impl std::fmt::Debug for VisitorKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("VisitorKey").field("rotation", &self.rotation).finish_non_exhaustive()
    }
}

impl VisitorKey {
    /// Creates a key.
    pub fn new(key: &[u8; 32], rotation: Rotation) -> Self {
        Self { root: keyed(key), rotation, last: ArcSwapOption::empty() }
    }

    /// Returns the visitor: the first 64 bits of the HMAC-SHA-256 over workspace, address and User-Agent.
    ///
    /// Of an IPv6 address only the /64 counts, because devices change the rest. An IPv4-mapped IPv6 address counts as
    /// the IPv4 address. Workspaces have different visitors, so their clicks cannot be joined. `at` selects the period
    /// if keys rotate.
    pub fn visitor(
        &self,
        workspace: WorkspaceId,
        address: IpAddr,
        user_agent: &[u8],
        at: DateTime<Utc>,
    ) -> u64 {
        let mut state = self.keyed_for(at);
        state.update(workspace.uuid().as_bytes());
        // The family determines the address's length, so address and User-Agent cannot be confused.
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

    /// Returns the HMAC with the key of a time's period.
    fn keyed_for(&self, at: DateTime<Utc>) -> Keyed {
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
        // The period's key is derived from the root key, so all edges with the same root key have the same one.
        let mut state = self.root.clone();
        state.update(format!("visitors of {}", period.format("%Y-%m-%d")).as_bytes());
        let state = keyed(&state.finalize().into_bytes().into());
        self.last.store(Some(Arc::new((period, state.clone()))));
        state
    }
}

fn keyed(key: &[u8; 32]) -> Keyed {
    // HMAC pads a shorter key with zeros to the hash's block size.
    let mut block = [0; 64];
    block[..32].copy_from_slice(key);
    Keyed::new(&block.into())
}

/// Returns the /64 network of an address.
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
    fn a_visitor_depends_on_address_agent_workspace_and_key() {
        let one = visitor("192.0.2.1");
        assert_eq!(one, visitor("192.0.2.1"));
        assert_ne!(one, visitor("192.0.2.2"));
        let (address, then) = ("192.0.2.1".parse().unwrap(), DateTime::UNIX_EPOCH);
        assert_ne!(one, key(7).visitor(workspace(2), address, FIREFOX, then));
        assert_ne!(one, key(7).visitor(workspace(1), address, b"other", then));
        assert_ne!(one, key(8).visitor(workspace(1), address, FIREFOX, then));
    }

    #[test]
    fn a_visitor_stays_the_same_within_a_rotation_period() {
        let visitors = |rotation, times: &[&str]| {
            // One key for all times, as in a process; the order returns to an earlier period.
            let (key, address) = (VisitorKey::new(&[7; 32], rotation), "192.0.2.1".parse().unwrap());
            let visitor = |time: &&str| key.visitor(workspace(1), address, FIREFOX, at(time));
            times.iter().map(visitor).collect::<Vec<_>>()
        };
        let times = [
            "2026-11-30T23:59:59.999Z",
            "2026-11-01T00:00:00Z",
            "2026-12-01T00:00:00Z",
            "2026-11-30T00:00:00Z",
            "2025-11-30T00:00:00Z",
        ];
        let [late, early, next, same_day, year_before] =
            visitors(Rotation::Never, &times).try_into().unwrap();
        assert_eq!([early, next, same_day, year_before], [late; 4]);
        let [late, early, next, same_day, year_before] =
            visitors(Rotation::Month, &times).try_into().unwrap();
        assert_eq!([early, same_day], [late; 2]);
        assert!(next != late && year_before != late && next != year_before);
        let [late, early, next, same_day, year_before] = visitors(Rotation::Day, &times).try_into().unwrap();
        assert_eq!(same_day, late);
        assert!(early != late && next != late && next != early && year_before != late);
    }

    #[test]
    fn addresses_of_the_same_64_network_are_one_visitor() {
        assert_eq!(visitor("2001:db8:1:2::1"), visitor("2001:db8:1:2:ffff::9"));
        assert_ne!(visitor("2001:db8:1:2::1"), visitor("2001:db8:1:3::1"));
    }

    #[test]
    fn an_ipv4_mapped_address_counts_as_ipv4() {
        assert_eq!(visitor("::ffff:192.0.2.1"), visitor("192.0.2.1"));
    }

    #[test]
    fn the_hash_never_changes() {
        // Uniques must survive an upgrade. Computed with another implementation of HMAC-SHA-256, over 16 bytes of
        // workspace, 04, c0000201 and the User-Agent.
        assert_eq!(format!("{:016x}", visitor("192.0.2.1")), "1175fdb09606abae");
    }
}
