//! The HTTP API for game clients and web pages: routes and their guard, aggregation, streams and pages.
//!
//! # Invariants
//! - **Every route is a row of one table** ([`rows`]): its allowed callers and its rate limit. The router is built from it.
//! - **A part of an aggregated response that fails does not affect the other parts.**
//! - **Logs contain no personal data and no secrets.** Security events contain ids and addresses.
//!
//! The crate `sessions` implements sign-in and sessions, and documents their invariants.
//!
//! # Failure modes
//! While Redis is unreachable, rate limits are counted per process and sessions cannot be read. `sessions` documents the details.

mod clients;
mod config;
mod console;
mod early;
mod guard;
mod harden;
mod http;
mod limits_admin;
mod metrics;
mod services;
mod streams;
mod wiring;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use ::config::Network;
use account::Accounts;
use axum::Router;
use base::Clock;
use entitlement::Entitlements;
use http_server::Routes;
use limits::Limits;
use live::Live;
use matchmaking::{Parties, Players};
use notification::Inbox;
use oidc::Provider;
use redis_store::RedisStore;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use service::{HomePart, PlayerRoute, Provided, StreamConfig};
use sessions::{Audit, CipherFailed, Origin, SessionHistory, Sessions};
use url::Url;

use crate::clients::Clients;
use crate::config::Config;
use crate::early::AddressLimit;
use crate::http::LazyDescription;
use crate::metrics::Metrics;
use crate::streams::Streams;

pub use http::rows;
pub use wiring::Wiring;

/// Everything that the gateway is built from.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: Config,
    /// The URL of the gateway for players.
    pub(crate) public_url: Url,
    pub(crate) version: &'static str,
    pub(crate) openapi: LazyDescription,
    /// Proxies whose `X-Forwarded-For` is trusted.
    pub(crate) trusted_proxies: Vec<Network>,
    /// The issuer of players' tokens. None if sign-in is not configured.
    pub(crate) provider: Option<Provider>,
    pub(crate) redis_store: RedisStore,
    pub(crate) history: SessionHistory,
    pub(crate) limits: Limits,
    pub(crate) accounts: Accounts,
    pub(crate) entitlements: Entitlements,
    pub(crate) inbox: Inbox,
    pub(crate) players: Players,
    pub(crate) parties: Parties,
    pub(crate) live: Live,
    pub(crate) stream_config: StreamConfig,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    /// The parts of `/v1/home` that services add.
    pub(crate) home_parts: Vec<HomePart>,
    /// The values that these parts are read from.
    pub(crate) provided: Provided,
}

/// The player routes of all services, and the values that their handlers use.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceRoutes {
    pub(crate) routes: Vec<PlayerRoute>,
    pub(crate) provided: Provided,
}

/// The gateway. Cheap to clone; clones share state.
#[derive(Clone)]
pub(crate) struct Gateway(Arc<Inner>);

/// The state that clones share.
pub(crate) struct Inner {
    config: Config,
    version: &'static str,
    origin: Origin,
    openapi: LazyDescription,
    trusted_proxies: Vec<Network>,
    sessions: Sessions,
    history: SessionHistory,
    clients: Clients,
    limits: Limits,
    entitlements: Entitlements,
    inbox: Inbox,
    players: Players,
    parties: Parties,
    live: Live,
    streams: Streams,
    stream_heartbeat: Duration,
    clock: Clock,
    metrics: Metrics,
    home_parts: Vec<HomePart>,
    provided: Provided,
}

impl Gateway {
    pub(crate) fn new(parts: Parts) -> Result<Self, CipherFailed> {
        let Parts { config, public_url, clock, metrics, .. } = parts;
        let sessions = Sessions::new(sessions::Parts {
            config: &config.session,
            public_url: &public_url,
            return_origins: config.cors_origins.clone(),
            user_cache: config.user_cache,
            provider: parts.provider,
            redis_store: &parts.redis_store,
            history: parts.history.clone(),
            accounts: parts.accounts,
            clock: clock.clone(),
            metrics: metrics.sessions.clone(),
        })?;
        Ok(Self(Arc::new(Inner {
            version: parts.version,
            origin: Origin::from_url(&public_url),
            openapi: parts.openapi,
            trusted_proxies: parts.trusted_proxies,
            history: parts.history,
            clients: Clients::new(config.platforms.clone(), config.features.clone()),
            limits: parts.limits,
            entitlements: parts.entitlements,
            inbox: parts.inbox,
            players: parts.players,
            parties: parts.parties,
            live: parts.live,
            streams: Streams::new(metrics.clone()),
            stream_heartbeat: parts.stream_config.heartbeat,
            home_parts: parts.home_parts,
            provided: parts.provided,
            config,
            sessions,
            clock,
            metrics,
        })))
    }

    /// Builds the routes of the gateway and of all services. Mounts the builtin issuer under its path, if there is one.
    pub(crate) fn routes(&self, services: ServiceRoutes, issuer: Option<(&str, Router)>) -> Routes {
        let address_limit = AddressLimit::new(self.clone());
        let router = http::routes(self, services, issuer);
        Routes::new(router).refuse_early(move |request| address_limit.refuse(request))
    }

    /// Closes the streams of sessions that end. Runs until `drain` is requested.
    pub(crate) async fn run_streams(&self, drain: Drain) -> Result<(), LoopError> {
        self.streams.run(&self.sessions, drain).await
    }

    /// Writes delayed session ends to SQL and removes outdated ones. Runs until `drain` is requested.
    pub(crate) async fn run_history(&self, drain: Drain) -> Result<(), LoopError> {
        self.history.run(&self.metrics.sessions, drain).await
    }

    fn audit(&self) -> &Audit {
        self.sessions.audit()
    }

    fn is_https(&self) -> bool {
        self.origin.as_str().starts_with("https:")
    }
}

impl Deref for Gateway {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("origin", &self.origin).finish_non_exhaustive()
    }
}
