//! What every HTTP listener of ours does alike.
//!
//! - a request has an id: the caller's `X-Request-Id` where it is sound, else a new one; it is in the answer and the logs
//!   (calls past the router have one of ours only if they fail or are traced)
//! - an error is a problem document (RFC 9457), or a gRPC status where the caller speaks gRPC
//! - a panic in a handler is that request's error and nobody else's
//! - the trace of a trusted caller is continued (`traceparent`); that of the public is linked
//! - a request for a name that is not ours, or that a foreign page sends to change something, is refused ([`Site`])
//! - nobody may have more connections, send a larger head, or take longer over a head or an answer than [`Limits`] says
//! - a listener that stops announces it: requests that are on their way are answered

mod address;
mod admin;
mod admission;
mod body;
mod caller;
mod dates;
mod direct;
mod http1;
mod http2;
mod idempotency;
mod lasting;
mod metrics;
mod problem;
mod serve;
mod site;
mod socket;

use std::panic::AssertUnwindSafe;
use std::str::FromStr;
use std::time::Instant;

use ::http::header::CONTENT_TYPE;
use ::http::{HeaderName, HeaderValue, Method};
use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use base::id::RequestId;
use base::{Clock, Code};
use futures::FutureExt;
use runtime::lifecycle::Stage;
use runtime::telemetry::TraceContext;
use runtime::{Metrics, Process};
use tokio::net::TcpListener;
use tracing::{Instrument, Span};

use dates::Dates;
use metrics::{HttpLabels, HttpMetrics, ListenerLabels};

pub use address::client_address;
pub use admin::{health, scrape};
pub use admission::counted_as;
pub use body::{Body, BodyTimeout, Query, RawBody};
pub use caller::{Caller, ConfiguredCaller, Credentials, Right, TokenHash, Vouch, bearer_token};
pub use direct::Routes;
use direct::Served;
pub use idempotency::{answered_before, idempotency_key};
pub use problem::Problem;
pub use serve::{Connection, Held, Limits};
pub use site::{HostPattern, Site};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Who calls a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Audience {
    /// Services and operators. Their traces are continued.
    Trusted,
    /// Players, and anybody else. They do not decide what is sampled: their requests are roots, linked to their traces.
    Public,
}

/// Serves routes on the listeners of a process, under one set of limits.
#[derive(Clone, Debug)]
pub struct Server {
    serving: Serving,
    limits: Limits,
}

impl Server {
    /// Makes a server for services and operators.
    pub fn new(limits: Limits, clock: Clock, metrics: &Metrics) -> Self {
        Self { serving: Serving::new(clock, metrics), limits }
    }

    /// The same for players: with the limits of the public, and without trust in the traces of callers.
    pub fn for_public(&self) -> Self {
        let serving = Serving { audience: Audience::Public, ..self.serving.clone() };
        let limits = Limits { max_streams: self.limits.public_max_streams, ..self.limits.clone() };
        Self { serving, limits }
    }

    /// Serves `routes` on `listener` until the stage stops. Then it accepts no connection and finishes open requests.
    pub fn serve(
        &self,
        process: &mut Process,
        stage: Stage,
        name: &'static str,
        listener: TcpListener,
        site: Site,
        routes: impl Into<Routes>,
    ) {
        let served = self.serving.wrap(name, site, routes.into());
        // Connections that rest must not use up the time that open requests have.
        let idle_grace = self.limits.idle_grace.min(process.time_to_stop(stage) / 2);
        let limits = Limits { idle_grace, ..self.limits.clone() };
        process.start(stage, name, |drain, tasks| serve::serve(listener, served, limits, drain, tasks));
    }
}

/// Wraps the routes of a listener in what all listeners do alike.
#[derive(Clone, Debug)]
struct Serving {
    metrics: HttpMetrics,
    audience: Audience,
    dates: Dates,
}

impl Serving {
    fn new(clock: Clock, metrics: &Metrics) -> Self {
        Self { metrics: HttpMetrics::new(metrics), audience: Audience::Trusted, dates: Dates::new(clock) }
    }

