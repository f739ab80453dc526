//! HTTP clients that connect only to allowed destinations.
//!
//! The rules are in `service::destination`. A host name is resolved here, all its addresses are checked, and the
//! connection uses these addresses, so no second lookup can return others. A host that is an address is checked with
//! the URL, because it never reaches a resolver.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, redirect};
use service::destination::{AddressPolicy, DestinationError, DestinationRules};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use url::Url;

/// Timeout of DNS, connection and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an idle connection is kept; less than common servers keep it. No other limit: there are never more to a
/// host than requests were in flight at once, and a lower limit closes connections that the next deliveries need.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum concurrent lookups of recently resolved names. Each lookup blocks one of the runtime's 512 threads.
const MAX_RECENT_LOOKUPS: usize = 128;

/// Maximum concurrent lookups of other names, so that names whose servers hang do not delay the rest.
const MAX_OTHER_LOOKUPS: usize = 64;

/// How long a name counts as recently resolved.
const RECENT_PERIOD: Duration = Duration::from_secs(600);

/// Maximum remembered names.
const MAX_NAMES: usize = 20_000;

/// Maximum response headers; more fail the attempt.
const MAX_HEADERS: usize = 64;

/// A host name without an address.
#[derive(Debug, thiserror::Error)]
#[error("the host does not resolve")]
pub(crate) struct Unresolved(#[source] io::Error);

/// Clients by allowed destinations. They share no connections, so that a connection to an allowed network is never used
/// for another URL.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    rules: Arc<DestinationRules>,
    public: Client,
    allow_listed: Client,
}

impl Guard {
    /// Creates the clients.
    ///
    /// # Errors
    /// When TLS cannot be initialized.
    pub(crate) fn new(rules: DestinationRules) -> reqwest::Result<Self> {
        let rules = Arc::new(rules);
        let names = Arc::new(Names::new(system));
        let client = |reach| {
            Client::builder()
                .user_agent(concat!("Hopline-Webhooks/", env!("CARGO_PKG_VERSION")))
                // A redirect could lead to any destination, and a proxy would resolve the host itself.
                .redirect(redirect::Policy::none())
                .no_proxy()
                .referer(false)
                .http1_only()
                .http1_max_headers(MAX_HEADERS)
                .connect_timeout(CONNECT_TIMEOUT)
                .pool_idle_timeout(IDLE_TIMEOUT)
                .tcp_nodelay(true)
                .dns_resolver(Arc::new(Resolver {
                    rules: Arc::clone(&rules),
                    reach,
                    names: Arc::clone(&names),
                }))
                .build()
        };
        Ok(Self {
            public: client(AddressPolicy::Public)?,
            allow_listed: client(AddressPolicy::AllowListed)?,
            rules,
        })
    }

    /// Returns the client for a URL.
    ///
    /// # Errors
    /// When the URL itself breaks a rule.
    pub(crate) fn client(&self, url: &Url) -> Result<&Client, DestinationError> {
        Ok(match self.rules.check_url(url)? {
            AddressPolicy::Public => &self.public,
            AddressPolicy::AllowListed => &self.allow_listed,
        })
    }
}

/// Returns the addresses of this machine's interfaces, which webhooks must not reach: a public address of this machine
/// leads to its own services.
pub(crate) fn interface_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return vec![] };
    interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        })
        .collect()
}

/// A blocking lookup of a name's addresses.
type Lookup = fn(&str) -> io::Result<Vec<SocketAddr>>;

/// Looks a name up with the operating system.
fn system(name: &str) -> io::Result<Vec<SocketAddr>> {
    // The client replaces port 0 with the URL's port.
    (name, 0).to_socket_addrs().map(Iterator::collect)
}

/// Lookups of names with limited concurrency.
struct Names {
    look_up: Lookup,
    known: Arc<Semaphore>,
    others: Arc<Semaphore>,
    resolved: Mutex<HashMap<String, Instant>>,
}

impl Names {
    fn new(look_up: Lookup) -> Self {
        Self {
            look_up,
            known: Arc::new(Semaphore::new(MAX_RECENT_LOOKUPS)),
            others: Arc::new(Semaphore::new(MAX_OTHER_LOOKUPS)),
            resolved: Mutex::default(),
        }
    }

    async fn addresses(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        let permits = Arc::clone(if self.is_known(name) { &self.known } else { &self.others });
        let permit = permits.acquire_owned().await.map_err(io::Error::other)?;
        let (look_up, asked) = (self.look_up, name.to_owned());
        let found = spawn_blocking(move || {
            let found = look_up(&asked);
            // Released only now, because the thread may outlive the caller.
            drop(permit);
            found
        })
        .await
        .map_err(io::Error::other)??;
        self.note(name);
        Ok(found)
    }

    fn is_known(&self, name: &str) -> bool {
        let resolved = self.resolved.lock();
        resolved.get(name).is_some_and(|at| at.elapsed() < RECENT_PERIOD)
    }

