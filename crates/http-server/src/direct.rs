//! Services that are called by their exact path, past the router: for calls that come by the ten thousand.

use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use ::http::{HeaderValue, Request, StatusCode};
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
    Audience, Connection, Leave, Problem, REQUEST_ID, Serving, Site, identify, is_grpc, known_method,
    request_id, span,
};
use crate::dates::Dates;
use crate::metrics::{ConnectionMetrics, HttpLabels, HttpMetrics, ListenerLabels};
use runtime::telemetry::is_traced;

type Handler = Arc<dyn Fn(Request<Body>) -> BoxFuture<'static, Response> + Send + Sync>;

/// What a listener serves.
#[derive(Default)]
pub struct Routes {
    pub(super) router: Router,
    pub(super) direct: HashMap<String, Handler>,
}

impl Routes {
    pub fn new(router: Router) -> Self {
        Self { router, direct: HashMap::new() }
    }

    /// Adds what other routes serve.
    pub fn merge(mut self, other: Self) -> Self {
        self.router = self.router.merge(other.router);
        self.direct.extend(other.direct);
        self
    }

    /// Serves one path, whatever the method, with a handler that the router knows nothing of.
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

/// Routes with what every listener does around them.
#[derive(Clone)]
pub(crate) struct Served {
    router: Router,
    direct: Arc<HashMap<String, Arc<Direct>>>,
    connection: Option<Connection>,
    connections: ConnectionMetrics,
    dates: Dates,
}

struct Direct {
    listener: &'static str,
    audience: Audience,
    site: Site,
    route: String,
    handler: Handler,
    metrics: HttpMetrics,
    active: Gauge,
    panics: Counter,
    /// Of the answers that are usual.
    duration: Histogram,
}

impl Served {
    pub(super) fn new(
        serving: &Serving,
        listener: &'static str,
        site: Site,
        router: Router,
        direct: HashMap<String, Handler>,
    ) -> Self {
        let Serving { metrics, audience, dates } = serving.clone();
        let of = |(route, handler): (String, Handler)| {
            let labels = labels(listener, "POST", &route, StatusCode::OK);
            let direct = Direct {
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
        let direct = Arc::new(direct.into_iter().map(of).collect());
        let connections = metrics.connections(listener);
        Self { router, direct, connection: None, connections, dates }
    }

    pub(super) fn connections(&self) -> &ConnectionMetrics {
        &self.connections
    }

    /// The value of the header `Date`.
    pub(super) fn date(&self) -> HeaderValue {
        self.dates.now()
    }

    /// The same for the requests of one connection.
    pub(super) fn on(&self, connection: Connection) -> Self {
        Self { connection: Some(connection), ..self.clone() }
    }

    pub(super) fn answer(&self, mut request: Request<Body>) -> BoxFuture<'static, Response> {
        if let Some(connection) = &self.connection {
            request.extensions_mut().insert(connection.clone());
        }
        if let Some(direct) = self.direct.get(request.uri().path()).cloned() {
            return Box::pin(async move { direct.answer(request).await });
        }
        let answered = self.router.clone().call(request);
        Box::pin(async move {
            match answered.await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
    }
}

impl Direct {
    /// What the router's requests get too, but a request is described (by an id of ours and a span) only where somebody reads
    /// that: the caller gave an id, traces are exported, or it failed.
    async fn answer(&self, mut request: Request<Body>) -> Response {
        let started = Instant::now();
        let (method, is_grpc) = (known_method(request.method()), is_grpc(&request));
        let described = is_traced() || request.headers().contains_key(&REQUEST_ID);
        let request_id = described.then(|| request_id(&request));
        let span = request_id.as_ref().map_or_else(Span::none, |request_id| {
            request.extensions_mut().insert(request_id.clone());
            span((self.listener, self.audience), method, &self.route, request_id, &request)
        });
        self.active.inc();
        let _leave = Leave(|| {
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
            // What it said is in the log already.
            self.panics.inc();
            Problem::new(Code::Internal).into_response()
        });
        if let Some(problem) = response.extensions_mut().remove::<Problem>() {
            let request_id = request_id.clone().unwrap_or_else(RequestId::generate);
            response = problem.render(&request_id, is_grpc, response);
            identify(&mut response, &request_id);
        } else if let Some(request_id) = &request_id {
            identify(&mut response, request_id);
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
