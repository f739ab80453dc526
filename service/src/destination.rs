//! Where webhooks may go: the rules against requests that a stranger's URL would make us send into our own network.
//!
//! Pure rules, used twice: when an endpoint is created or changed, and before every attempt, with the addresses
//! that its host has at that moment. Two profiles: strict (https, public addresses), and an operator's allow-list
//! of networks that may also be reached over http and on any port. Cloud metadata addresses are never allowed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use url::{Host, Url};

use crate::config::Cidrs;

/// Longest URL in bytes.
pub const MAX_URL_LEN: usize = 2048;

/// Ports below this need a place in [`LOW_PORTS`].
const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

/// The privileged ports that web servers use.
const LOW_PORTS: [u16; 2] = [80, 443];

/// Unprivileged ports of daemons that mistake an HTTP request for a command, or obey one: Docker and etcd,
/// MySQL, Postgres, Redis, ClickHouse (both), Kafka, Elasticsearch, memcached, MongoDB.
const DAEMON_PORTS: [u16; 15] =
    [2375, 2376, 2377, 2378, 2379, 2380, 3306, 5432, 6379, 8123, 9000, 9092, 9200, 11211, 27017];

/// IPv4 networks that are not the public internet, from IANA's special-purpose registry.
const NOT_PUBLIC_V4: [Ipv4Net; 20] = [
    v4([0, 0, 0, 0], 8),
    v4([10, 0, 0, 0], 8),
    v4([100, 64, 0, 0], 10),
    v4([127, 0, 0, 0], 8),
    v4([168, 63, 129, 16], 32),
    v4([169, 254, 0, 0], 16),
    v4([172, 16, 0, 0], 12),
    v4([192, 0, 0, 0], 24),
    v4([192, 0, 2, 0], 24),
    v4([192, 31, 196, 0], 24),
    v4([192, 52, 193, 0], 24),
    v4([192, 88, 99, 0], 24),
    v4([192, 168, 0, 0], 16),
    v4([192, 175, 48, 0], 24),
    v4([198, 18, 0, 0], 15),
    v4([198, 51, 100, 0], 24),
    v4([203, 0, 113, 0], 24),
    v4([224, 0, 0, 0], 4),
    v4([240, 0, 0, 0], 4),
    v4([255, 255, 255, 255], 32),
];

