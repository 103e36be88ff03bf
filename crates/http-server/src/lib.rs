//! The behaviour that all HTTP listeners share.
//!
//! - Every request has an id: the caller's `X-Request-Id` if it is valid, else a new one. The response and the logs contain it.
//!   A request on a direct route ([`Routes::direct`]) gets a new id only if it fails or is traced.
//! - An error is a problem document (RFC 9457), or a gRPC status for a gRPC caller.
//! - A request may be refused before it gets a span or reaches the router ([`Routes::refuse_early`]).
//! - A panic in a handler fails that request only.
//! - The trace of a trusted caller is continued (`traceparent`). The trace of a public caller is linked.
//! - A request for an unknown host, or a change sent by a foreign page, is refused ([`Site`]).
//! - [`Limits`] bounds connections, the size of request heads, and how long a client may take to send a head or read a response.
//! - A listener that stops announces it and answers requests that are in flight.

mod address;
mod admin;
mod body;
mod caller;
mod connection_limit;
mod cookie;
mod dates;
mod decode_error;
mod direct;
mod http1;
mod http2;
mod idempotency;
mod metrics;
mod open_response;
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
pub use body::{BodyTimeout, JsonBody, Query, RawBody};
pub use caller::{Caller, CallerVerifier, ConfiguredCaller, Credentials, Right, TokenHash, bearer_token};
pub use connection_limit::client_network;
pub use cookie::{cookie, cookies};
use direct::ListenerRoutes;
pub use direct::{EarlyRefusal, Routes};
pub use idempotency::{idempotency_key, mark_replayed};
pub use metrics::{ConnectionCounts, ListenerConnections};
pub use problem::{PreparedProblem, Problem};
pub use serve::{Connection, Limits, StreamPermit};
pub use site::{HostPattern, Site};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The callers of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Audience {
    /// Services and operators. Their traces are continued.
    Trusted,
    /// Players and unknown clients. They do not decide what is sampled: each request is a root span, linked to the caller's trace.
    Public,
}

/// Serves routes on the listeners of a process, under one set of limits.
#[derive(Clone, Debug)]
pub struct Server {
    middleware: Middleware,
    limits: Limits,
}

impl Server {
    /// Creates a server for services and operators.
    pub fn new(limits: Limits, clock: Clock, metrics: &Metrics) -> Self {
        Self { middleware: Middleware::new(clock, metrics), limits }
    }

    /// Returns a server for players: with the public limits, and without trust in the callers' traces.
    pub fn for_public(&self) -> Self {
        let middleware = Middleware { audience: Audience::Public, ..self.middleware.clone() };
        let limits = Limits { max_streams: self.limits.public_max_streams, ..self.limits.clone() };
        Self { middleware, limits }
    }

    /// Returns the connections of all listeners that are served.
    pub fn connections(&self) -> ConnectionCounts {
        self.middleware.metrics.counts.clone()
    }

    /// Serves `routes` on `listener` until the stage stops. Then it accepts no more connections and finishes open requests.
    pub fn serve(
        &self,
        process: &mut Process,
        stage: Stage,
        name: &'static str,
        listener: TcpListener,
        site: Site,
        routes: impl Into<Routes>,
    ) {
        let routes = self.middleware.wrap(name, site, routes.into());
        // Idle connections must not use up the time for open requests.
        let idle_grace = self.limits.idle_grace.min(process.time_to_stop(stage) / 2);
        let limits = Limits { idle_grace, ..self.limits.clone() };
        process.start(stage, name, |drain, tasks| serve::serve(listener, routes, limits, drain, tasks));
    }
}

/// Wraps the routes of a listener in the behaviour that all listeners share.
#[derive(Clone, Debug)]
struct Middleware {
    metrics: HttpMetrics,
    audience: Audience,
    dates: Dates,
}

impl Middleware {
    fn new(clock: Clock, metrics: &Metrics) -> Self {
        Self { metrics: HttpMetrics::new(metrics), audience: Audience::Trusted, dates: Dates::new(clock) }
    }

    fn wrap(&self, listener: &'static str, site: Site, routes: Routes) -> ListenerRoutes {
        let router = self.wrap_router(listener, site.clone(), routes.router);
        ListenerRoutes::new(self, listener, site, Routes { router, ..routes })
    }

    fn wrap_router(&self, listener: &'static str, site: Site, router: Router) -> Router {
        let (metrics, listener) = (self.metrics.clone(), (listener, self.audience));
        router
            .fallback(not_found)
            .method_not_allowed_fallback(async || Problem::new(Code::MethodNotAllowed))
            .layer(middleware::from_fn(move |request, next| {
                answer(metrics.clone(), listener, site.clone(), request, next)
            }))
    }
}

async fn not_found(request: Request) -> Problem {
    // For a gRPC client, an unknown path is an unknown method.
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
    // The route, not the path: the number of metric labels must stay bounded.
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).to_owned();
    let span = span((listener, audience), method, &route, &request_id, &request);
    request.extensions_mut().insert(request_id.clone());

    let active = metrics.active.get_or_create(&ListenerLabels { listener }).clone();
    active.inc();
    // Also if the caller disconnects and this future is dropped.
    let _on_drop = OnDrop(|| {
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
        // The panic hook has logged the message.
        metrics.panics.get_or_create(&ListenerLabels { listener }).inc();
        Problem::new(Code::Internal).into_response()
    });
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        response = problem.render(&request_id, is_grpc, response);
    }
    set_request_id(&mut response, &request_id);
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

fn set_request_id(response: &mut Response, request_id: &RequestId) {
    if let Ok(mut value) = HeaderValue::from_str(request_id.as_str()) {
        // Not a secret, but new for every request: "sensitive" keeps it out of the HTTP/2 header table.
        value.set_sensitive(true);
        response.headers_mut().insert(REQUEST_ID, value);
    }
}

fn is_grpc(request: &Request) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|text| text.starts_with("application/grpc"))
}

/// Returns the method as a metric label. Methods that a caller invents share one label.
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

/// Runs a closure when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests;
