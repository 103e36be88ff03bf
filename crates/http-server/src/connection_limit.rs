//! Limits the connections of a listener, in total and per client address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use config::Network;
use prometheus_client::metrics::gauge::Gauge;

use crate::metrics::ConnectionMetrics;

/// The /64 network of an IPv6 address. A provider usually gives a whole /64 to one customer, so single addresses are not counted.
const IPV6_NETWORK: u128 = u128::MAX << 64;

/// Admits connections up to the limits.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    max: usize,
    max_per_address: usize,
    /// Networks without a limit per address.
    exempt: Vec<Network>,
    counts: Arc<Mutex<ConnectionCounts>>,
    metrics: ConnectionMetrics,
}

#[derive(Debug, Default)]
struct ConnectionCounts {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The listener has reached its limit.
    Full,
    /// The address has reached its limit.
    Address,
}

impl Refusal {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Address => "address",
        }
    }
}

/// Counts an open connection until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    /// None if the address is not counted.
    address: Option<IpAddr>,
    counts: Arc<Mutex<ConnectionCounts>>,
    open: Gauge,
}

impl ConnectionLimiter {
    /// Creates a limiter. 0 for `per_address` means no limit per address.
    pub(super) fn new(max: u32, per_address: u32, exempt: Vec<Network>, metrics: ConnectionMetrics) -> Self {
        let size = |limit: u32| usize::try_from(limit).unwrap_or(usize::MAX);
        let (max, max_per_address) = (size(max), size(per_address));
        Self { max, max_per_address, exempt, counts: Arc::default(), metrics }
    }

    pub(super) fn admit(&self, peer: IpAddr) -> Result<ConnectionPermit, Refusal> {
        let is_counted =
            self.max_per_address > 0 && !self.exempt.iter().any(|network| network.contains(peer));
        let address = is_counted.then(|| client_network(peer));
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.total >= self.max {
            return Err(self.refuse(Refusal::Full));
        }
        if let Some(address) = address {
            let address_count = counts.by_address.entry(address).or_default();
            if *address_count >= self.max_per_address {
                return Err(self.refuse(Refusal::Address));
            }
            *address_count += 1;
        }
        counts.total += 1;
        self.metrics.open.inc();
        Ok(ConnectionPermit { address, counts: self.counts.clone(), open: self.metrics.open.clone() })
    }

    fn refuse(&self, refusal: Refusal) -> Refusal {
        self.metrics.refused(refusal.word()).inc();
        refusal
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.total -= 1;
        if let Some(address) = self.address
            && let Some(address_count) = counts.by_address.get_mut(&address)
        {
            *address_count -= 1;
            // Keeps the map as small as the number of connected addresses.
            if *address_count == 0 {
                counts.by_address.remove(&address);
            }
        }
        self.open.dec();
    }
}

/// Returns the address that a client is counted under: its IPv4 address, or its IPv6 /64 network.
pub fn client_network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & IPV6_NETWORK).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Metrics;

    use crate::metrics::HttpMetrics;

    fn limiter(max: u32, per_address: u32, exempt: &[&str]) -> (ConnectionLimiter, Metrics) {
        let metrics = Metrics::new("0");
        let exempt = exempt.iter().map(|network| network.parse().unwrap()).collect();
        let of_listener = HttpMetrics::new(&metrics).connections("test");
        (ConnectionLimiter::new(max, per_address, exempt, of_listener), metrics)
    }

    fn admit(limiter: &ConnectionLimiter, peer: &str) -> Result<ConnectionPermit, Refusal> {
        limiter.admit(peer.parse().unwrap())
    }

    #[test]
    fn connections_per_address_are_limited_and_freed() {
        let (limiter, metrics) = limiter(100, 2, &["10.0.0.0/8"]);
        let mut open: Vec<ConnectionPermit> = (0..2).map(|_| admit(&limiter, "192.0.2.1").unwrap()).collect();
        assert_eq!(admit(&limiter, "192.0.2.1").unwrap_err(), Refusal::Address);
        assert_eq!(admit(&limiter, "::ffff:192.0.2.1").unwrap_err(), Refusal::Address);
        open.push(admit(&limiter, "192.0.2.2").unwrap());
        for last in 1..=2 {
            open.push(admit(&limiter, &format!("2001:db8::{last}")).unwrap());
        }
        assert_eq!(
            admit(&limiter, "2001:db8::ffff:3").unwrap_err(),
            Refusal::Address,
            "a /64 counts as one client"
        );
        open.push(admit(&limiter, "2001:db8:0:1::3").unwrap());
        open.extend((0..20).map(|_| admit(&limiter, "10.0.0.1").unwrap()));
        assert!(metrics.encode().contains("playhouse_http_connections{listener=\"test\"} 26"));
        let refused = "playhouse_http_connections_refused_total{listener=\"test\",reason=\"address\"} 3";
        assert!(metrics.encode().contains(refused), "{}", metrics.encode());

        drop(open.remove(0));
        let again = admit(&limiter, "192.0.2.1").unwrap();
        assert_eq!(admit(&limiter, "192.0.2.1").unwrap_err(), Refusal::Address);
        drop((open, again));
        let counts = limiter.counts.lock().unwrap();
        assert!(counts.total == 0 && counts.by_address.is_empty(), "{counts:?}");
    }

    #[test]
    fn total_connections_are_limited_for_all_addresses() {
        let (limiter, metrics) = limiter(3, 0, &["10.0.0.0/8"]);
        let peers = ["192.0.2.1", "192.0.2.1", "10.0.0.1"];
        let mut open: Vec<ConnectionPermit> =
            peers.iter().map(|peer| admit(&limiter, peer).unwrap()).collect();
        assert_eq!(admit(&limiter, "192.0.2.9").unwrap_err(), Refusal::Full);
        assert_eq!(admit(&limiter, "10.0.0.1").unwrap_err(), Refusal::Full);
        let refused = "playhouse_http_connections_refused_total{listener=\"test\",reason=\"full\"} 2";
        assert!(metrics.encode().contains(refused), "{}", metrics.encode());
        open.pop();
        admit(&limiter, "192.0.2.9").unwrap();
    }

    #[test]
    fn counts_of_a_listener_are_listed() {
        let http = HttpMetrics::new(&Metrics::new("0.0.0"));
        let limiter = ConnectionLimiter::new(2, 1, Vec::new(), http.connections("gateway"));
        let open = ["192.0.2.1", "192.0.2.2"].map(|peer| admit(&limiter, peer));
        assert!(open.iter().all(Result::is_ok));
        assert_eq!(admit(&limiter, "192.0.2.3").unwrap_err(), Refusal::Full);
        drop(open);
        let _one = admit(&limiter, "192.0.2.1").unwrap();
        assert_eq!(admit(&limiter, "192.0.2.1").unwrap_err(), Refusal::Address);
        http.connections("gateway");
        let counts =
            crate::ListenerConnections { listener: "gateway", open: 1, refused_full: 1, refused_address: 1 };
        assert_eq!(http.counts.read(), [counts], "each listener once");
    }
}
