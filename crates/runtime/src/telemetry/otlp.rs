//! Export of traces and metrics over OTLP/HTTP.

use std::collections::HashMap;
use std::time::Duration;

use base::id::ProcessId;
use base::{Clock, Timestamp};
use config::Secret;
use http::header::CONTENT_TYPE;
use opentelemetry::KeyValue as Attribute;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use prometheus_client::metrics::counter::Counter;
use prost::Message;

use super::openmetrics::{self, Distribution, Family, Labels, Series};
use super::{Config, OtlpConfig};
use crate::lifecycle::{Drain, LoopError};
use crate::metrics::Metrics;

const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the final export may take, once for metrics and once for traces.
pub(super) const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the attributes that identify this process to a collector.
fn identity(service_name: &str, process: ProcessId, version: &str) -> [(&'static str, String); 3] {
    [
        ("service.name", service_name.to_owned()),
        ("service.instance.id", process.to_string()),
        ("service.version", version.to_owned()),
    ]
}

fn endpoint(config: &OtlpConfig, signal: &str) -> String {
    format!("{}/v1/{signal}", config.endpoint.as_str().trim_end_matches('/'))
}

/// Returns the name and value of a configured header. Returns none if it is malformed.
pub(super) fn header(header: &Secret) -> Option<(&str, &str)> {
    let (name, value) = header.expose().split_once('=')?;
    let is_valid = http::HeaderName::try_from(name).is_ok() && http::HeaderValue::try_from(value).is_ok();
    is_valid.then_some((name, value))
}

pub(super) fn tracer_provider(
    config: &OtlpConfig,
    service_name: &str,
    process: ProcessId,
    version: &str,
) -> Result<SdkTracerProvider, ExporterBuildError> {
    let headers: HashMap<String, String> = config
        .headers
        .iter()
        .filter_map(header)
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let exporter = SpanExporter::builder()
        .with_http()
        .with_endpoint(endpoint(config, "traces"))
        .with_timeout(TIMEOUT)
        .with_headers(headers)
        .build()?;
    let attributes =
        identity(service_name, process, version).map(|(name, value)| Attribute::new(name, value));
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sample))))
        .with_resource(opentelemetry_sdk::Resource::builder().with_attributes(attributes).build());
    Ok(provider.build())
}

/// Pushes the metrics to a collector periodically.
#[derive(Debug)]
pub struct MetricsPush {
    endpoint: String,
    interval: Duration,
    headers: Vec<Secret>,
    client: reqwest::Client,
    metrics: Metrics,
    resource: Resource,
    version: &'static str,
    clock: Clock,
    started: Timestamp,
    failures: Counter,
}

/// The collector did not accept the metrics.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error("the collector cannot be reached")]
    Unreachable(#[from] reqwest::Error),
    #[error("the collector answered {0}")]
    Refused(http::StatusCode),
}

impl MetricsPush {
    /// Returns none if OTLP is not configured.
    pub fn new(
        config: &Config,
        process: ProcessId,
        version: &'static str,
        metrics: &Metrics,
        clock: Clock,
    ) -> Option<Self> {
        let otlp = config.otlp.as_ref()?;
        let failures = Counter::default();
        metrics.register(|registry| {
            registry.register(
                "playhouse_otlp_push_failures",
                "Pushes of metrics that failed",
                failures.clone(),
            );
        });
        let attributes = identity(&config.service_name, process, version)
            .map(|(name, value)| attribute(name.to_owned(), value));
        Some(Self {
            endpoint: endpoint(otlp, "metrics"),
            interval: otlp.interval,
            headers: otlp.headers.clone(),
            client: reqwest::Client::new(),
            metrics: metrics.clone(),
            resource: Resource { attributes: attributes.into(), ..Resource::default() },
            version,
            started: clock.now(),
            clock,
            failures,
        })
    }

