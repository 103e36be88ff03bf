//! Distinguishes public addresses from private, local and reserved ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ::config::Network;

/// The IPv4 networks that are not public: the IANA special-purpose address registry.
const NOT_PUBLIC_V4: &[(Network, &str)] = &[
    (v4([0, 0, 0, 0], 8), "of this host"),
    (v4([10, 0, 0, 0], 8), "private"),
    (v4([100, 64, 0, 0], 10), "behind a provider's NAT"),
    (v4([127, 0, 0, 0], 8), "loopback"),
    (v4([169, 254, 0, 0], 16), "link-local"),
    (v4([172, 16, 0, 0], 12), "private"),
    (v4([192, 0, 0, 0], 24), "reserved for protocols"),
    (v4([192, 0, 2, 0], 24), "for documentation"),
    (v4([192, 88, 99, 0], 24), "a relay to IPv6"),
    (v4([192, 168, 0, 0], 16), "private"),
    (v4([198, 18, 0, 0], 15), "for benchmarks"),
    (v4([198, 51, 100, 0], 24), "for documentation"),
    (v4([203, 0, 113, 0], 24), "for documentation"),
    (v4([224, 0, 0, 0], 4), "multicast"),
    (v4([240, 0, 0, 0], 4), "reserved"),
];

/// The only IPv6 network that is public, except for `NOT_PUBLIC_V6`.
const GLOBAL_V6: Network = v6([0x2000, 0, 0, 0], 3);

const NOT_PUBLIC_V6: &[(Network, &str)] = &[
    (v6([0x2001, 0, 0, 0], 23), "reserved for protocols"),
    (v6([0x2001, 0x0db8, 0, 0], 32), "for documentation"),
    // 6to4: contains an IPv4 address. Deprecated.
    (v6([0x2002, 0, 0, 0], 16), "a tunnel to IPv4"),
    (v6([0x3fff, 0, 0, 0], 20), "for documentation"),
];

/// Names of networks outside `GLOBAL_V6`, which are not public anyway.
const OTHERS_V6: &[(Network, &str)] = &[
    (v6([0x0064, 0xff9b, 1, 0], 48), "a tunnel to IPv4"),
    (v6([0xfc00, 0, 0, 0], 7), "private"),
    (v6([0xfe80, 0, 0, 0], 10), "link-local"),
    (v6([0xff00, 0, 0, 0], 8), "multicast"),
];

/// The prefix under which NAT64 maps all of IPv4 (RFC 6052).
const NAT64: Network = v6([0x0064, 0xff9b, 0, 0], 96);

/// Returns the name of the network if the address is not public; none if it is.
pub(crate) fn not_public(address: IpAddr) -> Option<&'static str> {
    let named = |table: &[(Network, &'static str)]| {
        table.iter().find(|(network, _)| network.contains(address)).map(|(_, name)| *name)
    };
    match address {
        IpAddr::V4(_) => named(NOT_PUBLIC_V4),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => Some("loopback"),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Some("of this host"),
        IpAddr::V6(_) if GLOBAL_V6.contains(address) => named(NOT_PUBLIC_V6),
        IpAddr::V6(_) => named(OTHERS_V6).or(Some("not public")),
    }
}

/// Returns the address that a packet to this one arrives at: the IPv4 address if the IPv6 address contains one.
pub(crate) fn effective(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(wrapping) if NAT64.contains(address) => {
            let [.., a, b, c, d] = wrapping.octets();
            Ipv4Addr::new(a, b, c, d).into()
        }
        address => address,
    }
}

const fn v4(octets: [u8; 4], prefix: u8) -> Network {
    let [a, b, c, d] = octets;
    network(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix)
}

/// Takes the first half of the address.
const fn v6(segments: [u16; 4], prefix: u8) -> Network {
    let [a, b, c, d] = segments;
    network(IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)), prefix)
}

