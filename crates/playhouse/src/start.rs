//! The wiring: from settings to a running process.

mod door;
mod locks;
mod matchmaker;
mod notifier;
mod reach;
mod services;

use std::sync::Arc;
use std::time::Duration;

use base::error::Coded;
use base::id::ProcessId;
use base::{Clock, error};
use bus::Bus;
use db::{Db, Migrations};
use http_server::{Server, admin};
use outbox::Outbox;
use redis_store::RedisStore;
use runtime::Process;
use runtime::lifecycle::{Drain, LoopError, Part, Stage};
use runtime::telemetry::MetricsPush;

use self::door::{Door, Identity};
use self::matchmaker::Matchmaker;
use self::reach::Reach;
use self::services::Services;
use crate::listeners::{BindError, Listener, Sockets, common_routes};
use crate::{Settings, VERSION};

/// The tables of all parts, in the order in which they are made.
pub(crate) const MIGRATIONS: &[Migrations] = &[
    db::MIGRATIONS,
    locks::MIGRATIONS,
    outbox::MIGRATIONS,
    account::MIGRATIONS,
    entitlement::MIGRATIONS,
    notification::MIGRATIONS,
    matchmaking::MIGRATIONS,
];

/// Why a process cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Bind(BindError),
    #[error("{store} was not reachable within lifecycle.start_timeout ({after:?})")]
    Unreachable { store: &'static str, after: Duration, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("{store} cannot be used")]
    Store { store: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
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
        let (operator, lock_slot, outbox_slot) = (Arc::default(), Arc::default(), Arc::default());
        let (issuer_slot, notification_slot) = (door::Slot::default(), notification::Slot::default());
        let allocations_slot = matchmaking::allocation::AllocationsSlot::default();
        let listening = sockets.url(Listener::Gateway);
        let admin = admin(readiness.clone(), metrics.clone())
            .merge(matchmaking::operator_routes(&operator))
            .merge(matchmaking::allocation::allocation_routes(&allocations_slot))
            .merge(locks::routes(&lock_slot))
            .merge(outbox::operator_routes(&outbox_slot))
            .merge(notification::operator_routes(&notification_slot))
            .merge(door::operator_routes(&issuer_slot));
        let server = Server::new(settings.listen.limits.clone(), &metrics);
        server.serve(process, Stage::Admin, Listener::Admin.name(), sockets.admin, admin);

        let reach = Reach { timeout: settings.lifecycle.start_timeout };
        let parts = ["db", "hot", "bus"].map(|name| readiness.part(name));
        let [db_part, hot_part, bus_part] = parts;
        let db = reach.connect("db", &db_part, async || Db::open(&settings.db).await).await?;
        process.close_at_end("db", {
            let db = db.clone();
            async move { db.close().await }
        });
        reach.prepare("db", &db_part, async || prepare(&db, &settings).await).await?;
        let locks = reach.prepare("locks", &db_part, async || locks::open(&settings).await).await?;
        metrics.register(|registry| locks.metrics().register(registry));
        let _ = lock_slot.set(locks.clone());
        process.close_at_end("locks", {
            let locks = locks.clone();
            async move { locks.close().await }
        });
        db_part.ready();
        let redis_store =
            reach.open("hot", &hot_part, async || RedisStore::open(&settings.hot).await).await?;
        let bus = reach.open("bus", &bus_part, async || Bus::open(&settings.bus).await).await?;
        process.close_at_end("bus", {
            let bus = bus.clone();
            async move { bus.close().await }
        });

        let queue_metrics = metrics.register(|registry| outbox::Metrics::new(registry, outbox::TABLE));
        let outbox = Outbox::new(db.clone(), settings.outbox.clone(), queue_metrics.clone());
        let stores = (&db, &outbox, &redis_store);
        let matchmaker =
            Matchmaker::open(id, &clock, &settings, stores, &metrics, &reach, &readiness).await?;
        let _ = operator.set(matchmaker.operator.clone());
        let _ = allocations_slot.set(matchmaker.allocations.clone());
        let stores = (&db, &locks, &redis_store, &bus);
        let outbox = (&outbox, &queue_metrics);
        let services = Services::open(id, &clock, &settings, stores, outbox, &metrics).await?;
        let _ = outbox_slot.set(services.operator.clone());
        let _ = notification_slot.set(services.notifier.notifications.clone());
        let identity = Identity::open(&settings, listening.as_ref(), &clock, &metrics, &readiness)?;
        let _ = issuer_slot.set(identity.builtin().cloned());
        let services = services.vouched_for(identity.services());
        let door = match (&listening, matchmaker.players()) {
            (Some(listening), Some(players)) => {
                let use_cases = services.use_cases();
                let stores = (&redis_store, players);
                Some(Door::open(&settings, listening, identity, stores, use_cases, &clock, &metrics)?)
            }
            _ => None,
        };

        metrics.register(|registry| db.register_metrics(registry));
        metrics.register(|registry| bus.register_metrics(registry));
        let every = settings.check_interval;
        process.supervise("db-watch", move |drain| {
            let (db, part) = (db.clone(), db_part.clone());
            watch(every, drain, part, async move || db.ping().await)
        });
        process.supervise("hot-watch", move |drain| {
            let (redis_store, part) = (redis_store.clone(), hot_part.clone());
            watch(every, drain, part, async move || redis_store.ping().await)
        });
        process.supervise("bus-watch", move |drain| {
            let (bus, part) = (bus.clone(), bus_part.clone());
            watch(every, drain, part, async move || bus.ping().await)
        });
        if let Some(push) = MetricsPush::new(&settings.telemetry, id, VERSION, &metrics, clock) {
            let push = std::sync::Arc::new(push);
            process.supervise("metrics-push", move |drain| {
                let push = push.clone();
                async move { push.run(drain).await }
            });
        }

        matchmaker.start(process);
        services.start(process);
        if let Some(door) = &door {
            door.start(process);
        }
        for (listener, socket) in sockets.roles {
            let routes = match listener {
                Listener::OpenMatch => matchmaker.routes().merge(common_routes().into()),
                Listener::Internal => services.routes().merge(common_routes()).into(),
                Listener::Gateway => door.as_ref().map(Door::routes).unwrap_or_default().into(),
                Listener::Admin => continue,
            };
            server.serve(process, Stage::Listeners, listener.name(), socket, routes);
        }
        tracing::info!(process = %id, version = VERSION, roles = settings.roles.words(), "started");
        Ok(())
    }
}

