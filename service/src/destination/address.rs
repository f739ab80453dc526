//! Which addresses are public, and which are metadata services of clouds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

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

/// The IPv6 network of global unicast addresses; mapped, translated, unique-local, link-local and multicast addresses
/// are outside it.
const GLOBAL_V6: Ipv6Net = v6(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Networks in [`GLOBAL_V6`] that are not public: Teredo, ORCHID and benchmarks; documentation; 6to4; AS112;
/// documentation.
const NOT_PUBLIC_V6: [Ipv6Net; 5] = [
    v6(Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    v6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    v6(Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    v6(Ipv6Addr::new(0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0), 48),
    v6(Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// Metadata services of clouds, which return credentials to any caller.
pub(super) const METADATA: [IpAddr; 9] = [
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

/// Returns whether an address is a regular address on the public internet.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !NOT_PUBLIC_V4.iter().any(|network| network.contains(&address)),
        IpAddr::V6(address) => {
            GLOBAL_V6.contains(&address) && !NOT_PUBLIC_V6.iter().any(|network| network.contains(&address))
        }
    }
}

/// Returns whether an address is a metadata service, also when it is embedded in an IPv6 address.
pub(super) fn is_metadata(canonical: IpAddr) -> bool {
    let embedded = match canonical {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => embedded_v4(address).map(IpAddr::V4),
    };
    METADATA.contains(&canonical) || embedded.is_some_and(|inner| METADATA.contains(&inner))
}

/// Returns the IPv4 address that an IPv6 address stands for: mapped, NAT64, 6to4, and the old compatible form.
pub(super) fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let from = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        // The unspecified address and loopback.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(from(high, low))
        }
        [0x2002, high, low, ..] => Some(from(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_ipv4_of_a_special_network_is_public(index in 0..NOT_PUBLIC_V4.len(), bits in any::<u32>()) {
            let network = NOT_PUBLIC_V4[index];
            let host = bits & !u32::from(network.netmask());
            let address = Ipv4Addr::from(u32::from(network.network()) | host);
            prop_assert!(!is_public(address.into()));
            prop_assert!(!is_public(address.to_ipv6_mapped().into()));
            prop_assert!(!is_public(address.to_ipv6_compatible().into()));
        }

        #[test]
        fn a_public_ipv4_is_in_no_special_class_of_std(bits in any::<u32>()) {
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
    }
}