    fn wrap(&self, listener: &'static str, site: Site, routes: Routes) -> Served {
        let Routes { router, direct } = routes;
        let router = self.wrap_router(listener, site.clone(), router);
        Served::new(self, listener, site, router, direct)
    }

    fn wrap_router(&self, listener: &'static str, site: Site, router: Router) -> Router {
        let (metrics, listener) = (self.metrics.clone(), (listener, self.audience));
        router
            .fallback(nothing_here)
            .method_not_allowed_fallback(async || Problem::new(Code::MethodNotAllowed))
            .layer(middleware::from_fn(move |request, next| {
                answer(metrics.clone(), listener, site.clone(), request, next)
            }))
    }
}

async fn nothing_here(request: Request) -> Problem {
    // To a gRPC client a path is a method.
    let code = if is_grpc(&request) { Code::Unimplemented } else { Code::NotFound };
    Problem::new(code).detail("There is nothing at this address.")
}

async fn answer(
    metrics: HttpMetrics,
    (listener, audience): (&'static str, Audience),
    site: Site,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let request_id = request_id(&request);
    let is_grpc = is_grpc(&request);
    let method = known_method(request.method());
    // The route, not the path: paths are without number, metrics must not be.
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).to_owned();
    let span = span((listener, audience), method, &route, &request_id, &request);
    request.extensions_mut().insert(request_id.clone());

    let active = metrics.active.get_or_create(&ListenerLabels { listener }).clone();
    active.inc();
    // Also when the caller goes away and this future is dropped.
    let _leave = Leave(|| {
        active.dec();
    });
    let work = async {
        match site.check(&request) {
            Ok(()) => next.run(request).await,
            Err(problem) => problem.into_response(),
        }
    };
    let answering = AssertUnwindSafe(work).catch_unwind().instrument(span.clone());
    let mut response = answering.await.unwrap_or_else(|_| {
        // What it said is in the log already.
        metrics.panics.get_or_create(&ListenerLabels { listener }).inc();
        Problem::new(Code::Internal).into_response()
    });
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        response = problem.render(&request_id, is_grpc, response);
    }
    identify(&mut response, &request_id);
    let status = response.status().as_u16();
    let took = started.elapsed();
    span.in_scope(|| tracing::debug!(status, took_us = took.as_micros(), "answered"));
    let labels = HttpLabels {
        listener,
        http_request_method: method,
        http_route: route,
        http_response_status_code: status,
    };
    metrics.duration.get_or_create(&labels).observe(took.as_secs_f64());
    response
}

fn span(
    (listener, audience): (&str, Audience),
    method: &str,
    route: &str,
    request_id: &RequestId,
    request: &Request,
) -> Span {
    let span = tracing::info_span!(
        "http.request",
        listener,
        method,
        route,
        %request_id,
        otel.name = format_args!("{method} {route}"),
        otel.kind = "server",
    );
    let trace = TraceContext::from_headers(request.headers());
    match audience {
        Audience::Trusted => trace.continue_in(&span),
        Audience::Public => trace.link_in(&span),
    }
    span
}

fn request_id(request: &Request) -> RequestId {
    let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    given.and_then(|text| RequestId::from_str(text).ok()).unwrap_or_else(RequestId::generate)
}

fn identify(response: &mut Response, request_id: &RequestId) {
    if let Ok(mut value) = HeaderValue::from_str(request_id.as_str()) {
        // Not a secret, but new each time: HTTP/2 need not remember it.
        value.set_sensitive(true);
        response.headers_mut().insert(REQUEST_ID, value);
    }
}

fn is_grpc(request: &Request) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|text| text.starts_with("application/grpc"))
}

/// A caller may make up methods; a label may not.
fn known_method(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "_OTHER",
    }
}

struct Leave<F: FnMut()>(F);

impl<F: FnMut()> Drop for Leave<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests;
