//! The wiring of matchmaking: the parts that run in a process, by role.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::config::Reader;
use bus::{Bus, EventKind};
use db::Migrations;
use fleet::Fleet;
use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use outbox::Outbox;
use redis_store::{Redis, RedisUrl, Trial};
use screens::{Figure, Step, Subject};
use service::{
    Context, Dependency, JobKind, Loop, Need, OpenError, OpenMatchApi, OperatorRoute, PlayerData, Provided,
    Role, Screen, Service, ServiceParts, ServiceStatus, Settings, StatusError,
};

use crate::allocation::{self, GiveBackWorker, Sweeper};
use crate::definitions;
use crate::engine::Assigner;
use crate::open_match::OpenMatch;
use crate::parties::AccountEvents;
use crate::status::status;
use crate::store::{RedisServers, TRIALS};
use crate::{
    Allocations, Backend, BackfillCleaner, Config, DefinitionMetrics, Definitions, Engine, ExpiredTickets,
    Frontend, MIGRATIONS, MatchRecorder, MatchmakingAdmin, MatchmakingConsole, Metrics, Parties, Players,
    Queries, Recorder, Store, admin, backfills, console, events, parties,
};

/// The longest downtime of loops that players wait for, however long Redis was unreachable.
const LONGEST_DOWNTIME: Duration = Duration::from_millis(500);

const ENGINE: &str = "matchmaking-engine";
const RECORDER: &str = "matchmaking-recorder";

/// Matchmaking as a service. Provides [`MatchmakingAdmin`], [`MatchmakingConsole`], [`Definitions`], [`Allocations`] and, with the role
/// `gateway`, [`Players`] and [`Parties`].
#[derive(Clone, Copy, Debug)]
pub struct Wiring;

impl Service for Wiring {
    fn name(&self) -> &'static str {
        "matchmaking"
    }

    fn migrations(&self) -> Option<Migrations> {
        Some(MIGRATIONS)
    }

    fn events(&self) -> Vec<EventKind> {
        events()
    }

    fn operator_routes(&self) -> Vec<OperatorRoute> {
        let routes = admin::operator_routes().into_iter().chain(backfills::admin::operator_routes());
        let routes = routes.chain(parties::admin::operator_routes());
        routes.chain(allocation::operator_routes()).chain(definitions::admin::operator_routes()).collect()
    }

    fn screens(&self) -> Vec<Screen> {
        console::screens()
    }

    fn jobs(&self) -> Vec<JobKind> {
        allocation::jobs()
    }

    fn player_data(&self) -> Vec<PlayerData> {
        console::player_data()
    }

    fn figures(&self) -> Vec<Figure> {
        console::figures()
    }

    fn steps<'a>(
        &'a self,
        provided: &'a Provided,
        subject: &'a Subject,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Step>, StatusError>> {
        async move {
            match provided.find::<MatchmakingConsole>() {
                Some(matchmaking) => console::steps(&matchmaking, subject, limit).await,
                None => Ok(Vec::new()),
            }
        }
        .boxed()
    }

    fn scripts(&self) -> Vec<Trial> {
        TRIALS.to_vec()
    }

    fn needs(&self) -> Vec<Need> {
        vec![
            Need::degrades(
                Role::Gateway,
                Dependency::Redis,
                "Players cannot queue for matches, or change their parties.",
            ),
            Need::degrades(
                Role::Gateway,
                Dependency::Nats,
                "Banned and erased players stay in their parties until it is back.",
            ),
            Need::essential(
                Role::MatchmakingFrontend,
                Dependency::Redis,
                "Tickets cannot be created, read or watched: every call fails with UNAVAILABLE.",
            ),
            Need::degrades(
                Role::MatchmakingFrontend,
                Dependency::Sql,
                "What Directors and game servers assign reaches its players, and is recorded later.",
            ),
            Need::essential(
                Role::MatchmakingEngine,
                Dependency::Redis,
                "No tickets are fetched and no matches are made; tickets wait.",
            ),
            Need::degrades(
                Role::MatchmakingEngine,
                Dependency::Sql,
                "Matches are made and players notified until matchmaking.max_unrecorded is reached, and recorded later. Webhook \
                 assigners are not called.",
            ),
        ]
    }

    fn read_settings(&self, reader: &mut Reader<'_>, settings: &mut Settings) {
        settings.put(reader.section::<Config>("matchmaking"));
    }

    fn status<'a>(&'a self, provided: &'a Provided) -> BoxFuture<'a, Result<ServiceStatus, StatusError>> {
        async move {
            let found =
                (provided.find::<MatchmakingAdmin>(), provided.find::<Allocations>(), provided.find());
            match found {
                (Some(admin), Some(allocations), Some(definitions)) => {
                    status(&admin, &allocations, &definitions).await
                }
                _ => Ok(ServiceStatus::default()),
            }
        }
        .boxed()
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        open(context).boxed_local()
    }
}

