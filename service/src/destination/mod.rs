//! Rules for the URLs and addresses of webhooks, against server-side request forgery (SSRF).
//!
//! The API checks URLs when an endpoint is created or changed; the dispatcher also checks the host's addresses before
//! every attempt. By default, only https and public addresses are allowed. An operator's allow-list adds networks that
//! webhooks may also reach over http and on any port. Cloud metadata addresses are never allowed.

mod address;

use std::net::{IpAddr, Ipv4Addr};

use address::{embedded_v4, is_metadata, is_public};
use url::{Host, Url};

use crate::config::Cidrs;

/// Maximum length of a URL in bytes.
const MAX_URL_LEN: usize = 2048;

/// Ports below this are denied, except for [`LOW_PORTS`].
const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

/// The privileged ports of web servers.
const LOW_PORTS: [u16; 2] = [80, 443];

/// Unprivileged ports of daemons that may execute an HTTP request as a command: Docker and etcd, MySQL, Postgres,
/// Redis, ClickHouse (both), Kafka, Elasticsearch, memcached, MongoDB.
const DAEMON_PORTS: [u16; 15] =
    [2375, 2376, 2377, 2378, 2379, 2380, 3306, 5432, 6379, 8123, 9000, 9092, 9200, 11211, 27017];

/// The rule that a URL breaks, as a predicate of "The URL". The texts contain no address, because the owner of the
/// endpoint may read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DestinationError {
    /// Neither https, nor http to an allowed network.
    #[error("must start with https://")]
    Scheme,
    /// The URL has no host.
    #[error("must have a host")]
    Host,
    /// The URL has a user name or a password.
    #[error("must not contain a user name or a password")]
    UserInfo,
    /// Longer than 2048 bytes.
    #[error("must have at most {MAX_URL_LEN} bytes")]
    TooLong,
    /// The port belongs to another kind of server.
    #[error("must not use a port of another kind of server")]
    Port,
    /// A short link of this deployment, whose clicks would cause further clicks.
    #[error("must not point to this service")]
    OwnHost,
    /// The host has no address, or one that is not on the public internet.
    #[error("must point to a public address")]
    Address,
}

/// The addresses that a URL may be sent to, by its scheme and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressPolicy {
    /// Public addresses and the operator's allow-list.
    Public,
    /// Only the allow-list, because the URL uses http or the port of another kind of server.
    AllowListed,
}

/// The rules of a deployment.
#[derive(Debug, Clone, Default)]
pub struct DestinationRules {
    allowed: Cidrs,
    own_site: Option<(String, u16)>,
    denied: Vec<IpAddr>,
}

impl DestinationRules {
    /// Returns rules with the allow-list `allowed`. `short_url` is the base URL of this deployment's short links.
    #[must_use]
    pub fn new(allowed: Cidrs, short_url: Option<&Url>) -> Self {
        Self { allowed, own_site: short_url.and_then(site), denied: vec![] }
    }

    /// Denies further addresses unless the allow-list has them, for the addresses of this machine.
    #[must_use]
    pub fn with_denied_addresses(mut self, addresses: Vec<IpAddr>) -> Self {
        self.denied = addresses.into_iter().map(|address| address.to_canonical()).collect();
        self
    }

    /// Checks a URL without DNS. A host that is an address is checked too.
    ///
    /// # Errors
    /// The first rule that the URL breaks.
    pub fn check_url(&self, url: &Url) -> Result<AddressPolicy, DestinationError> {
        if url.as_str().len() > MAX_URL_LEN {
            return Err(DestinationError::TooLong);
        }
        let strict_scheme = match url.scheme() {
            "https" => true,
            "http" if !self.allowed.is_empty() => false,
            _ => return Err(DestinationError::Scheme),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(DestinationError::UserInfo);
        }
        let (site, port) = site(url).zip(url.port_or_known_default()).ok_or(DestinationError::Host)?;
        if self.own_site.as_ref() == Some(&site) {
            return Err(DestinationError::OwnHost);
        }
        let strict_port = allows_port(port);
        if !strict_port && self.allowed.is_empty() {
            return Err(DestinationError::Port);
        }
        let policy =
            if strict_scheme && strict_port { AddressPolicy::Public } else { AddressPolicy::AllowListed };
        if let Some(address) = literal(url).or_else(|| loopback(url))
            && !self.permits(policy, address)
        {
            // When the address itself is allowed, the scheme or the port is not.
            return Err(match self.permits(AddressPolicy::Public, address) {
                true if !strict_scheme => DestinationError::Scheme,
                true => DestinationError::Port,
                false => DestinationError::Address,
            });
        }
        Ok(policy)
    }

