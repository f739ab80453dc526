//! Addresses for servers of a test.

use std::net::{Ipv4Addr, SocketAddr};

use devstack::ports;

/// Returns an address of this machine on a port without a listener.
///
/// # Panics
/// When no port is available.
pub fn free_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free().unwrap()))
}
