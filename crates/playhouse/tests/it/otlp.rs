use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value;
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use testkit::eventually;

use super::*;

/// A collector that stores everything it receives.
#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
    metrics: Arc<Mutex<Vec<Metric>>>,
    keys: Arc<Mutex<Vec<String>>>,
}

impl Collector {
    async fn start() -> (Self, String) {
        let collector = Self::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (traces, metrics) = (collector.clone(), collector.clone());
        let router = Router::new()
            .route(
                "/v1/traces",
                post(async move |headers: HeaderMap, body: Bytes| traces.receive_traces(&headers, body)),
            )
            .route(
                "/v1/metrics",
                post(async move |headers: HeaderMap, body: Bytes| metrics.receive_metrics(&headers, body)),
            );
        tokio::spawn(async move { axum::serve(listener, router).await });
        (collector, format!("http://{address}"))
    }

    fn receive_traces(&self, headers: &HeaderMap, body: Bytes) {
        self.record_key(headers);
        let request = ExportTraceServiceRequest::decode(body).unwrap();
        let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
        self.spans.lock().unwrap().extend(scopes.flat_map(|scope| scope.spans));
    }

    fn receive_metrics(&self, headers: &HeaderMap, body: Bytes) {
        self.record_key(headers);
        let request = ExportMetricsServiceRequest::decode(body).unwrap();
        let resource = request.resource_metrics[0].resource.as_ref().unwrap();
        assert!(format!("{resource:?}").contains("game-backend"));
        let scopes = request.resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
        *self.metrics.lock().unwrap() = scopes.flat_map(|scope| scope.metrics).collect();
    }

    fn record_key(&self, headers: &HeaderMap) {
        let key = headers.get("x-key").map(|value| value.to_str().unwrap().to_owned());
        self.keys.lock().unwrap().extend(key);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn traces_and_metrics_reach_a_collector() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    let (collector, endpoint) = Collector::start().await;
    let running = dev(&[
        "--ephemeral",
        "--set",
        "telemetry.otlp_interval=1s",
        "--set",
        "telemetry.service_name=game-backend",
    ])
    .env("PLAYHOUSE_TELEMETRY_OTLP_ENDPOINT", endpoint)
    .env("PLAYHOUSE_TELEMETRY_OTLP_HEADERS", "x-key=s3cret")
    .start()
    .unwrap();
    let at = addresses(&running).await;
    let request = reqwest::Client::new()
        .get(format!("http://{}/healthz", at["service_api"]))
        .header("traceparent", format!("00-{TRACE}-b7ad6b7169203331-01"));
    assert_eq!(request.send().await.unwrap().status(), 200);

    eventually("the caller's trace is continued", PATIENCE, async || {
        let spans = collector.spans.lock().unwrap();
        let ours = spans.iter().find(|span| hex(&span.trace_id) == TRACE)?;
        assert_eq!(hex(&ours.parent_span_id), "b7ad6b7169203331");
        assert_eq!(ours.name, "GET /healthz");
        Some(())
    })
    .await;

    // The pushed metrics are the scraped ones.
    let (_, Value::String(text)) = get(format!("http://{}/metrics", at["admin"])).await else {
        panic!("metrics are not text")
    };
    let mut scraped: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    scraped.sort_unstable();
    eventually("all metrics are pushed", PATIENCE, async || {
        let pushed = collector.metrics.lock().unwrap();
        let mut names: Vec<&str> = pushed.iter().map(|metric| metric.name.as_str()).collect();
        names.sort_unstable();
        if names == scraped { Ok(()) } else { Err(format!("{names:?}")) }
    })
    .await;
    let pushed = collector.metrics.lock().unwrap().clone();
    let duration =
        pushed.iter().find(|metric| metric.name == "http_server_request_duration_seconds").unwrap();
    let Some(metric::Data::Histogram(histogram)) = &duration.data else { panic!("not a histogram") };
    let point = &histogram.data_points[0];
    assert_eq!(point.bucket_counts.iter().sum::<u64>(), point.count);
    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);

    running.sigterm();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
    assert!(collector.keys.lock().unwrap().iter().all(|key| key == "s3cret"));
    assert!(!format!("{:?}", running.lines()).contains("s3cret"));
}

