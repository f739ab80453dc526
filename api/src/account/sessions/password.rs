//! Passwords: their rules, their hashes, and a limit on concurrent hashing.

use std::sync::Arc;
use std::time::Duration;

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher as _, PasswordVerifier as _};
use rand::Rng;
use rand::seq::IndexedRandom as _;
use serde::Deserialize;
use service::http::ApiError;
use tokio::sync::Semaphore;

/// Shortest password, in characters.
const MIN: usize = 12;

/// Longest password, in bytes: Argon2 reads all of it.
const MAX: usize = 1_024;

/// Passwords hashed at a time; each takes 19 MiB and one core.
const AT_A_TIME: usize = 2;

/// Passwords that may wait for their turn; further ones are answered 503 at once.
const MOST_WAITING: usize = 32;

/// How long a password waits for a permit before the answer is 503.
const WAIT: Duration = Duration::from_secs(10);

/// A hash that no password has. It is checked for unknown members, so that both answers take the same time.
const NOBODYS: &str = "$argon2id$v=19$m=19456,t=2,p=1$aG9wbGluZS1ub2JvZHk$\
    AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// Letters and digits that cannot be confused.
pub(super) const CLEAR: &[u8] = b"23456789abcdefghijkmnpqrstuvwxyz";

/// A password in plain text. It has no `Debug` and no `Display`.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub(crate) struct Password(String);

impl Password {
    /// Wraps a text.
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    /// The text to show, once.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

/// Checks a new password.
pub(crate) fn check_password(password: &Password) -> Result<(), String> {
    if password.0.chars().count() < MIN {
        return Err(format!("must have at least {MIN} characters"));
    }
    if password.0.len() > MAX {
        return Err(format!("must have at most {MAX} bytes"));
    }
    if password.0.chars().any(char::is_control) {
        return Err("must be one line without control characters".to_owned());
    }
    Ok(())
}

/// Draws a password: five groups of four characters, 100 bits.
pub(crate) fn draw_password(rng: &mut impl Rng) -> Password {
    let group =
        |rng: &mut _| (0..4).filter_map(|_| CLEAR.choose(rng)).map(|byte| char::from(*byte)).collect();
    let groups: Vec<String> = (0..5).map(|_| group(rng)).collect();
    Password(groups.join("-"))
}

/// Hashes passwords on blocking threads, a few at a time.
#[derive(Debug, Clone)]
pub(crate) struct Hashing {
    places: Arc<Semaphore>,
    turns: Arc<Semaphore>,
}

impl Default for Hashing {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(AT_A_TIME + MOST_WAITING)),
            turns: Arc::new(Semaphore::new(AT_A_TIME)),
        }
    }
}

impl Hashing {
    /// Hashes a password with Argon2id and a new salt, as a PHC string.
    ///
    /// # Errors
    /// 503 when too many wait.
    pub(crate) async fn hash(&self, password: Password) -> Result<String, ApiError> {
        self.work(move || {
            // The crate's defaults are OWASP's: 19 MiB, two passes, one lane.
            Argon2::default().hash_password(password.0.as_bytes()).map(|hash| hash.to_string())
        })
        .await?
        .map_err(|error| ApiError::internal(error.to_string()))
    }

    /// Returns whether a password matches a PHC string. Without one it never matches, in the same time.
    ///
    /// # Errors
    /// 503 when too many wait.
    pub(crate) async fn verify(&self, password: Password, hash: Option<String>) -> Result<bool, ApiError> {
        if password.0.len() > MAX {
            return Ok(false);
        }
        self.work(move || {
            let text = hash.as_deref().unwrap_or(NOBODYS);
            let is_it = PasswordHash::new(text)
                .is_ok_and(|known| Argon2::default().verify_password(password.0.as_bytes(), &known).is_ok());
            is_it && hash.is_some()
        })
        .await
    }

    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(ApiError::unavailable)?;
        let turn = tokio::time::timeout(WAIT, Arc::clone(&self.turns).acquire_owned());
        let turn = turn.await.map_err(ApiError::unavailable)?.map_err(ApiError::internal)?;
        let done = tokio::task::spawn_blocking(move || {
            // Held until the work is done, even if the request has ended.
            let _held = (place, turn);
            work()
        });
        done.await.map_err(ApiError::internal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password(text: &str) -> Password {
        Password::new(text.to_owned())
    }

    #[test]
    fn a_password_is_12_characters_to_1024_bytes_on_one_line() {
        for good in ["correct horse", &"ä".repeat(12), &"x".repeat(1_024), " 12 spaces  "] {
            assert!(check_password(&password(good)).is_ok(), "{good}");
        }
        for bad in ["", "elevenchars", &"x".repeat(1_025), "two lines\nof it", "with\u{0}nothing in it"] {
            assert!(check_password(&password(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_generated_password_is_valid_and_unique() {
        let (one, other) = (draw_password(&mut rand::rng()), draw_password(&mut rand::rng()));
        assert!(check_password(&one).is_ok());
        assert_eq!(one.reveal().len(), 24);
        assert_ne!(one.reveal(), other.reveal());
    }

    #[tokio::test]
    async fn a_hash_matches_only_its_password() {
        let hashing = Hashing::default();
        let hash = hashing.hash(password("correct horse")).await.unwrap();
        assert!(hash.starts_with("$argon2id$"));
        assert!(hashing.verify(password("correct horse"), Some(hash.clone())).await.unwrap());
        for wrong in ["correct hors", "", "Correct horse", &"x".repeat(2_000)] {
            assert!(!hashing.verify(password(wrong), Some(hash.clone())).await.unwrap());
            assert!(!hashing.verify(password(wrong), None).await.unwrap());
        }
        // As costly as a member's hash; otherwise the time would reveal members.
        let nobodys = PasswordHash::new(NOBODYS).unwrap();
        assert_eq!(nobodys.params.to_string(), PasswordHash::new(&hash).unwrap().params.to_string());
        assert_eq!(nobodys.hash.map(|hash| hash.len()), Some(32));
    }
}