/// The only IPv6 network of global unicast addresses. Mapped, translated, unique-local, link-local and multicast
/// addresses are all outside it.
const GLOBAL_V6: Ipv6Net = v6(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// What in it is not public all the same: Teredo, ORCHID and benchmarks; documentation; 6to4; AS112; documentation.
const NOT_PUBLIC_V6: [Ipv6Net; 5] = [
    v6(Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    v6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    v6(Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    v6(Ipv6Addr::new(0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0), 48),
    v6(Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// Where clouds hand out credentials to whoever asks: denied even inside an allowed network.
const METADATA: [IpAddr; 9] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

const fn v4(octets: [u8; 4], prefix: u8) -> Ipv4Net {
    let [a, b, c, d] = octets;
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(address: Ipv6Addr, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(address, prefix)
}

/// Why a webhook may not go to a URL: what follows "The URL" in a sentence. The texts name no address, because they may
/// reach the one who chose the URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Neither https, nor http to an allowed network.
    #[error("must start with https://")]
    Scheme,
    /// There is no host.
    #[error("must name a host")]
    Host,
    /// A user name or a password is in it.
    #[error("must not contain a user name or a password")]
    UserInfo,
    /// Longer than [`MAX_URL_LEN`].
    #[error("must have at most {MAX_URL_LEN} bytes")]
    TooLong,
    /// The port belongs to another kind of server.
    #[error("must not use a port of another kind of server")]
    Port,
    /// A short link of ours: clicks would make clicks for ever.
    #[error("must not point to this service")]
    OwnHost,
    /// An address that is not on the public internet, or none at all.
    #[error("must point to a public address")]
    Address,
}

/// Which addresses a URL may be sent to, as far as the URL itself tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Public addresses and those of the operator's allow-list.
    Public,
    /// Only those of the allow-list, because the URL uses http or another server's port.
    AllowListed,
}

/// The rules of a deployment.
#[derive(Debug, Clone, Default)]
pub struct DestinationRules {
    allowed: Cidrs,
    own: Option<(String, u16)>,
    own_addresses: Vec<IpAddr>,
}

impl DestinationRules {
    /// Makes the rules; with an empty `allowed` they are strict. `own` is the base URL of this deployment's short links.
    #[must_use]
    pub fn new(allowed: Cidrs, own: Option<&Url>) -> Self {
        let own = own.and_then(|url| Some((host_name(url)?, web_port(url.port_or_known_default()?))));
        Self { allowed, own, own_addresses: vec![] }
    }

    /// Denies more addresses than the rules do, unless the allow-list has them: those of this machine's interfaces.
    #[must_use]
    pub fn denying(mut self, addresses: Vec<IpAddr>) -> Self {
        self.own_addresses = addresses.into_iter().map(|address| address.to_canonical()).collect();
        self
    }

    /// Checks what a URL shows without asking DNS; a host that is an address is checked completely.
    ///
    /// # Errors
    /// The first rule that the URL breaks.
    pub fn check_url(&self, url: &Url) -> Result<Reach, Refused> {
        if url.as_str().len() > MAX_URL_LEN {
            return Err(Refused::TooLong);
        }
        let strict_scheme = match url.scheme() {
            "https" => true,
            "http" if !self.allowed.is_empty() => false,
            _ => return Err(Refused::Scheme),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refused::UserInfo);
        }
        let (name, port) = host_name(url).zip(url.port_or_known_default()).ok_or(Refused::Host)?;
        if self.own.as_ref().is_some_and(|own| *own == (name, web_port(port))) {
            return Err(Refused::OwnHost);
        }
        let strict_port = allows_port(port);
        if !strict_port && self.allowed.is_empty() {
            return Err(Refused::Port);
        }
        let reach = if strict_scheme && strict_port { Reach::Public } else { Reach::AllowListed };
        if let Some(address) = literal(url).or_else(|| loopback(url))
            && !self.permits(reach, address)
        {
            // The address is public, so what is wrong is how the URL wants to reach it.
            return Err(match self.permits(Reach::Public, address) {
                true if !strict_scheme => Refused::Scheme,
                true => Refused::Port,
                false => Refused::Address,
            });
        }
        Ok(reach)
    }

    /// Checks every address that a URL's host resolved to: one forbidden answer among many forbids all.
    ///
    /// # Errors
    /// [`Refused::Address`], also when there is no address.
    pub fn check_addresses(
        &self,
        reach: Reach,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Result<(), Refused> {
        let mut any = false;
        for address in addresses {
            if !self.permits(reach, address) {
                return Err(Refused::Address);
            }
            any = true;
        }
        if any { Ok(()) } else { Err(Refused::Address) }
    }

    /// Tells whether one address may be connected to.
    #[must_use]
    pub fn permits(&self, reach: Reach, address: IpAddr) -> bool {
        // `::ffff:a.b.c.d` connects to a.b.c.d.
        let canonical = address.to_canonical();
        let embedded = embedded_v4(canonical).map(IpAddr::V4);
        if METADATA.contains(&canonical) || embedded.is_some_and(|inner| METADATA.contains(&inner)) {
            return false;
        }
        let allow_listed = self.allowed.contains(canonical);
        match reach {
            Reach::Public => allow_listed || (is_public(address) && !self.own_addresses.contains(&canonical)),
            Reach::AllowListed => allow_listed,
        }
    }
}

/// Returns the address when a URL's host is one; such a host never reaches a resolver.
#[must_use]
pub fn literal(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(address) => Some(IpAddr::V4(address)),
        Host::Ipv6(address) => Some(IpAddr::V6(address)),
        Host::Domain(_) => None,
    }
}

/// The address that every name below `localhost` stands for (RFC 6761), whatever a resolver would say.
fn loopback(url: &Url) -> Option<IpAddr> {
    let name = host_name(url)?;
    (name == "localhost" || name.ends_with(".localhost")).then_some(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Tells whether an address is an ordinary one of the public internet.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !NOT_PUBLIC_V4.iter().any(|network| network.contains(&address)),
        IpAddr::V6(address) => {
            GLOBAL_V6.contains(&address) && !NOT_PUBLIC_V6.iter().any(|network| network.contains(&address))
        }
    }
}

/// The IPv4 address that a gateway would make of an IPv6 address: NAT64, 6to4, and the old compatible form.
fn embedded_v4(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else { return None };
    let from = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0, 0, 0, 0, 0, 0, high, low] => Some(from(high, low)),
        [0x2002, high, low, ..] => Some(from(high, low)),
        _ => None,
    }
}

fn allows_port(port: u16) -> bool {
    LOW_PORTS.contains(&port) || (port >= FIRST_UNPRIVILEGED_PORT && !DAEMON_PORTS.contains(&port))
}

/// The host without the root's trailing dot: `hop.example.` is `hop.example`.
fn host_name(url: &Url) -> Option<String> {
    let host = url.host_str()?;
    let host = host.strip_suffix('.').unwrap_or(host);
    (!host.is_empty()).then(|| host.to_owned())
}

/// The port, with http's and https' own taken for one: a host's plain port usually leads to its secure one.
fn web_port(port: u16) -> u16 {
    if port == 80 { 443 } else { port }
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
    fn an_ordinary_receiver_is_allowed() {
        for good in [
            "https://hooks.example/in?x=1",
            "https://hooks.example:8443/",
            "https://hooks.example:3000/",
            "https://93.184.216.34/",
            "https://[2606:4700::1111]/",
        ] {
            assert_eq!(strict().check_url(&url(good)), Ok(Reach::Public), "{good}");
        }
    }

    #[test]
    fn each_broken_rule_is_named() {
        let long = format!("https://hooks.example/{}", "a".repeat(MAX_URL_LEN));
        for (bad, refused) in [
            ("http://hooks.example/", Refused::Scheme),
            ("ftp://hooks.example/", Refused::Scheme),
            ("file:///etc/passwd", Refused::Scheme),
            ("https://user@hooks.example/", Refused::UserInfo),
            ("https://:pw@hooks.example/", Refused::UserInfo),
            ("https://hooks.example:22/", Refused::Port),
            ("https://hooks.example:6379/", Refused::Port),
            ("https://hooks.example:2377/", Refused::Port),
            ("https://hop.example/abc", Refused::OwnHost),
            ("https://HOP.example./abc", Refused::OwnHost),
            ("https://hop.example:80/abc", Refused::OwnHost),
            (&long, Refused::TooLong),
        ] {
            assert_eq!(strict().check_url(&url(bad)), Err(refused), "{bad}");
        }
    }

    #[test]
    fn an_address_is_recognised_in_every_spelling() {
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
            assert_eq!(strict().check_url(&url), Err(Refused::Address), "{host}");
        }
        assert!("https://[fe80::1%25eth0]/".parse::<Url>().is_err(), "a zone id is not a URL's host");
    }

    #[test]
    fn one_forbidden_answer_forbids_the_host() {
        let public: IpAddr = "93.184.216.34".parse().unwrap();
        let private: IpAddr = "10.0.0.1".parse().unwrap();
        assert_eq!(strict().check_addresses(Reach::Public, [public]), Ok(()));
        assert_eq!(strict().check_addresses(Reach::Public, [public, private]), Err(Refused::Address));
        assert_eq!(strict().check_addresses(Reach::Public, []), Err(Refused::Address));
    }

    #[test]
    fn an_allowed_network_may_be_reached_over_http_and_on_any_port() {
        let rules = allowing_loopback();
        for good in ["http://127.0.0.1:9000/", "http://[::1]:22/", "http://[::ffff:127.0.0.1]:9000/"] {
            assert_eq!(rules.check_url(&url(good)), Ok(Reach::AllowListed), "{good}");
        }
        assert_eq!(rules.check_url(&url("https://127.0.0.1:8443/")), Ok(Reach::Public));
        assert_eq!(rules.check_url(&url("http://127.0.0.1:8081/abc")), Err(Refused::OwnHost));
        // What is not in the list stays strict.
        assert_eq!(rules.check_url(&url("http://93.184.216.34/")), Err(Refused::Scheme));
        assert_eq!(rules.check_url(&url("https://93.184.216.34:22/")), Err(Refused::Port));
        assert_eq!(rules.check_url(&url("https://10.0.0.1/")), Err(Refused::Address));
        // A name tells nothing yet; its addresses decide.
        let reach = rules.check_url(&url("http://localhost:9000/")).unwrap();
        assert_eq!(rules.check_addresses(reach, ["127.0.0.1".parse().unwrap()]), Ok(()));
        assert_eq!(rules.check_addresses(reach, ["93.184.216.34".parse().unwrap()]), Err(Refused::Address));
    }

    #[test]
    fn metadata_is_denied_even_inside_an_allowed_network() {
        for host in ["169.254.169.254", "[::ffff:169.254.169.254]"] {
            let refused = allowing_loopback().check_url(&url(&format!("http://{host}/latest/")));
            assert_eq!(refused, Err(Refused::Address), "{host}");
        }
        let everything = DestinationRules::new("0.0.0.0/0,::/0".parse().unwrap(), None);
        for wrapped in ["64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::a9fe:a9fe"] {
            assert!(!everything.permits(Reach::AllowListed, wrapped.parse().unwrap()), "{wrapped}");
        }
        for address in METADATA {
            assert!(!everything.permits(Reach::Public, address), "{address}");
            assert!(!everything.permits(Reach::AllowListed, address), "{address}");
        }
    }

    #[test]
    fn our_own_public_address_is_denied_unless_it_is_allow_listed() {
        let own: IpAddr = "93.184.216.34".parse().unwrap();
        let rules = |allow: &str| {
            DestinationRules::new(allow.parse().unwrap(), None)
                .denying(vec!["::ffff:93.184.216.34".parse().unwrap()])
        };
        assert!(!rules("").permits(Reach::Public, own));
        assert_eq!(rules("").check_url(&url("https://93.184.216.34/")), Err(Refused::Address));
        assert!(rules("").permits(Reach::Public, "93.184.216.35".parse().unwrap()));
        assert!(rules("93.184.216.34").permits(Reach::Public, own));
    }

    #[test]
    fn no_refusal_shows_an_address() {
        for refused in [Refused::Address, Refused::OwnHost, Refused::Port] {
            assert!(!refused.to_string().contains(|c: char| c.is_ascii_digit()), "{refused}");
        }
    }

    proptest! {
        #[test]
        fn no_ipv4_of_a_special_network_is_public(place in 0..NOT_PUBLIC_V4.len(), bits in any::<u32>()) {
            let network = NOT_PUBLIC_V4[place];
            let host = bits & !u32::from(network.netmask());
            let address = Ipv4Addr::from(u32::from(network.network()) | host);
            prop_assert!(!is_public(address.into()));
            prop_assert!(!is_public(address.to_ipv6_mapped().into()));
            prop_assert!(!is_public(address.to_ipv6_compatible().into()));
        }

        #[test]
        fn a_public_ipv4_agrees_with_the_standard_librarys_classes(bits in any::<u32>()) {
            let address = Ipv4Addr::from(bits);
            if is_public(address.into()) {
                prop_assert!(!address.is_private() && !address.is_loopback() && !address.is_link_local());
                prop_assert!(!address.is_multicast() && !address.is_broadcast() && !address.is_documentation());
                prop_assert!(!address.is_unspecified());
            }
        }

        #[test]
        fn an_ipv6_outside_global_unicast_is_not_public(bits in any::<u128>()) {
            let address = Ipv6Addr::from(bits);
            if is_public(address.into()) {
                prop_assert_eq!(address.segments()[0] >> 13, 1);
                prop_assert!(!address.is_unique_local() && !address.is_unicast_link_local());
            }
        }

        #[test]
        fn no_ipv6_that_embeds_an_ipv4_is_public(bits in any::<u32>(), low in any::<u128>()) {
            let inner = u128::from(bits);
            let nat64 = Ipv6Addr::from((0x0064_ff9b_u128 << 96) | inner);
            let six_to_four = Ipv6Addr::from((0x2002_u128 << 112) | (inner << 80) | (low >> 48));
            let teredo = Ipv6Addr::from((0x2001_0000_u128 << 96) | (low >> 32));
            for address in [nat64, six_to_four, teredo] {
                prop_assert!(!is_public(address.into()), "{address}");
            }
        }

        #[test]
        fn an_address_spelt_as_one_number_is_judged_like_its_dotted_form(bits in any::<u32>()) {
            let dotted = url(&format!("https://{}/", Ipv4Addr::from(bits)));
            let number = url(&format!("https://{bits}/"));
            prop_assert_eq!(strict().check_url(&dotted), strict().check_url(&number));
        }
    }
}
