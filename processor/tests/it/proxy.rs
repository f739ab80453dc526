//! A way to ClickHouse that breaks where a test wants it to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tests::engines::Isolated;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// How an insert of clicks begins on the wire.
const INSERT: &[u8] = b"INSERT+INTO+clicks";

/// What happens to inserts of clicks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server gets all of it, and its answer is lost.
    SwallowAnswer,
    /// The server gets the beginning of it.
    CutRequest,
}

/// A proxy that harms the first inserts of clicks and passes everything else on.
pub(crate) struct Proxy {
    address: SocketAddr,
    left: Arc<AtomicUsize>,
}

impl Proxy {
    /// Listens on `listener` and harms `count` inserts.
    pub(crate) fn start(listener: TcpListener, isolated: &Isolated, fault: Fault, count: usize) -> Self {
        let address = listener.local_addr().unwrap();
        let left = Arc::new(AtomicUsize::new(count));
        let server = host(&isolated.clickhouse_url).to_owned();
        let harms = Arc::clone(&left);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                tokio::spawn(pass(client, server, fault, Arc::clone(&harms)));
            }
        });
        Self { address, left }
    }

    /// How many inserts are still to be harmed.
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

async fn pass(mut client: TcpStream, mut server: TcpStream, fault: Fault, left: Arc<AtomicUsize>) {
    let (mut request, mut answer) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let mut swallow = false;
    loop {
        tokio::select! {
            read = client.read(&mut request) => {
                let Ok(length @ 1..) = read else { return };
                let bytes = &request[..length];
                let is_insert = bytes.windows(INSERT.len()).any(|window| window == INSERT);
                let harm = is_insert
                    && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
                if harm && fault == Fault::CutRequest {
                    // Headers only: the server has seen that an insert was to come.
                    let _ = server.write_all(&bytes[..length / 2]).await;
                    return;
                }
                swallow |= harm;
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
