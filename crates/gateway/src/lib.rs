//! The HTTP API for game clients and web pages: its routes, the guard in front of each, aggregation, streams and pages.
//!
//! # Invariants
//! - **Every route is a row of one table** ([`rows`]): who may call it, and which limit it falls under. The router is built from it.
//! - **A part that fails does not take the others with it** where an answer is aggregated.
//! - **Nothing personal and no secret is in a log**; the audit log has ids and addresses.
//!
//! Sign-in and sessions are the crate `sessions`, with their invariants.
//!
//! # Failure modes
//! Redis is away: limits are counted per process, and sessions cannot be read. `sessions` has the rest.

mod clients;
mod config;
mod guard;
mod harden;
mod http;
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
use limits::Limits;
use live::Live;
use matchmaking::Players;
use notification::Inbox;
use oidc::Provider;
use redis_store::RedisStore;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use serde_json::Value;
use service::{HomePart, PlayerRoute, Provided, StreamConfig};
use sessions::{Audit, CipherFailed, Origin, SessionHistory, Sessions};
use url::Url;

use crate::clients::Clients;
use crate::config::Config;
use crate::http::Description;
use crate::metrics::Metrics;
use crate::streams::Streams;

pub use http::rows;
pub use wiring::Wiring;

/// What the gateway is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: Config,
    /// Where players find the gateway.
    pub(crate) public_url: Url,
    pub(crate) version: &'static str,
    /// The OpenAPI document of the routes.
    pub(crate) openapi: Value,
    /// Whose `X-Forwarded-For` is believed.
    pub(crate) trusted: Vec<Network>,
    /// Who vouches for players, if anybody does.
    pub(crate) provider: Option<Provider>,
    pub(crate) redis_store: RedisStore,
    pub(crate) history: SessionHistory,
    pub(crate) limits: Limits,
    pub(crate) accounts: Accounts,
    pub(crate) entitlements: Entitlements,
    pub(crate) inbox: Inbox,
    pub(crate) players: Players,
    pub(crate) live: Live,
    pub(crate) stream_config: StreamConfig,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    /// What services bring to `/v1/home`, and what they read it from.
    pub(crate) home_parts: Vec<HomePart>,
    pub(crate) provided: Provided,
}

/// The routes that services bring, and what their handlers use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Brought {
    pub(crate) routes: Vec<PlayerRoute>,
    pub(crate) provided: Provided,
}

/// The gateway. Cheap to clone; clones share state.
#[derive(Clone)]
pub(crate) struct Gateway(Arc<Inner>);

/// What the clones share.
pub(crate) struct Inner {
    config: Config,
    version: &'static str,
    origin: Origin,
    openapi: Description,
    trusted: Vec<Network>,
    sessions: Sessions,
    history: SessionHistory,
    clients: Clients,
    limits: Limits,
    entitlements: Entitlements,
    inbox: Inbox,
    players: Players,
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
            origin: Origin::of(&public_url),
            openapi: Description::new(&parts.openapi),
            trusted: parts.trusted,
            history: parts.history,
            clients: Clients::new(config.platforms.clone(), config.features.clone()),
            limits: parts.limits,
            entitlements: parts.entitlements,
            inbox: parts.inbox,
            players: parts.players,
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

    /// Builds the router of its own routes and of those that services bring; with the builtin issuer under its path, if it is here.
    pub(crate) fn routes(&self, brought: Brought, issuer: Option<(&str, Router)>) -> Router {
        http::routes(self, brought, issuer)
    }

    /// Ends the streams of sessions that end, until told to stop.
    pub(crate) async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        self.streams.run(&self.sessions, drain).await
    }

    /// Records ends of sessions that had to wait and forgets those that need not be known any more, until told to stop.
    pub(crate) async fn keep_history(&self, drain: Drain) -> Result<(), LoopError> {
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
