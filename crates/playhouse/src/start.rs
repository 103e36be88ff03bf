//! The start of a process: from settings to running parts.

pub(crate) mod locks;
mod stores;

use std::mem::take;
use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router};
use base::Clock;
use base::id::ProcessId;
use http_server::{CallerVerifier, Credentials, Server, Site, health, scrape};
use operators::Guard;
use runtime::lifecycle::Stage;
use runtime::telemetry::MetricsPush;
use runtime::{Metrics, Process, Readiness};
use serde_json::json;
use service::{
    AdminApi, Context, Credential, GatewayListener, Loop, OpenError, OperatorRoute, Provided, ServiceParts,
    Services, StoreConnector,
};

use self::stores::OpenStores;
use crate::listeners::{BindError, Listener, Sockets, common_routes};
use crate::services::operator_routes;
use crate::{Settings, VERSION, asyncapi, openapi};

/// Why a process cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Bind(BindError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("cannot print the addresses")]
    Announce(#[source] anyhow::Error),
}

/// The parameters of a start.
pub(crate) struct Start {
    pub(crate) id: ProcessId,
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) sockets: Sockets,
    pub(crate) services: Services,
}

impl Start {
    /// Starts all parts, stage by stage.
    pub(crate) async fn run(self, process: &mut Process) -> Result<(), StartError> {
        let Self { id, clock, settings, sockets, services } = self;
        let (readiness, metrics) = (process.readiness().clone(), process.metrics().clone());
        readiness.declare(services.role_needs(settings.shared.roles.iter(), Listener::takes_requests));
        let provided = Provided::default();
        let listen = &settings.shared.listen;
        let operators: &operators::Config = settings.shared.get();
        let guard = Guard::new(operators, &listen.limits.trusted_proxies, provided.clone());
        let probes = probes(operators, readiness.clone(), metrics.clone());
        let console: &console::Config = settings.shared.get();
        let is_served =
            |route: &OperatorRoute| console.enabled || route.row.credential() != Credential::ConsoleSession;
        let routes = probes.into_iter().chain(operator_routes(services)).filter(is_served);
        let admin = guard.router(routes.collect());
        provided.put("operators", AdminApi(admin.clone()))?;
        let site = Site::new(listen.allowed_hosts.iter().cloned(), &listen.allowed_origins);
        let server = Server::new(listen.limits.clone(), clock.clone(), &metrics);
        provided.put("http-server", server.connections())?;
        let gateway = sockets.url(Listener::Gateway);
        let admin_at = sockets.admin.local_addr().unwrap_or(listen.admin);
        server.serve(process, Stage::Admin, Listener::Admin.name(), sockets.admin, site.clone(), admin);

        let connector = StoreConnector { timeout: settings.lifecycle.start_timeout };
        let stores = OpenStores::open(process, &settings, connector, &clock).await?;
        let mut context = Context {
            process: id,
            version: VERSION,
            clock: clock.clone(),
            stores: stores.stores.clone(),
            settings: settings.shared.clone(),
            metrics: metrics.clone(),
            readiness,
            connector,
            admin: admin_at,
            gateway: gateway.map(|url| GatewayListener { url, openapi: openapi::gateway_document }),
            services,
            provided,
            opening: "",
        };
        let mut opened = open_services(&mut context).await?;

        stores.watch(process, settings.check_interval);
        if let Some(push) = MetricsPush::new(&settings.telemetry, id, VERSION, &metrics, clock) {
            let push = Arc::new(push);
            process.supervise("metrics-push", move |drain| {
                let push = push.clone();
                async move { push.run(drain).await }
            });
        }
        Loop::start_all(take(&mut opened.loops), process);

        let callers = settings.callers.iter().map(|(name, caller)| (name.as_str(), caller));
        let credentials = Credentials::new(callers).with_verifier(opened.caller_verifier.take());
        for (listener, socket) in sockets.roles {
            let routes = match listener {
                Listener::OpenMatch => take(&mut opened.open_match).merge(common_routes().into()),
                Listener::OpenMatchPort(port) => {
                    let routes = opened.open_match_apis.get(&port.api).cloned().unwrap_or_default();
                    routes.merge(common_routes().into())
                }
                Listener::ServiceApi => {
                    let audited = services.audited_service_routes();
                    let routes = guard.audit_services(audited, take(&mut opened.service_api));
                    let routes = credentials.guard(routes);
                    routes.merge(descriptions(services)).merge(common_routes()).into()
                }
                Listener::Gateway => take(&mut opened.gateway),
                Listener::Admin => continue,
            };
            let site = match listener {
                Listener::Gateway => opened.gateway_site.take().unwrap_or_else(|| site.clone()),
                Listener::OpenMatch | Listener::OpenMatchPort(_) => {
                    let origins = listen.allowed_origins.iter().chain(&opened.open_match_origins);
                    let origins: Vec<String> = origins.cloned().collect();
                    Site::new(listen.allowed_hosts.iter().cloned(), &origins)
                }
                _ => site.clone(),
            };
            let public = (listener == Listener::Gateway).then(|| server.for_public());
            let server = public.as_ref().unwrap_or(&server);
            server.serve(process, Stage::Listeners, listener.name(), socket, site, routes);
        }
        tracing::info!(process = %id, version = VERSION, roles = settings.shared.roles.words(), "started");
        Ok(())
    }
}

/// Opens all services in order, and collects their parts.
async fn open_services(context: &mut Context) -> Result<ServiceParts, OpenError> {
    let (mut all, mut after_all_open) = (ServiceParts::default(), Vec::new());
    let mut verifier_of: Option<&'static str> = None;
    for service in context.services.iter() {
        context.opening = service.name();
        let opened = service.open(context).await?;
        all.service_api = all.service_api.merge(opened.service_api);
        all.gateway = all.gateway.merge(opened.gateway);
        all.gateway_site = opened.gateway_site.or(all.gateway_site);
        all.open_match = all.open_match.merge(opened.open_match);
        all.open_match_apis.extend(opened.open_match_apis);
        all.open_match_origins.extend(opened.open_match_origins);
        if opened.caller_verifier.is_some() {
            if let Some(first) = verifier_of.replace(service.name()) {
                return Err(OpenError::provided_twice::<dyn CallerVerifier>(first, service.name()));
            }
            all.caller_verifier = opened.caller_verifier;
        }
        all.loops.extend(opened.loops);
        after_all_open.extend(opened.after_all_open);
    }
    for step in after_all_open {
        step.await?;
    }
    Ok(all)
}

/// Returns the routes for health, readiness and metrics, and the index of the admin API.
fn probes(config: &operators::Config, readiness: Readiness, metrics: Metrics) -> Vec<OperatorRoute> {
    let mut index = json!({ "endpoints": ["/healthz", "/readyz", "/metrics"] });
    if let Some(file) = &config.token_file {
        index["operator_token_file"] = json!(file);
    }
    let index = ("/", get(async move || Json(index)));
    let health = health(readiness).into_iter().chain([index]);
    let health = health.map(|(path, handler)| OperatorRoute::probe(path, config.health, handler));
    let (path, handler) = scrape(metrics);
    health.chain([OperatorRoute::probe(path, config.metrics, handler)]).collect()
}

/// Returns the routes that serve the descriptions of the service API and of the events. They need no token.
fn descriptions(services: Services) -> Router {
    Router::new()
        .route("/internal/v1/openapi.json", get(async move || Json(openapi::document(services))))
        .route("/internal/v1/asyncapi.json", get(async move || Json(asyncapi::document(services))))
}

#[cfg(test)]
mod tests;
