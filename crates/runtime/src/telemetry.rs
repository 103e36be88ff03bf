//! Logs, traces and the export of metrics.

mod openmetrics;
mod otlp;
mod outage;
mod trace;

use std::io::IsTerminal;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::id::ProcessId;
use config::{Choice, InvalidValue, Reader, Secret, Section, Setting, Value};
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::filter::{FilterExt, LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};
use url::Url;

use self::outage::Outages;
pub use otlp::MetricsPush;
pub use trace::TraceContext;

/// Libraries whose logs are rarely useful. The exporter uses some of them, so exporting their spans would create new spans.
const QUIET: [&str; 8] =
    ["async_nats", "h2", "hyper", "hyper_util", "opentelemetry", "reqwest", "sqlx", "tower"];

/// Settings of telemetry.
#[derive(Clone, Debug)]
pub struct Config {
    pub log: LogFilter,
    pub log_format: LogFormat,
    pub service_name: String,
    pub otlp: Option<OtlpConfig>,
}

/// Where to send traces and metrics.
#[derive(Clone, Debug)]
pub struct OtlpConfig {
    pub endpoint: Url,
    pub headers: Vec<Secret>,
    pub interval: Duration,
    pub sample: f64,
}

/// Selects what is logged: a level, or `target=level` pairs.
#[derive(Clone, Debug)]
pub struct LogFilter(String, Targets);

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable on a terminal, JSON otherwise.
    Auto,
    Human,
    Json,
}

impl Choice for LogFormat {
    const WORDS: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("human", Self::Human), ("json", Self::Json)];
}

impl Setting for LogFilter {
    fn expected() -> String {
        "a level (error, warn, info, debug, trace), or pairs such as \"info,db=debug\"".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        let text = String::parse(value)?;
        // The parser of `Targets` takes any single word for a target, so that `inof` would switch off all logs.
        let is_level = |word: &str| matches!(word, "error" | "warn" | "info" | "debug" | "trace");
        let mut targets = Targets::new().with_default(LevelFilter::INFO);
        for word in text.split(',').map(str::trim) {
            let (target, level) =
                word.split_once('=').map_or((None, word), |(target, level)| (Some(target), level));
            let level = LevelFilter::from_str(level)
                .ok()
                .filter(|_| is_level(level))
                .ok_or_else(InvalidValue::default)?;
            targets = match target {
                Some(target) => targets.with_target(target, level),
                None => targets.with_default(level),
            };
        }
        Ok(Self(text, targets))
    }

    fn show(&self) -> String {
        format!("{:?}", self.0)
    }
}

impl Section for Config {
    fn read(reader: &mut Reader<'_>) -> Self {
        let endpoint: Option<Url> = reader.optional("otlp_endpoint");
        let headers: Option<Vec<Secret>> = reader.optional("otlp_headers");
        let headers = headers.unwrap_or_default();
        let well_formed = headers.iter().all(|header| otlp::header(header).is_some());
        reader.check(&["otlp_headers"], well_formed, || {
            "each header must be of the form \"name=value\"".to_owned()
        });
        let interval = reader.get_within("otlp_interval", Duration::from_secs(1)..=Duration::from_secs(3600));
        let sample = reader.get_within("trace_sample", 0.0..=1.0);
        Self {
            log: reader.get("log"),
            log_format: reader.get("log_format"),
            service_name: reader.get("service_name"),
            otlp: endpoint.map(|endpoint| OtlpConfig { endpoint, headers, interval, sample }),
        }
    }
}

static IS_TRACED: AtomicBool = AtomicBool::new(false);

/// Returns whether traces are exported. Hot paths do not create spans if not.
pub fn is_traced() -> bool {
    IS_TRACED.load(Ordering::Relaxed)
}

/// Running telemetry. Ends with [`stop`](Self::stop).
#[derive(Debug)]
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
    outages: Outages,
}

impl Telemetry {
    /// Starts logs to stderr and, if configured, traces over OTLP. Call it once, outside any async runtime: the trace exporter has its
    /// own threads.
    pub fn start(
        config: &Config,
        process: ProcessId,
        version: &'static str,
    ) -> Result<Self, ExporterBuildError> {
        let traces = config
            .otlp
            .as_ref()
            .map(|otlp| otlp::tracer_provider(otlp, &config.service_name, process, version));
        let traces = traces.transpose()?;
        let trace_layer = traces.as_ref().map(|provider| {
            use opentelemetry::trace::TracerProvider as _;
            tracing_opentelemetry::layer().with_tracer(provider.tracer("playhouse"))
        });
        let (filter, outages) = (config.log.1.clone(), Outages::start());
        // Spans that are neither exported nor logged are not created.
        let traced = if trace_layer.is_some() { LevelFilter::INFO } else { LevelFilter::OFF };
        IS_TRACED.store(trace_layer.is_some(), Ordering::Relaxed);
        tracing_subscriber::registry()
            .with(trace_layer.with_filter(traced))
            .with(log_layer(config.log_format).with_filter(filter.clone().and(outages.clone())))
            .with(quiet(&filter))
            .init();
        log_panics();
        Ok(Self { traces, outages })
    }

    /// Sends the remaining traces. Blocks for at most a second.
    pub fn stop(self) {
        self.outages.stop();
        if let Some(traces) = self.traces
            && let Err(error) = traces.shutdown_with_timeout(otlp::FLUSH_TIMEOUT)
        {
            tracing::warn!(cause = %error, "some traces were not sent");
        }
    }
}

/// Logs panics as one line.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        let text = crate::fault::panic_text(panic.payload());
        tracing::error!(location, "panic: {text}");
    }));
}

/// Silences the libraries that the filter does not name.
fn quiet(filter: &Targets) -> Targets {
    let named = |library: &&str| filter.iter().any(|(target, _)| target.starts_with(*library));
    // The SQL driver warns about each connection that an outage breaks. The caller logs the failed operation.
    let level = |library| if library == "sqlx" { LevelFilter::ERROR } else { LevelFilter::WARN };
    let silenced =
        QUIET.into_iter().filter(|library| !named(library)).map(|library| (library, level(library)));
    Targets::new().with_default(LevelFilter::TRACE).with_targets(silenced)
}

fn log_layer<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    let terminal = std::io::stderr().is_terminal();
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let layer = fmt::layer().with_writer(std::io::stderr);
    let human = match format {
        LogFormat::Auto => terminal,
        LogFormat::Human => true,
        LogFormat::Json => false,
    };
    if human {
        layer.with_ansi(terminal && colours).with_target(false).boxed()
    } else {
        layer.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_filter_accepts_levels_only() {
        let parse = |text: &str| LogFilter::parse(&Value::Text(text.to_owned()));
        for good in ["info", "warn,db=debug", "db=trace", "error, runtime::http=debug"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in ["", "inof", "verbose", "off", "db", "db=", "db=loud", "info,,warn"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        // A level for one target does not silence the others.
        let LogFilter(_, targets) = parse("db=debug").unwrap();
        assert!(targets.would_enable("playhouse", &tracing::Level::INFO));
        assert!(targets.would_enable("db", &tracing::Level::DEBUG));
        assert!(!targets.would_enable("playhouse", &tracing::Level::DEBUG));
    }
}
