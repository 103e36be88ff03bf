//! The issuer that vouches for players and services: another one, or the builtin one.

use std::time::{Duration, Instant};

use axum::extract::Query;
use axum::routing::post;
use axum::{Json, Router};
use base::Code;
use base::error::chain;
use http_server::Problem;
use oidc::builtin::Builtin;
use oidc::{IssuerUrl, Provider};
use runtime::Readiness;
use runtime::lifecycle::{Drain, LoopError, Part};
use serde::Deserialize;
use serde_json::{Value, json};
use service::{Context, Dependency, GatewayListener, Loop, Open, OpenError, Provided};
use url::Url;

use super::ISSUER;

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
    pub(super) fn open(
        context: &Context,
        listener: &GatewayListener,
        public_url: &Url,
    ) -> Result<Self, OpenError> {
        let (config, clock): (&oidc::Config, _) = (context.settings.get(), &context.clock);
        let unusable = |source: oidc::Error| OpenError::unusable("identity.issuer", source);
        let builtin_at = || listener.url.join(ISSUER).unwrap_or_else(|_| listener.url.clone());
        let (issuer, builtin, parts) = match &config.issuer {
            IssuerUrl::None => return Ok(Self { provider: None, builtin: None, parts: None }),
            IssuerUrl::Url(url) => (url.clone(), None, Some(IssuerParts::new(&context.readiness))),
            IssuerUrl::Builtin => {
                let builtin = Builtin::new(config, builtin_at(), public_url.clone(), clock.clone());
                (builtin_at(), Some(builtin.map_err(unusable)?), None)
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
