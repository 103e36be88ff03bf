//! The wiring of matchmaking.

use std::sync::Arc;
use std::time::Duration;

use base::Clock;
use base::id::ProcessId;
use db::Db;
use http_server::Routes;
use matchmaking::allocation::{GiveBack, Sweeper};
use matchmaking::store::Redises;
use matchmaking::{Allocations, Engine, Frontend, Operator, Players, Recorder, Store};
use outbox::Outbox;
use redis_store::{Redis, RedisStore, RedisUrl};
use runtime::{Metrics, Process};

use super::StartError;
use super::reach::Reach;
use crate::{Role, Settings};

/// How long players may wait for word after Redis has come back, however long it was away.
const DOWN: Duration = Duration::from_millis(500);

/// The loops whose matches the outbox relay publishes.
const ENGINE: &str = "matchmaking-engine";
pub(super) const RECORDER: &str = "matchmaking-recorder";

/// The parts of matchmaking that this process plays.
pub(super) struct Matchmaker {
    frontend: Option<Frontend>,
    players: Option<Players>,
    engine: Option<(Engine, Recorder)>,
    /// What gives servers back, where an assigner allocates any.
    giving_back: Option<(Sweeper, Arc<GiveBack>)>,
    pub(super) operator: Operator,
    pub(super) allocations: Allocations,
}

impl Matchmaker {
    pub(super) async fn open(
        id: ProcessId,
        clock: &Clock,
        settings: &Settings,
        (db, outbox, redis_store): (&Db, &Outbox, &RedisStore),
        metrics: &Metrics,
        reach: &Reach,
        readiness: &runtime::Readiness,
    ) -> Result<Self, StartError> {
        let config = &settings.matchmaking;
        let metrics = metrics.register(matchmaking::Metrics::new);
        let open = async |name, url: &Option<RedisUrl>| match url.as_ref().and_then(RedisUrl::server) {
            None => Ok(None),
            Some(url) => {
                let open = async || Redis::open(url.as_str(), settings.hot.timeout).await;
                reach.open(name, &readiness.part(name), open).await.map(Some)
            }
        };
        let redises = Redises {
            assignments: open("matchmaking.assignments_url", &config.assignments_url).await?,
            replica: open("matchmaking.replica_url", &config.replica_url).await?,
        };
        let store = Store::new(redis_store, redises, config.rules.clone(), clock.clone(), metrics.clone());
        let unusable = |source| StartError::Store { store: "matchmaking.assigners", source };
        let assigners = config.assigners(clock).map_err(unusable)?;
        let profiles = config.profiles(&assigners).map_err(unusable)?;
        let operator =
            Operator::new(store.clone(), profiles.clone(), config.engine.fetch_limit, clock.clone());

        let roles = &settings.roles;
        // Players of the gateway watch their tickets too.
        let watched = roles.contains(Role::MatchmakingFrontend) || roles.contains(Role::Gateway);
        let frontend = watched
            .then(|| Frontend::new(store.clone(), config.frontend.clone(), clock.clone(), metrics.clone()));
        let players = frontend.clone().filter(|_| roles.contains(Role::Gateway));
        let players = players.map(|frontend| Players::new(frontend, config.queues.clone(), metrics.clone()));
        if roles.contains(Role::MatchmakingEngine) && profiles.is_empty() {
            tracing::warn!(
                "no matches are made: name at least one [matchmaking.profiles.NAME] in the configuration"
            );
        }
        let queue = config.abandoned.clone();
        let allocations = Allocations::new(db.clone(), outbox.clone(), queue, clock.clone(), metrics.clone());
        let is_engine = roles.contains(Role::MatchmakingEngine);
        let allocates = assigners.values().any(|assigner| assigner.allocator().is_some());
        let giving_back = (is_engine && allocates).then(|| {
            let sweeper = Sweeper::new(allocations.clone(), store.clone(), config.abandon_after);
            let calls = GiveBack::new(id, &allocations, assigners.into_values(), config.abandon_after);
            (sweeper, Arc::new(calls))
        });
        let engine = is_engine.then(|| {
            let config = config.engine.clone();
            let engine = Engine::new(id, store.clone(), profiles, config, clock.clone(), metrics.clone());
            let recorder = Recorder::new(id, store, db.clone(), outbox.clone(), metrics);
            let engine = engine.with_recorder(Arc::new(recorder.clone()));
            (engine.with_allocations(allocations.clone()), recorder)
        });
        Ok(Self { frontend, players, engine, giving_back, operator, allocations })
    }

    /// Starts the loops.
    pub(super) fn start(&self, process: &mut Process) {
        if let Some(frontend) = self.frontend.clone() {
            process.supervise_within("matchmaking-pushes", DOWN, move |drain| {
                let frontend = frontend.clone();
                async move { frontend.run(drain).await }
            });
        }
        if let Some((sweeper, calls)) = self.giving_back.clone() {
            start_giving_back(process, sweeper, calls);
        }
        let Some((engine, recorder)) = self.engine.clone() else { return };
        process.supervise_within(RECORDER, DOWN, move |drain| {
            let recorder = recorder.clone();
            async move { recorder.run(drain).await }
        });
        process.stop_after(RECORDER, &[ENGINE]);
        if !engine.has_profiles() {
            return;
        }
        let listening = engine.clone();
        process.supervise_within("matchmaking-wakes", DOWN, move |drain| {
            let engine = listening.clone();
            async move { engine.listen(drain).await }
        });
        process.supervise(ENGINE, move |drain| {
            let engine = engine.clone();
            async move { engine.run(drain).await }
        });
    }

    /// What the gateway needs of it.
    pub(super) fn players(&self) -> Option<Players> {
        self.players.clone()
    }

    pub(super) fn routes(&self) -> Routes {
        self.frontend.as_ref().map(Frontend::routes).unwrap_or_default()
    }
}

/// Starts what gives back the servers of matches that were not made.
fn start_giving_back(process: &mut Process, sweeper: Sweeper, calls: Arc<GiveBack>) {
    process.supervise_within("matchmaking-sweeper", DOWN, move |drain| {
        let sweeper = sweeper.clone();
        async move { sweeper.run(drain).await }
    });
    let keeper = calls.clone();
    process.supervise_within("matchmaking-abandoned", DOWN, move |drain| {
        let calls = calls.clone();
        async move { calls.run(drain).await }
    });
    process.supervise("matchmaking-abandoned-keeper", move |drain| {
        let keeper = keeper.clone();
        async move { keeper.keep(drain).await }
    });
}