    /// Checks all addresses that a URL's host resolved to; a single denied one denies the host.
    ///
    /// # Errors
    /// [`DestinationError::Address`], also when there is no address.
    pub fn check_addresses(
        &self,
        policy: AddressPolicy,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Result<(), DestinationError> {
        let mut any = false;
        for address in addresses {
            if !self.permits(policy, address) {
                return Err(DestinationError::Address);
            }
            any = true;
        }
        if any { Ok(()) } else { Err(DestinationError::Address) }
    }

    /// Returns whether connections to an address are allowed.
    #[must_use]
    pub fn permits(&self, policy: AddressPolicy, address: IpAddr) -> bool {
        // `::ffff:a.b.c.d` connects to a.b.c.d.
        let canonical = address.to_canonical();
        if is_metadata(canonical) {
            return false;
        }
        let allow_listed = self.allowed.contains(canonical);
        match policy {
            AddressPolicy::Public => {
                allow_listed || (is_public(address) && !self.denied.contains(&canonical))
            }
            AddressPolicy::AllowListed => allow_listed,
        }
    }
}

/// Returns the address when a URL's host is one; it is never resolved.
fn literal(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(address) => Some(IpAddr::V4(address)),
        Host::Ipv6(address) => Some(IpAddr::V6(address)),
        Host::Domain(_) => None,
    }
}