/// Sees to it that the tables are what this program expects.
async fn prepare(db: &Db, settings: &Settings) -> Result<(), db::Error> {
    if settings.db.migrate {
        db.migrate(MIGRATIONS).await?;
    }
    db.require_migrated(MIGRATIONS).await?;
    let deployment = db.deployment().await?;
    tracing::info!(%deployment, db = %settings.db.url, "database opened");
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn migrations_are_numbered_named_and_single_statements_on_mysql() {
        let components: BTreeSet<&str> = MIGRATIONS.iter().map(|set| set.component).collect();
        assert_eq!(components.len(), MIGRATIONS.len(), "two sets have one component");
        for set in MIGRATIONS {
            for (at, migration) in set.list.iter().enumerate() {
                assert_eq!(migration.version as usize, at + 1, "{}", set.component);
                let statements = migration.mysql.split(';').filter(|text| !text.trim().is_empty()).count();
                assert_eq!(statements, 1, "{}: MySQL commits each statement by itself", migration.name);
            }
        }
    }

    /// A changed text makes every deployed database refuse. This snapshot only ever grows.
    #[test]
    fn released_migrations_are_never_edited() {
        let digest = |text: &str| {
            Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let lines: Vec<String> = MIGRATIONS
            .iter()
            .flat_map(|set| set.list.iter().map(move |step| (set.component, step)))
            .map(|(component, step)| {
                let (sqlite, mysql) = (digest(step.sqlite), digest(step.mysql));
                format!("{component}/{:04}_{} sqlite:{sqlite} mysql:{mysql}", step.version, step.name)
            })
            .collect();
        insta::assert_snapshot!(lines.join("\n"));
    }
}
