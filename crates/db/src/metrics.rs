//! Metrics of the SQL store.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::Db;
use crate::connect::Pools;

impl Db {
    /// Registers the metrics of the store.
    pub fn register_metrics(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(Connections(self.clone())));
    }
}

#[derive(Debug)]
struct Connections(Db);

impl Collector for Connections {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (open, idle) = match &self.0.pools {
            Pools::Sqlite { writer, readers, .. } => {
                (writer.size() + readers.size(), idle(writer.num_idle()) + idle(readers.num_idle()))
            }
            Pools::MySql(server) => (server.pool.size(), idle(server.pool.num_idle())),
        };
        let mut family = encoder.encode_descriptor(
            "playhouse_db_connections",
            "Connections to the SQL store, by state",
            None,
            MetricType::Gauge,
        )?;
        for (state, count) in [("used", open.saturating_sub(idle)), ("idle", idle)] {
            ConstGauge::new(i64::from(count)).encode(family.encode_family(&[("state", state)])?)?;
        }
        let queued = match &self.0.pools {
            Pools::Sqlite { .. } => 0,
            Pools::MySql(server) => server.lock_queue.queued(),
        };
        let queue = encoder.encode_descriptor(
            "playhouse_db_lock_queue",
            "Transactions queued for a lock without holding a connection",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(i64::from(queued)).encode(queue)?;
        let mut family = encoder.encode_descriptor(
            "playhouse_db_unreadable_rows",
            "Stored values that could not be read, by table; the log names the row",
            None,
            MetricType::Counter,
        )?;
        for (table, count) in self.0.unreadable.counts() {
            ConstCounter::new(count).encode(family.encode_family(&[("table", table)])?)?;
        }
        Ok(())
    }
}

/// Returns how many connections of a pool are idle. The driver's count briefly wraps below zero, between a connection being taken and its
/// previous release being counted.
fn idle(counted: usize) -> u32 {
    u32::try_from(counted).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_idle_count_is_zero() {
        assert_eq!([idle(0_usize.wrapping_sub(1)), idle(0), idle(3)], [0, 0, 3]);
    }
}
