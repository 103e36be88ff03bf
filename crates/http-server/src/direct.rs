//! Direct routes: handlers called by their exact path, without the router, for calls at tens of thousands per second (ADR 16).

use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use ::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use base::Code;
use base::id::RequestId;
use futures::FutureExt;
use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use tower::Service;
use tracing::{Instrument, Span};

use super::{
    Audience, Connection, Middleware, OnDrop, PreparedProblem, Problem, REQUEST_ID, Site, is_grpc,
    known_method, request_id, set_request_id, span,
};
use crate::dates::Dates;
use crate::metrics::{ConnectionMetrics, HttpLabels, HttpMetrics, ListenerLabels};
use runtime::telemetry::is_traced;

type Handler = Arc<dyn Fn(Request<Body>) -> BoxFuture<'static, Response> + Send + Sync>;
type EarlyCheck = Arc<dyn Fn(&Request<Body>) -> Option<EarlyRefusal> + Send + Sync>;

/// The `http_route` label of requests that were refused before the router.
const REFUSED_EARLY: &str = "refused_early";

/// The response to a request that is refused before the router.
#[derive(Clone, Debug)]
pub struct EarlyRefusal {
    pub problem: Arc<PreparedProblem>,
    /// The headers of the response. Those that every problem has are added.
    pub headers: HeaderMap,
}

/// The routes of a listener.
#[derive(Clone, Default)]
pub struct Routes {
    pub(super) router: Router,
    pub(super) direct: HashMap<String, Handler>,
    pub(super) early_check: Option<EarlyCheck>,
}

impl Routes {
    pub fn new(router: Router) -> Self {
        Self { router, direct: HashMap::new(), early_check: None }
    }

    /// Calls `refuse` before a request gets a span or reaches the router. A request that it does not refuse costs only the call.
    pub fn refuse_early(
        mut self,
        refuse: impl Fn(&Request<Body>) -> Option<EarlyRefusal> + Send + Sync + 'static,
    ) -> Self {
        self.early_check = Some(Arc::new(refuse));
        self
    }

    /// Adds the routes of `other`.
    pub fn merge(mut self, other: Self) -> Self {
        self.router = self.router.merge(other.router);
        self.direct.extend(other.direct);
        self.early_check = self.early_check.or(other.early_check);
        self
    }

    /// Serves one path, for all methods, with a handler that is called without the router.
    pub fn direct(
        mut self,
        path: impl Into<String>,
        handler: impl Fn(Request<Body>) -> BoxFuture<'static, Response> + Send + Sync + 'static,
    ) -> Self {
        self.direct.insert(path.into(), Arc::new(handler));
        self
    }
}

impl From<Router> for Routes {
    fn from(router: Router) -> Self {
        Self::new(router)
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes").field("direct", &self.direct.keys()).finish_non_exhaustive()
    }
}

/// The routes of a listener, wrapped in the shared middleware.
#[derive(Clone)]
pub(crate) struct ListenerRoutes {
    router: Router,
    direct: Arc<HashMap<String, Arc<DirectRoute>>>,
    early: Option<Arc<EarlyRefusals>>,
    connection: Option<Connection>,
    connections: ConnectionMetrics,
    dates: Dates,
}

struct DirectRoute {
    listener: &'static str,
    audience: Audience,
    site: Site,
    route: String,
    handler: Handler,
    metrics: HttpMetrics,
    active: Gauge,
    panics: Counter,
    /// The histogram of successful POST requests, the common case.
    duration: Histogram,
}

struct EarlyRefusals {
    listener: &'static str,
    refuse: EarlyCheck,
    metrics: HttpMetrics,
    /// The histogram of rate-limited GET requests, the common case.
    duration: Histogram,
}

impl ListenerRoutes {
    pub(super) fn new(middleware: &Middleware, listener: &'static str, site: Site, routes: Routes) -> Self {
        let Routes { router, direct, early_check } = routes;
        let Middleware { metrics, audience, dates } = middleware.clone();
        let direct_route = |(route, handler): (String, Handler)| {
            let labels = labels(listener, "POST", &route, StatusCode::OK);
            let direct = DirectRoute {
                listener,
                audience,
                site: site.clone(),
                handler,
                active: metrics.active.get_or_create(&ListenerLabels { listener }).clone(),
                panics: metrics.panics.get_or_create(&ListenerLabels { listener }).clone(),
                duration: metrics.duration.get_or_create(&labels).clone(),
                metrics: metrics.clone(),
                route: route.clone(),
            };
            (route, Arc::new(direct))
        };
        let direct = Arc::new(direct.into_iter().map(direct_route).collect());
        let connections = metrics.connections(listener);
        let early = early_check.map(|refuse| {
            let labels = labels(listener, "GET", REFUSED_EARLY, StatusCode::TOO_MANY_REQUESTS);
            let duration = metrics.duration.get_or_create(&labels).clone();
            Arc::new(EarlyRefusals { listener, refuse, metrics, duration })
        });
        Self { router, direct, early, connection: None, connections, dates }
    }