    /// Pushes once per interval, and once more when the process stops.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        while drain.sleep(self.interval).await {
            tokio::select! {
                () = self.push() => {}
                () = drain.requested() => break,
            }
        }
        // A collector that does not answer must not delay the stop.
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, self.push()).await;
        Ok(())
    }

    async fn push(&self) {
        if let Err(error) = self.tick().await {
            self.failures.inc();
            let cause = base::error::chain(&error);
            tracing::warn!(
                outage = "collector",
                cause,
                "cannot push metrics to the collector; the next push includes them"
            );
        }
    }

    /// Pushes once.
    pub async fn tick(&self) -> Result<(), PushError> {
        let mut request = self.client.post(&self.endpoint).timeout(TIMEOUT);
        for (name, value) in self.headers.iter().filter_map(header) {
            request = request.header(name, value);
        }
        let body = self.request().encode_to_vec();
        let response = request.header(CONTENT_TYPE, "application/x-protobuf").body(body).send().await?;
        if response.status().is_success() { Ok(()) } else { Err(PushError::Refused(response.status())) }
    }

    fn request(&self) -> ExportMetricsServiceRequest {
        let times = Times { started: nanos(self.started), now: nanos(self.clock.now()) };
        let families = openmetrics::parse(&self.metrics.encode());
        let scope = ScopeMetrics {
            scope: Some(InstrumentationScope {
                name: "playhouse".to_owned(),
                version: self.version.to_owned(),
                ..InstrumentationScope::default()
            }),
            metrics: families.into_iter().map(|family| times.metric(family)).collect(),
            ..ScopeMetrics::default()
        };
        let resource = ResourceMetrics {
            resource: Some(self.resource.clone()),
            scope_metrics: vec![scope],
            ..ResourceMetrics::default()
        };
        ExportMetricsServiceRequest { resource_metrics: vec![resource] }
    }
}

/// The period that cumulative values cover.
struct Times {
    started: u64,
    now: u64,
}

impl Times {
    fn metric(&self, family: Family) -> Metric {
        let cumulative = AggregationTemporality::Cumulative as i32;
        let numbers =
            |points: Vec<(Labels, f64)>| points.into_iter().map(|point| self.number(point)).collect();
        let data = match family.series {
            Series::Gauge(points) => metric::Data::Gauge(Gauge { data_points: numbers(points) }),
            Series::Counter(points) => metric::Data::Sum(Sum {
                data_points: numbers(points),
                aggregation_temporality: cumulative,
                is_monotonic: true,
            }),
            Series::Histogram(series) => metric::Data::Histogram(Histogram {
                data_points: series
                    .into_iter()
                    .map(|(labels, values)| self.distribution(labels, values))
                    .collect(),
                aggregation_temporality: cumulative,
            }),
        };
        let unit = match family.unit.as_str() {
            "seconds" => "s".to_owned(),
            "bytes" => "By".to_owned(),
            other => other.to_owned(),
        };
        Metric { name: family.name, description: family.help, unit, data: Some(data), ..Metric::default() }
    }

    fn number(&self, (labels, value): (Labels, f64)) -> NumberDataPoint {
        NumberDataPoint {
            attributes: attributes(labels),
            start_time_unix_nano: self.started,
            time_unix_nano: self.now,
            value: Some(number_data_point::Value::AsDouble(value)),
            ..NumberDataPoint::default()
        }
    }

    fn distribution(&self, labels: Labels, values: Distribution) -> HistogramDataPoint {
        let mut below = 0;
        let counts = values.cumulative.iter().map(|count| {
            let own = count.saturating_sub(below);
            below = *count;
            own
        });
        HistogramDataPoint {
            attributes: attributes(labels),
            start_time_unix_nano: self.started,
            time_unix_nano: self.now,
            bucket_counts: counts.collect(),
            explicit_bounds: values.bounds,
            sum: Some(values.sum),
            count: values.count,
            ..HistogramDataPoint::default()
        }
    }
}

fn attributes(labels: Labels) -> Vec<KeyValue> {
    labels.into_iter().map(|(name, value)| attribute(name, value)).collect()
}

fn attribute(key: String, value: String) -> KeyValue {
    KeyValue {
        key,
        value: Some(AnyValue { value: Some(any_value::Value::StringValue(value)) }),
        ..KeyValue::default()
    }
}

fn nanos(time: Timestamp) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or_default().saturating_mul(1_000_000)
}
