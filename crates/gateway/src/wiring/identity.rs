//! The issuer of tokens for players and services: an external or the builtin one.

use std::iter;
use std::net::SocketAddr;
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
use url::Url;

use crate::config::Config;
use crate::http::ISSUER;

/// The pause between two attempts to fetch the issuer's keys.
const KEYS_EVERY: Duration = Duration::from_secs(1);
/// How often the issuer is pinged. Rare enough for issuers with rate limits.
const PING_EVERY: Duration = Duration::from_secs(5);

/// The issuer of tokens for players and services. Without a provider, nobody can sign in.
pub(super) struct Identity {
    pub(super) provider: Option<Provider>,
    pub(super) builtin: Option<Builtin>,
    parts: Option<IssuerParts>,
}

/// The readiness parts of an external issuer.
#[derive(Clone)]
struct IssuerParts {
    /// Ready once its keys are known. They stay known while the issuer is unreachable, so tokens can be verified.
    keys: Part,
    /// Ready while it answers.
    answers: Part,
}

impl IssuerParts {
    fn new(readiness: &Readiness) -> Self {
        let [keys, answers] = [Dependency::IssuerKeys, Dependency::Issuer];
        Self { keys: readiness.part(keys.part()), answers: readiness.part(answers.part()) }
    }
}

impl Identity {
    /// Opens the issuer. The builtin one is part of the gateway, so processes without the gateway have none.
    pub(super) fn open(context: &Context, gateway: &Config) -> Result<Self, OpenError> {
        let (config, clock): (&oidc::Config, _) = (context.settings.get(), &context.clock);
        let unusable = |source: oidc::Error| OpenError::unusable("identity.issuer", source);
        let (issuer, builtin, parts) = match (&config.issuer, &context.gateway) {
            (IssuerUrl::None, _) | (IssuerUrl::Builtin, None) => {
                return Ok(Self { provider: None, builtin: None, parts: None });
            }
            (IssuerUrl::Url(url), _) => {
                // A process where only operators use its tokens does not depend on it.
                let roles = &context.settings.roles;
                let is_needed = roles.contains(Role::Gateway) || roles.contains(Role::ServiceApi);
                (url.clone(), None, is_needed.then(|| IssuerParts::new(&context.readiness)))
            }
            (IssuerUrl::Builtin, Some(listener)) => {
                let issuer = listener.url.join(ISSUER).unwrap_or_else(|_| listener.url.clone());
                let public_url = gateway.public_url(listener);
                let clients = iter::once(public_url).chain(console_urls(context.admin)).collect();
                let builtin = Builtin::new(config, issuer.clone(), clients, clock.clone());
                (issuer, Some(builtin.map_err(unusable)?), None)
            }
        };
        let metrics = context.metrics.register(oidc::Metrics::new);
        let provider = Provider::new(config, issuer, clock.clone(), metrics).map_err(unusable)?;
        Ok(Self { provider: Some(provider), builtin, parts })
    }

    /// Returns the loop that refreshes the keys of an external issuer.
    pub(super) fn key_loop(&self) -> Option<Loop> {
        let state = (self.provider.clone()?, self.parts.clone()?);
        Some(Loop::new("identity-keys", state, |(provider, parts), drain| {
            refresh_keys(provider, parts, drain)
        }))
    }
}

/// Returns the URLs of the console on loopback, under each name that a browser may use.
fn console_urls(admin: SocketAddr) -> impl Iterator<Item = Url> {
    let hosts = ["127.0.0.1", "localhost", "[::1]"];
    hosts
        .into_iter()
        .filter_map(move |host| Url::parse(&format!("http://{host}:{}/console", admin.port())).ok())
}

/// Fetches and refreshes the issuer's keys, and reports whether the issuer answers.
async fn refresh_keys(provider: Provider, parts: IssuerParts, drain: Drain) -> Result<(), LoopError> {
    let (mut has_keys, mut pinged_at) = (false, None::<Instant>);
    loop {
        match provider.ready().await {
            Ok(()) => {
                has_keys = true;
                parts.keys.ready();
            }
            Err(error) if !has_keys => {
                parts.keys.not_ready(chain(&error));
                parts.answers.not_ready(chain(&error));
            }
            Err(_) => {}
        }
        if has_keys && pinged_at.is_none_or(|at| at.elapsed() >= PING_EVERY) {
            match provider.ping().await {
                Ok(()) => parts.answers.ready(),
                Err(error) => parts.answers.not_ready(chain(&error)),
            }
            pinged_at = Some(Instant::now());
        }
        if !drain.sleep(KEYS_EVERY).await {
            return Ok(());
        }
    }
}

/// The builtin issuer, if this process runs it.
#[derive(Clone)]
pub(super) struct BuiltinIssuer(pub(super) Option<Builtin>);

/// Returns `/issuer/tokens`, which creates a token of the builtin issuer for scripts.
pub(super) fn operator_routes() -> Vec<OperatorRoute> {
    vec![OperatorRoute::post("/issuer/tokens", token)]
}

#[derive(Deserialize)]
struct TokenQuery {
    user: String,
    role: Option<String>,
}

async fn token(
    Open(BuiltinIssuer(builtin)): Open<BuiltinIssuer>,
    Query(query): Query<TokenQuery>,
) -> Result<Json<Value>, Problem> {
    let detail =
        "This process has no builtin issuer. Get a token from the issuer that `identity.issuer` names.";
    let builtin = builtin.ok_or_else(|| Problem::new(Code::FailedPrecondition).detail(detail))?;
    let token = builtin.token(&query.user, query.role.as_deref());
    let token = token.map_err(|error| Problem::new(Code::InvalidArgument).detail(error.to_string()))?;
    Ok(Json(json!({ "token": token })))
}
