//! The registry of metrics, and the metrics of the process itself.

use std::fmt::Error;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics registry of the process. Cheap to clone; clones share the registry.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Mutex<Registry>>);

impl Metrics {
    /// Creates a registry with the metrics that every process has.
    pub fn new(version: &str) -> Self {
        let metrics = Self(Arc::new(Mutex::new(Registry::default())));
        metrics.register(|registry| {
            let build = Family::<BuildLabels, Gauge>::default();
            build.get_or_create(&BuildLabels { version: version.to_owned() }).set(1);
            registry.register("playhouse_build_info", "The running version, as a label", build);
            registry.register_collector(Box::new(ProcessCollector));
        });
        metrics
    }

    pub fn register<T>(&self, declare: impl FnOnce(&mut Registry) -> T) -> T {
        declare(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Encodes all metrics in the OpenMetrics text format.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        let registry = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = prometheus_client::encoding::text::encode(&mut text, &registry) {
            tracing::error!(%error, "cannot encode the metrics");
        }
        text
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BuildLabels {
    version: String,
}

/// Metrics of the lifecycle.
#[derive(Clone, Debug, Default)]
pub(crate) struct LifecycleMetrics {
    pub(crate) ready: Family<PartLabels, Gauge>,
    pub(crate) role_ready: Family<RoleLabels, Gauge>,
    pub(crate) role_degraded: Family<RolePartLabels, Gauge>,
    pub(crate) loop_running: Family<LoopLabels, Gauge>,
    pub(crate) loop_restarts: Family<LoopLabels, Counter>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct PartLabels {
    pub(crate) part: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct RoleLabels {
    pub(crate) role: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct RolePartLabels {
    pub(crate) role: &'static str,
    pub(crate) part: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct LoopLabels {
    pub(crate) r#loop: String,
}

impl LifecycleMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let this = Self::default();
        metrics.register(|registry| {
            registry.register("playhouse_ready", "1 while the part is ready", this.ready.clone());
            registry.register(
                "playhouse_role_ready",
                "1 while the role can do its essential work",
                this.role_ready.clone(),
            );
            registry.register(
                "playhouse_role_degraded",
                "1 while the role is degraded because the part is unreachable",
                this.role_degraded.clone(),
            );
            registry.register(
                "playhouse_loop_running",
                "1 while the background loop runs",
                this.loop_running.clone(),
            );
            registry.register(
                "playhouse_loop_restarts",
                "How often the background loop failed and was restarted",
                this.loop_restarts.clone(),
            );
        });
        this
    }
}

/// Process metrics from `/proc`, under the names that dashboards expect. Absent on systems without `/proc`.
#[derive(Debug)]
struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut gauge = |name, help, unit: Option<&Unit>, value: i64| {
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, unit, metric.metric_type())?)
        };
        if let Some(bytes) = resident_bytes() {
            gauge("process_resident_memory", "Resident memory", Some(&Unit::Bytes), bytes)?;
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            gauge(
                "process_open_fds",
                "Open file descriptors",
                None,
                open.count().try_into().unwrap_or(i64::MAX),
            )?;
        }
        if let Some(seconds) = cpu_seconds() {
            let metric = ConstCounter::new(seconds);
            let encoder = encoder.encode_descriptor(
                "process_cpu",
                "Processor time used",
                Some(&Unit::Seconds),
                metric.metric_type(),
            )?;
            metric.encode(encoder)?;
        }
        Ok(())
    }
}

fn resident_bytes() -> Option<i64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn cpu_seconds() -> Option<f64> {
    // The kernel counts in hundredths of a second on every architecture that Linux supports.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses, which may contain spaces and parentheses.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    Some(ticks / TICKS_PER_SECOND)
}
