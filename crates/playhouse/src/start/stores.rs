//! The stores: opened when a process starts, watched while it runs, closed at its end.

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
use service::{Dependency, OpenError, Provided, Reach, Stores};

use super::locks;
use crate::Settings;
use crate::services::{SERVICES, migrations};

/// The longest time without live messages, however long Redis was away: players wait for them.
const LIVE_DOWNTIME: Duration = Duration::from_secs(1);

/// The open stores, and where readiness hears of them.
pub(super) struct OpenStores {
    pub(super) stores: Stores,
    db_part: Part,
    redis_part: Part,
    bus_part: Part,
}

impl OpenStores {
    /// Opens the stores one after the other, waiting for each that is not reachable yet.
    pub(super) async fn open(
        process: &mut Process,
        settings: &Settings,
        reach: Reach,
        provided: &Provided,
        clock: &Clock,
    ) -> Result<Self, OpenError> {
        let (readiness, metrics) = (process.readiness().clone(), process.metrics().clone());
        let configs = &settings.shared.stores;
        let [db_part, redis_part, bus_part] =
            [Dependency::Sql, Dependency::Redis, Dependency::Nats].map(|of| readiness.part(of.part()));
        let db = reach.connect("db", &db_part, async || Db::open(&configs.db).await).await?;
        process.close_at_end("db", {
            let db = db.clone();
            async move { db.close().await }
        });
        reach.prepare("db", &db_part, async || prepare(&db, &configs.db).await).await?;
        let locks = reach.prepare("locks", &db_part, async || locks::open(settings, clock).await).await?;
        metrics.register(|registry| locks.metrics().register(registry));
        provided.put("locks", locks.clone())?;
        process.close_at_end("locks", {
            let locks = locks.clone();
            async move { locks.close().await }
        });
        db_part.ready();
        let open = async || RedisStore::open(&configs.redis_store).await;
        let redis_store = reach.connect("redis", &redis_part, open).await?;
        let fit = async || redis_store.require_fit(&SERVICES.scripts()).await;
        reach.prepare("redis", &redis_part, fit).await?;
        redis_part.ready();
        let bus = reach.open("bus", &bus_part, async || Bus::open(&configs.bus).await).await?;
        process.close_at_end("bus", {
            let bus = bus.clone();
            async move { bus.close().await }
        });
        let live = Live::new(&redis_store, &configs.live_prefix);
        Ok(Self { stores: Stores { db, locks, redis_store, bus, live }, db_part, redis_part, bus_part })
    }

    /// Receives live messages, counts what the stores do, and reports to readiness every now and then whether they answer.
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

/// Makes the tables if the process may, and refuses tables that this program does not expect.
async fn prepare(db: &Db, config: &db::Config) -> Result<(), db::Error> {
    // Before anything is written, as far as that can be seen without tables.
    db.require_fit().await?;
    if config.migrate {
        db.migrate(&migrations()).await?;
    }
    db.require_migrated(&migrations()).await?;
    let deployment = db.deployment().await?;
    db.require_fit().await?;
    tracing::info!(%deployment, db = %config.url, "database opened");
    Ok(())
}

/// Tells readiness again and again whether a store still answers.
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
