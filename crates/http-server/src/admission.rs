//! How many connections a listener has, and from whom.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use config::Network;
use prometheus_client::metrics::gauge::Gauge;

use crate::metrics::ConnectionMetrics;

/// What one customer of a provider usually has for themselves: to count by address would be to count nothing.
const IPV6_NETWORK: u128 = u128::MAX << 64;

/// Lets connections in while there is room.
#[derive(Debug)]
pub(super) struct Admission {
    most: usize,
    most_per_address: usize,
    /// Those who may have as many as there is room for.
    exempt: Vec<Network>,
    seats: Arc<Mutex<Seats>>,
    metrics: ConnectionMetrics,
}

#[derive(Debug, Default)]
struct Seats {
    taken: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// Why a connection is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The listener has as many as it may.
    Full,
    /// The address has.
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

/// The place of an open connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    /// None where addresses are not counted.
    address: Option<IpAddr>,
    seats: Arc<Mutex<Seats>>,
    open: Gauge,
}

impl Admission {
    /// A limit of 0 connections per address is none.
    pub(super) fn new(most: u32, per_address: u32, exempt: Vec<Network>, metrics: ConnectionMetrics) -> Self {
        let size = |limit: u32| usize::try_from(limit).unwrap_or(usize::MAX);
        let (most, most_per_address) = (size(most), size(per_address));
        Self { most, most_per_address, exempt, seats: Arc::default(), metrics }
    }

    pub(super) fn admit(&self, peer: IpAddr) -> Result<Seat, Refusal> {
        let counted = self.most_per_address > 0 && !self.exempt.iter().any(|network| network.contains(peer));
        let address = counted.then(|| counted_as(peer));
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        if seats.taken >= self.most {
            return Err(self.refuse(Refusal::Full));
        }
        if let Some(address) = address {
            let of_address = seats.by_address.entry(address).or_default();
            if *of_address >= self.most_per_address {
                return Err(self.refuse(Refusal::Address));
            }
            *of_address += 1;
        }
        seats.taken += 1;
        self.metrics.open.inc();
        Ok(Seat { address, seats: self.seats.clone(), open: self.metrics.open.clone() })
    }

    fn refuse(&self, refusal: Refusal) -> Refusal {
        self.metrics.refused(refusal.word()).inc();
        refusal
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        seats.taken -= 1;
        if let Some(address) = self.address
            && let Some(of_address) = seats.by_address.get_mut(&address)
        {
            *of_address -= 1;
            // Addresses are without number; only those that are here are remembered.
            if *of_address == 0 {
                seats.by_address.remove(&address);
            }
        }
        self.open.dec();
    }
}

/// What counts as one client: an address, or of IPv6 a whole network, for that is what somebody has.
pub fn counted_as(peer: IpAddr) -> IpAddr {
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

    fn admission(most: u32, per_address: u32, exempt: &[&str]) -> (Admission, Metrics) {
        let metrics = Metrics::new("0");
        let exempt = exempt.iter().map(|network| network.parse().unwrap()).collect();
        let of_listener = HttpMetrics::new(&metrics).connections("test");
        (Admission::new(most, per_address, exempt, of_listener), metrics)
    }

    fn admit(admission: &Admission, peer: &str) -> Result<Seat, Refusal> {
        admission.admit(peer.parse().unwrap())
    }

    #[test]
    fn an_address_has_only_so_many_and_gets_them_back() {
        let (admission, metrics) = admission(100, 2, &["10.0.0.0/8"]);
        let mut open: Vec<Seat> = (0..2).map(|_| admit(&admission, "192.0.2.1").unwrap()).collect();
        assert_eq!(admit(&admission, "192.0.2.1").unwrap_err(), Refusal::Address);
        assert_eq!(admit(&admission, "::ffff:192.0.2.1").unwrap_err(), Refusal::Address);
        open.push(admit(&admission, "192.0.2.2").unwrap());
        for last in 1..=2 {
            open.push(admit(&admission, &format!("2001:db8::{last}")).unwrap());
        }
        assert_eq!(admit(&admission, "2001:db8::ffff:3").unwrap_err(), Refusal::Address, "a /64 is one");
        open.push(admit(&admission, "2001:db8:0:1::3").unwrap());
        open.extend((0..20).map(|_| admit(&admission, "10.0.0.1").unwrap()));
        assert!(metrics.encode().contains("playhouse_http_connections{listener=\"test\"} 26"));
        let refused = "playhouse_http_connections_refused_total{listener=\"test\",reason=\"address\"} 3";
        assert!(metrics.encode().contains(refused), "{}", metrics.encode());

        drop(open.remove(0));
        let again = admit(&admission, "192.0.2.1").unwrap();
        assert_eq!(admit(&admission, "192.0.2.1").unwrap_err(), Refusal::Address);
        drop((open, again));
        let seats = admission.seats.lock().unwrap();
        assert!(seats.taken == 0 && seats.by_address.is_empty(), "{seats:?}");
    }

    #[test]
    fn a_listener_has_only_so_many_whoever_they_are_from() {
        let (admission, metrics) = admission(3, 0, &["10.0.0.0/8"]);
        let peers = ["192.0.2.1", "192.0.2.1", "10.0.0.1"];
        let mut open: Vec<Seat> = peers.iter().map(|peer| admit(&admission, peer).unwrap()).collect();
        assert_eq!(admit(&admission, "192.0.2.9").unwrap_err(), Refusal::Full);
        assert_eq!(admit(&admission, "10.0.0.1").unwrap_err(), Refusal::Full);
        let refused = "playhouse_http_connections_refused_total{listener=\"test\",reason=\"full\"} 2";
        assert!(metrics.encode().contains(refused), "{}", metrics.encode());
        open.pop();
        admit(&admission, "192.0.2.9").unwrap();
    }
}
