//! The wiring of entitlements.

use std::sync::Arc;
use std::time::Duration;

use account::Accounts;
use bus::EventKind;
use config::Reader;
use db::{Db, Migrations};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use http_server::Right;
use outbox::Outbox;
use runtime::lifecycle::{Drain, LoopError};
use service::{Context, Loop, OpenError, Opened, OperatorRoute, Role, Service, Settings};
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;

use crate::{Api, Entitlements, MIGRATIONS, Metrics, RevokeOnErase, events, operator, routes};

/// To grant and revoke.
pub const RIGHT: Right = Right::new("entitlements");

/// How often answers that need not be kept any longer are removed.
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// Entitlements as a service. Provides [`Entitlements`].
#[derive(Clone, Copy, Debug)]
pub struct Wiring;

#[derive(Clone, Copy)]
struct IdempotencyRetention(Duration);

impl Service for Wiring {
    fn name(&self) -> &'static str {
        "entitlement"
    }

    fn migrations(&self) -> Option<Migrations> {
        Some(MIGRATIONS)
    }

    fn rights(&self) -> &'static [Right] {
        &[RIGHT]
    }

    fn events(&self) -> Vec<EventKind> {
        events()
    }

    fn service_api(&self) -> Option<OpenApi> {
        Some(Api::openapi())
    }

    fn read_settings(&self, reader: &mut Reader<'_>, settings: &mut Settings) {
        let allowed = Duration::from_secs(60)..=Duration::from_secs(365 * 86_400);
        let retention = reader.get_within("entitlement.idempotency_retention", allowed);
        settings.put(IdempotencyRetention(retention));
    }

    fn operator_routes(&self) -> Vec<OperatorRoute> {
        operator::operator_routes()
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<Opened, OpenError>> {
        async { open(context) }.boxed_local()
    }
}

fn open(context: &Context) -> Result<Opened, OpenError> {
    let (stores, clock) = (&context.stores, &context.clock);
    let outbox: Outbox = context.get()?;
    let accounts: Accounts = context.get()?;
    accounts.on_erase(Arc::new(RevokeOnErase::new(outbox.clone(), clock.clone())));
    let metrics = context.metrics.register(Metrics::new);
    let entitlements =
        Entitlements::new(stores.db.clone(), stores.locks.clone(), outbox, clock.clone(), metrics);
    context.provide(entitlements.clone())?;
    let mut opened = Opened { service_api: routes(entitlements), ..Opened::default() };
    // Both write keys, and one of them may run without the other.
    let roles = &context.settings.roles;
    if roles.contains(Role::Gateway) || roles.contains(Role::ServiceApi) {
        let state = (stores.db.clone(), *context.settings.get());
        opened.loops.push(Loop::new(
            "idempotency-keeper",
            state,
            |(db, IdempotencyRetention(retention)), drain| forget_keys(db, retention, drain),
        ));
    }
    Ok(opened)
}

async fn forget_keys(db: Db, retention: Duration, drain: Drain) -> Result<(), LoopError> {
    loop {
        while db.forget_idempotency_keys(retention).await? > 0 && !drain.is_requested() {}
        if !drain.sleep(FORGET_EVERY).await {
            return Ok(());
        }
    }
}
