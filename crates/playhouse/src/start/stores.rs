//! The stores of a process: opened at start, watched while it runs, closed at the end.

use std::time::Duration;

use base::Clock;
use base::error;
use base::error::Coded;
use bus::Bus;
use db::Db;
use live::Live;
use redis_store::RedisStore;
use runtime::Process;
use runtime::lifecycle::{Drain, LoopError, Part};
use service::{Dependency, OpenError, StoreConnector, Stores};

use super::locks;
use crate::Settings;
use crate::services::{SERVICES, migrations};

/// The longest pause before live messages resume once Redis is back: players wait for them.
const LIVE_DOWNTIME: Duration = Duration::from_secs(1);

/// The open stores, and their parts in readiness.
pub(super) struct OpenStores {
    pub(super) stores: Stores,
    db_part: Part,
    redis_part: Part,
    bus_part: Part,
}

impl OpenStores {
    /// Opens the stores one after the other. Waits for a store that is not reachable yet.
    pub(super) async fn open(
        process: &mut Process,
        settings: &Settings,
        connector: StoreConnector,
        clock: &Clock,
    ) -> Result<Self, OpenError> {
        let (readiness, metrics) = (process.readiness().clone(), process.metrics().clone());
        let configs = &settings.shared.stores;
        let [db_part, redis_part, bus_part] =
            [Dependency::Sql, Dependency::Redis, Dependency::Nats].map(|of| readiness.part(of.part()));
        let db = connector.connect("db", &db_part, async || Db::open(&configs.db).await).await?;
        process.close_at_end("db", {
            let db = db.clone();
            async move { db.close().await }
        });
        connector.prepare("db", &db_part, async || prepare(&db, &configs.db).await).await?;
        let locks = connector.prepare("locks", &db_part, async || locks::open(settings, clock).await).await?;
        metrics.register(|registry| locks.metrics().register(registry));
        process.close_at_end("locks", {
            let locks = locks.clone();
            async move { locks.close().await }
        });
        db_part.ready();
        let open = async || RedisStore::open(&configs.redis_store).await;
        let redis_store = connector.connect("redis", &redis_part, open).await?;
        let fit = async || redis_store.require_fit(&SERVICES.scripts()).await;
        connector.prepare("redis", &redis_part, fit).await?;
        redis_part.ready();
        let bus = connector.open("bus", &bus_part, async || Bus::open(&configs.bus).await).await?;
        process.close_at_end("bus", {
            let bus = bus.clone();
            async move { bus.close().await }
        });
        let live = Live::new(&redis_store, &configs.live_prefix);
        Ok(Self { stores: Stores { db, locks, redis_store, bus, live }, db_part, redis_part, bus_part })
    }

    /// Starts the loops that receive live messages and check whether the stores answer, and registers the metrics of the stores.
    pub(super) fn watch(self, process: &mut Process, every: Duration) {
        let Self { stores: Stores { db, redis_store, bus, live, .. }, db_part, redis_part, bus_part } = self;
        process.metrics().register(|registry| db.register_metrics(registry));
        process.metrics().register(|registry| bus.register_metrics(registry));
        process.supervise_within("live", LIVE_DOWNTIME, move |drain| {
            let live = live.clone();
            async move { live.run(drain).await }
        });
        process.supervise("db-watch", move |drain| {
            let (db, part) = (db.clone(), db_part.clone());
            watch(every, drain, part, async move || db.ping().await)
        });
        process.supervise("redis-watch", move |drain| {
            let (redis_store, part) = (redis_store.clone(), redis_part.clone());
            watch(every, drain, part, async move || redis_store.ping().await)
        });
        process.supervise("bus-watch", move |drain| {
            let (bus, part) = (bus.clone(), bus_part.clone());
            watch(every, drain, part, async move || bus.ping().await)
        });
    }
}

/// Runs migrations if `db.migrate` allows it. Fails if the schema is not the one that this program expects.
async fn prepare(db: &Db, config: &db::Config) -> Result<(), db::Error> {
    // Checks what can be checked without tables before anything is written.
    db.require_supported_server().await?;
    if config.migrate {
        db.migrate(&migrations()).await?;
    }
    db.require_migrated(&migrations()).await?;
    let deployment = db.deployment_id().await?;
    db.require_supported_server().await?;
    tracing::info!(%deployment, db = %config.url, "database opened");
    Ok(())
}

/// Reports to readiness at intervals whether a store answers.
async fn watch<E>(
    every: Duration,
    drain: Drain,
    part: Part,
    ping: impl AsyncFn() -> Result<(), E>,
) -> Result<(), LoopError>
where
    E: Coded + 'static,
{
    while drain.sleep(every).await {
        match ping().await {
            Ok(()) => part.ready(),
            Err(error) => part.not_ready(error::chain(&error)),
        }
    }
    Ok(())
}
