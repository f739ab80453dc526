//! Passwords: their rules, their hashes, and a limit on concurrent hashing.

use std::time::Duration;

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher as _, PasswordVerifier as _};
use rand::Rng;
use rand::seq::IndexedRandom as _;
use serde::Deserialize;
use service::http::ApiError;
use service::slots::{Full, Slots};
use uuid::Uuid;

use crate::store::permits::Permits;

/// Shortest password, in characters.
const MIN: usize = 12;

/// Longest password, in bytes: Argon2 reads all of it.
const MAX: usize = 1_024;

/// Passwords hashed at a time, one of each client; each takes 19 MiB and one core.
const AT_A_TIME: usize = 2;

/// Passwords that are hashed or wait for their turn: of one client, beyond which the answer is 429 at once, and of all
/// email addresses and all other clients, beyond which it is 503.
const MOST_OF_CLIENT: usize = 8;
const MOST_OF_EMAILS: usize = 24;
const MOST_OF_OTHERS: usize = 24;

/// How long a password waits for its turn before the answer is 503.
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

/// Who has passwords hashed, so that one of them does not hold up the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    /// The operator, and the set-up.
    Operator,
    /// The members of an account who are signed in.
    Account(Uuid),
    /// A member who signs in at a browser where that member signed in before.
    Member(Uuid),
    /// An email address with which somebody else signs in, known or not: otherwise waiting would show who is a member.
    Email(Uuid),
}

impl Client {
    /// Returns the client that signs in with an email address.
    pub(super) fn email(email: &str) -> Self {
        Self::Email(Uuid::new_v5(&Uuid::nil(), email.to_lowercase().as_bytes()))
    }

    const fn id(self) -> Uuid {
        match self {
            Self::Operator => Uuid::nil(),
            Self::Account(id) | Self::Member(id) | Self::Email(id) => id,
        }
    }
}

/// Hashes passwords on blocking threads, a few at a time.
#[derive(Debug, Clone)]
pub(crate) struct Hashing {
    /// Of [`Client::Email`], of which anyone can invent any number, and of the others.
    places: [Slots<Client>; 2],
    turns: Permits,
}

impl Default for Hashing {
    fn default() -> Self {
        Self {
            places: [Slots::new(MOST_OF_EMAILS), Slots::new(MOST_OF_OTHERS)],
            turns: Permits::new(1, AT_A_TIME),
        }
    }
}

impl Hashing {
    /// Hashes a password with Argon2id and a new salt, as a PHC string.
    ///
    /// # Errors
    /// 429 when too many of the client wait, 503 when too many of all do.
    pub(crate) async fn hash(&self, client: Client, password: Password) -> Result<String, ApiError> {
        self.work(client, move || {
            // The crate's defaults are OWASP's: 19 MiB, two passes, one lane.
            Argon2::default().hash_password(password.0.as_bytes()).map(|hash| hash.to_string())
        })
        .await?
        .map_err(|error| ApiError::internal(error.to_string()))
    }

    /// Returns whether a password matches a PHC string. Without one it never matches, in the same time.
    ///
    /// # Errors
    /// 429 when too many of the client wait, 503 when too many of all do.
    pub(crate) async fn verify(
        &self,
        client: Client,
        password: Password,
        hash: Option<String>,
    ) -> Result<bool, ApiError> {
        if password.0.len() > MAX {
            return Ok(false);
        }
        self.work(client, move || {
            let text = hash.as_deref().unwrap_or(NOBODYS);
            let is_it = PasswordHash::new(text)
                .is_ok_and(|known| Argon2::default().verify_password(password.0.as_bytes(), &known).is_ok());
            is_it && hash.is_some()
        })
        .await
    }

    async fn work<T: Send + 'static>(
        &self,
        client: Client,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let [of_emails, of_others] = &self.places;
        let places = if matches!(client, Client::Email(_)) { of_emails } else { of_others };
        let place = places.take(client, MOST_OF_CLIENT).map_err(|full| match full {
            Full::Owner => ApiError::rate_limited("Too many passwords are checked at a time. Try again.")
                .with_retry_after(Duration::from_secs(1)),
            Full::All => ApiError::unavailable("too many passwords wait to be hashed"),
        })?;
        let turn =
            tokio::time::timeout(WAIT, self.turns.take(client.id())).await.map_err(ApiError::unavailable)?;
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
    use std::sync::Arc;
    use std::sync::mpsc::Sender;

    use parking_lot::Mutex;
    use tokio::task::JoinSet;

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

    /// Occupies all places of some clients until the sender is dropped.
    async fn occupied(hashing: &Hashing, clients: &[Client]) -> (Sender<()>, JoinSet<bool>) {
        let (end, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let mut work = JoinSet::new();
        for client in clients.iter().flat_map(|client| [*client; MOST_OF_CLIENT]) {
            let (hashing, held) = (hashing.clone(), Arc::clone(&held));
            work.spawn(
                async move { hashing.work(client, move || held.lock().recv().is_err()).await.unwrap() },
            );
        }
        while hashing.places.iter().map(Slots::total).sum::<usize>() < work.len() {
            tokio::task::yield_now().await;
        }
        (end, work)
    }

    #[tokio::test]
    async fn one_client_has_a_turn_and_eight_places_and_leaves_the_others_theirs() {
        let hashing = Hashing::default();
        let (greedy, modest) = (Client::Account(Uuid::from_u128(1)), Client::email("Ada@example.com"));
        let (end, work) = occupied(&hashing, &[greedy]).await;
        assert_eq!(hashing.work(greedy, || ()).await.unwrap_err().status(), 429);
        assert_eq!(hashing.work(modest, || 7).await.unwrap(), 7, "before those that wait");
        assert_eq!(Client::email("ada@example.com"), modest);
        drop(end);
        assert!(work.join_all().await.into_iter().all(|ended| ended));
    }

    #[tokio::test]
    async fn invented_emails_take_no_place_of_members() {
        let hashing = Hashing::default();
        let invented = ["a", "b", "c"].map(Client::email);
        let (end, work) = occupied(&hashing, &invented).await;
        assert_eq!(hashing.work(Client::email("d"), || ()).await.unwrap_err().status(), 503);
        let member = hashing.clone();
        let member = tokio::spawn(async move { member.work(Client::Member(Uuid::from_u128(1)), || 7).await });
        drop(end);
        assert_eq!(member.await.unwrap().unwrap(), 7);
        work.join_all().await;
    }

    #[tokio::test]
    async fn a_hash_matches_only_its_password() {
        let hashing = Hashing::default();
        let hash = hashing.hash(Client::Operator, password("correct horse")).await.unwrap();
        assert!(hash.starts_with("$argon2id$"));
        let verify = async |text: &str, hash: Option<&String>| {
            hashing.verify(Client::Operator, password(text), hash.cloned()).await.unwrap()
        };
        assert!(verify("correct horse", Some(&hash)).await);
        for wrong in ["correct hors", "", "Correct horse", &"x".repeat(2_000)] {
            assert!(!verify(wrong, Some(&hash)).await);
            assert!(!verify(wrong, None).await);
        }
        // As costly as a member's hash; otherwise the time would reveal members.
        let nobodys = PasswordHash::new(NOBODYS).unwrap();
        assert_eq!(nobodys.params.to_string(), PasswordHash::new(&hash).unwrap().params.to_string());
        assert_eq!(nobodys.hash.map(|hash| hash.len()), Some(32));
    }
}
