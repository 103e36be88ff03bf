//! IP networks in CIDR notation.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::setting::{InvalidValue, Setting, Value};

/// An IP network in CIDR notation: `10.0.0.0/8`, `2001:db8::/32`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// The first address. IPv4-mapped IPv6 addresses are stored as IPv4.
    first: IpAddr,
    prefix: u8,
}

/// The text is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNetwork {
    #[error("write an address, or an address and a prefix length")]
    Syntax,
    /// A typo: the user meant a single address, or another network.
    #[error("the address has bits set beyond the prefix: write {0}, or the address alone")]
    HostBits(Network),
}

impl Network {
    /// Returns whether the network contains the address. An IPv4-mapped IPv6 address counts as its IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address.to_canonical()) {
            (IpAddr::V4(first), IpAddr::V4(address)) => mask4(address, self.prefix) == first,
            (IpAddr::V6(first), IpAddr::V6(address)) => mask6(address, self.prefix) == first,
            _ => false,
        }
    }

    /// Returns the network of this prefix length that contains the address. Returns none if the prefix is longer than an address.
    pub const fn around(address: IpAddr, prefix: u8) -> Option<Self> {
        match address {
            IpAddr::V4(address) if prefix <= 32 => {
                Some(Self { first: IpAddr::V4(mask4(address, prefix)), prefix })
            }
            // A network of IPv4-mapped addresses is the IPv4 network.
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
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(head, tail)| (head, Some(tail)));
        let address: IpAddr = address.parse().map_err(|_| InvalidNetwork::Syntax)?;
        let prefix = match prefix {
            None => {
                if address.is_ipv4() {
                    32
                } else {
                    128
                }
            }
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_err(|_| InvalidNetwork::Syntax)?
            }
            Some(_) => return Err(InvalidNetwork::Syntax),
        };
        let network = Self::around(address, prefix).ok_or(InvalidNetwork::Syntax)?;
        if network.first == address.to_canonical() {
            Ok(network)
        } else {
            Err(InvalidNetwork::HostBits(network))
        }
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

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        String::parse(value)?
            .parse()
            .map_err(|error: InvalidNetwork| InvalidValue::with_reason(error.to_string()))
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
    fn network_contains_exactly_its_addresses() {
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
                assert!(parsed.contains(address.parse().unwrap()), "{network} contains {address}");
            }
            for address in outside {
                assert!(!parsed.contains(address.parse().unwrap()), "{network} does not contain {address}");
            }
            assert_eq!(parsed.to_string().parse(), Ok(parsed));
        }
    }

    #[test]
    fn invalid_networks_are_rejected() {
        for invalid in [
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
            assert_eq!(invalid.parse::<Network>(), Err(InvalidNetwork::Syntax), "{invalid}");
        }
        let reason = Network::parse(&Value::Text("10.1.2.3/8".to_owned())).unwrap_err().reason.unwrap();
        assert!(reason.contains("10.0.0.0/8"), "{reason}");
    }
}
