//! The wiring: from settings to a running process.

use std::time::Duration;

use base::error::Coded;
use base::id::ProcessId;
use base::{Backoff, Clock, error};
use bus::Bus;
use config::Choice;
use db::{Db, Migrations};
use hot::Hot;
use runtime::Process;
use runtime::http::admin;
use runtime::lifecycle::{Drain, LoopError, Part, Stage};
use runtime::telemetry::MetricsPush;
use tokio::time::Instant;

use crate::listeners::{BindError, Sockets, common_routes};
use crate::{Settings, VERSION};

/// The tables of all parts, in the order in which they are made.
pub(crate) const MIGRATIONS: &[Migrations] = &[db::MIGRATIONS];

/// Between attempts to reach a store at start.
const REACH: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// Why a process cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Bind(BindError),
    #[error("{store} was not reachable within lifecycle.start_timeout ({after:?})")]
    Unreachable { store: &'static str, after: Duration, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("{store} cannot be used")]
    Store { store: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
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
        process.serve(Stage::Admin, "admin", sockets.admin, admin(readiness.clone(), metrics.clone()));

        let deadline = Instant::now() + settings.lifecycle.start_timeout;
        let reach = Reach { deadline, timeout: settings.lifecycle.start_timeout };
        let parts = ["db", "hot", "bus"].map(|name| readiness.part(name));
        let [db_part, hot_part, bus_part] = parts;
        let db = reach.open("db", &db_part, async || Db::open(&settings.db).await).await?;
        process.close_at_end("db", {
            let db = db.clone();
            async move { db.close().await }
        });
        prepare(&db, &settings)
            .await
            .map_err(|source| StartError::Store { store: "db", source: source.into() })?;
        let hot = reach.open("hot", &hot_part, async || Hot::open(&settings.hot).await).await?;
        let bus = reach.open("bus", &bus_part, async || Bus::open(&settings.bus).await).await?;
        process.close_at_end("bus", {
            let bus = bus.clone();
            async move { bus.close().await }
        });

        metrics.register(|registry| db.register_metrics(registry));
        let every = settings.check_interval;
        process.supervise("db-watch", move |drain| {
            let (db, part) = (db.clone(), db_part.clone());
            watch(every, drain, part, async move || db.ping().await)
        });
        process.supervise("hot-watch", move |drain| {
            let (hot, part) = (hot.clone(), hot_part.clone());
            watch(every, drain, part, async move || hot.ping().await)
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

        for socket in sockets.roles {
            process.serve(Stage::Listeners, socket.name, socket.listener, common_routes());
        }
        let roles: Vec<&str> = settings.roles.iter().map(|role| role.word()).collect();
        tracing::info!(process = %id, version = VERSION, roles = roles.join(","), "started");
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

/// Opens stores that may not be there yet.
struct Reach {
    deadline: Instant,
    timeout: Duration,
}

impl Reach {
    /// Tries until the store answers, refuses, or the time is over.
    async fn open<T, E>(
        &self,
        store: &'static str,
        part: &Part,
        open: impl AsyncFn() -> Result<T, E>,
    ) -> Result<T, StartError>
    where
        E: Coded + Send + Sync + 'static,
    {
        for failures in 1.. {
            match open().await {
                Ok(opened) => {
                    part.ready();
                    return Ok(opened);
                }
                Err(error) if !error.is_passing() => {
                    return Err(StartError::Store { store, source: error.into() });
                }
                Err(error) => {
                    let cause = error::chain(&error);
                    part.not_ready(&cause);
                    let wait = REACH.after(failures);
                    if Instant::now() + wait > self.deadline {
                        return Err(StartError::Unreachable {
                            store,
                            after: self.timeout,
                            source: error.into(),
                        });
                    }
                    tracing::warn!(store, cause, "not reachable yet");
                    tokio::time::sleep(wait).await;
                }
            }
        }
        unreachable!("the range has no end")
    }
}

/// Tells readiness whether a store still answers.
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
