//! Networks of addresses, as configurations write them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::setting::{Rejected, Setting, Value};

/// A network of addresses (CIDR): `10.0.0.0/8`, `2001:db8::/32`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// The first one; an IPv4 address where IPv6 only wraps it.
    first: IpAddr,
    prefix: u8,
}

/// The text is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotANetwork {
    #[error("it is not an address, or an address and the length of a prefix")]
    Form,
    /// A slip of the pen: one address was meant, or another network.
    #[error("the address has bits after the prefix: write {0}, or the address alone")]
    Inside(Network),
}

impl Network {
    /// Whether the address is one of these. An IPv4 address that IPv6 wraps is the IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address.to_canonical()) {
            (IpAddr::V4(first), IpAddr::V4(address)) => mask4(address, self.prefix) == first,
            (IpAddr::V6(first), IpAddr::V6(address)) => mask6(address, self.prefix) == first,
            _ => false,
        }
    }

    /// The network of this size that the address is in. There is none where the prefix is longer than an address.
    pub const fn around(address: IpAddr, prefix: u8) -> Option<Self> {
        match address {
            IpAddr::V4(address) if prefix <= 32 => {
                Some(Self { first: IpAddr::V4(mask4(address, prefix)), prefix })
            }
            // What wraps IPv4 is the network of those that are wrapped.
            IpAddr::V6(address) if prefix >= 96 && prefix <= 128 && address.to_ipv4_mapped().is_some() => {
                Self::around(IpAddr::V6(address).to_canonical(), prefix - 96)
            }
            IpAddr::V6(address) if prefix <= 128 => {
                Some(Self { first: IpAddr::V6(mask6(address, prefix)), prefix })
            }
            _ => None,
        }
    }
}

impl FromStr for Network {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(head, tail)| (head, Some(tail)));
        let address: IpAddr = address.parse().map_err(|_| NotANetwork::Form)?;
        let prefix = match prefix {
            None => {
                if address.is_ipv4() {
                    32
                } else {
                    128
                }
            }
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_err(|_| NotANetwork::Form)?
            }
            Some(_) => return Err(NotANetwork::Form),
        };
        let network = Self::around(address, prefix).ok_or(NotANetwork::Form)?;
        if network.first == address.to_canonical() { Ok(network) } else { Err(NotANetwork::Inside(network)) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

impl Setting for Network {
    fn expected() -> String {
        "a network such as \"10.0.0.0/8\" or \"2001:db8::/32\", or one address".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, Rejected> {
        String::parse(value)?.parse().map_err(|error: NotANetwork| Rejected::because(error.to_string()))
    }

    fn show(&self) -> String {
        format!("\"{self}\"")
    }
}

const fn mask6(address: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    Ipv6Addr::from_bits(address.to_bits() & !u128::MAX.unbounded_shr(prefix as u32))
}

const fn mask4(address: Ipv4Addr, prefix: u8) -> Ipv4Addr {
    Ipv4Addr::from_bits(address.to_bits() & !u32::MAX.unbounded_shr(prefix as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_its_addresses_and_no_other() {
        for (network, inside, outside) in [
            (
                "10.0.0.0/8",
                &["10.0.0.0", "10.255.255.255", "::ffff:10.1.2.3"][..],
                &["11.0.0.0", "::a00:1"][..],
            ),
            ("192.0.2.8/29", &["192.0.2.8", "192.0.2.15"], &["192.0.2.7", "192.0.2.16"]),
            ("192.0.2.1", &["192.0.2.1"], &["192.0.2.0", "192.0.2.2"]),
            ("0.0.0.0/0", &["0.0.0.0", "255.255.255.255"], &["::", "2001:db8::1"]),
            ("2001:db8::/32", &["2001:db8::", "2001:db8:ffff::1"], &["2001:db9::", "32.1.13.184"]),
            ("2001:db8::4/126", &["2001:db8::4", "2001:db8::7"], &["2001:db8::3", "2001:db8::8"]),
            ("::1", &["::1"], &["::", "127.0.0.1"]),
            ("::/0", &["::", "ffff::"], &["10.0.0.1", "::ffff:10.0.0.1"]),
            ("::ffff:10.0.0.0/104", &["10.9.9.9", "::ffff:10.9.9.9"], &["11.0.0.0"]),
        ] {
            let parsed: Network = network.parse().unwrap();
            for address in inside {
                assert!(parsed.contains(address.parse().unwrap()), "{network} has {address}");
            }
            for address in outside {
                assert!(!parsed.contains(address.parse().unwrap()), "{network} has not {address}");
            }
            assert_eq!(parsed.to_string().parse(), Ok(parsed));
        }
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for wrong in [
            "",
            "/8",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0/8",
            "::/129",
            "10.0.0.0/+8",
            "10.0.0.0/8/8",
            "host",
        ] {
            assert_eq!(wrong.parse::<Network>(), Err(NotANetwork::Form), "{wrong}");
        }
        let meant = Network::parse(&Value::Text("10.1.2.3/8".to_owned())).unwrap_err().reason.unwrap();
        assert!(meant.contains("10.0.0.0/8"), "{meant}");
    }
}
