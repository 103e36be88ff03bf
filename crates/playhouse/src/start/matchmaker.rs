//! The wiring of matchmaking.

use std::time::Duration;

use base::Clock;
use base::id::ProcessId;
use bus::Bus;
use hot::{Hot, HotUrl, Redis};
use matchmaking::store::Redises;
use matchmaking::{Engine, Frontend, Operator, Players, Relay, Store};
use runtime::http::Routes;
use runtime::{Metrics, Process};

use super::StartError;
use super::reach::Reach;
use crate::{Role, Settings};

/// How long players may wait for word after Redis has come back, however long it was away.
const DOWN: Duration = Duration::from_millis(500);

/// The parts of matchmaking that this process plays.
pub(super) struct Matchmaker {
    frontend: Option<Frontend>,
    players: Option<Players>,
    engine: Option<(Engine, Relay)>,
    pub(super) operator: Operator,
}

impl Matchmaker {
    pub(super) async fn open(
        id: ProcessId,
        clock: &Clock,
        settings: &Settings,
        stores: (&Hot, &Bus),
        metrics: &Metrics,
        reach: &Reach,
        readiness: &runtime::Readiness,
    ) -> Result<Self, StartError> {
        let (hot, bus) = stores;
        let config = &settings.matchmaking;
        let metrics = metrics.register(matchmaking::Metrics::new);
        let open = async |name, url: &Option<HotUrl>| match url.as_ref().and_then(HotUrl::server) {
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
        let store = Store::new(hot, redises, config.rules.clone(), clock.clone(), metrics.clone());
        let profiles = config
            .profiles(clock)
            .map_err(|source| StartError::Store { store: "matchmaking.assigners", source })?;
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
        let engine = roles.contains(Role::MatchmakingEngine).then(|| {
            let config = config.engine.clone();
            let engine = Engine::new(id, store.clone(), profiles, config, clock.clone(), metrics.clone());
            let relay = Relay::new(id, store, bus.clone(), engine.made(), metrics);
            (engine, relay)
        });
        Ok(Self { frontend, players, engine, operator })
    }

    /// Starts the loops.
    pub(super) fn start(&self, process: &mut Process) {
        if let Some(frontend) = self.frontend.clone() {
            process.supervise_within("matchmaking-pushes", DOWN, move |drain| {
                let frontend = frontend.clone();
                async move { frontend.run(drain).await }
            });
        }
        let Some((engine, relay)) = self.engine.clone() else { return };
        let last = relay.clone();
        process.supervise_within("matchmaking-relay", DOWN, move |drain| {
            let relay = relay.clone();
            async move { relay.run(drain).await }
        });
        if !engine.has_profiles() {
            return;
        }
        let listening = engine.clone();
        process.supervise_within("matchmaking-wakes", DOWN, move |drain| {
            let engine = listening.clone();
            async move { engine.listen(drain).await }
        });
        process.supervise("matchmaking-engine", move |drain| {
            let (engine, relay) = (engine.clone(), last.clone());
            async move {
                engine.run(drain).await?;
                // What the last ticks made, after the relay may have ended.
                relay.tick().await.map(drop)
            }
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
