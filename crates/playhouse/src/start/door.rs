//! The wiring of the gateway: who vouches for players, and the door itself.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use account::Accounts;
use axum::extract::{Query, State};
use axum::routing::post;
use axum::{Json, Router};
use base::Clock;
use base::Code;
use base::error::chain;
use entitlement::Entitlements;
use gateway::{Gateway, IssuedServices, Parts};
use http_server::{Problem, Vouch};
use limits::Limits;
use matchmaking::Players;
use notification::Inbox;
use oidc::builtin::Builtin;
use oidc::{IssuerUrl, Provider};
use redis_store::RedisStore;
use runtime::lifecycle::{Drain, LoopError, Part};
use runtime::{Metrics, Process, Readiness};
use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

use super::StartError;
use crate::{Settings, VERSION, openapi};

/// Where the builtin issuer is, on the gateway's own address.
const ISSUER: &str = "/issuer";
/// How soon the gateway hears of sessions that end again after Redis was away.
const DOWN: Duration = Duration::from_secs(1);
/// Between attempts to learn the issuer's keys, and between looks at whether they are still known.
const KEYS: Duration = Duration::from_secs(1);
/// Between looks for rate limits that need not be remembered.
const SWEEP: Duration = Duration::from_secs(10);

/// Who vouches for players and services.
pub(super) struct Identity {
    provider: Option<Provider>,
    builtin: Option<Builtin>,
    part: Option<Part>,
}

impl Identity {
    /// `listening` is where the gateway listens, if this process has one.
    pub(super) fn open(
        settings: &Settings,
        listening: Option<&Url>,
        clock: &Clock,
        metrics: &Metrics,
        readiness: &Readiness,
    ) -> Result<Self, StartError> {
        let config = &settings.identity;
        let cannot =
            |source: oidc::Error| StartError::Store { store: "identity.issuer", source: source.into() };
        let nobody = Self { provider: None, builtin: None, part: None };
        let Some(listening) = listening else { return Ok(nobody) };
        let builtin_at = || listening.join(ISSUER).unwrap_or_else(|_| listening.clone());
        let (issuer, builtin, part) = match &config.issuer {
            IssuerUrl::None => return Ok(nobody),
            IssuerUrl::Url(url) => (url.clone(), None, Some(readiness.part("identity"))),
            IssuerUrl::Builtin => {
                let public = settings.gateway_url(listening);
                let builtin = Builtin::new(config, builtin_at(), public, clock.clone()).map_err(cannot)?;
                (builtin_at(), Some(builtin), None)
            }
        };
        let metrics = metrics.register(oidc::Metrics::new);
        let provider = Provider::new(config, issuer, clock.clone(), metrics).map_err(cannot)?;
        Ok(Self { provider: Some(provider), builtin, part })
    }

    /// Lets in services that the issuer vouches for.
    pub(super) fn services(&self) -> Option<Arc<dyn Vouch>> {
        self.provider.clone().map(|provider| Arc::new(IssuedServices(provider)) as Arc<dyn Vouch>)
    }

    pub(super) fn builtin(&self) -> Option<&Builtin> {
        self.builtin.as_ref()
    }
}

/// The gateway, and what it needs beside the services.
pub(super) struct Door {
    gateway: Gateway,
    limits: Limits,
    players: Players,
    identity: Identity,
}

impl Door {
    pub(super) fn open(
        settings: &Settings,
        listening: &Url,
        identity: Identity,
        (redis_store, players): (&RedisStore, Players),
        (accounts, entitlements, inbox): (Accounts, Entitlements, Inbox),
        clock: &Clock,
        metrics: &Metrics,
    ) -> Result<Self, StartError> {
        let config = settings.gateway.clone();
        let prefix = &config.session.key_prefix;
        let limits =
            Limits::new(redis_store, prefix, config.limits.timeout, metrics.register(limits::Metrics::new));
        let gateway = Gateway::new(Parts {
            public_url: settings.gateway_url(listening),
            version: VERSION,
            openapi: openapi::gateway_document(),
            trusted: settings.listen.limits.trusted_proxies.clone(),
            provider: identity.provider.clone(),
            redis_store: redis_store.clone(),
            limits: limits.clone(),
            accounts,
            entitlements,
            inbox,
            players: players.clone(),
            clock: clock.clone(),
            metrics: metrics.register(gateway::Metrics::new),
            config,
        });
        let gateway = gateway
            .map_err(|source| StartError::Store { store: "gateway.session.keys", source: source.into() })?;
        Ok(Self { gateway, limits, players, identity })
    }

    /// Starts the loops.
    pub(super) fn start(&self, process: &mut Process) {
        let gateway = self.gateway.clone();
        process.supervise_within("session-ends", DOWN, move |drain| {
            let gateway = gateway.clone();
            async move { gateway.run(drain).await }
        });
        let players = self.players.clone();
        process.supervise_within("matchmaking-presence", DOWN, move |drain| {
            let players = players.clone();
            async move { players.run(drain).await }
        });
        let limits = self.limits.clone();
        process.supervise("limits-sweep", move |drain| sweep(limits.clone(), drain));
        if let (Some(provider), Some(part)) = (&self.identity.provider, &self.identity.part) {
            let (provider, part) = (provider.clone(), part.clone());
            process.supervise("identity-keys", move |drain| keys(provider.clone(), part.clone(), drain));
        }
    }

    pub(super) fn routes(&self) -> Router {
        self.gateway.routes(self.identity.builtin.as_ref().map(|builtin| (ISSUER, builtin.routes())))
    }
}

async fn sweep(limits: Limits, drain: Drain) -> Result<(), LoopError> {
    while drain.sleep(SWEEP).await {
        limits.sweep();
    }
    Ok(())
}

/// Learns the issuer's keys, and has them kept fresh. Once they are known the process is ready, and stays so: while the issuer is
/// away, tokens and sessions go on working.
async fn keys(provider: Provider, part: Part, drain: Drain) -> Result<(), LoopError> {
    let mut known = false;
    loop {
        match provider.ready().await {
            Ok(()) => {
                known = true;
                part.ready();
            }
            Err(error) if !known => part.not_ready(chain(&error)),
            Err(_) => {}
        }
        if !drain.sleep(KEYS).await {
            return Ok(());
        }
    }
}

pub(super) type Slot = Arc<OnceLock<Option<Builtin>>>;

/// `/issuer/tokens`: a token of the builtin issuer, for scripts. On the admin port, so for whoever runs the process.
pub(super) fn operator_routes(slot: &Slot) -> Router {
    Router::new().route("/issuer/tokens", post(token)).with_state(slot.clone())
}

#[derive(Deserialize)]
struct For {
    user: String,
    role: Option<String>,
}

async fn token(State(slot): State<Slot>, Query(wanted): Query<For>) -> Result<Json<Value>, Problem> {
    let not_yet = || Problem::new(Code::Unavailable).detail("the stores are not open yet");
    let none =
        "this process has no builtin issuer: identity.issuer names another one, which makes the tokens";
    let builtin = slot.get().ok_or_else(not_yet)?;
    let builtin = builtin.as_ref().ok_or_else(|| Problem::new(Code::FailedPrecondition).detail(none))?;
    let token = builtin.token(&wanted.user, wanted.role.as_deref());
    let token = token.map_err(|error| Problem::new(Code::InvalidArgument).detail(error.to_string()))?;
    Ok(Json(json!({ "token": token })))
}