    fn note(&self, name: &str) {
        let mut resolved = self.resolved.lock();
        if resolved.len() >= MAX_NAMES {
            resolved.clear();
        }
        resolved.insert(name.to_owned(), Instant::now());
    }
}

/// Resolves a name and rejects it when one of its addresses is forbidden.
struct Resolver {
    rules: Arc<DestinationRules>,
    reach: AddressPolicy,
    names: Arc<Names>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (rules, reach, names) = (Arc::clone(&self.rules), self.reach, Arc::clone(&self.names));
        Box::pin(async move {
            let addresses = names.addresses(name.as_str()).await.map_err(Unresolved)?;
            rules.check_addresses(reach, addresses.iter().map(SocketAddr::ip))?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    fn resolver(allow: &str, reach: AddressPolicy) -> Resolver {
        asking(system, allow, reach)
    }

    fn asking(look_up: Lookup, allow: &str, reach: AddressPolicy) -> Resolver {
        let rules = Arc::new(DestinationRules::new(allow.parse().unwrap(), None));
        Resolver { rules, reach, names: Arc::new(Names::new(look_up)) }
    }

    async fn resolve(resolver: &Resolver, name: &str) -> Result<Vec<SocketAddr>, String> {
        resolver
            .resolve(name.parse().unwrap())
            .await
            .map(Iterator::collect)
            .map_err(|error| error.downcast::<DestinationError>().unwrap().to_string())
    }

    #[tokio::test]
    async fn a_name_with_an_internal_address_is_rejected() {
        let refused = Err(DestinationError::Address.to_string());
        assert_eq!(resolve(&resolver("", AddressPolicy::Public), "localhost").await, refused);
        assert_eq!(resolve(&resolver("10.0.0.0/8", AddressPolicy::AllowListed), "localhost").await, refused);
    }

    #[tokio::test]
    async fn a_name_in_an_allowed_network_resolves() {
        let found =
            resolve(&resolver("127.0.0.0/8,::1/128", AddressPolicy::AllowListed), "localhost").await.unwrap();
        assert!(!found.is_empty() && found.iter().all(|address| address.ip().is_loopback()), "{found:?}");
    }

    fn addresses(hosts: &[&str]) -> Vec<SocketAddr> {
        hosts.iter().map(|host| SocketAddr::new(host.parse().unwrap(), 0)).collect()
    }

    #[tokio::test]
    async fn one_forbidden_address_rejects_the_name() {
        let mixed: Lookup = |_| Ok(addresses(&["93.184.216.34", "10.0.0.1"]));
        let refused = Err(DestinationError::Address.to_string());
        assert_eq!(resolve(&asking(mixed, "", AddressPolicy::Public), "mixed.example").await, refused);
        let none: Lookup = |_| Ok(vec![]);
        assert_eq!(resolve(&asking(none, "", AddressPolicy::Public), "none.example").await, refused);
    }

    #[tokio::test]
    async fn the_connection_uses_the_checked_lookup() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let rebinding: Lookup = |_| {
            let inside = ASKED.fetch_add(1, Ordering::SeqCst) > 0;
            Ok(addresses(if inside { &["127.0.0.1"] } else { &["93.184.216.34"] }))
        };
        let resolver = asking(rebinding, "", AddressPolicy::Public);
        let first = resolve(&resolver, "rebinding.example").await;
        // The client connects to the result of this one lookup.
        assert_eq!((first, ASKED.load(Ordering::SeqCst)), (Ok(addresses(&["93.184.216.34"])), 1));
        assert_eq!(resolve(&resolver, "rebinding.example").await, Err(DestinationError::Address.to_string()));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn hanging_lookups_do_not_delay_recently_resolved_names() {
        static RELEASED: AtomicBool = AtomicBool::new(false);
        let look_up: Lookup = |name| {
            while name.starts_with("hangs") && !RELEASED.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(5));
            }
            Ok(addresses(&["93.184.216.34"]))
        };
        let names = Arc::new(Names::new(look_up));
        names.addresses("known.example").await.unwrap();
        let hanging: Vec<_> = (0..3 * MAX_OTHER_LOOKUPS)
            .map(|number| {
                let names = Arc::clone(&names);
                tokio::spawn(async move { names.addresses(&format!("hangs{number}.example")).await })
            })
            .collect();
        while names.others.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        names.addresses("known.example").await.unwrap();
        // The thread of an aborted lookup still hangs and keeps its permit.
        hanging.iter().for_each(tokio::task::JoinHandle::abort);
        assert_eq!(names.others.available_permits(), 0);
        RELEASED.store(true, Ordering::SeqCst);
        names.addresses("new.example").await.unwrap();
    }

    #[test]
    fn the_machines_own_addresses_are_known() {
        assert!(interface_addresses().contains(&IpAddr::from([127, 0, 0, 1])));
    }
}
