//! TCP ports that are free at this moment.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Error, random};

/// Where free ports are drawn from: below the range that Linux takes outgoing connections' ports from (32768 and
/// up), so that a connection cannot take a drawn port before its server binds it.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// The ports this process has given out, each with its claim: two servers that start at once never get the same one.
static GIVEN: Mutex<BTreeMap<u16, UnixListener>> = Mutex::new(BTreeMap::new());

/// Returns `preferred` when nobody listens on it, else a free port.
///
/// # Errors
/// [`Error::Missing`] when no free port was found.
pub fn prefer(preferred: u16) -> Result<u16, Error> {
    if preferred != 0 && is_free(preferred) && give(preferred) {
        return Ok(preferred);
    }
    free()
}

/// Returns a port that nobody listens on and that no running process has given out.
///
/// # Errors
/// [`Error::Missing`] when no free port was found.
pub fn free() -> Result<u16, Error> {
    // Drawn at random: two programs that look at the same moment must not find the same port.
    for _ in 0..200 {
        let port = FIRST + u16::from_ne_bytes(random::bytes()?) % COUNT;
        if is_free(port) && give(port) {
            return Ok(port);
        }
    }
    Err(Error::Missing { what: "a free TCP port".to_owned(), remedy: "stop some servers".to_owned() })
}

/// Whether a server could listen on the port now, on every IPv4 address.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}

/// Gives a port back that its server no longer needs.
pub fn give_back(port: u16) {
    given().remove(&port);
}

/// Claims the port until it is given back or this process ends; false when it is claimed already.
fn give(port: u16) -> bool {
    // An abstract name is free again however its process ends, and every account of the machine sees it.
    let claim = SocketAddr::from_abstract_name(format!("hopline-devstack-port-{port}"))
        .and_then(|name| UnixListener::bind_addr(&name));
    claim.is_ok_and(|claim| given().insert(port, claim).is_none())
}

fn given() -> MutexGuard<'static, BTreeMap<u16, UnixListener>> {
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_free_preferred_port_is_taken() {
        let port = free().unwrap();
        give_back(port);
        assert_eq!(prefer(port).unwrap(), port);
    }

    #[test]
    fn a_busy_preferred_port_is_replaced() {
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let busy = held.local_addr().unwrap().port();
        let port = prefer(busy).unwrap();
        assert_ne!(port, busy);
        assert!(is_free(port));
    }

    #[test]
    fn a_port_is_given_out_once() {
        let given: BTreeSet<u16> = (0..50).map(|_| free().unwrap()).collect();
        assert_eq!(given.len(), 50);
    }

    #[test]
    fn a_port_that_another_process_has_claimed_is_not_given_out() {
        let port = free().unwrap();
        give_back(port);
        let name = SocketAddr::from_abstract_name(format!("hopline-devstack-port-{port}")).unwrap();
        let _claim = UnixListener::bind_addr(&name).unwrap();
        assert!(is_free(port));
        assert_ne!(prefer(port).unwrap(), port);
    }
}
