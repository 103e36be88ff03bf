//! The assembled game.

use std::sync::Arc;
use std::time::Duration;

use base::Clock;
use base::id::ProcessId;
use matchmaking::engine::{EngineConfig, Profile, Tick};
use matchmaking::model::{Filter, Pool, SearchFields, TicketId};
use matchmaking::store::{Coordination, RedisServers, Rules};
use matchmaking::{Engine, Error, Frontend, FrontendConfig, Metrics, Store};
use prometheus_client::registry::Registry;
use redis_store::RedisStore;

use crate::{Fleet, LongestWaiting, SkillTeams};

/// A game with duels and with matches of two against two.
#[derive(Debug)]
pub struct Game {
    frontend: Frontend,
    engine: Engine,
}

impl Game {
    /// The two kinds of matches. They are also the tags of the tickets.
    pub const DUEL: &'static str = "duel";
    pub const TWO_VS_TWO: &'static str = "2v2";

    /// Creates a game. The clock is a parameter, so that tests need not wait.
    pub fn new(clock: &Clock, servers: u16) -> Self {
        // 1. The store of tickets.
        let metrics = Metrics::new(&mut Registry::default());
        let store =
            Store::new(&RedisStore::Memory, RedisServers::default(), rules(), clock.clone(), metrics.clone());
        // 2. The frontend, which players use.
        let frontend = Frontend::new(store.clone(), limits(), clock.clone(), metrics.clone());
        // 3. The profiles, which define the matches.
        let fleet = Arc::new(Fleet::new("games.example.com", servers));
        let profile = |name: &str, players_per_team, window| Profile {
            name: name.into(),
            pools: vec![Arc::new(Pool {
                name: name.to_owned(),
                filters: vec![Filter::Tag(name.to_owned())],
            })],
            function: Arc::new(SkillTeams { teams: 2, players_per_team, window, window_per_second: 50.0 }),
            assigner: fleet.clone(),
            version: 0,
            max_wait: None,
            ready_check: None,
            backfill: false,
        };
        let profiles = vec![profile(Self::DUEL, 1, 100.0), profile(Self::TWO_VS_TWO, 2, 200.0)];
        // 4. The engine, which makes matches. A server calls `Engine::run` and `Engine::listen`; this example calls `Engine::tick`.
        let id = ProcessId::generate();
        let engine = Engine::new(id, store, profiles, pace(), clock.clone(), metrics);
        Self { frontend, engine: engine.with_evaluator(Arc::new(LongestWaiting)) }
    }

    /// Creates a ticket for a player of this skill who wants a match of one of these kinds.
    pub async fn join(&self, skill: f64, kinds: &[&str]) -> Result<TicketId, Error> {
        let fields = SearchFields {
            doubles: [(SkillTeams::FIELD.to_owned(), skill)].into(),
            tags: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
            ..SearchFields::default()
        };
        self.frontend.create_from_fields(fields).await
    }

    /// Returns the player's server, or `None` while there is no match.
    pub async fn server(&self, ticket: &TicketId) -> Result<Option<String>, Error> {
        let ticket = self.frontend.get(ticket.as_str()).await?;
        Ok(ticket.assignment.as_option().map(|assignment| assignment.connection.clone()))
    }

    /// Makes the matches that are possible now.
    pub async fn tick(&self) -> Result<Tick, Error> {
        self.engine.tick().await
    }
}

fn rules() -> Rules {
    Rules {
        key_prefix: String::new(),
        coordination: Coordination::Script,
        pending_timeout: Duration::from_secs(60),
        assigned_ttl: Duration::from_secs(60),
        check_tickets: true,
        max_unrecorded: 64 << 20,
    }
}

fn limits() -> FrontendConfig {
    FrontendConfig {
        ticket_ttl: Duration::from_secs(600),
        max_ticket_ttl: Duration::from_secs(3600),
        max_ticket_size: 65_536,
        max_fields: 100,
        max_watchers: 5000,
        watch_check: Duration::from_secs(5),
        ttl_field: true,
        cors_origins: Vec::new(),
    }
}

fn pace() -> EngineConfig {
    EngineConfig {
        tick: Duration::from_millis(100),
        gather: Duration::from_millis(5),
        fetch_limit: 10_000,
        function_timeout: Duration::from_secs(5),
        evaluator_timeout: Duration::from_secs(5),
        assigner_timeout: Duration::from_secs(10),
    }
}
