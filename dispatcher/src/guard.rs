//! The HTTP clients that reach only where webhooks may go.
//!
//! The rules are `service::destination`'s. A host name is resolved here, all of its addresses are judged, and the
//! connection goes to those addresses: there is no second look-up that could answer otherwise. A host that is an
//! address never reaches a resolver, so it is judged with the URL.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use reqwest::{
    Client,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect,
};
use service::destination::{DestinationRules, Reach, Refused};
use url::Url;

/// What DNS, connection and TLS may take of an attempt's time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an idle connection is kept for the next delivery; less than common servers keep theirs.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Response headers beyond this number fail the attempt.
const MAX_HEADERS: usize = 64;

/// A host name that has no address.
#[derive(Debug, thiserror::Error)]
#[error("the host does not resolve")]
pub(crate) struct Unresolved(#[source] io::Error);

/// Clients by what they may reach. They share nothing, so that a connection to an allowed network is never used
/// for a URL that must not have it.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    rules: Arc<DestinationRules>,
    public: Client,
    allow_listed: Client,
}

impl Guard {
    /// Makes the clients.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub(crate) fn new(rules: DestinationRules) -> reqwest::Result<Self> {
        let rules = Arc::new(rules);
        let client = |reach| {
            Client::builder()
                .user_agent(concat!("Hopline-Webhooks/", env!("CARGO_PKG_VERSION")))
                // A redirect could lead anywhere, and a proxy would resolve the host itself.
                .redirect(redirect::Policy::none())
                .no_proxy()
                .referer(false)
                .http1_only()
                .http1_max_headers(MAX_HEADERS)
                .connect_timeout(CONNECT_TIMEOUT)
                .pool_idle_timeout(IDLE_TIMEOUT)
                .dns_resolver(Arc::new(Resolver { rules: Arc::clone(&rules), reach }))
                .build()
        };
        Ok(Self { public: client(Reach::Public)?, allow_listed: client(Reach::AllowListed)?, rules })
    }

    /// Returns the client for a URL.
    ///
    /// # Errors
    /// When the URL breaks a rule, whatever its host resolves to.
    pub(crate) fn client(&self, url: &Url) -> Result<&Client, Refused> {
        Ok(match self.rules.check_url(url)? {
            Reach::Public => &self.public,
            Reach::AllowListed => &self.allow_listed,
        })
    }
}

/// Resolves a name and refuses it when one of its addresses is forbidden.
struct Resolver {
    rules: Arc<DestinationRules>,
    reach: Reach,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (rules, reach) = (Arc::clone(&self.rules), self.reach);
        Box::pin(async move {
            // The client replaces port 0 by the URL's.
            let found = tokio::net::lookup_host((name.as_str(), 0)).await.map_err(Unresolved)?;
            let addresses: Vec<SocketAddr> = found.collect();
            rules.check_addresses(reach, addresses.iter().map(SocketAddr::ip))?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolver(allow: &str, reach: Reach) -> Resolver {
        Resolver { rules: Arc::new(DestinationRules::new(allow.parse().unwrap(), None)), reach }
    }

    async fn resolve(resolver: &Resolver, name: &str) -> Result<Vec<SocketAddr>, String> {
        resolver
            .resolve(name.parse().unwrap())
            .await
            .map(Iterator::collect)
            .map_err(|error| error.downcast::<Refused>().unwrap().to_string())
    }

    #[tokio::test]
    async fn a_name_that_leads_inside_is_refused_when_it_is_resolved() {
        let refused = Err(Refused::Address.to_string());
        assert_eq!(resolve(&resolver("", Reach::Public), "localhost").await, refused);
        assert_eq!(resolve(&resolver("10.0.0.0/8", Reach::AllowListed), "localhost").await, refused);
    }

    #[tokio::test]
    async fn a_name_in_an_allowed_network_resolves() {
        let found = resolve(&resolver("127.0.0.0/8,::1/128", Reach::AllowListed), "localhost").await.unwrap();
        assert!(!found.is_empty() && found.iter().all(|address| address.ip().is_loopback()), "{found:?}");
    }
}
