//! The issuer that vouches for players and services: another one, or the builtin one.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::Query;
use base::Code;
use base::error::chain;
use http_server::Problem;
use oidc::builtin::Builtin;
use oidc::{IssuerUrl, Provider};
use runtime::Readiness;
use runtime::lifecycle::{Drain, LoopError, Part};
use serde::Deserialize;
use serde_json::{Value, json};
use service::{Context, Dependency, Loop, Open, OpenError, OperatorRoute, Role};

use super::ISSUER;
use crate::config::Config;

/// Between attempts to learn the issuer's keys, and between looks at whether they are still known.
const KEYS: Duration = Duration::from_secs(1);
/// How often the issuer is asked whether it answers. Rare enough for issuers that count requests.
const PING_EVERY: Duration = Duration::from_secs(5);

/// Who vouches for players and services. Nobody, if there is no provider.
pub(super) struct Identity {
    pub(super) provider: Option<Provider>,
    pub(super) builtin: Option<Builtin>,
    parts: Option<IssuerParts>,
}

/// How readiness hears of another issuer.
#[derive(Clone)]
struct IssuerParts {
    /// Its keys are known. Once they are, they stay so: tokens are checked while it is away.
    keys: Part,
    /// It answers.
    answers: Part,
}

impl IssuerParts {
    fn new(readiness: &Readiness) -> Self {
        let [keys, answers] = [Dependency::IssuerKeys, Dependency::Issuer];
        Self { keys: readiness.part(keys.part()), answers: readiness.part(answers.part()) }
    }
}

impl Identity {
    /// Opens the issuer. The builtin one is where the gateway is, so other processes have none.
    pub(super) fn open(context: &Context, gateway: &Config) -> Result<Self, OpenError> {
        let (config, clock): (&oidc::Config, _) = (context.settings.get(), &context.clock);
        let unusable = |source: oidc::Error| OpenError::unusable("identity.issuer", source);
        let (issuer, builtin, parts) = match (&config.issuer, &context.gateway) {
            (IssuerUrl::None, _) | (IssuerUrl::Builtin, None) => {
                return Ok(Self { provider: None, builtin: None, parts: None });
            }
            (IssuerUrl::Url(url), _) => {
                // Where only operators come with its tokens, the process does not depend on it.
                let roles = &context.settings.roles;
                let is_needed = roles.contains(Role::Gateway) || roles.contains(Role::ServiceApi);
                (url.clone(), None, is_needed.then(|| IssuerParts::new(&context.readiness)))
            }
            (IssuerUrl::Builtin, Some(listener)) => {
                let issuer = listener.url.join(ISSUER).unwrap_or_else(|_| listener.url.clone());
                let public_url = gateway.public_url(listener);
                let builtin = Builtin::new(config, issuer.clone(), public_url, clock.clone());
                (issuer, Some(builtin.map_err(unusable)?), None)
            }
        };
        let metrics = context.metrics.register(oidc::Metrics::new);
        let provider = Provider::new(config, issuer, clock.clone(), metrics).map_err(unusable)?;
        Ok(Self { provider: Some(provider), builtin, parts })
    }

    /// The loop that keeps the keys of another issuer fresh.
    pub(super) fn key_loop(&self) -> Option<Loop> {
        let state = (self.provider.clone()?, self.parts.clone()?);
        Some(Loop::new("identity-keys", state, |(provider, parts), drain| keys(provider, parts, drain)))
    }
}

/// Learns the issuer's keys and keeps them fresh, and reports whether the issuer answers.
async fn keys(provider: Provider, parts: IssuerParts, drain: Drain) -> Result<(), LoopError> {
    let (mut known, mut asked) = (false, None::<Instant>);
    loop {
        match provider.ready().await {
            Ok(()) => {
                known = true;
                parts.keys.ready();
            }
            Err(error) if !known => {
                parts.keys.not_ready(chain(&error));
                parts.answers.not_ready(chain(&error));
            }
            Err(_) => {}
        }
        if known && asked.is_none_or(|at| at.elapsed() >= PING_EVERY) {
            match provider.ping().await {
                Ok(()) => parts.answers.ready(),
                Err(error) => parts.answers.not_ready(chain(&error)),
            }
            asked = Some(Instant::now());
        }
        if !drain.sleep(KEYS).await {
            return Ok(());
        }
    }
}

/// The builtin issuer, if this process has it.
#[derive(Clone)]
pub(super) struct BuiltinIssuer(pub(super) Option<Builtin>);

/// `/issuer/tokens`: a token of the builtin issuer, for scripts.
pub(super) fn operator_routes() -> Vec<OperatorRoute> {
    vec![OperatorRoute::post("/issuer/tokens", token)]
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
