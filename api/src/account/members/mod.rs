//! Members of an account, who can sign in and see all of its workspaces.

pub(crate) mod create;
pub(crate) mod list;
pub(crate) mod remove;
pub(crate) mod reset;
pub(crate) mod role;

use schemas::id::UserId;
use serde::Deserialize;
use service::http::ApiError;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::store::keys;
use crate::store::members::Outcome;
use crate::web::text::check_exact;

/// Longest email address: the path of RFC 5321 without its angle brackets, in bytes.
pub(crate) const MAX_EMAIL: usize = 254;

/// Longest part before the @, in bytes; RFC 5321.
const MAX_LOCAL: usize = 64;

/// Checks the form of an email address.
pub(crate) fn check_email(email: &str) -> Result<(), String> {
    if email.len() > MAX_EMAIL {
        return Err("must have at most 254 bytes".to_owned());
    }
    if email.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("must not contain spaces or control characters".to_owned());
    }
    check_exact(email)?;
    let (local, domain) = email.rsplit_once('@').ok_or("must have an @, such as ada@example.com")?;
    if local.is_empty() || local.len() > MAX_LOCAL || local.contains('@') {
        return Err("must have 1 to 64 bytes before one @".to_owned());
    }
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_alphanumeric() || c == '-')
    };
    if domain.split('.').count() < 2 || !domain.split('.').all(is_label) {
        return Err("must have a domain after the @, such as example.com".to_owned());
    }
    Ok(())
}

/// The query of a removal or a change of a role.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Keys {
    /// Whether to revoke the keys that the member created.
    #[serde(default = "yes")]
    revoke_keys: bool,
}

const fn yes() -> bool {
    true
}

impl Keys {
    /// Revokes the member's keys if the query asks for it. Returns how many.
    async fn settle(&self, transaction: &mut PgConnection, account: Uuid, id: UserId) -> sqlx::Result<u64> {
        if !self.revoke_keys {
            return Ok(0);
        }
        keys::revoke_of_member(transaction, account, id.uuid()).await
    }
}

/// Returns the error of an outcome other than success.
fn refused(outcome: &Outcome) -> Option<ApiError> {
    match outcome {
        Outcome::Done => None,
        Outcome::LastOwner => {
            Some(ApiError::forbidden("The account needs at least one owner who can sign in."))
        }
        Outcome::NoSuchMember => Some(no_such_member()),
    }
}

fn no_such_member() -> ApiError {
    ApiError::not_found("There is no such member in your account.")
}

/// The error for an email address that a member of any account has.
pub(crate) fn email_taken() -> ApiError {
    ApiError::email_taken("Another member already has this email address.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_email_has_a_local_part_and_a_domain() {
        for good in ["ada@example.com", "a.b+c@mail.example.co.uk", "ü@täst.example", "o'neil@example.com"]
        {
            assert_eq!(check_email(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "ada",
            "@example.com",
            "ada@",
            "ada@localhost",
            "ada@example.",
            "ada@.com",
            "ada@exa mple.com",
            "ada@-example.com",
            "a@b@example.com",
            "ada@example.com\n",
            "ada\u{200b}@example.com",
            "a\u{200c}da@example.com",
            "ada@exam\u{ad}ple.com",
            "ada@[127.0.0.1]",
            &format!("{}@example.com", "a".repeat(65)),
            &format!("ada@{}.com", "a".repeat(250)),
        ] {
            assert!(check_email(bad).is_err(), "{bad}");
        }
    }
}
