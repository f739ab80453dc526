//! The tokens of external redirect edges.

use std::collections::HashMap;

use schemas::id::{EdgeTokenId, WorkspaceId};
use schemas::message::EdgeToken;
use subtle::ConstantTimeEq as _;

use crate::links::record::{Applied, RecordError};

/// The SHA-256 of a token's text.
pub type Digest = [u8; 32];

/// The caller that a valid token identifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The token's id.
    pub edge_token_id: EdgeTokenId,
    /// The only workspace whose links the caller may name; all when absent.
    pub workspace_id: Option<WorkspaceId>,
}

/// The status of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenStatus {
    /// The token may be used.
    Valid(Caller),
    /// The token was valid once.
    Revoked,
    /// No record of this token has been read.
    Unknown,
}

/// All tokens of the topic, revoked ones included.
#[derive(Debug, Clone, Default)]
pub(super) struct EdgeTokens(HashMap<EdgeTokenId, Token>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) digest: Digest,
    pub(super) workspace_id: Option<WorkspaceId>,
    pub(super) revoked: bool,
}

impl EdgeTokens {
    /// Applies a record. Tokens have no revision: the only possible change is the revocation, which is final.
    pub(super) fn apply(&mut self, record: &EdgeToken) -> Result<Applied, RecordError> {
        let id = record.edge_token_id;
        let digest = digest(&record.token_sha256).ok_or(RecordError::Token(id))?;
        let token = Token { digest, workspace_id: record.workspace_id, revoked: record.revoked_at.is_some() };
        Ok(self.put(id, token))
    }

    pub(super) fn put(&mut self, id: EdgeTokenId, token: Token) -> Applied {
        if self.0.get(&id).is_some_and(|known| known.revoked || *known == token) {
            return Applied::Older;
        }
        self.0.insert(id, token);
        Applied::Changed
    }

    /// Returns the status of the token with this digest.
    ///
    /// Compares every known digest, each in constant time, so that the duration reveals nothing about them.
    pub(super) fn find(&self, digest: &Digest) -> TokenStatus {
        let mut status = TokenStatus::Unknown;
        for (id, token) in &self.0 {
            if bool::from(token.digest.ct_eq(digest)) {
                status = if token.revoked {
                    TokenStatus::Revoked
                } else {
                    TokenStatus::Valid(Caller { edge_token_id: *id, workspace_id: token.workspace_id })
                };
            }
        }
        status
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (EdgeTokenId, &Token)> {
        self.0.iter().map(|(id, token)| (*id, token))
    }
}

/// Parses 64 hex digits.
fn digest(hex: &str) -> Option<Digest> {
    let mut digest = [0; 32];
    if hex.len() != 2 * digest.len() || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, start) in digest.iter_mut().zip((0..hex.len()).step_by(2)) {
        *byte = u8::from_str_radix(&hex[start..start + 2], 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use schemas::message::Message as _;

    use super::*;

    fn record(revoked: bool) -> EdgeToken {
        let fixture = include_bytes!("../../../schemas/fixtures/edge_token.v1.json");
        let token = EdgeToken::decode(fixture.trim_ascii()).unwrap();
        EdgeToken { revoked_at: token.revoked_at.filter(|_| revoked), ..token }
    }

    /// SHA-256 of `test`, the digest in the fixture.
    const DIGEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    #[test]
    fn a_token_is_found_by_its_digest_until_it_is_revoked() {
        let presented = digest(DIGEST).unwrap();
        let mut tokens = EdgeTokens::default();
        assert_eq!(tokens.find(&presented), TokenStatus::Unknown);
        assert_eq!(tokens.apply(&record(false)).unwrap(), Applied::Changed);
        let caller =
            Caller { edge_token_id: record(false).edge_token_id, workspace_id: record(false).workspace_id };
        assert_eq!(tokens.find(&presented), TokenStatus::Valid(caller));
        assert_eq!(tokens.find(&[7; 32]), TokenStatus::Unknown);
        assert_eq!(tokens.apply(&record(true)).unwrap(), Applied::Changed);
        assert_eq!(tokens.find(&presented), TokenStatus::Revoked);
    }

    #[test]
    fn a_revoked_token_stays_revoked_in_any_order() {
        let mut tokens = EdgeTokens::default();
        for (revoked, applied) in [(true, Applied::Changed), (false, Applied::Older), (true, Applied::Older)]
        {
            assert_eq!(tokens.apply(&record(revoked)).unwrap(), applied);
            assert_eq!(tokens.find(&digest(DIGEST).unwrap()), TokenStatus::Revoked);
        }
    }

    #[test]
    fn an_invalid_digest_is_rejected() {
        for token_sha256 in
            ["", "9f86", &DIGEST.replace('9', "g"), &format!("+{}", &DIGEST[1..]), &"é".repeat(32)]
        {
            let record = EdgeToken { token_sha256: token_sha256.to_owned(), ..record(false) };
            assert!(matches!(EdgeTokens::default().apply(&record), Err(RecordError::Token(_))));
        }
    }
}
