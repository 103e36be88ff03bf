//! The edge of Open Match's services: gRPC, gRPC-Web, Connect and REST for each, on one set of routes.
//!
//! # To add a service
//!
//! 1. Implement the trait that `proto` generates for it. [`Error`] becomes a status by `?`.
//! 2. Return an [`OpenMatchService`]: its name, the size of its largest request, its [`RestRoute`]s, and a function that registers the
//!    implementation.
//! 3. Add one line to the wiring: `open_match.serve(query.service())`.
//!
//! Everything else follows from the descriptors: the methods that are served, health, reflection, and REST. A REST call is a Connect call
//! in JSON within the process ([`rest`]), so both have one implementation, one set of limits and one error table. The answers of REST
//! have the field names of the .proto files, as Open Match's HTTP gateway writes them. Connect has the names of JSON.

mod health;
mod names;
mod rest;
mod web;

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use base::error::Coded;
use buffa_descriptor::DescriptorPool;
use connectrpc::{ConnectError, ConnectRpcBody, ConnectRpcService, DeadlinePolicy, ErrorCode, Limits};
use connectrpc_health::{HEALTH_SERVICE_NAME, HealthExt, HealthService};
use connectrpc_reflection::Reflector;
use futures::{FutureExt, StreamExt};
use http::Request;
use http_body_util::{BodyStream, StreamBody};
use http_server::{Connection, Routes};
use runtime::Drain;
use tower::{Layer, Service, ServiceExt};

use crate::error::Error;
use crate::store::Store;
use crate::wire;

use self::health::StoreChecker;
pub use self::rest::RestRoute;

/// The methods that gRPC tools expect from every server.
const TOOLS: [&str; 4] = [
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// The size of the largest request of such a method.
const TOOL_REQUEST: usize = 16 * 1024;

/// The messages and services of Open Match.
static SCHEMA: LazyLock<Arc<DescriptorPool>> = LazyLock::new(|| {
    #[expect(
        clippy::expect_used,
        reason = "the descriptors are compiled in, and every test of the edge reads them"
    )]
    Arc::new(DescriptorPool::decode(proto::DESCRIPTORS).expect("sound descriptors"))
});

type Register = Box<dyn FnOnce(connectrpc::Router) -> connectrpc::Router + Send>;

/// A service of Open Match, ready to be served.
pub struct OpenMatchService {
    /// The full name, such as `openmatch.FrontendService`.
    name: &'static str,
    /// The size of the largest request, in bytes.
    max_request: usize,
    rest: &'static [RestRoute],
    register: Register,
}

impl fmt::Debug for OpenMatchService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenMatchService").field(&self.name).finish()
    }
}

impl OpenMatchService {
    /// Describes a service. `register` adds its implementation to a router.
    pub fn new(
        name: &'static str,
        max_request: usize,
        rest: &'static [RestRoute],
        register: impl FnOnce(connectrpc::Router) -> connectrpc::Router + Send + 'static,
    ) -> Self {
        Self { name, max_request, rest, register: Box::new(register) }
    }

    /// Returns the names of its methods.
    fn methods(&self) -> impl Iterator<Item = &'static str> + use<> {
        let service = SCHEMA.service_by_name(self.name);
        service.into_iter().flat_map(|service| service.methods()).map(|method| method.name())
    }
}

/// The services of Open Match that this process serves.
#[derive(Debug)]
pub struct OpenMatch {
    store: Store,
    services: Vec<OpenMatchService>,
    /// The origins of pages that may call.
    origins: Vec<String>,
}

impl OpenMatch {
    /// Serves nothing yet. Health is that of `store`.
    pub fn new(store: Store) -> Self {
        Self { store, services: Vec::new(), origins: Vec::new() }
    }

    /// Lets pages of these origins call from a browser.
    pub fn allow_origins(mut self, origins: Vec<String>) -> Self {
        self.origins = origins;
        self
    }

    /// Serves one more service.
    pub fn serve(mut self, service: OpenMatchService) -> Self {
        self.services.push(service);
        self
    }

