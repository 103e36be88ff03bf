//! The one door for game clients and web pages: who they are, what they may do, how much of it, and everything they see first in
//! one answer.
//!
//! # Invariants
//! - **Every route is a row of one table** ([`rows`]): who may call it, and which limit it falls under. The router is built from it.
//! - **Access and refresh tokens never reach a browser.** It has a session: a cookie that names a record in the store. At sign-out the
//!   ID token passes through it, as a hint for the issuer.
//! - **A refresh token is redeemed once**, however many requests want it and in however many processes.
//! - **A session that has ended has ended everywhere**: every request reads the store.
//! - **A part that fails costs nobody the others** where an answer is put together.
//! - **Nothing personal and no secret is in a log**; the audit log has ids and addresses.
//!
//! # Failure modes
//! The issuer is away: tokens with known keys are accepted, sessions are used as they are for a while, nobody can sign in. The hot
//! store is away: sessions cannot be read (503), tokens go on working, limits are counted per process. The database is away:
//! whoever was seen in the last minute still is who they are.

mod audit;
mod caller;
mod clients;
mod config;
mod cookies;
mod guard;
mod harden;
mod http;
mod keeper;
mod metrics;
mod origin;
mod seal;
mod services;
pub mod session;
mod sign_in;
mod streams;
mod turns;
mod users;
mod wiring;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use ::config::Network;
use account::Accounts;
use axum::Router;
use base::Clock;
use entitlement::Entitlements;
use limits::Limits;
use matchmaking::Players;
use notification::Inbox;
use oidc::Provider;
use redis_store::RedisStore;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use serde_json::Value;
use service::{PlayerRoute, Provided};
use url::Url;

use crate::audit::Audit;
use crate::clients::Clients;
use crate::cookies::Cookies;
use crate::http::Description;
use crate::keeper::Keeper;
use crate::session::Sessions;
use crate::sign_in::SignIns;
use crate::streams::Streams;
use crate::users::Users;

pub use clients::{Feature, Platform, Version};
pub use config::{Config, LimitsConfig, SessionConfig};
pub use http::{Api, rows};
pub use metrics::Metrics;
pub use origin::{Origin, PublicUrl};
pub use seal::{CipherFailed, Sealer};
pub use services::IssuedServices;
pub use wiring::Wiring;

/// What the gateway is made of.
#[derive(Debug)]
pub struct Parts {
    pub config: Config,
    /// Where players find the gateway.
    pub public_url: Url,
    pub version: &'static str,
    /// The OpenAPI document of the routes.
    pub openapi: Value,
    /// Whose `X-Forwarded-For` is believed.
    pub trusted: Vec<Network>,
    /// Who vouches for players, if anybody does.
    pub provider: Option<Provider>,
    pub redis_store: RedisStore,
    pub limits: Limits,
    pub accounts: Accounts,
    pub entitlements: Entitlements,
    pub inbox: Inbox,
    pub players: Players,
    pub clock: Clock,
    pub metrics: Metrics,
}

/// The routes that services bring, and what their handlers use.
#[derive(Clone, Debug, Default)]
pub struct Brought {
    pub routes: Vec<PlayerRoute>,
    pub provided: Provided,
}

/// The gateway. Clones are the same.
#[derive(Clone)]
pub struct Gateway(Arc<Inner>);

/// What the clones share.
pub struct Inner {
    config: Config,
    version: &'static str,
    origin: Origin,
    openapi: Description,
    trusted: Vec<Network>,
    sign_ins: Option<SignIns>,
    sessions: Sessions,
    users: Users,
    cookies: Cookies,
    clients: Clients,
    limits: Limits,
    entitlements: Entitlements,
    inbox: Inbox,
    players: Players,
    streams: Streams,
    clock: Clock,
    metrics: Metrics,
    audit: Audit,
}

impl Gateway {
    pub fn new(parts: Parts) -> Result<Self, CipherFailed> {
        let Parts { config, public_url, clock, metrics, .. } = parts;
        let session = &config.session;
        let sessions = Sessions::new(&parts.redis_store, &session.key_prefix, session.idle, clock.clone());
        let users = Users::new(parts.accounts, config.user_cache);
        let cookies = Cookies::new(public_url.scheme() == "https");
        let audit = Audit::new(metrics.clone());
        let sealer = Sealer::new(&session.keys)?;
        let sign_ins = parts.provider.map(|provider| SignIns {
            keeper: Keeper {
                sessions: sessions.clone(),
                provider,
                sealer,
                clock: clock.clone(),
                grace: session.refresh_grace,
                metrics: metrics.clone(),
                audit: audit.clone(),
                turns: Default::default(),
            },
            users: users.clone(),
            cookies,
            public: public_url.clone(),
            origins: config.cors_origins.clone(),
            lifetime: session.lifetime,
            clock: clock.clone(),
        });
        Ok(Self(Arc::new(Inner {
            version: parts.version,
            origin: Origin::of(&public_url),
            openapi: Description::new(&parts.openapi),
            trusted: parts.trusted,
            clients: Clients::new(config.platforms.clone(), config.features.clone()),
            limits: parts.limits,
            entitlements: parts.entitlements,
            inbox: parts.inbox,
            players: parts.players,
            streams: Streams::new(metrics.clone()),
            config,
            sign_ins,
            sessions,
            users,
            cookies,
            clock,
            metrics,
            audit,
        })))
    }

    /// Builds the router of its own routes and of those that services bring; with the builtin issuer under its path, if it is here.
    pub fn routes(&self, brought: Brought, issuer: Option<(&str, Router)>) -> Router {
        http::routes(self, brought, issuer)
    }

    /// Ends the streams of sessions that end, until told to stop.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        self.streams.run(&self.sessions, drain).await
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
