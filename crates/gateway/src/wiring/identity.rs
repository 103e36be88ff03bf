//! The issuer that vouches for players and services: another one, or the builtin one.

use std::time::Duration;

use axum::extract::Query;
use axum::routing::post;
use axum::{Json, Router};
use base::Code;
use base::error::chain;
use http_server::Problem;
use oidc::builtin::Builtin;
use oidc::{IssuerUrl, Provider};
use runtime::lifecycle::{Drain, LoopError, Part};
use serde::Deserialize;
use serde_json::{Value, json};
use service::{Context, GatewayListener, Loop, Open, OpenError, Provided};
use url::Url;

use super::ISSUER;

/// Between attempts to learn the issuer's keys, and between looks at whether they are still known.
const KEYS: Duration = Duration::from_secs(1);

/// Who vouches for players and services. Nobody, if there is no provider.
pub(super) struct Identity {
    pub(super) provider: Option<Provider>,
    pub(super) builtin: Option<Builtin>,
    part: Option<Part>,
}

impl Identity {
    pub(super) fn open(
        context: &Context,
        listener: &GatewayListener,
        public_url: &Url,
    ) -> Result<Self, OpenError> {
        let (config, clock): (&oidc::Config, _) = (context.settings.get(), &context.clock);
        let unusable = |source: oidc::Error| OpenError::unusable("identity.issuer", source);
        let builtin_at = || listener.url.join(ISSUER).unwrap_or_else(|_| listener.url.clone());
        let (issuer, builtin, part) = match &config.issuer {
            IssuerUrl::None => return Ok(Self { provider: None, builtin: None, part: None }),
            IssuerUrl::Url(url) => (url.clone(), None, Some(context.readiness.part("identity"))),
            IssuerUrl::Builtin => {
                let builtin = Builtin::new(config, builtin_at(), public_url.clone(), clock.clone());
                (builtin_at(), Some(builtin.map_err(unusable)?), None)
            }
        };
        let metrics = context.metrics.register(oidc::Metrics::new);
        let provider = Provider::new(config, issuer, clock.clone(), metrics).map_err(unusable)?;
        Ok(Self { provider: Some(provider), builtin, part })
    }

    /// The loop that keeps the keys of another issuer fresh.
    pub(super) fn key_loop(&self) -> Option<Loop> {
        let state = (self.provider.clone()?, self.part.clone()?);
        Some(Loop::new("identity-keys", state, |(provider, part), drain| keys(provider, part, drain)))
    }
}

/// Learns the issuer's keys and keeps them fresh. Once they are known the process is ready, and stays so: while the issuer is
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

/// The builtin issuer, if this process has it.
#[derive(Clone)]
pub(super) struct BuiltinIssuer(pub(super) Option<Builtin>);

/// `/issuer/tokens`: a token of the builtin issuer, for scripts. On the admin listener, so for the operator of the process.
pub(super) fn operator_routes() -> Router<Provided> {
    Router::new().route("/issuer/tokens", post(token))
}

#[derive(Deserialize)]
struct For {
    user: String,
    role: Option<String>,
}

async fn token(
    Open(BuiltinIssuer(builtin)): Open<BuiltinIssuer>,
    Query(wanted): Query<For>,
) -> Result<Json<Value>, Problem> {
    let none =
        "this process has no builtin issuer: identity.issuer names another one, which makes the tokens";
    let builtin = builtin.ok_or_else(|| Problem::new(Code::FailedPrecondition).detail(none))?;
    let token = builtin.token(&wanted.user, wanted.role.as_deref());
    let token = token.map_err(|error| Problem::new(Code::InvalidArgument).detail(error.to_string()))?;
    Ok(Json(json!({ "token": token })))
}