/// Builds an entry of the tables above at compile time.
const fn network(first: IpAddr, prefix: u8) -> Network {
    match Network::around(first, prefix) {
        Some(network) => network,
        None => panic!("the prefix is longer than an address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(address: &str) -> Option<&'static str> {
        not_public(effective(address.parse().unwrap()))
    }

    #[test]
    fn special_networks_are_known_from_first_to_last_address() {
        for (first, last, before, after) in [
            ("0.0.0.0", "0.255.255.255", None, Some("1.0.0.0")),
            ("10.0.0.0", "10.255.255.255", Some("9.255.255.255"), Some("11.0.0.0")),
            ("100.64.0.0", "100.127.255.255", Some("100.63.255.255"), Some("100.128.0.0")),
            ("127.0.0.0", "127.255.255.255", Some("126.255.255.255"), Some("128.0.0.0")),
            ("169.254.0.0", "169.254.255.255", Some("169.253.255.255"), Some("169.255.0.0")),
            ("172.16.0.0", "172.31.255.255", Some("172.15.255.255"), Some("172.32.0.0")),
            ("192.0.0.0", "192.0.0.255", Some("191.255.255.255"), Some("192.0.1.0")),
            ("192.0.2.0", "192.0.2.255", Some("192.0.1.255"), Some("192.0.3.0")),
            ("192.88.99.0", "192.88.99.255", Some("192.88.98.255"), Some("192.88.100.0")),
            ("192.168.0.0", "192.168.255.255", Some("192.167.255.255"), Some("192.169.0.0")),
            ("198.18.0.0", "198.19.255.255", Some("198.17.255.255"), Some("198.20.0.0")),
            ("198.51.100.0", "198.51.100.255", Some("198.51.99.255"), Some("198.51.101.0")),
            ("203.0.113.0", "203.0.113.255", Some("203.0.112.255"), Some("203.0.114.0")),
            ("224.0.0.0", "255.255.255.255", Some("223.255.255.255"), None),
            ("::", "1fff:ffff::", None, Some("2000::")),
            ("2001::", "2001:1ff:ffff::", Some("2000:ffff::"), Some("2001:200::")),
            ("2001:db8::", "2001:db8:ffff::", Some("2001:db7:ffff::"), Some("2001:db9::")),
            ("2002::", "2002:ffff::", Some("2001:ffff::"), Some("2003::")),
            ("3fff::", "3fff:fff:ffff::", Some("3ffe:ffff::"), Some("3fff:1000::")),
            ("4000::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Some("3fff:ffff::"), None),
        ] {
            for inside in [first, last] {
                assert!(name(inside).is_some(), "{inside}");
            }
            for outside in [before, after].into_iter().flatten() {
                assert_eq!(name(outside), None, "{outside}");
            }
        }
    }

    #[test]
    fn network_of_an_address_is_named() {
        for (address, is) in [
            ("::1", "loopback"),
            ("::", "of this host"),
            ("fd00:ec2::254", "private"),
            ("fe80::1", "link-local"),
            ("ff02::1", "multicast"),
            ("2002:7f00:1::", "a tunnel to IPv4"),
            ("64:ff9b:1::7f00:1", "a tunnel to IPv4"),
            ("2001:0:1::1", "reserved for protocols"),
            ("::7f00:1", "not public"),
            ("fec0::1", "not public"),
            ("100::1", "not public"),
        ] {
            assert_eq!(name(address), Some(is), "{address}");
        }
    }

    #[test]
    fn ipv6_address_that_contains_ipv4_is_judged_by_it() {
        for (address, is) in [
            ("::ffff:127.0.0.1", Some("loopback")),
            ("::ffff:169.254.169.254", Some("link-local")),
            ("::ffff:8.8.8.8", None),
            ("64:ff9b::10.0.0.1", Some("private")),
            ("64:ff9b::8.8.8.8", None),
        ] {
            assert_eq!(name(address), is, "{address}");
        }
    }
}
