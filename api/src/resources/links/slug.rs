//! Slugs: the path segment of a short link.

use rand::Rng;
use rand::seq::IndexedRandom as _;

/// Longest slug, in characters.
const MAX_LEN: usize = 64;

/// Characters of a generated slug: 54^7 is about 1.3 × 10^12.
const GENERATED_LEN: usize = 7;

/// Letters and digits without those that look like others (0 O, 1 I l, o).
const CLEAR: &[u8] = b"23456789abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ";

/// Paths that the edge or the API keeps for itself, in whatever case: some proxies compare paths without it.
const RESERVED: &[&str] =
    &["api", "app", "healthz", "readyz", "metrics", "robots.txt", "favicon.ico", ".well-known"];

/// What is wrong with a slug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlugFault {
    /// A path of our own.
    Reserved,
    /// No slug at all, and why.
    Malformed(&'static str),
}

impl SlugFault {
    /// The fault in words.
    pub(super) const fn message(self) -> &'static str {
        match self {
            Self::Reserved => "is reserved",
            Self::Malformed(message) => message,
        }
    }
}

/// Checks a slug that a caller gave.
pub(crate) fn check_slug(slug: &str) -> Result<(), SlugFault> {
    if slug.is_empty() || slug.len() > MAX_LEN {
        return Err(SlugFault::Malformed("must have 1 to 64 characters"));
    }
    if is_reserved(slug) {
        return Err(SlugFault::Reserved);
    }
    if !slug.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-') {
        return Err(SlugFault::Malformed("may have letters A-Z and a-z, digits, _ and - only"));
    }
    Ok(())
}

fn is_reserved(slug: &str) -> bool {
    RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(slug))
}

/// Draws a slug at random; it may be taken.
pub(super) fn draw(rng: &mut impl Rng) -> String {
    first_free(|| {
        // Choosing from a slice that is not empty gives Some.
        (0..GENERATED_LEN).filter_map(|_| CLEAR.choose(rng)).map(|byte| char::from(*byte)).collect()
    })
}

/// Draws until a slug is not reserved: `metrics` is as long as they are.
fn first_free(mut draw: impl FnMut() -> String) -> String {
    loop {
        let slug = draw();
        if !is_reserved(&slug) {
            return slug;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slug_has_letters_digits_underscore_and_hyphen() {
        for good in ["a", "A-1_b", &"x".repeat(64), "APIs", "7"] {
            assert_eq!(check_slug(good), Ok(()), "{good}");
        }
        for bad in ["", "a b", "a/b", "ä", "a.b", "a%20", &"x".repeat(65), "a\0", "apı"] {
            assert!(matches!(check_slug(bad), Err(SlugFault::Malformed(_))), "{bad}");
        }
    }

    #[test]
    fn a_reserved_word_is_reserved_in_any_case() {
        for reserved in RESERVED {
            let capital = reserved[..1].to_uppercase() + &reserved[1..];
            for slug in [*reserved, &reserved.to_uppercase(), &capital] {
                assert_eq!(check_slug(slug), Err(SlugFault::Reserved), "{slug}");
            }
        }
    }

    #[test]
    fn a_reserved_word_is_not_drawn() {
        let mut drawn = ["metrics", "HEALTHZ", "abcdefg"].into_iter();
        assert_eq!(first_free(|| drawn.next().unwrap().to_owned()), "abcdefg");
    }

    #[test]
    fn a_generated_slug_has_no_look_alikes() {
        for _ in 0..200 {
            let slug = draw(&mut rand::rng());
            assert_eq!(slug.len(), GENERATED_LEN);
            assert_eq!(check_slug(&slug), Ok(()));
            assert!(!slug.contains(['0', 'O', '1', 'I', 'l', 'o']), "{slug}");
        }
    }
}
