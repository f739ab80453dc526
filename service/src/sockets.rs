//! Ends connections of this process, whichever library holds them.

use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::RawFd;
use std::{fs, io};

use nix::sys::socket::{Shutdown, SockaddrStorage, getpeername, shutdown};

/// Shuts down TCP connections to the peers that `is_meant` returns true for, and returns their number.
///
/// Whatever waits on one gets the end of the stream at once. For libraries that wait without a limit and let nobody set
/// the socket's own timeouts.
///
/// # Errors
/// When the process cannot list its files.
pub(crate) fn shut_down(is_meant: impl Fn(SocketAddr) -> bool) -> io::Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let Some(file) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // The file may be closed, and its number in use again, between the two calls. Then a connection is lost that
        // was just opened, which all must expect of a connection.
        if peer(file).is_some_and(&is_meant) && shutdown(file, Shutdown::Both).is_ok() {
            count += 1;
        }
    }
    Ok(count)
}

/// Returns the peer of a TCP connection; `None` for any other file.
fn peer(file: RawFd) -> Option<SocketAddr> {
    let peer: SockaddrStorage = getpeername(file).ok()?;
    let v4 = || peer.as_sockaddr_in().map(|peer| SocketAddrV4::from(*peer).into());
    let v6 = || peer.as_sockaddr_in6().map(|peer| SocketAddrV6::from(*peer).into());
    v4().or_else(v6)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_shut_connection_ends_and_others_stay_open() {
        for host in ["127.0.0.1", "::1"] {
            let [chosen, other] =
                [TcpListener::bind((host, 0)).await.unwrap(), TcpListener::bind((host, 0)).await.unwrap()];
            let mut to_chosen = TcpStream::connect(chosen.local_addr().unwrap()).await.unwrap();
            let to_other = TcpStream::connect(other.local_addr().unwrap()).await.unwrap();
            let address = chosen.local_addr().unwrap();
            assert_eq!(shut_down(|peer| peer == address).unwrap(), 1);
            assert_eq!(to_chosen.read(&mut [0]).await.unwrap(), 0);
            assert_eq!(to_other.try_read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
    }
}
