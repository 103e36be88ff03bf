//! The wiring of accounts, entitlements and the outbox.

use std::sync::Arc;
use std::time::Duration;

use account::Accounts;
use axum::routing::get;
use axum::{Json, Router};
use base::Clock;
use base::id::ProcessId;
use bus::Bus;
use db::Db;
use entitlement::{Entitlements, RevokeOnErase};
use hierlock::Locks;
use http_server::{Credentials, Vouch};
use notification::{EraseInbox, Inbox};
use outbox::{Operator, Outbox, Relay};
use redis_store::RedisStore;
use runtime::lifecycle::{Drain, LoopError};
use runtime::{Metrics, Process};

use super::StartError;
use super::matchmaker::RECORDER;
use super::notifier::{Notifier, Ways};
use crate::{Role, Settings, asyncapi, openapi};

/// The loop that publishes events.
pub(super) const RELAY: &str = "outbox-relay";

/// How soon the relay is at work again after a store was away, however long that was.
const DOWN: Duration = Duration::from_secs(1);
/// Between two looks for answers that need not be kept any longer.
const FORGET: Duration = Duration::from_secs(60);

/// What other services use of us.
pub(super) struct Services {
    db: Db,
    accounts: Accounts,
    entitlements: Entitlements,
    credentials: Credentials,
    relay: Option<Relay>,
    is_gateway: bool,
    idempotency_retention: Duration,
    pub(super) operator: Operator,
    pub(super) notifier: Notifier,
}

impl Services {
    pub(super) async fn open(
        id: ProcessId,
        clock: &Clock,
        settings: &Settings,
        (db, locks, redis_store, bus): (&Db, &Locks, &RedisStore, &Bus),
        (outbox, queue_metrics): (&Outbox, &outbox::Metrics),
        metrics: &Metrics,
    ) -> Result<Self, StartError> {
        let ways = Ways::open(settings, (db, redis_store), clock, metrics, queue_metrics)?;
        let accounts = Accounts::new(
            db.clone(),
            locks.clone(),
            outbox.clone(),
            clock.clone(),
            vec![
                Arc::new(RevokeOnErase::new(outbox.clone(), clock.clone())),
                Arc::new(EraseInbox::new(ways.deliveries.clone())),
            ],
        );
        let notifier = Notifier::open(id, clock, settings, (db, bus), ways, &accounts)?;
        let entitlements = Entitlements::new(
            db.clone(),
            locks.clone(),
            outbox.clone(),
            clock.clone(),
            metrics.register(entitlement::Metrics::new),
        );
        let relay =
            settings.roles.contains(Role::OutboxRelay).then(|| Relay::new(id, outbox.clone(), bus.clone()));
        let subscribed = notifier.subscribe_embedded(bus).await;
        subscribed.map_err(|source| StartError::Store { store: "bus", source })?;
        if let Some(relay) = &relay {
            let filled = relay.fill().await;
            let events = filled.map_err(|source| StartError::Store { store: "outbox", source })?;
            if events > 0 {
                tracing::info!(events, "the embedded bus was filled from the outbox");
            }
        }
        Ok(Self {
            db: db.clone(),
            accounts,
            entitlements,
            credentials: Credentials::new(
                settings.services.iter().map(|(name, service)| (name.as_str(), service)),
            ),
            relay,
            is_gateway: settings.roles.contains(Role::Gateway),
            idempotency_retention: settings.idempotency_retention,
            operator: Operator::new(outbox.clone()),
            notifier,
        })
    }

    /// Lets in services that somebody else vouches for.
    pub(super) fn vouched_for(self, vouch: Option<Arc<dyn Vouch>>) -> Self {
        Self { credentials: self.credentials.or(vouch), ..self }
    }

    /// What the gateway needs of them.
    pub(super) fn use_cases(&self) -> (Accounts, Entitlements, Inbox) {
        (self.accounts.clone(), self.entitlements.clone(), self.notifier.inbox.clone())
    }

    /// Starts the loops.
    pub(super) fn start(&self, process: &mut Process) {
        if let Some(relay) = self.relay.clone() {
            let keeper = relay.clone();
            process.supervise_within(RELAY, DOWN, move |drain| {
                let relay = relay.clone();
                async move { relay.run(drain).await }
            });
            process.stop_after(RELAY, &[RECORDER]);
            process.supervise("outbox-keeper", move |drain| {
                let keeper = keeper.clone();
                async move { keeper.keep(drain).await }
            });
        }
        self.notifier.start(process);
        if self.is_gateway {
            let (db, retention) = (self.db.clone(), self.idempotency_retention);
            process.supervise("idempotency-keeper", move |drain| forget_keys(db.clone(), retention, drain));
        }
    }

    /// The service API.
    pub(super) fn routes(&self) -> Router {
        let routes = account::http::routes(self.accounts.clone())
            .merge(entitlement::routes(self.entitlements.clone()))
            .merge(notification::routes(self.notifier.notifications.clone()));
        let descriptions = Router::new()
            .route("/internal/v1/openapi.json", get(async || Json(openapi::document())))
            .route("/internal/v1/asyncapi.json", get(async || Json(asyncapi::document())));
        self.credentials.guard(routes).merge(descriptions)
    }
}

async fn forget_keys(db: Db, retention: Duration, drain: Drain) -> Result<(), LoopError> {
    loop {
        while db.forget_idempotency_keys(retention).await? > 0 && !drain.is_requested() {}
        if !drain.sleep(FORGET).await {
            return Ok(());
        }
    }
}
