//! The wiring of the locks: on rows of the database server, or in process with an embedded database.

mod admin;
mod console;
mod waits;

use std::time::{Duration, Instant};

use base::Clock;
use db::{Migration, Migrations};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use hierlock::{Error, LockManager, ProvisionProgress, Provisioner};
use screens::{Combine, Figure, Measure, Unit};
use service::{Context, OpenError, OperatorRoute, Screen, Service, ServiceParts};

use self::waits::LocksAdmin;
use crate::Settings;

/// The tables, the routes and the screen of the locks. They are here and not in `hierlock`, because `service` depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wiring;

impl Service for Wiring {
    fn name(&self) -> &'static str {
        "hierlock"
    }

    fn migrations(&self) -> Option<Migrations> {
        Some(MIGRATIONS)
    }

    fn operator_routes(&self) -> Vec<OperatorRoute> {
        admin::operator_routes()
    }

    fn screens(&self) -> Vec<Screen> {
        console::screens()
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure {
            name: "lock_acquire",
            title: "Time to acquire a lock, p99",
            unit: Unit::Seconds,
            metric: "hierlock_acquire_duration_seconds",
            labels: &[],
            measure: Measure::Quantile(0.99),
            combine: Combine::Max,
            href: console::PATH,
        }]
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        async {
            context.provide(LocksAdmin::new(context))?;
            Ok(ServiceParts::default())
        }
        .boxed_local()
    }
}

/// The tables of the locks. With an embedded database, locks are in process and need none.
const MIGRATIONS: Migrations = Migrations {
    component: "hierlock",
    list: &[
        Migration { version: 1, name: "hier_lock_buckets", sqlite: NOT_NEEDED, mysql: hierlock::SCHEMA[0] },
        Migration { version: 2, name: "hier_lock_space", sqlite: NOT_NEEDED, mysql: hierlock::SCHEMA[1] },
    ],
};

const NOT_NEEDED: &str = "-- Locks are in process.";
/// How often a long provisioning logs its progress.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Opens the locks. Creates missing lock rows first if `db.migrate` allows it, and fails otherwise.
pub(super) async fn open(settings: &Settings, clock: &Clock) -> Result<LockManager, Error> {
    let options = &settings.locks;
    let Some(server) = settings.shared.stores.db.server() else {
        return Ok(LockManager::in_process(options, clock));
    };
    let provision = Provisioner::new(server.clone(), options.buckets);
    if !provision.is_complete().await? {
        if !settings.shared.stores.db.migrate {
            // Opening fails with a clearer error if the number of buckets differs.
            LockManager::mysql(server, options).await?.close().await;
            // As with a pending migration: a process that fails now and then is worse than none.
            return Err(Error::NotProvisioned);
        }
        provision.run(log()).await?;
    }
    LockManager::mysql(server, options).await
}

/// Returns a callback that logs the progress every [`LOG_INTERVAL`].
fn log() -> impl FnMut(ProvisionProgress) {
    let mut last = None;
    move |ProvisionProgress { total, present, created, .. }| {
        if present == total || last.is_none_or(|last: Instant| last.elapsed() >= LOG_INTERVAL) {
            last = Some(Instant::now());
            tracing::info!(total, present, created, "creating the lock buckets");
        }
    }
}
