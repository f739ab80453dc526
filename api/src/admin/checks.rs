//! Checks of what a command line and standard input say.

use std::io::Read;

use anyhow::Context as _;
use service::config::{Fault, Faults};

use crate::account::sessions::password::{Client, Password, check_password};
use crate::app::App;
use crate::web::faults::check_name;

/// Most bytes that are read: a password has fewer.
const MOST: u64 = 4_096;

pub(super) async fn hashed_password(app: &App) -> anyhow::Result<String> {
    // Reading waits for the person who types.
    let read = tokio::task::spawn_blocking(|| read_password(std::io::stdin()));
    let password = read.await.context("reading the password")??;
    Ok(app.hashing.hash(Client::Operator, password).await?)
}

/// A value that no command line may have: wrong usage, like what the parser rejects.
pub(super) fn wrong(option: &str, fault: impl Into<String>) -> anyhow::Error {
    Faults::from(Fault::new(option, fault)).into()
}

pub(super) fn checked_name(name: &str) -> anyhow::Result<String> {
    let name = name.trim();
    check_name(name).map_err(|fault| wrong("--name", fault))?;
    Ok(name.to_owned())
}

/// Reads a password to the end of the input; the line break that ends it is not part of it.
fn read_password(input: impl Read) -> anyhow::Result<Password> {
    let mut text = String::new();
    input
        .take(MOST)
        .read_to_string(&mut text)
        .context("--password-stdin: cannot read the password from standard input")?;
    let password = text.strip_suffix('\n').unwrap_or(&text);
    let password = Password::new(password.strip_suffix('\r').unwrap_or(password).to_owned());
    check_password(&password).map_err(|fault| wrong("--password-stdin", format!("the password {fault}")))?;
    Ok(password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_read_without_its_line_break() {
        for input in ["correct horse", "correct horse\n", "correct horse\r\n"] {
            assert_eq!(read_password(input.as_bytes()).unwrap().reveal(), "correct horse");
        }
        assert_eq!(read_password(" 12 spaces  \n".as_bytes()).unwrap().reveal(), " 12 spaces  ");
        let long = "x".repeat(1_024);
        assert_eq!(read_password(format!("{long}\r\n").as_bytes()).unwrap().reveal(), long);
        for bad in ["", "\n", "elevenchars\n", "two\nlines of it\n", &format!("{long}x"), "with\u{0}nothing"]
        {
            assert!(read_password(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!(read_password(&b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe"[..]).is_err());
    }
}
