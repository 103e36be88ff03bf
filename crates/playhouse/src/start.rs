//! The start of a process: from settings to running parts.

pub(crate) mod locks;
mod stores;

use std::mem::take;
use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router};
use base::Clock;
use base::id::ProcessId;
use http_server::{Credentials, Server, Vouch, admin};
use runtime::Process;
use runtime::lifecycle::Stage;
use runtime::telemetry::MetricsPush;
use service::{Context, GatewayListener, Loop, OpenError, Opened, Provided, Reach, Services};

use self::stores::OpenStores;
use crate::listeners::{BindError, Listener, Sockets, common_routes};
use crate::{Settings, VERSION, asyncapi, openapi};

/// Why a process cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Bind(BindError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("cannot tell the addresses")]
    Announce(#[source] anyhow::Error),
}

/// Everything that a start needs.
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
        let provided = Provided::default();
        let operator_routes = services.operator_routes().merge(locks::operator_routes());
        let admin =
            admin(readiness.clone(), metrics.clone()).merge(operator_routes.with_state(provided.clone()));
        let server = Server::new(settings.shared.listen.limits.clone(), &metrics);
        let gateway = sockets.url(Listener::Gateway);
        let admin_at = sockets.admin.local_addr().unwrap_or(settings.shared.listen.admin);
        server.serve(process, Stage::Admin, Listener::Admin.name(), sockets.admin, admin);

        let reach = Reach { timeout: settings.lifecycle.start_timeout };
        let stores = OpenStores::open(process, &settings, reach, &provided, &clock).await?;
        let mut context = Context {
            process: id,
            version: VERSION,
            clock: clock.clone(),
            stores: stores.stores.clone(),
            settings: settings.shared.clone(),
            metrics: metrics.clone(),
            readiness,
            reach,
            admin: admin_at,
            gateway: gateway.map(|url| GatewayListener { url, openapi: openapi::gateway_document(services) }),
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
        let credentials = Credentials::new(callers).or(opened.vouch.take());
        for (listener, socket) in sockets.roles {
            let routes = match listener {
                Listener::OpenMatch => take(&mut opened.open_match).merge(common_routes().into()),
                Listener::Internal => {
                    let routes = credentials.guard(take(&mut opened.service_api));
                    routes.merge(descriptions(services)).merge(common_routes()).into()
                }
                Listener::Gateway => take(&mut opened.gateway).into(),
                Listener::Admin => continue,
            };
            server.serve(process, Stage::Listeners, listener.name(), socket, routes);
        }
        tracing::info!(process = %id, version = VERSION, roles = settings.shared.roles.words(), "started");
        Ok(())
    }
}

/// Opens all services in their order, and puts together what they add to the process.
async fn open_services(context: &mut Context) -> Result<Opened, OpenError> {
    let (mut all, mut when_all_are_open) = (Opened::default(), Vec::new());
    let mut vouches: Option<&'static str> = None;
    for service in context.services.iter() {
        context.opening = service.name();
        let opened = service.open(context).await?;
        all.service_api = all.service_api.merge(opened.service_api);
        all.gateway = all.gateway.merge(opened.gateway);
        all.open_match = all.open_match.merge(opened.open_match);
        if opened.vouch.is_some() {
            if let Some(first) = vouches.replace(service.name()) {
                return Err(OpenError::provided_twice::<dyn Vouch>(first, service.name()));
            }
            all.vouch = opened.vouch;
        }
        all.loops.extend(opened.loops);
        when_all_are_open.extend(opened.when_all_are_open);
    }
    for step in when_all_are_open {
        step.await?;
    }
    Ok(all)
}

/// The descriptions of the service API and of the events, for everybody.
fn descriptions(services: Services) -> Router {
    Router::new()
        .route("/internal/v1/openapi.json", get(async move || Json(openapi::document(services))))
        .route("/internal/v1/asyncapi.json", get(async move || Json(asyncapi::document(services))))
}

#[cfg(test)]
mod tests;