    /// Returns the routes of all services, of health and of reflection. Without services there are none.
    pub fn routes(self) -> Routes {
        if self.services.is_empty() {
            return Routes::default();
        }
        wire::register_types();
        let names: Vec<&'static str> = self.services.iter().map(|service| service.name).collect();
        let mut paths: Vec<(String, usize)> = TOOLS.map(|path| (path.to_owned(), TOOL_REQUEST)).into();
        let (mut rpc, mut rest) = (connectrpc::Router::new(), Vec::new());
        for service in self.services {
            let methods: Vec<String> =
                service.methods().map(|method| format!("/{}/{method}", service.name)).collect();
            let size = service.max_request;
            let limits = Limits::default().with_max_message_size(size).with_max_request_body_size(size);
            rpc = (service.register)(rpc);
            rpc = methods.iter().fold(rpc, |rpc, path| rpc.with_route_limits(path, limits));
            paths.extend(methods.into_iter().map(|path| (path, size)));
            rest.push((service.name, size, service.rest));
        }
        let health = HealthService::new(StoreChecker::new(self.store, &names));
        let rpc = Arc::new(health).register(rpc);
        let rpc = connectrpc_health::apply_request_limits(rpc, connectrpc_health::request_limits());
        let rpc = connectrpc_reflection::install(rpc, reflector(names));
        // Also of streams: a Director that waits no longer must not get matches.
        let deadlines = DeadlinePolicy::new().with_enforce_on_streams(true);
        let rpc = ConnectRpcService::new(rpc).with_deadline_policy(deadlines);
        let cors = (!self.origins.is_empty()).then(|| web::cors(&self.origins));
        let router = rest.into_iter().fold(Router::new(), |router, (name, size, routes)| {
            let own = rest::router(&rpc, name, size, routes);
            router.merge(if cors.is_some() { rest::with_options(own, routes) } else { own })
        });
        let router = match &cors {
            Some(cors) => router.layer(cors.clone()),
            None => router,
        };
        paths.into_iter().fold(Routes::new(router), |routes, (path, max_request)| {
            let call = Call { rpc: rpc.clone(), is_tool: TOOLS.contains(&path.as_str()), max_request };
            match cors.clone() {
                None => routes.direct(path, move |request| call.clone().answer(request).boxed()),
                Some(cors) => routes.direct(path, move |request| {
                    let call = call.clone();
                    let answer = tower::service_fn(move |request| {
                        call.clone().answer(request).map(Ok::<_, Infallible>)
                    });
                    let answer = cors.layer(answer).oneshot(request);
                    async move {
                        match answer.await {
                            Ok(response) => response,
                            Err(never) => match never {},
                        }
                    }
                    .boxed()
                }),
            }
        })
    }
}

fn reflector(names: Vec<&'static str>) -> Reflector {
    #[expect(clippy::expect_used, reason = "the descriptors are compiled in, and a test reads them")]
    let reflector = Reflector::from_descriptor_pool(SCHEMA.clone()).expect("sound descriptors");
    reflector.with_services(names.into_iter().chain([HEALTH_SERVICE_NAME]))
}

/// A method that is called over gRPC, gRPC-Web or Connect.
#[derive(Clone)]
struct Call {
    rpc: ConnectRpcService,
    is_tool: bool,
    max_request: usize,
}

impl Call {
    async fn answer(self, request: Request<Body>) -> Response {
        if !web::is_text(&request) {
            return self.answer_binary(request).await;
        }
        match web::to_binary(request, self.max_request).await {
            Ok(request) => web::to_text(self.answer_binary(request).await),
            Err(refused) => refused,
        }
    }

    async fn answer_binary(mut self, request: Request<Body>) -> Response {
        let drain = request.extensions().get::<Connection>().map(|connection| connection.drain().clone());
        match (self.rpc.call(request).await, drain) {
            // Health watches may stay open forever, so end them here. Other streams end themselves, with an error.
            (Ok(response), Some(drain)) if self.is_tool => response.map(|body| end_on_drain(drain, body)),
            (Ok(response), _) => response.map(Body::new),
            (Err(never), _) => match never {},
        }
    }
}

/// Ends a response body when the listener drains.
fn end_on_drain(drain: Drain, body: ConnectRpcBody) -> Body {
    let ended = async move { drain.requested().await };
    Body::new(StreamBody::new(BodyStream::new(body).take_until(Box::pin(ended))))
}

impl From<Error> for ConnectError {
    /// Converts an error for the caller, and logs its cause.
    fn from(error: Error) -> Self {
        error.log();
        let code = ErrorCode::from_grpc_code(error.code().grpc_status().into()).unwrap_or(ErrorCode::Unknown);
        let text = match &error {
            // The words of Open Match, by which its clients may know the error.
            Error::NotFound(id) => format!("Ticket id: {id} not found"),
            _ => error.to_string(),
        };
        Self::new(code, text)
    }
}
