//! The start of a process: from settings to running parts.

pub(crate) mod locks;
mod stores;

use std::mem::take;
use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router};
use base::Clock;
use base::id::ProcessId;
use http_server::{Credentials, Server, admin};
use runtime::Process;
use runtime::lifecycle::Stage;
use runtime::telemetry::MetricsPush;
use service::{Context, GatewayListener, Loop, OpenError, Opened, Provided, Reach};

use self::stores::OpenStores;
use crate::listeners::{BindError, Listener, Sockets, common_routes};
use crate::services::SERVICES;
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
}

impl Start {
    /// Starts all parts, stage by stage.
    pub(crate) async fn run(self, process: &mut Process) -> Result<(), StartError> {
        let Self { id, clock, settings, sockets } = self;
        let (readiness, metrics) = (process.readiness().clone(), process.metrics().clone());
        let provided = Provided::default();
        let operator_routes = SERVICES.operator_routes().merge(locks::operator_routes());
        let admin =
            admin(readiness.clone(), metrics.clone()).merge(operator_routes.with_state(provided.clone()));
        let server = Server::new(settings.listen.limits.clone(), &metrics);
        let gateway = sockets.url(Listener::Gateway);
        server.serve(process, Stage::Admin, Listener::Admin.name(), sockets.admin, admin);

        let reach = Reach { timeout: settings.lifecycle.start_timeout };
        let stores = OpenStores::open(process, &settings, reach, &provided, &clock).await?;
        let mut context = Context {
            process: id,
            version: VERSION,
            clock: clock.clone(),
            stores: stores.stores.clone(),
            roles: settings.roles.clone(),
            settings: settings.services.clone(),
            metrics: metrics.clone(),
            readiness,
            reach,
            gateway: gateway.map(|url| GatewayListener { url, openapi: openapi::gateway_document() }),
            services: SERVICES,
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
                    routes.merge(descriptions()).merge(common_routes()).into()
                }
                Listener::Gateway => take(&mut opened.gateway).into(),
                Listener::Admin => continue,
            };
            server.serve(process, Stage::Listeners, listener.name(), socket, routes);
        }
        tracing::info!(process = %id, version = VERSION, roles = settings.roles.words(), "started");
        Ok(())
    }
}

/// Opens all services in their order, and puts together what they add to the process.
async fn open_services(context: &mut Context) -> Result<Opened, OpenError> {
    let (mut all, mut when_all_are_open) = (Opened::default(), Vec::new());
    for service in context.services.iter() {
        context.opening = service.name();
        let opened = service.open(context).await?;
        all.service_api = all.service_api.merge(opened.service_api);
        all.gateway = all.gateway.merge(opened.gateway);
        all.open_match = all.open_match.merge(opened.open_match);
        all.vouch = all.vouch.or(opened.vouch);
        all.loops.extend(opened.loops);
        when_all_are_open.extend(opened.when_all_are_open);
    }
    for step in when_all_are_open {
        step.await?;
    }
    Ok(all)
}

/// The descriptions of the service API and of the events, for everybody.
fn descriptions() -> Router {
    Router::new()
        .route("/internal/v1/openapi.json", get(async || Json(openapi::document())))
        .route("/internal/v1/asyncapi.json", get(async || Json(asyncapi::document())))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use config::Layers;
    use runtime::Metrics;
    use service::Services;

    use super::*;
    use crate::REFERENCE;

    /// Opens a list of services on embedded stores.
    async fn open(services: Services) -> Result<Opened, OpenError> {
        let folder = tempfile::tempdir().unwrap();
        let file = format!("[db]\nurl = \"sqlite:{}/play.db\"\nmigrate = true\n", folder.path().display());
        let layers = Layers::new(REFERENCE).with_file_text(Path::new("play.toml"), &file);
        let settings: Settings = config::load(layers).unwrap().config;
        let mut process = Process::new(settings.lifecycle.clone(), Metrics::new(VERSION));
        let (reach, provided) = (Reach { timeout: settings.lifecycle.start_timeout }, Provided::default());
        let clock = Clock::system();
        let stores = OpenStores::open(&mut process, &settings, reach, &provided, &clock).await;
        let stores = stores.unwrap().stores;
        let mut context = Context {
            process: ProcessId::generate(),
            version: VERSION,
            clock,
            stores,
            roles: settings.roles,
            settings: settings.services,
            metrics: process.metrics().clone(),
            readiness: process.readiness().clone(),
            reach,
            gateway: None,
            services,
            provided,
            opening: "",
        };
        open_services(&mut context).await
    }

    #[tokio::test]
    async fn a_service_that_needs_one_that_is_not_in_the_list_fails_the_start() {
        assert!(open(Services(&[&outbox::Wiring, &account::Wiring, &entitlement::Wiring])).await.is_ok());
        let failed = open(Services(&[&outbox::Wiring, &entitlement::Wiring])).await.unwrap_err();
        assert_eq!(
            failed.to_string(),
            "the service \"entitlement\" needs account::Accounts, which no service before it in the list of services provides"
        );
    }

    #[tokio::test]
    async fn a_service_has_live_messages_without_any_other() {
        assert!(open(Services(&[&outbox::Wiring, &matchmaking::Wiring])).await.is_ok());
    }

    #[tokio::test]
    async fn a_service_starts_its_own_loops() {
        let loops = async |services| format!("{:?}", open(services).await.unwrap().loops);
        let of_matchmaking = loops(Services(&[&outbox::Wiring, &matchmaking::Wiring])).await;
        assert!(of_matchmaking.contains("matchmaking-presence"), "{of_matchmaking}");
        let of_notification =
            loops(Services(&[&outbox::Wiring, &account::Wiring, &notification::Wiring])).await;
        assert!(of_notification.contains("notification-watch"), "{of_notification}");
    }
}
