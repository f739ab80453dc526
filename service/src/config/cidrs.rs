//! Lists of networks.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;

/// A list of networks, such as `10.0.0.0/8,::1/128`; a bare address is a network with one address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cidrs(Arc<[IpNet]>);

/// The error for an item that is not a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a network such as 10.0.0.0/8 or ::1/128")]
pub struct CidrsFault(String);

impl Cidrs {
    /// Returns whether one of the networks contains the address; an IPv4-mapped IPv6 address counts as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Returns whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Cidrs {
    type Err = CidrsFault;

    fn from_str(text: &str) -> Result<Self, CidrsFault> {
        text.split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .map(|item| {
                item.parse::<IpNet>()
                    .or_else(|_| item.parse::<IpAddr>().map(IpNet::from))
                    .map_err(|_| CidrsFault(item.to_owned()))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_contains_no_address() {
        let none: Cidrs = "".parse().unwrap();
        assert!(none.is_empty());
        assert!(!none.contains([127, 0, 0, 1].into()));
    }

    #[test]
    fn networks_contain_addresses_in_plain_and_mapped_form() {
        let cidrs: Cidrs = "10.0.0.0/8, ::1/128,192.0.2.7".parse().unwrap();
        for inside in ["10.1.2.3", "::1", "192.0.2.7", "::ffff:10.1.2.3"] {
            assert!(cidrs.contains(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["11.0.0.1", "::2", "192.0.2.8"] {
            assert!(!cidrs.contains(outside.parse().unwrap()), "{outside}");
        }
    }

    #[test]
    fn a_malformed_network_is_named() {
        let fault = "10.0.0.0/8,10.0.0.0/33".parse::<Cidrs>().unwrap_err();
        assert_eq!(fault, CidrsFault("10.0.0.0/33".to_owned()));
    }
}
