//! Members who sign in: the rules of their emails and passwords, and what is kept of a password.

use std::io::Read;

use anyhow::Context as _;
use argon2::Argon2;
use argon2::password_hash::PasswordHasher as _;

/// Longest email address: the path of RFC 5321 without its angle brackets, in bytes.
const MAX_EMAIL: usize = 254;

/// Longest part before the @, in bytes; RFC 5321.
const MAX_LOCAL: usize = 64;

/// Shortest password, in characters; NIST SP 800-63B.
const MIN_PASSWORD: usize = 8;

/// Longest password, in bytes: Argon2 reads all of it.
const MAX_PASSWORD: usize = 1_024;

/// Says what is wrong with an email address, or `Ok`. Whether it is somebody's, only a letter to it can tell.
pub(super) fn check_email(email: &str) -> Result<(), &'static str> {
    if email.len() > MAX_EMAIL {
        return Err("must have at most 254 bytes");
    }
    if email.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("must have no spaces and no control characters");
    }
    let (local, domain) = email.rsplit_once('@').ok_or("must have an @, such as ada@example.com")?;
    if local.is_empty() || local.len() > MAX_LOCAL || local.contains('@') {
        return Err("must have 1 to 64 bytes before one @");
    }
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_alphanumeric() || c == '-')
    };
    if domain.split('.').count() < 2 || !domain.split('.').all(is_label) {
        return Err("must have a domain behind the @, such as example.com");
    }
    Ok(())
}

/// Reads a password to the end of the input; the line break that ends it is not part of it.
pub(super) fn read_password(input: impl Read) -> anyhow::Result<String> {
    let mut text = String::new();
    // Room for a line break, and for one byte more that tells too long from just fitting.
    input
        .take(MAX_PASSWORD as u64 + 3)
        .read_to_string(&mut text)
        .context("--password-stdin: cannot read the password from standard input")?;
    let password = text.strip_suffix('\n').unwrap_or(&text);
    let password = password.strip_suffix('\r').unwrap_or(password);
    anyhow::ensure!(
        password.chars().count() >= MIN_PASSWORD,
        "--password-stdin: a password must have at least {MIN_PASSWORD} characters"
    );
    anyhow::ensure!(
        password.len() <= MAX_PASSWORD,
        "--password-stdin: a password must have at most {MAX_PASSWORD} bytes"
    );
    anyhow::ensure!(
        !password.chars().any(char::is_control),
        "--password-stdin: a password must be one line without control characters"
    );
    Ok(password.to_owned())
}

/// Hashes a password with Argon2id and a new salt, as a PHC string. Slow on purpose: run it where nothing waits.
pub(super) fn hash(password: &str) -> anyhow::Result<String> {
    // The crate's defaults are OWASP's: 19 MiB, two passes, one lane.
    let hash = Argon2::default()
        .hash_password(password.as_bytes())
        .map_err(|error| anyhow::anyhow!("hashing the password: {error}"))?;
    Ok(hash.to_string())
}

#[cfg(test)]
mod tests {
    use argon2::PasswordVerifier as _;
    use argon2::password_hash::phc::PasswordHash;

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
            "ada@[127.0.0.1]",
            &format!("{}@example.com", "a".repeat(65)),
            &format!("ada@{}.com", "a".repeat(250)),
        ] {
            assert!(check_email(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_password_is_one_line_without_its_end() {
        for input in ["correct horse", "correct horse\n", "correct horse\r\n"] {
            assert_eq!(read_password(input.as_bytes()).unwrap(), "correct horse");
        }
        assert_eq!(read_password(" 8 spaces \n".as_bytes()).unwrap(), " 8 spaces ");
        let long = "x".repeat(1_024);
        assert_eq!(read_password(format!("{long}\r\n").as_bytes()).unwrap(), long);
        for bad in ["", "\n", "seven77\n", "two\nlines of it\n", &format!("{long}x"), "with\u{0}nothing"] {
            assert!(read_password(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!(read_password(&b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe"[..]).is_err());
    }

    #[test]
    fn a_hash_is_argon2id_with_a_salt_of_its_own_and_verifies() {
        let (one, other) = (hash("correct horse").unwrap(), hash("correct horse").unwrap());
        assert!(one.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{one}");
        assert_ne!(one, other);
        let verify = |password: &str| {
            Argon2::default().verify_password(password.as_bytes(), &PasswordHash::new(&one).unwrap())
        };
        assert!(verify("correct horse").is_ok());
        assert!(verify("correct horsf").is_err());
    }
}
