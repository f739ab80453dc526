//! Free TCP ports.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use parking_lot::Mutex;

use crate::{Error, random};

/// The range of ports: below the range of outgoing connections (from 32768 on Linux), which could take a port before
/// its server binds it.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// The ports that this process has reserved, each with the socket that reserves it on this machine.
static RESERVED: Mutex<BTreeMap<u16, UnixListener>> = Mutex::new(BTreeMap::new());

/// Reserves `preferred` when it is free, or else another port.
///
/// # Errors
/// [`Error::Missing`] when no free port was found.
pub fn prefer(preferred: u16) -> Result<u16, Error> {
    if preferred != 0 && is_free(preferred) && reserve(preferred) {
        return Ok(preferred);
    }
    free()
}

/// Reserves a port that nobody listens on and that no running process has reserved.
///
/// # Errors
/// [`Error::Missing`] when no free port was found.
pub fn free() -> Result<u16, Error> {
    free_in_a_row(1)
}

/// Reserves as many ports in a row, and returns the first.
///
/// # Errors
/// [`Error::Missing`] when none were found.
pub fn free_in_a_row(count: u16) -> Result<u16, Error> {
    for _ in 0..200 {
        let first = FIRST + u16::from_ne_bytes(random::bytes()?) % COUNT;
        let reserved: Vec<u16> =
            (first..first + count).take_while(|port| is_free(*port) && reserve(*port)).collect();
        if reserved.len() == usize::from(count) {
            return Ok(first);
        }
        reserved.into_iter().for_each(release);
    }
    Err(Error::Missing { what: "a free TCP port".to_owned(), remedy: "stop some servers".to_owned() })
}

/// Returns whether a server could listen on the port now, on every IPv4 address.
fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}

/// Releases a port that its server no longer needs.
pub fn release(port: u16) {
    RESERVED.lock().remove(&port);
}

/// Reserves the port until it is released or this process ends; false when it is reserved already.
fn reserve(port: u16) -> bool {
    // The kernel frees an abstract socket however its process ends, and all accounts share the names.
    let socket = SocketAddr::from_abstract_name(format!("hopline-devstack-port-{port}"))
        .and_then(|name| UnixListener::bind_addr(&name));
    socket.is_ok_and(|socket| RESERVED.lock().insert(port, socket).is_none())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_free_preferred_port_is_taken() {
        let port = free().unwrap();
        release(port);
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
    fn a_port_is_reserved_once() {
        let ports: BTreeSet<u16> = (0..50).map(|_| free().unwrap()).collect();
        assert_eq!(ports.len(), 50);
    }

    #[test]
    fn a_port_reserved_by_another_process_is_skipped() {
        let port = free().unwrap();
        release(port);
        let name = SocketAddr::from_abstract_name(format!("hopline-devstack-port-{port}")).unwrap();
        let _socket = UnixListener::bind_addr(&name).unwrap();
        assert!(is_free(port));
        assert_ne!(prefer(port).unwrap(), port);
    }
}
