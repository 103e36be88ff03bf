//! The checks of `playhouse doctor` that an open process can repeat: stores, and what services depend on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::Clock;
use base::error::chain;
use base::finding::Finding;
use db::{Db, Dialect};
use service::{DependencyCheck, Services, Settings};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// How long a result is shown before the checks run again.
const FRESH: Duration = Duration::from_secs(30);

/// How long a reader waits for the first result. Later ones see the last result while the checks run again.
const FIRST_WAIT: Duration = Duration::from_millis(120);

/// Checks the stores and dependencies of this process, at most every 30 seconds and only while somebody reads. Cheap to clone; clones
/// share the results.
#[derive(Clone, Debug)]
pub(crate) struct Doctor(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    db: Db,
    settings: Settings,
    services: Services,
    clock: Clock,
    state: Mutex<State>,
    finished: Notify,
}

#[derive(Debug, Default)]
struct State {
    started: Option<Instant>,
    is_running: bool,
    checks: Option<Arc<Vec<DependencyCheck>>>,
}

impl Doctor {
    pub(crate) fn new(db: Db, settings: Settings, services: Services, clock: Clock) -> Self {
        let (state, finished) = (Mutex::default(), Notify::new());
        Self(Arc::new(Inner { db, settings, services, clock, state, finished }))
    }

    /// Returns the last results. None if the first checks are still running.
    pub(crate) async fn checks(&self) -> Option<Arc<Vec<DependencyCheck>>> {
        let finished = self.0.finished.notified();
        if let Some(checks) = self.start_if_due() {
            return Some(checks);
        }
        // Ends early if the checks finish. Either way the result is read below.
        let _ = timeout(FIRST_WAIT, finished).await;
        self.lock().checks.clone()
    }

    /// Starts the checks if the last ones are old. Returns the results so far.
    fn start_if_due(&self) -> Option<Arc<Vec<DependencyCheck>>> {
        let mut state = self.lock();
        let is_due = state.started.is_none_or(|started| started.elapsed() >= FRESH);
        if is_due && !state.is_running {
            (state.is_running, state.started) = (true, Some(Instant::now()));
            let (this, runtime) = (self.clone(), tokio::runtime::Handle::current());
            // On its own thread: the futures of services are not `Send`.
            tokio::task::spawn_blocking(move || {
                // Also after a panic, so that the next reader starts the checks again.
                let running = Running(&this);
                let checks = runtime.block_on(this.examine());
                this.lock().checks = Some(Arc::new(checks));
                drop(running);
            });
        }
        state.checks.clone()
    }

    async fn examine(&self) -> Vec<DependencyCheck> {
        let Inner { db, settings, services, clock, .. } = &*self.0;
        let stores = &settings.stores;
        let redis = redis_store::examine(&stores.redis_store, &services.scripts(), clock).await;
        let mut checks = vec![
            DependencyCheck {
                name: "db",
                address: stores.db.url.to_string(),
                findings: examine_db(db, &stores.db, *services, clock).await,
            },
            DependencyCheck { name: "redis", address: stores.redis_store.url.to_string(), findings: redis },
            DependencyCheck {
                name: "bus",
                address: stores.bus.url.to_string(),
                findings: bus::examine(&stores.bus, clock).await,
            },
        ];
        for service in services.iter() {
            checks.extend(service.examine(settings, clock).await);
        }
        checks
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the database and its migrations.
pub(crate) async fn examine_db(
    db: &Db,
    config: &db::Config,
    services: Services,
    clock: &Clock,
) -> Vec<Finding> {
    match db.dialect() {
        Dialect::MySql => {
            let migrations: Vec<_> = services.migrations().collect();
            db::examine(config, &migrations, clock).await
        }
        // `doctor` also reads the whole file, which takes seconds if it is large.
        Dialect::Sqlite => match db.version().await {
            Ok(version) => vec![Finding::good(version)],
            Err(error) => vec![Finding::failure(chain(&error), "run `playhouse doctor`")],
        },
    }
}

/// Ends a run when it is dropped.
struct Running<'a>(&'a Doctor);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().is_running = false;
        self.0.0.finished.notify_waiters();
    }
}