    pub(super) fn connections(&self) -> &ConnectionMetrics {
        &self.connections
    }

    /// Returns the value of the header `Date`.
    pub(super) fn date(&self) -> HeaderValue {
        self.dates.now()
    }

    /// Returns a copy for the requests of one connection.
    pub(super) fn on(&self, connection: Connection) -> Self {
        Self { connection: Some(connection), ..self.clone() }
    }

    pub(super) fn answer(&self, mut request: Request<Body>) -> BoxFuture<'static, Response> {
        if let Some(connection) = &self.connection {
            request.extensions_mut().insert(connection.clone());
        }
        if let Some(response) = self.early.as_ref().and_then(|early| early.refuse(&request)) {
            return Box::pin(std::future::ready(response));
        }
        if let Some(direct) = self.direct.get(request.uri().path()).cloned() {
            return Box::pin(async move { direct.answer(request).await });
        }
        let response = self.router.clone().call(request);
        Box::pin(async move {
            match response.await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
    }
}

impl EarlyRefusals {
    /// Returns the response if the request is refused. Counts it like any other request.
    fn refuse(&self, request: &Request<Body>) -> Option<Response> {
        let started = Instant::now();
        let EarlyRefusal { problem, headers } = (self.refuse)(request)?;
        let request_id = request_id(request);
        let mut response = problem.render(&request_id, is_grpc(request), headers);
        set_request_id(&mut response, &request_id);
        let (method, status) = (known_method(request.method()), response.status());
        let took = started.elapsed().as_secs_f64();
        if status == StatusCode::TOO_MANY_REQUESTS && method == "GET" {
            self.duration.observe(took);
        } else {
            let labels = labels(self.listener, method, REFUSED_EARLY, status);
            self.metrics.duration.get_or_create(&labels).observe(took);
        }
        Some(response)
    }
}

impl DirectRoute {
    /// Answers a request like the router, but creates a request id and a span only if they are used: the caller sent an id, traces are
    /// exported, or the request fails.
    async fn answer(&self, mut request: Request<Body>) -> Response {
        let started = Instant::now();
        let (method, is_grpc) = (known_method(request.method()), is_grpc(&request));
        let has_span = is_traced() || request.headers().contains_key(&REQUEST_ID);
        let request_id = has_span.then(|| request_id(&request));
        let span = request_id.as_ref().map_or_else(Span::none, |request_id| {
            request.extensions_mut().insert(request_id.clone());
            span((self.listener, self.audience), method, &self.route, request_id, &request)
        });
        self.active.inc();
        let _on_drop = OnDrop(|| {
            self.active.dec();
        });
        let work = async {
            match self.site.check(&request) {
                Ok(()) => (self.handler)(request).await,
                Err(problem) => problem.into_response(),
            }
        };
        let work = AssertUnwindSafe(work.instrument(span)).catch_unwind();
        let mut response = work.await.unwrap_or_else(|_| {
            // The panic hook has logged the message.
            self.panics.inc();
            Problem::new(Code::Internal).into_response()
        });
        if let Some(problem) = response.extensions_mut().remove::<Problem>() {
            let request_id = request_id.clone().unwrap_or_else(RequestId::generate);
            response = problem.render(&request_id, is_grpc, response);
            set_request_id(&mut response, &request_id);
        } else if let Some(request_id) = &request_id {
            set_request_id(&mut response, request_id);
        }
        let (status, took) = (response.status(), started.elapsed().as_secs_f64());
        if status == StatusCode::OK && method == "POST" {
            self.duration.observe(took);
        } else {
            let labels = labels(self.listener, method, &self.route, status);
            self.metrics.duration.get_or_create(&labels).observe(took);
        }
        response
    }
}

fn labels(listener: &'static str, method: &'static str, route: &str, status: StatusCode) -> HttpLabels {
    HttpLabels {
        listener,
        http_request_method: method,
        http_route: route.to_owned(),
        http_response_status_code: status.as_u16(),
    }
}
