//! What remains of a client address: a keyed hash.

use std::net::{IpAddr, Ipv6Addr};

use hmac::{Hmac, KeyInit as _, Mac as _};
use schemas::id::WorkspaceId;
use sha2::Sha256;

/// Turns who asked into a visitor, without a way back for those who lack the key.
#[derive(Clone)]
pub struct VisitorKey {
    /// Prepared state: keying an HMAC costs two hash blocks that need not be paid for each click.
    keyed: Hmac<Sha256>,
}

impl std::fmt::Debug for VisitorKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("VisitorKey").finish_non_exhaustive()
    }
}

impl VisitorKey {
    /// Prepares a key.
    pub fn new(key: &[u8; 32]) -> Self {
        // HMAC pads a shorter key with zeros to its hash's block.
        let mut block = [0; 64];
        block[..32].copy_from_slice(key);
        Self { keyed: Hmac::<Sha256>::new(&block.into()) }
    }

    /// Returns the visitor: the first 64 bits of the HMAC-SHA-256 over workspace, address and User-Agent.
    ///
    /// An IPv6 address counts as its /64, because devices change the rest at will; an IPv4 address in IPv6 form
    /// is the IPv4 one. Two workspaces see different visitors, so that nobody can join their clicks.
    pub fn visitor(&self, workspace: WorkspaceId, address: IpAddr, user_agent: &[u8]) -> u64 {
        let mut state = self.keyed.clone();
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

    fn visitor(address: &str) -> u64 {
        VisitorKey::new(&[7; 32]).visitor(workspace(1), address.parse().unwrap(), FIREFOX)
    }

    #[test]
    fn a_visitor_is_one_address_and_agent_in_one_workspace_under_one_key() {
        let one = visitor("192.0.2.1");
        assert_eq!(one, visitor("192.0.2.1"));
        assert_ne!(one, visitor("192.0.2.2"));
        let (key, address) = (VisitorKey::new(&[7; 32]), "192.0.2.1".parse().unwrap());
        assert_ne!(one, key.visitor(workspace(2), address, FIREFOX));
        assert_ne!(one, key.visitor(workspace(1), address, b"other"));
        assert_ne!(one, VisitorKey::new(&[8; 32]).visitor(workspace(1), address, FIREFOX));
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