async fn open(context: &Context) -> Result<ServiceParts, OpenError> {
    let (config, clock, roles) = (context.settings.get::<Config>(), &context.clock, &context.settings.roles);
    let (db, outbox) = (&context.stores.db, context.get::<Outbox>()?);
    let metrics = context.metrics.register(Metrics::new);
    let redises = RedisServers {
        assignments: open_redis(context, "matchmaking.assignments_url", &config.assignments_url).await?,
        replica: open_redis(context, "matchmaking.replica_url", &config.replica_url).await?,
    };
    let redis_store = &context.stores.redis_store;
    let store = Store::new(redis_store, redises, config.rules.clone(), clock.clone(), metrics.clone());
    let unusable = |source| OpenError::Unusable { store: "matchmaking.assigners", source };
    let assigners = config.assigners(clock).map_err(unusable)?;
    let definitions = open_definitions(context, config, &assigners, &metrics).await?;
    context.provide(definitions.clone())?;
    let fetched = config.engine.fetch_limit;
    let admin = MatchmakingAdmin::new(store.clone(), Vec::new(), fetched, clock.clone());
    let follower = admin.clone();
    definitions.follow(move |active| follower.set_profiles(active.profiles.clone()));
    // A program that embeds matchmaking may have no fleet.
    let admin = match context.provided.find::<Fleet>() {
        Some(fleet) => admin.with_fleet(fleet),
        None => admin,
    };
    context.provide(admin.clone())?;
    let queue = config.abandoned.clone();
    let allocations = Allocations::new(db.clone(), outbox.clone(), queue, clock.clone(), metrics.clone());
    context.provide(allocations.clone())?;
    context.provide(MatchmakingConsole::new(admin, allocations.clone(), outbox.clone()))?;

    let mut opened = ServiceParts::default();
    opened.loops.push(definitions_loop(definitions.clone()));
    let recorder = Recorder::new(context.process, store.clone(), db.clone(), outbox, metrics.clone());
    let (serves_directors, runs_engine) =
        (roles.contains(Role::MatchmakingFrontend), roles.contains(Role::MatchmakingEngine));
    if serves_directors || runs_engine {
        opened.loops.push(recorder_loop(recorder.clone()));
        let cleaner = BackfillCleaner::new(store.clone(), metrics.clone());
        opened.loops.push(Loop::new("matchmaking-backfills", cleaner, |cleaner, drain| async move {
            cleaner.run(drain).await
        }));
    }
    if serves_directors {
        let expired = ExpiredTickets::new(store.clone());
        opened.loops.push(Loop::new("matchmaking-expired", expired, |expired, drain| async move {
            expired.run(drain).await
        }));
    }
    // Players of the gateway watch their tickets too.
    if roles.contains(Role::MatchmakingFrontend) || roles.contains(Role::Gateway) {
        let frontend = Frontend::new(store.clone(), config.frontend.clone(), clock.clone(), metrics.clone());
        let queries = Queries::new(store.clone(), config.query.clone(), metrics.clone());
        let recorder: Arc<dyn MatchRecorder> = Arc::new(recorder.clone());
        let frontend = frontend.with_recorder(recorder.clone());
        opened.open_match_origins = config.frontend.cors_origins.clone();
        let open_match = || OpenMatch::new(store.clone()).allow_origins(config.frontend.cors_origins.clone());
        let settings = config.director();
        let limits = config.frontend.backfill_limits();
        let backend =
            Backend::new(store.clone(), Some(recorder), settings, limits, clock.clone(), metrics.clone());
        let unusable = |source: reqwest::Error| OpenError::Unusable {
            store: "matchmaking.director",
            source: source.into(),
        };
        let backend = backend.map_err(unusable)?;
        opened.open_match =
            open_match().serve(frontend.service()).serve(backend.service()).serve(queries.service()).routes();
        opened.open_match_apis = BTreeMap::from([
            (OpenMatchApi::Frontend, open_match().serve(frontend.service()).routes()),
            (OpenMatchApi::Backend, open_match().serve(backend.service()).routes()),
            (OpenMatchApi::Query, open_match().serve(queries.service()).routes()),
        ]);
        let follow =
            Loop::new(
                "matchmaking-queries",
                queries,
                |queries, drain| async move { queries.run(drain).await },
            );
        opened.loops.push(follow.with_max_downtime(LONGEST_DOWNTIME));
        if roles.contains(Role::Gateway) {
            let live = context.stores.live.clone();
            let players = Players::new(frontend.clone(), BTreeMap::new(), live, metrics.clone());
            let follower = players.clone();
            definitions.follow(move |active| {
                follower.set_queues(active.queues.clone());
                follower.set_profiles(&active.profiles);
            });
            context.provide(players.clone())?;
            let parties = Parties::new(players.clone(), config.parties.clone(), clock.clone());
            context.provide(parties.clone())?;
            opened.loops.push(account_events_loop(&context.stores.bus, parties).await?);
            let presence = Loop::new("matchmaking-presence", players, |players, drain| async move {
                players.run(drain).await
            });
            opened.loops.push(presence.with_max_downtime(LONGEST_DOWNTIME));
        }
        let pushes =
            Loop::new(
                "matchmaking-pushes",
                frontend,
                |frontend, drain| async move { frontend.run(drain).await },
            );
        opened.loops.push(pushes.with_max_downtime(LONGEST_DOWNTIME));
    }
    if !runs_engine {
        return Ok(opened);
    }
    if definitions.active().profiles.is_empty() {
        tracing::warn!(
            "No matches are made: add a [matchmaking.profiles.NAME] to the configuration, or a profile with `playhouse rules set \
             --kind profile`"
        );
    }
    if assigners.values().any(|assigner| assigner.allocator().is_some()) {
        let sweeper = Sweeper::new(allocations.clone(), store.clone(), config.abandon_after);
        let assigners = assigners.into_values();
        let calls = GiveBackWorker::new(context.process, &allocations, assigners, config.abandon_after);
        opened.loops.extend(give_back_loops(sweeper, Arc::new(calls)));
    }
    let (process, settings) = (context.process, config.engine.clone());
    let engine = Engine::new(process, store, Vec::new(), settings, clock.clone(), metrics);
    let engine = engine.with_recorder(Arc::new(recorder)).with_allocations(allocations);
    let follower = engine.clone();
    definitions.follow(move |active| follower.set_profiles(active.profiles.clone()));
    opened.loops.extend(engine_loops(engine));
    Ok(opened)
}

