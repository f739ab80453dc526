//! The id of a click that another edge tells of: the same whenever it is told.

use chrono::{DateTime, Utc};
use schemas::{
    click_id::{ClickIdKeys, RANDOM_LEN},
    id::{EdgeTokenId, LinkId},
};
use sha2::{Digest as _, Sha256};

/// Keeps this use of SHA-256 apart from any other.
const DOMAIN: &[u8] = b"hopline external click 1\0";

/// What makes an item the same item.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity<'a> {
    pub(super) edge_token_id: EdgeTokenId,
    pub(super) link_id: LinkId,
    pub(super) occurred_at: DateTime<Utc>,
    pub(super) event_id: &'a str,
}

impl Identity<'_> {
    /// Makes the click id.
    ///
    /// An id is the whole text, so the key must be the same each time too: the one listed last, which a rotation
    /// leaves where it is, or, for clicks from the moment `since` on, the one listed first.
    pub(super) fn click_id(&self, keys: &ClickIdKeys, since: Option<DateTime<Utc>>) -> String {
        let random = self.digest();
        if since.is_some_and(|since| self.occurred_at >= since) {
            keys.mint(self.link_id, self.occurred_at, random)
        } else {
            keys.mint_with_last(self.link_id, self.occurred_at, random)
        }
    }

    /// What stands in the place of randomness. Secrets are not needed for it: the MAC proves the id.
    fn digest(&self) -> [u8; RANDOM_LEN] {
        let mut state = Sha256::new();
        state.update(DOMAIN);
        // All of one length but the last, so no two identities have the same bytes.
        state.update(self.edge_token_id.uuid().as_bytes());
        state.update(self.link_id.uuid().as_bytes());
        state.update(self.occurred_at.timestamp_millis().to_be_bytes());
        state.update(self.event_id.as_bytes());
        let mut digest = [0; RANDOM_LEN];
        digest.copy_from_slice(&state.finalize()[..RANDOM_LEN]);
        digest
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use uuid::Uuid;

    use super::*;

    const OLD: (u8, [u8; 32]) = (1, [7; 32]);
    const NEW: (u8, [u8; 32]) = (2, [6; 32]);

    fn at(millis: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(1_790_000_000_000 + millis).unwrap()
    }

    fn identity(token: u128, link: u128, millis: i64, event_id: &str) -> Identity<'_> {
        Identity {
            edge_token_id: EdgeTokenId::from_uuid(Uuid::from_u128(token)),
            link_id: LinkId::from_uuid(Uuid::from_u128(link)),
            occurred_at: at(millis),
            event_id,
        }
    }

    #[test]
    fn any_difference_makes_another_click() {
        let keys = ClickIdKeys::new(OLD, []);
        let ids: BTreeSet<String> = [
            identity(1, 1, 0, "e"),
            identity(2, 1, 0, "e"),
            identity(1, 2, 0, "e"),
            identity(1, 1, 1, "e"),
            identity(1, 1, 0, "f"),
            identity(1, 1, 0, ""),
        ]
        .map(|identity| identity.click_id(&keys, None))
        .into();
        assert_eq!(ids.len(), 6);
        assert!(ids.iter().all(|id| keys.verify(id).is_ok()));
        assert!(ids.contains(&identity(1, 1, 0, "e").click_id(&keys, None)));
    }

    #[test]
    fn a_rotation_of_keys_changes_no_click() {
        let (before, after) = (ClickIdKeys::new(OLD, []), ClickIdKeys::new(NEW, [OLD]));
        let click = identity(1, 1, 0, "e");
        assert_eq!(click.click_id(&before, None), click.click_id(&after, None));
        // The old key is to go: it signs nothing new from a moment on, and what was before it as ever.
        assert_eq!(click.click_id(&before, None), click.click_id(&after, Some(at(1))));
        let later = identity(1, 1, 1, "e");
        assert_eq!(later.click_id(&after, Some(at(1))), later.click_id(&ClickIdKeys::new(NEW, []), None));
    }

    #[test]
    fn the_derivation_is_fixed_because_repeats_must_survive_an_upgrade() {
        let id = identity(1, 2, 123, "e-1").click_id(&ClickIdKeys::new(OLD, []), None);
        assert_eq!(id, GOLDEN);
    }

    /// Made by this code once, and checked against another implementation of SHA-256 and HMAC.
    const GOLDEN: &str = "AQAAAAAAAAAAAAAAAAAAAAIBoMRQbHsSAHGhyBPZQzvjvLZs9RDACpMbx15r";
}
