//! Which hosts the backend calls: callers of `FetchMatches` name them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Which hosts may be called as match functions. Link-local addresses never are: cloud providers serve the credentials
/// of the machine there.
#[derive(Clone, Debug, Default)]
pub struct HostRules {
    /// The allowed names and addresses. A name that begins with `.` allows all hosts below it. Empty allows all.
    pub allowed: Vec<String>,
}

/// Why a host is not called.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostError {
    #[error("host {0:?} is not in matchmaking.director.function_hosts")]
    NotAllowed(String),
    #[error("host {0:?} has a link-local address, which is never called")]
    LinkLocal(String),
    #[error("host {0:?} has no address")]
    Unknown(String),
}

impl HostRules {
    fn allows_name(&self, host: &str) -> bool {
        let is_allowed = |allowed: &String| {
            host.eq_ignore_ascii_case(allowed)
                || allowed.starts_with('.')
                    && host.len() > allowed.len()
                    && host.to_ascii_lowercase().ends_with(&allowed.to_ascii_lowercase())
        };
        self.allowed.is_empty() || self.allowed.iter().any(is_allowed)
    }

    /// Returns the address to connect to. The checked address is the one that is called.
    pub(super) async fn resolve(&self, host: &str, port: u16) -> Result<SocketAddr, HostError> {
        // An IPv6 address may be written as in a URL.
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if !self.allows_name(host) {
            return Err(HostError::NotAllowed(host.to_owned()));
        }
        let found = tokio::net::lookup_host((host, port)).await;
        let addresses: Vec<SocketAddr> = found.map(Iterator::collect).unwrap_or_default();
        if addresses.iter().any(|address| is_link_local(address.ip())) {
            return Err(HostError::LinkLocal(host.to_owned()));
        }
        // `localhost` usually has both, and servers more often listen on the first version of the protocol.
        let ipv4 = addresses.iter().find(|address| address.is_ipv4());
        ipv4.or(addresses.first()).copied().ok_or_else(|| HostError::Unknown(host.to_owned()))
    }
}

fn is_link_local(address: IpAddr) -> bool {
    /// Where a large cloud provider serves credentials over IPv6.
    const METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    match address {
        IpAddr::V4(address) => Ipv4Addr::is_link_local(&address),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(address) => address.is_link_local(),
            None => address.is_unicast_link_local() || address == METADATA,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(allowed: &[&str]) -> HostRules {
        HostRules { allowed: allowed.iter().map(|&host| host.to_owned()).collect() }
    }

    #[tokio::test]
    async fn link_local_addresses_are_never_called() {
        for host in ["169.254.169.254", "fe80::1", "[fe80::1]", "::ffff:169.254.169.254", "fd00:ec2::254"] {
            let refused = rules(&[]).resolve(host, 80).await;
            assert!(matches!(refused, Err(HostError::LinkLocal(_))), "{host}: {refused:?}");
            let refused = rules(&[host]).resolve(host, 80).await;
            assert!(refused.is_err(), "{host}: {refused:?}");
        }
        assert_eq!(rules(&[]).resolve("127.0.0.1", 80).await.unwrap(), ([127, 0, 0, 1], 80).into());
        assert_eq!(rules(&[]).resolve("[::1]", 80).await.unwrap().to_string(), "[::1]:80");
    }

    #[tokio::test]
    async fn only_listed_hosts_are_called_if_there_is_a_list() {
        let rules = rules(&["LOCALHOST", ".mmf.svc", "10.0.0.7"]);
        for host in ["localhost", "duel.mmf.svc", "Duel.MMF.svc", "10.0.0.7"] {
            assert!(rules.allows_name(host), "{host}");
        }
        for host in ["127.0.0.1", "mmf.svc", "xmmf.svc", "10.0.0.70", "localhost.example.com", ""] {
            assert!(matches!(rules.resolve(host, 80).await, Err(HostError::NotAllowed(_))), "{host}");
        }
    }
}
