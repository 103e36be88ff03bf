//! Trace context that travels to another service or with a queued item.

use std::collections::HashMap;

use http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// A position in a trace, in the form of the W3C headers.
///
/// Every queued item (an outbox row, a message, a stream entry) carries one, so that the later work belongs to the trace of the
/// request that caused it. If OTLP is not configured, it is empty and costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceContext {
    traceparent: Option<String>,
    tracestate: Option<String>,
}

impl TraceContext {
    /// Returns the context of the current span.
    pub fn current() -> Self {
        let context = Span::current().context();
        if !context.span().span_context().is_valid() {
            return Self::default();
        }
        let mut headers = HashMap::new();
        TraceContextPropagator::new().inject_context(&context, &mut headers);
        Self {
            traceparent: headers.remove(TRACEPARENT),
            tracestate: headers.remove(TRACESTATE).filter(|state| !state.is_empty()),
        }
    }

    /// Reads the context from any source of headers. A malformed value is ignored: a trace is never a reason to refuse work.
    pub fn from_lookup<'a>(lookup: impl Fn(&str) -> Option<&'a str>) -> Self {
        let get = |name| lookup(name).map(ToOwned::to_owned);
        Self { traceparent: get(TRACEPARENT), tracestate: get(TRACESTATE) }
    }

    pub fn from_headers(headers: &HeaderMap) -> Self {
        Self::from_lookup(|name| headers.get(name).and_then(|value| value.to_str().ok()))
    }

    /// Returns the value of the header `traceparent`, if there is one.
    pub fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }

    /// Returns the headers to send or store.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let parent = self.traceparent.as_deref().map(|value| (TRACEPARENT, value));
        let state = self.tracestate.as_deref().map(|value| (TRACESTATE, value));
        parent.into_iter().chain(state)
    }

    /// Makes `span` a child of this context. Call it before the span is entered.
    pub fn continue_in(&self, span: &Span) {
        if self.traceparent.is_some() {
            let parent = TraceContextPropagator::new().extract(self);
            // Fails if the span is not sampled.
            let _ = span.set_parent(parent);
        }
    }

    /// Links `span` to this context and keeps it the root of its own trace, so that the caller does not decide about sampling. Call it
    /// before the span is entered.
    pub fn link_in(&self, span: &Span) {
        if self.traceparent.is_some() {
            let origin = TraceContextPropagator::new().extract(self);
            // Does nothing if the context is malformed or the span is not sampled.
            span.add_link(origin.span().span_context().clone());
        }
    }
}

impl Extractor for TraceContext {
    fn get(&self, key: &str) -> Option<&str> {
        self.headers().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    fn keys(&self) -> Vec<&str> {
        self.headers().map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn with_tracing<T>(test: impl FnOnce() -> T) -> T {
        let provider = SdkTracerProvider::builder().build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), test)
    }

    #[test]
    fn trace_continues_through_a_queue() {
        with_tracing(|| {
            let request = tracing::info_span!("request");
            TraceContext::from_lookup(|name| (name == "traceparent").then_some(CALLER)).continue_in(&request);
            let queued: Vec<(String, String)> = request.in_scope(|| {
                let context = TraceContext::current();
                context.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
            });
            let taken = TraceContext::from_lookup(|name| {
                queued.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
            });
            let work = tracing::info_span!("work");
            taken.continue_in(&work);
            let in_work = work.in_scope(TraceContext::current).traceparent.unwrap();
            assert_eq!(in_work.split('-').nth(1), CALLER.split('-').nth(1), "the trace id is the caller's");
            assert_ne!(in_work.split('-').nth(2), CALLER.split('-').nth(2), "the span is our own");
        });
    }

    #[test]
    fn linked_span_is_the_root_of_its_own_trace() {
        with_tracing(|| {
            let request = tracing::info_span!("request");
            TraceContext::from_lookup(|name| (name == "traceparent").then_some(CALLER)).link_in(&request);
            let ours = request.in_scope(TraceContext::current).traceparent.unwrap();
            assert_ne!(ours.split('-').nth(1), CALLER.split('-').nth(1), "the trace id is our own");
        });
    }

    #[test]
    fn context_is_empty_without_tracing() {
        assert_eq!(TraceContext::current(), TraceContext::default());
    }

    #[test]
    fn malformed_context_is_ignored() {
        with_tracing(|| {
            let span = tracing::info_span!("request");
            TraceContext::from_lookup(|_| Some("nonsense")).continue_in(&span);
            assert!(span.in_scope(TraceContext::current).traceparent.is_some());
        });
    }
}
