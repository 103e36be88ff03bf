//! Keeps requests away from addresses that are not public.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ::config::Network;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

use crate::address::{effective, not_public};

/// Refuses addresses that are neither public nor allowed.
#[derive(Clone, Debug)]
pub(crate) struct AddressGuard {
    allowed: Arc<[Network]>,
}

/// An address that requests must not go to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address} is {network}: no request is sent there unless `allow_networks` contains it")]
pub struct ForbiddenAddress {
    address: IpAddr,
    network: &'static str,
}

impl AddressGuard {
    pub(crate) fn new(allowed: &[Network]) -> Self {
        Self { allowed: allowed.into() }
    }

    /// Checks a URL whose host is an address. The client does not resolve it, so the resolver cannot check it.
    pub(crate) fn check_url(&self, url: &Url) -> Result<(), ForbiddenAddress> {
        match url.host() {
            Some(Host::Ipv4(address)) => self.check(address.into()),
            Some(Host::Ipv6(address)) => self.check(address.into()),
            Some(Host::Domain(_)) | None => Ok(()),
        }
    }

    fn check(&self, address: IpAddr) -> Result<(), ForbiddenAddress> {
        let effective = effective(address);
        let is_allowed =
            self.allowed.iter().any(|network| network.contains(address) || network.contains(effective));
        match not_public(effective) {
            Some(network) if !is_allowed => Err(ForbiddenAddress { address, network }),
            _ => Ok(()),
        }
    }

    /// Returns the addresses that requests may go to. Fails if there are addresses and none of them is permitted.
    fn permitted(
        &self,
        found: impl Iterator<Item = SocketAddr>,
    ) -> Result<Vec<SocketAddr>, ForbiddenAddress> {
        let (mut permitted, mut refusal) = (Vec::new(), None);
        for address in found {
            match self.check(address.ip()) {
                Ok(()) => permitted.push(address),
                Err(forbidden) => refusal = Some(forbidden),
            }
        }
        match refusal {
            Some(forbidden) if permitted.is_empty() => Err(forbidden),
            _ => Ok(permitted),
        }
    }
}

/// Resolves a name for each connection and returns only permitted addresses.
impl Resolve for AddressGuard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            // The client replaces the port by that of the URL.
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(Box::new(guard.permitted(found)?.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(allowed: &[&str]) -> AddressGuard {
        let allowed: Vec<Network> = allowed.iter().map(|network| network.parse().unwrap()).collect();
        AddressGuard::new(&allowed)
    }

    fn is_refused(guard: &AddressGuard, url: &str) -> bool {
        guard.check_url(&Url::parse(url).unwrap()).is_err()
    }

    #[test]
    fn address_is_recognized_in_every_notation() {
        let guard = guard(&[]);
        for url in [
            "http://127.0.0.1/",
            "http://127.0.0.1./",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0x7f.0.0.1/",
            "http://0177.0.0.1/",
            "http://017700000001/",
            "http://%31%32%37.0.0.1/",
            "http://127。0。0。1/",
            "http://127.0.0.1:80@127.0.0.1/",
            "http://8.8.8.8@10.0.0.1/",
            "http://0.0.0.0/",
            "http://0/",
            "http://10.1.2.3:8080/hook",
            "http://100.64.0.1/",
            "https://169.254.169.254/latest/meta-data",
            "http://172.16.0.1/",
            "http://192.168.1.1/",
            "http://224.0.0.1/",
            "http://255.255.255.255/",
            "http://[::]/",
            "http://[::1]/",
            "http://[0:0:0:0:0:0:0:1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:7f00:1]/",
            "http://[::ffff:10.0.0.1]/",
            "http://[::127.0.0.1]/",
            "http://[64:ff9b::127.0.0.1]/",
            "http://[2002:7f00:1::]/",
            "http://[fc00::1]/",
            "http://[fd00:ec2::254]/",
            "http://[fe80::1]/",
            "http://[ff02::1]/",
        ] {
            assert!(is_refused(&guard, url), "{url}");
        }
        for url in ["https://8.8.8.8/", "https://[2606:4700::1111]/", "https://example.org/"] {
            assert!(!is_refused(&guard, url), "{url}");
        }
    }

    #[test]
    fn only_allowed_networks_are_allowed() {
        let guard = guard(&["10.1.0.0/16", "::1", "fd00::/8"]);
        for url in [
            "http://10.1.2.3/",
            "http://[::ffff:10.1.2.3]/",
            "http://[64:ff9b::10.1.2.3]/",
            "http://[::1]/",
            "http://[fd00::1]/",
        ] {
            assert!(!is_refused(&guard, url), "{url}");
        }
        for url in
            ["http://10.2.0.1/", "http://127.0.0.1/", "http://[fc00::1]/", "http://[64:ff9b::10.2.0.1]/"]
        {
            assert!(is_refused(&guard, url), "{url}");
        }
    }

    #[test]
    fn only_permitted_addresses_of_a_name_are_used() {
        let address = |text: &str| SocketAddr::new(text.parse().unwrap(), 0);
        let permitted = |found: &[&str]| guard(&[]).permitted(found.iter().map(|text| address(text)));
        assert_eq!(permitted(&["10.0.0.1", "8.8.8.8", "::1"]), Ok(vec![address("8.8.8.8")]));
        assert_eq!(permitted(&[]), Ok(vec![]));
        let refusal = permitted(&["127.0.0.1"]).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "127.0.0.1 is loopback: no request is sent there unless `allow_networks` contains it"
        );
    }
}
