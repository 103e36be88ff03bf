//! Wires entitlements into the process.

use std::sync::Arc;
use std::time::Duration;

use account::Accounts;
use bus::EventKind;
use db::{Db, Migrations};
use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use http_server::Right;
use outbox::Outbox;
use runtime::lifecycle::{Drain, LoopError};
use screens::{Figure, Step, Subject};
use service::{
    Context, Loop, OpenError, OperatorRoute, PlayerData, Provided, Role, Screen, Service, ServiceApiConfig,
    ServiceParts, StatusError,
};
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;

use crate::console::EntitlementConsole;
use crate::{Api, Entitlements, MIGRATIONS, Metrics, RevokeOnErase, admin, console, events, routes, steps};

/// The right to grant and revoke.
pub const RIGHT: Right = Right::new("entitlements");

/// How often expired idempotency keys are deleted.
const CLEAN_INTERVAL: Duration = Duration::from_secs(60);

/// Entitlements as a service. Provides [`Entitlements`].
#[derive(Clone, Copy, Debug)]
pub struct Wiring;

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

    fn operator_routes(&self) -> Vec<OperatorRoute> {
        admin::operator_routes()
    }

    fn screens(&self) -> Vec<Screen> {
        console::screens()
    }

    fn player_data(&self) -> Vec<PlayerData> {
        console::player_data()
    }

    fn figures(&self) -> Vec<Figure> {
        steps::figures()
    }

    fn steps<'a>(
        &'a self,
        provided: &'a Provided,
        subject: &'a Subject,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Step>, StatusError>> {
        async move {
            match provided.find::<EntitlementConsole>() {
                Some(open) => steps::steps(&open, subject, limit).await,
                None => Ok(Vec::new()),
            }
        }
        .boxed()
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        async { open(context) }.boxed_local()
    }
}

fn open(context: &Context) -> Result<ServiceParts, OpenError> {
    let (stores, clock) = (&context.stores, &context.clock);
    let outbox: Outbox = context.get()?;
    let accounts: Accounts = context.get()?;
    accounts.on_erase(Arc::new(RevokeOnErase::new(outbox.clone(), clock.clone())));
    let metrics = context.metrics.register(Metrics::new);
    let entitlements =
        Entitlements::new(stores.db.clone(), stores.locks.clone(), outbox.clone(), clock.clone(), metrics);
    context.provide(entitlements.clone())?;
    let console =
        EntitlementConsole { entitlements: entitlements.clone(), accounts: accounts.clone(), outbox };
    context.provide(console)?;
    let mut parts = ServiceParts { service_api: routes(entitlements), ..ServiceParts::default() };
    // Both roles write keys, and each may run without the other.
    let roles = &context.settings.roles;
    if roles.contains(Role::Gateway) || roles.contains(Role::ServiceApi) {
        let ServiceApiConfig { idempotency_retention } = *context.settings.get();
        let state = (stores.db.clone(), idempotency_retention);
        parts.loops.push(Loop::new("idempotency-cleaner", state, |(db, retention), drain| {
            clean_keys(db, retention, drain)
        }));
    }
    Ok(parts)
}

async fn clean_keys(db: Db, retention: Duration, drain: Drain) -> Result<(), LoopError> {
    loop {
        while db.delete_old_idempotency_keys(retention).await? > 0 && !drain.is_requested() {}
        if !drain.sleep(CLEAN_INTERVAL).await {
            return Ok(());
        }
    }
}
