//! A proxy in front of ClickHouse that breaks inserts.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tests::engines::Isolated;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// How the request of an insert of clicks begins; its rows follow in the body.
pub(crate) const CLICKS: &[u8] = b"INSERT+INTO+clicks";

/// How the request of the insert that activates rollups begins.
pub(crate) const SLICES: &[u8] = b"INSERT INTO slices";

/// How an insert is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server gets the whole insert, and its answer is lost.
    SwallowAnswer,
    /// The server gets only the beginning of the insert.
    CutRequest,
}

/// A proxy that breaks the first inserts of a kind and passes everything else on.
pub(crate) struct FaultyProxy {
    address: SocketAddr,
    left: Arc<AtomicUsize>,
}

impl FaultyProxy {
    /// Listens on `listener` and breaks `count` inserts of clicks.
    pub(crate) fn start(listener: TcpListener, isolated: &Isolated, fault: Fault, count: usize) -> Self {
        Self::breaking(CLICKS, listener, isolated, fault, count)
    }

    /// Listens on `listener` and breaks `count` inserts that begin like this.
    pub(crate) fn breaking(
        insert: &'static [u8],
        listener: TcpListener,
        isolated: &Isolated,
        fault: Fault,
        count: usize,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let left = Arc::new(AtomicUsize::new(count));
        let server = host(&isolated.clickhouse_url).to_owned();
        let faults_left = Arc::clone(&left);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                tokio::spawn(pass(insert, client, server, fault, Arc::clone(&faults_left)));
            }
        });
        Self { address, left }
    }

    /// Returns how many inserts will still be broken.
    pub(crate) fn left(&self) -> usize {
        self.left.load(Ordering::SeqCst)
    }

    /// The same engines, with ClickHouse behind the proxy.
    pub(crate) fn before(&self, isolated: &Isolated) -> Isolated {
        behind(isolated, self.address)
    }
}

/// The same engines, with ClickHouse at another address.
pub(crate) fn behind(isolated: &Isolated, address: SocketAddr) -> Isolated {
    let url = &isolated.clickhouse_url;
    let clickhouse_url = url.replace(host(url), &address.to_string());
    Isolated { clickhouse_url, ..isolated.clone() }
}

fn host(url: &str) -> &str {
    let rest = url.split_once("://").unwrap().1;
    let rest = rest.split_once('@').map_or(rest, |(_, rest)| rest);
    rest.split_once('/').map_or(rest, |(host, _)| host)
}

async fn pass(
    insert: &'static [u8],
    mut client: TcpStream,
    mut server: TcpStream,
    fault: Fault,
    left: Arc<AtomicUsize>,
) {
    let (mut request, mut answer) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let mut swallow = false;
    loop {
        tokio::select! {
            read = client.read(&mut request) => {
                let Ok(length @ 1..) = read else { return };
                let bytes = &request[..length];
                let is_insert = bytes.windows(insert.len()).any(|window| window == insert);
                let is_broken = is_insert
                    && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
                if is_broken && fault == Fault::CutRequest {
                    // The server has received the header of the insert and waits for the rest of its body.
                    let headers = bytes.windows(4).position(|window| window == b"\r\n\r\n").map_or(0, |end| end + 4);
                    let cut = headers + (length - headers) / 2;
                    let _ = server.write_all(&bytes[..cut]).await;
                    return;
                }
                swallow |= is_broken;
                if server.write_all(bytes).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answer) => {
                let Ok(length @ 1..) = read else { return };
                // The server answers at the end of the query, so now the rows are stored.
                if swallow || client.write_all(&answer[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}
