//! Random bytes from the operating system.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::Error;

/// Returns `N` random bytes, good enough for secrets.
///
/// # Errors
/// [`Error::File`] when the system's generator cannot be read.
pub fn bytes<const N: usize>() -> Result<[u8; N], Error> {
    let source = Path::new("/dev/urandom");
    let mut bytes = [0; N];
    File::open(source)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Error::file("read", source))?;
    Ok(bytes)
}

/// Returns `N` random bytes as `2 N` hex digits.
///
/// # Errors
/// As [`bytes`].
pub fn hex<const N: usize>() -> Result<String, Error> {
    Ok(bytes::<N>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_has_two_random_digits_per_byte() {
        let first = hex::<32>().unwrap();
        assert_eq!(first.len(), 64);
        assert!(first.chars().all(|digit| digit.is_ascii_hexdigit()));
        assert_ne!(first, hex::<32>().unwrap());
    }
}