async fn open_redis(
    context: &Context,
    name: &'static str,
    url: &Option<RedisUrl>,
) -> Result<Option<Redis>, OpenError> {
    let Some(url) = url.as_ref().and_then(RedisUrl::server) else { return Ok(None) };
    let timeout = context.settings.stores.redis_store.timeout;
    let open = async || Redis::open(url.as_str(), timeout).await;
    context.connector.open(name, &context.readiness.part(name), open).await.map(Some)
}

async fn open_definitions(
    context: &Context,
    config: &Config,
    assigners: &BTreeMap<String, Arc<dyn Assigner>>,
    metrics: &Metrics,
) -> Result<Definitions, OpenError> {
    let (db, live) = (context.stores.db.clone(), context.stores.live.clone());
    let own_metrics = context.metrics.register(DefinitionMetrics::new);
    let opening =
        Definitions::open(db, live, config.definitions(), assigners.clone(), metrics.clone(), own_metrics);
    opening.await.map_err(|error| OpenError::Unusable { store: "db", source: error.into() })
}

/// Returns the loop that follows changed definitions.
fn definitions_loop(definitions: Definitions) -> Loop {
    let follow = Loop::new("matchmaking-definitions", definitions, |definitions, drain| async move {
        definitions.run(drain).await
    });
    follow.with_max_downtime(LONGEST_DOWNTIME)
}

/// Returns the loop that removes banned and erased users from their parties.
async fn account_events_loop(bus: &Bus, parties: Parties) -> Result<Loop, OpenError> {
    let events = AccountEvents::new(bus.clone(), parties);
    // An embedded bus keeps events only for existing consumers, so this one must exist before the first event.
    if let Bus::Memory(_) = bus {
        events.subscribe().await.map_err(|source| OpenError::unusable("bus", source))?;
    }
    Ok(Loop::new(
        "matchmaking-account-events",
        events,
        |events, drain| async move { events.run(drain).await },
    ))
}

/// Returns the loops that give back the servers of matches that were not made.
fn give_back_loops(sweeper: Sweeper, calls: Arc<GiveBackWorker>) -> [Loop; 3] {
    let sweep =
        Loop::new("matchmaking-sweeper", sweeper, |sweeper, drain| async move { sweeper.run(drain).await });
    let call =
        Loop::new(
            "matchmaking-abandoned",
            calls.clone(),
            |calls, drain| async move { calls.run(drain).await },
        );
    let clean =
        Loop::new(
            "matchmaking-abandoned-cleaner",
            calls,
            |calls, drain| async move { calls.clean(drain).await },
        );
    // The relay must still publish the events of the matches that this loop gives back.
    let sweep = sweep.with_max_downtime(LONGEST_DOWNTIME).stops_before(outbox::RELAY);
    [sweep, call.with_max_downtime(LONGEST_DOWNTIME), clean]
}

/// Returns the loop that records the matches of dead processes.
fn recorder_loop(recorder: Recorder) -> Loop {
    let record = Loop::new(RECORDER, recorder, |recorder, drain| async move { recorder.run(drain).await });
    // Stops after the engine to record its last matches, and before the relay that publishes them.
    record.with_max_downtime(LONGEST_DOWNTIME).stops_after(ENGINE).stops_before(outbox::RELAY)
}

/// Returns the loops that make matches.
fn engine_loops(engine: Engine) -> Vec<Loop> {
    let wakes =
        Loop::new(
            "matchmaking-wakes",
            engine.clone(),
            |engine, drain| async move { engine.listen(drain).await },
        );
    let checks = Loop::new("matchmaking-ready-checks", engine.clone(), |engine, drain| async move {
        engine.run_ready_checks(drain).await
    });
    // The recorder records the matches that it leaves.
    let checks = checks.with_max_downtime(LONGEST_DOWNTIME).stops_before(RECORDER);
    let engine = Loop::new(ENGINE, engine, |engine, drain| async move { engine.run(drain).await });
    vec![wakes.with_max_downtime(LONGEST_DOWNTIME), checks, engine]
}