/// Returns the loopback address for `localhost` and names below it (RFC 6761).
fn loopback(url: &Url) -> Option<IpAddr> {
    let name = host_name(url)?;
    (name == "localhost" || name.ends_with(".localhost")).then_some(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

fn allows_port(port: u16) -> bool {
    LOW_PORTS.contains(&port) || (port >= FIRST_UNPRIVILEGED_PORT && !DAEMON_PORTS.contains(&port))
}

/// Returns a URL's host in the one spelling in which hosts are compared: in lower case, without a trailing dot, an IPv4
/// address as such wherever an IPv6 address stands for it.
#[must_use]
pub fn host_name(url: &Url) -> Option<String> {
    if let Host::Ipv6(address) = url.host()?
        && let Some(address) = embedded_v4(address)
    {
        return Some(address.to_string());
    }
    let host = url.host_str()?.trim_end_matches('.').to_ascii_lowercase();
    (!host.is_empty()).then_some(host)
}

/// Returns host and port, by which two URLs are of the same site in every spelling.
///
/// The port is 443 for 80, because http on a host usually redirects to https.
#[must_use]
pub fn site(url: &Url) -> Option<(String, u16)> {
    let port = url.port_or_known_default()?;
    Some((host_name(url)?, if port == 80 { 443 } else { port }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    fn strict() -> DestinationRules {
        DestinationRules::new(Cidrs::default(), Some(&url("https://hop.example")))
    }

    fn allowing_loopback() -> DestinationRules {
        DestinationRules::new(
            "127.0.0.0/8,::1/128,169.254.0.0/16".parse().unwrap(),
            Some(&url("http://127.0.0.1:8081")),
        )
    }

    #[test]
    fn public_https_urls_are_allowed() {
        for good in [
            "https://hooks.example/in?x=1",
            "https://hooks.example:8443/",
            "https://hooks.example:3000/",
            "https://93.184.216.34/",
            "https://[2606:4700::1111]/",
        ] {
            assert_eq!(strict().check_url(&url(good)), Ok(AddressPolicy::Public), "{good}");
        }
    }

    #[test]
    fn the_broken_rule_is_returned() {
        let long = format!("https://hooks.example/{}", "a".repeat(MAX_URL_LEN));
        for (bad, error) in [
            ("http://hooks.example/", DestinationError::Scheme),
            ("ftp://hooks.example/", DestinationError::Scheme),
            ("file:///etc/passwd", DestinationError::Scheme),
            ("https://user@hooks.example/", DestinationError::UserInfo),
            ("https://:pw@hooks.example/", DestinationError::UserInfo),
            ("https://hooks.example:22/", DestinationError::Port),
            ("https://hooks.example:6379/", DestinationError::Port),
            ("https://hooks.example:2377/", DestinationError::Port),
            ("https://hop.example/abc", DestinationError::OwnHost),
            ("https://HOP.example./abc", DestinationError::OwnHost),
            ("https://hop.example:80/abc", DestinationError::OwnHost),
            (&long, DestinationError::TooLong),
        ] {
            assert_eq!(strict().check_url(&url(bad)), Err(error), "{bad}");
        }
    }

    #[test]
    fn private_addresses_are_rejected_in_every_spelling() {
        for host in [
            "127.0.0.1",
            "127.1",
            "0x7f.1",
            "0x7f000001",
            "2130706433",
            "017700000001",
            "１２７.0.0.1",
            "127.0.0.1.",
            "localhost",
            "LocalHost.",
            "hooks.localhost",
            "0",
            "10.1.2.3",
            "100.64.0.1",
            "169.254.169.254",
            "172.31.255.255",
            "192.168.0.1",
            "198.19.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "168.63.129.16",
            "192.0.0.192",
            "[::]",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:8.8.8.8]",
            "[::8.8.8.8]",
            "[64:ff9b::7f00:1]",
            "[64:ff9b:1::1]",
            "[2001::1]",
            "[2001:db8::1]",
            "[2002:7f00:1::]",
            "[3fff::1]",
            "[100::1]",
            "[5f00::1]",
            "[fc00::1]",
            "[fd00:ec2::254]",
            "[fe80::1]",
            "[fec0::1]",
            "[ff02::1]",
        ] {
            let url = url(&format!("https://{host}/"));
            assert_eq!(strict().check_url(&url), Err(DestinationError::Address), "{host}");
        }
        assert!("https://[fe80::1%25eth0]/".parse::<Url>().is_err(), "a zone id is not a URL's host");
    }

    #[test]
    fn one_denied_address_denies_the_host() {
        let public: IpAddr = "93.184.216.34".parse().unwrap();
        let private: IpAddr = "10.0.0.1".parse().unwrap();
        assert_eq!(strict().check_addresses(AddressPolicy::Public, [public]), Ok(()));
        assert_eq!(
            strict().check_addresses(AddressPolicy::Public, [public, private]),
            Err(DestinationError::Address)
        );
        assert_eq!(strict().check_addresses(AddressPolicy::Public, []), Err(DestinationError::Address));
    }

    #[test]
    fn allow_listed_networks_accept_http_and_any_port() {
        let rules = allowing_loopback();
        for good in ["http://127.0.0.1:9000/", "http://[::1]:22/", "http://[::ffff:127.0.0.1]:9000/"] {
            assert_eq!(rules.check_url(&url(good)), Ok(AddressPolicy::AllowListed), "{good}");
        }
        assert_eq!(rules.check_url(&url("https://127.0.0.1:8443/")), Ok(AddressPolicy::Public));
        for own in ["http://127.0.0.1:8081/abc", "http://[::ffff:127.0.0.1]:8081/abc"] {
            assert_eq!(rules.check_url(&url(own)), Err(DestinationError::OwnHost), "{own}");
        }
        // Other addresses keep the default rules.
        assert_eq!(rules.check_url(&url("http://93.184.216.34/")), Err(DestinationError::Scheme));
        assert_eq!(rules.check_url(&url("https://93.184.216.34:22/")), Err(DestinationError::Port));
        assert_eq!(rules.check_url(&url("https://10.0.0.1/")), Err(DestinationError::Address));
        // For a name, its addresses decide.
        let policy = rules.check_url(&url("http://localhost:9000/")).unwrap();
        assert_eq!(rules.check_addresses(policy, ["127.0.0.1".parse().unwrap()]), Ok(()));
        assert_eq!(
            rules.check_addresses(policy, ["93.184.216.34".parse().unwrap()]),
            Err(DestinationError::Address)
        );
    }

    #[test]
    fn metadata_is_denied_even_in_an_allowed_network() {
        for host in ["169.254.169.254", "[::ffff:169.254.169.254]"] {
            let error = allowing_loopback().check_url(&url(&format!("http://{host}/latest/")));
            assert_eq!(error, Err(DestinationError::Address), "{host}");
        }
        let everything = DestinationRules::new("0.0.0.0/0,::/0".parse().unwrap(), None);
        for wrapped in ["64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::a9fe:a9fe"] {
            assert!(!everything.permits(AddressPolicy::AllowListed, wrapped.parse().unwrap()), "{wrapped}");
        }
        for address in address::METADATA {
            assert!(!everything.permits(AddressPolicy::Public, address), "{address}");
            assert!(!everything.permits(AddressPolicy::AllowListed, address), "{address}");
        }
    }

    #[test]
    fn denied_addresses_are_rejected_unless_allow_listed() {
        let own: IpAddr = "93.184.216.34".parse().unwrap();
        let rules = |allow: &str| {
            DestinationRules::new(allow.parse().unwrap(), None)
                .with_denied_addresses(vec!["::ffff:93.184.216.34".parse().unwrap()])
        };
        assert!(!rules("").permits(AddressPolicy::Public, own));
        assert_eq!(rules("").check_url(&url("https://93.184.216.34/")), Err(DestinationError::Address));
        assert!(rules("").permits(AddressPolicy::Public, "93.184.216.35".parse().unwrap()));
        assert!(rules("93.184.216.34").permits(AddressPolicy::Public, own));
    }

    #[test]
    fn error_texts_contain_no_address() {
        for error in [DestinationError::Address, DestinationError::OwnHost, DestinationError::Port] {
            assert!(!error.to_string().contains(|c: char| c.is_ascii_digit()), "{error}");
        }
    }

    proptest! {
        #[test]
        fn an_address_as_one_number_equals_its_dotted_form(bits in any::<u32>()) {
            let dotted = url(&format!("https://{}/", Ipv4Addr::from(bits)));
            let number = url(&format!("https://{bits}/"));
            prop_assert_eq!(strict().check_url(&dotted), strict().check_url(&number));
        }
    }
}