/// Returns the value of a text attribute.
fn attribute<'a>(span: &'a Span, name: &str) -> Option<&'a str> {
    let value = span.attributes.iter().find(|attribute| attribute.key == name)?.value.as_ref()?;
    match &value.value {
        Some(any_value::Value::StringValue(text)) => Some(text),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_services_and_operators_decide_what_is_sampled() {
    const PARENT: &str = "b7ad6b7169203331";
    let (collector, endpoint) = Collector::start().await;
    // With a sample rate of 0 only a trusted caller can have its request sampled.
    let running =
        dev(&["--ephemeral", "--set", "telemetry.otlp_interval=1s", "--set", "telemetry.trace_sample=0"])
            .env("PLAYHOUSE_TELEMETRY_OTLP_ENDPOINT", &endpoint)
            .start()
            .unwrap();
    let at = addresses(&running).await;
    let call = async |at: &HashMap<String, String>, trace: &str, listener: &str, sampled: &str| {
        let request = reqwest::Client::new()
            .get(format!("http://{}/healthz", at[listener]))
            .header("traceparent", format!("00-{trace}-{PARENT}-{sampled}"));
        assert_eq!(request.send().await.unwrap().status(), 200);
    };
    let trace = |number: u8| format!("{number:032x}");
    for (number, listener) in [(1, "gateway"), (2, "service_api"), (3, "admin")] {
        call(&at, &trace(number), listener, "01").await;
    }
    running.sigterm();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
    let spans = std::mem::take(&mut *collector.spans.lock().unwrap());
    let listeners: Vec<(&str, String)> =
        spans.iter().filter_map(|span| Some((attribute(span, "listener")?, hex(&span.trace_id)))).collect();
    assert_eq!(listeners, [("service_api", trace(2)), ("admin", trace(3))]);

    // With a sample rate of 1 a player's request is a new root span that links to the player's trace, even if the player does not
    // want it to be sampled.
    let running = dev(&["--ephemeral", "--set", "telemetry.otlp_interval=1s"])
        .env("PLAYHOUSE_TELEMETRY_OTLP_ENDPOINT", &endpoint)
        .start()
        .unwrap();
    let at = addresses(&running).await;
    call(&at, &trace(4), "gateway", "01").await;
    call(&at, &trace(5), "gateway", "00").await;
    running.sigterm();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
    let spans = std::mem::take(&mut *collector.spans.lock().unwrap());
    let ours: Vec<&Span> =
        spans.iter().filter(|span| attribute(span, "listener") == Some("gateway")).collect();
    let links: Vec<Vec<(String, String)>> = ours
        .iter()
        .map(|span| span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect())
        .collect();
    assert_eq!(links, [[(trace(4), PARENT.to_owned())], [(trace(5), PARENT.to_owned())]]);
    for span in ours {
        assert!(
            span.parent_span_id.is_empty()
                && !links.iter().flatten().any(|(id, _)| *id == hex(&span.trace_id))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_collector_has_no_effect() {
    let running = dev(&["--ephemeral", "--set", "telemetry.otlp_interval=1s"])
        .env("PLAYHOUSE_TELEMETRY_OTLP_ENDPOINT", "http://127.0.0.1:1")
        .start()
        .unwrap();
    let at = addresses(&running).await;
    let url = format!("http://{}/metrics", at["admin"]);
    eventually("failures are counted", PATIENCE, async || {
        let (_, text) = get(url.clone()).await;
        text.as_str().unwrap().contains("playhouse_otlp_push_failures_total 1")
    })
    .await;
    running.sigterm();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
}

/// The collector accepts connections and never responds.
#[tokio::test(flavor = "multi_thread")]
async fn silent_collector_does_not_delay_the_stop() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    for signals in [1, 2] {
        let running =
            dev(&["--ephemeral", "--set", "lifecycle.grace=5s", "--set", "telemetry.otlp_interval=1s"])
                .env("PLAYHOUSE_TELEMETRY_OTLP_ENDPOINT", &endpoint)
                .start()
                .unwrap();
        let at = addresses(&running).await;
        assert_eq!(get(format!("http://{}/healthz", at["gateway"])).await.0, 200);
        let signalled = std::time::Instant::now();
        (0..signals).for_each(|_| running.sigterm());
        running.wait(PATIENCE).await;
        assert!(
            signalled.elapsed() < Duration::from_millis(3500),
            "{signals} signals: {:?}",
            signalled.elapsed()
        );
        if signals == 1 {
            assert_eq!(running.exit_status().unwrap().code(), Some(0));
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
