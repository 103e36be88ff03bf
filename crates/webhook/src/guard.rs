//! Which servers may be connected to.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ::config::Network;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

use crate::address::{meant, not_public};

/// Refuses addresses that are not public and that nobody has allowed.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    allowed: Arc<[Network]>,
}

/// The server is not one that may be connected to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address} is {what}, and no request is sent there unless `allow_networks` has it")]
pub struct Forbidden {
    address: IpAddr,
    what: &'static str,
}

impl Guard {
    pub(crate) fn new(allowed: &[Network]) -> Self {
        Self { allowed: allowed.into() }
    }

    /// Judges a URL whose host is an address: no name is looked up for it, so the resolver never sees it.
    pub(crate) fn judge_url(&self, url: &Url) -> Result<(), Forbidden> {
        match url.host() {
            Some(Host::Ipv4(address)) => self.judge(address.into()),
            Some(Host::Ipv6(address)) => self.judge(address.into()),
            Some(Host::Domain(_)) | None => Ok(()),
        }
    }

    fn judge(&self, address: IpAddr) -> Result<(), Forbidden> {
        let meant = meant(address);
        let is_allowed =
            self.allowed.iter().any(|network| network.contains(address) || network.contains(meant));
        match not_public(meant) {
            Some(what) if !is_allowed => Err(Forbidden { address, what }),
            _ => Ok(()),
        }
    }

    /// The addresses of a name that may be connected to. It is an error if it has some and none of them may be.
    fn sift(&self, found: impl Iterator<Item = SocketAddr>) -> Result<Vec<SocketAddr>, Forbidden> {
        let (mut sound, mut refusal) = (Vec::new(), None);
        for address in found {
            match self.judge(address.ip()) {
                Ok(()) => sound.push(address),
                Err(forbidden) => refusal = Some(forbidden),
            }
        }
        match refusal {
            Some(forbidden) if sound.is_empty() => Err(forbidden),
            _ => Ok(sound),
        }
    }
}

/// Looks names up, each time that a connection is made, and gives only addresses that may be connected to.
impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            // The client puts the port of the URL in.
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(Box::new(guard.sift(found)?.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(allowed: &[&str]) -> Guard {
        let allowed: Vec<Network> = allowed.iter().map(|network| network.parse().unwrap()).collect();
        Guard::new(&allowed)
    }

    fn is_refused(guard: &Guard, url: &str) -> bool {
        guard.judge_url(&Url::parse(url).unwrap()).is_err()
    }

    #[test]
    fn however_an_address_is_written_it_is_the_same() {
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
    fn what_is_allowed_is_allowed_and_nothing_beside_it() {
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
    fn of_a_name_only_sound_addresses_are_used() {
        let address = |text: &str| SocketAddr::new(text.parse().unwrap(), 0);
        let sift = |found: &[&str]| guard(&[]).sift(found.iter().map(|text| address(text)));
        assert_eq!(sift(&["10.0.0.1", "8.8.8.8", "::1"]), Ok(vec![address("8.8.8.8")]));
        assert_eq!(sift(&[]), Ok(vec![]));
        let refusal = sift(&["127.0.0.1"]).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "127.0.0.1 is loopback, and no request is sent there unless `allow_networks` has it"
        );
    }
}
