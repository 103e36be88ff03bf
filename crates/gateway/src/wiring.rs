//! The wiring of the gateway: who vouches for players, and the listener for them.

mod identity;
mod routes;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use ::config::Reader;
use account::Accounts;
use base::Clock;
use db::Migrations;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use http_server::{HostPattern, Site, Vouch};
use limits::Limits;
use redis_store::Trial;
use runtime::lifecycle::{Drain, LoopError};
use service::{
    Context, Dependency, Examined, IssuedOperators, Loop, Need, OpenError, Opened, OperatorRoute, Role,
    Service, Services, Settings,
};
use sessions::SessionHistory;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;

use self::identity::{BuiltinIssuer, Identity};
use crate::config::Config;
use crate::http::{Api, rows};
use crate::metrics::Metrics;
use crate::services::{IssuedServices, IssuerOfOperators};
use crate::{Brought, Gateway, Parts};

const NAME: &str = "gateway";
/// Where the builtin issuer is, on the gateway's own address.
const ISSUER: &str = "/issuer";
/// The longest downtime of loops that players wait for, however long Redis was away.
const LONGEST_DOWNTIME: Duration = Duration::from_secs(1);
/// How often rate limits that need not be remembered are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// The gateway as a service, with the issuer that vouches for its callers.
#[derive(Clone, Copy, Debug)]
pub struct Wiring;

impl Service for Wiring {
    fn name(&self) -> &'static str {
        NAME
    }

    fn migrations(&self) -> Option<Migrations> {
        Some(sessions::MIGRATIONS)
    }

    fn gateway_api(&self) -> Option<OpenApi> {
        Some(Api::openapi())
    }

    fn operator_routes(&self) -> Vec<OperatorRoute> {
        identity::operator_routes()
    }

    fn scripts(&self) -> Vec<Trial> {
        sessions::TRIALS.into_iter().chain(limits::TRIALS).collect()
    }

    fn needs(&self) -> Vec<Need> {
        vec![
            Need::degrades(
                Role::Gateway,
                Dependency::Redis,
                "Browsers' sessions answer 503; access tokens work, and rate limits count per process.",
            ),
            Need::degrades(
                Role::Gateway,
                Dependency::Issuer,
                "Nobody can sign in; access tokens work, and sessions for gateway.session.refresh_grace.",
            ),
            Need::essential(
                Role::Gateway,
                Dependency::IssuerKeys,
                "Access tokens cannot be checked and nobody can sign in.",
            ),
            Need::degrades(
                Role::ServiceApi,
                Dependency::IssuerKeys,
                "Services with tokens of the issuer get 503; configured tokens work.",
            ),
        ]
    }

    fn read_settings(&self, reader: &mut Reader<'_>, settings: &mut Settings) {
        settings.put(reader.section::<oidc::Config>("identity"));
        settings.put(reader.section::<Config>("gateway"));
    }

    fn check_settings(&self, reader: &mut Reader<'_>, settings: &Settings, services: Services) {
        settings::check_hidden_fields(reader, settings.get(), services);
        settings::check_sign_in(reader, settings);
    }

    fn examine<'a>(&'a self, settings: &'a Settings, clock: &'a Clock) -> LocalBoxFuture<'a, Vec<Examined>> {
        async {
            let config: &oidc::Config = settings.get();
            let findings = oidc::examine(config, clock).await;
            vec![Examined { name: "identity", place: config.issuer.to_string(), findings }]
        }
        .boxed_local()
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<Opened, OpenError>> {
        async { open(context) }.boxed_local()
    }
}

fn open(context: &Context) -> Result<Opened, OpenError> {
    let config: &Config = context.settings.get();
    let accounts: Accounts = context.get()?;
    let (lifetime, fresh) = (config.session.lifetime, config.user_cache);
    let history = SessionHistory::new(context.stores.db.clone(), lifetime, fresh, context.clock.clone());
    // Also where no player comes: services ban and erase users in any process.
    accounts.on_sessions_end(Arc::new(history.clone()));
    accounts.on_erase(Arc::new(history.clone()));
    let identity = Identity::open(context, config)?;
    context.provide(BuiltinIssuer(identity.builtin.clone()))?;
    let operators = identity.provider.clone().map(|provider| Arc::new(IssuerOfOperators(provider)) as _);
    context.provide(IssuedOperators(operators))?;
    let Some(listener) = &context.gateway else {
        // Services and operators come with tokens of the issuer to processes without a gateway too.
        let loops = identity.key_loop().into_iter().collect();
        return Ok(Opened { vouch: vouch(context, &identity), loops, ..Opened::default() });
    };
    let public_url = config.public_url(listener);
    let public_host = public_url.host_str().map(HostPattern::of);
    // Its guard checks origins, which depends on how a caller has shown who they are.
    let site =
        Site::with_checked_origins(context.settings.listen.allowed_hosts.iter().cloned().chain(public_host));

    let redis_store = &context.stores.redis_store;
    let limit_metrics = context.metrics.register(limits::Metrics::new);
    let limits = Limits::new(redis_store, &config.session.key_prefix, config.limits.timeout, limit_metrics);
    let gateway = Gateway::new(Parts {
        public_url,
        version: context.version,
        openapi: listener.openapi.clone(),
        trusted: context.settings.listen.limits.trusted_proxies.clone(),
        provider: identity.provider.clone(),
        redis_store: redis_store.clone(),
        live: context.stores.live.clone(),
        limits: limits.clone(),
        history,
        accounts,
        entitlements: context.get()?,
        inbox: context.get()?,
        players: context.get()?,
        stream_config: *context.settings.get(),
        clock: context.clock.clone(),
        metrics: context.metrics.register(Metrics::new),
        home_parts: context.services.home_parts(),
        provided: context.provided.clone(),
        config: config.clone(),
    });
    let gateway = gateway.map_err(|source| OpenError::unusable("gateway.session.keys", source))?;

    routes::check(&rows(), context.services)?;
    let brought = Brought { routes: context.services.player_routes(), provided: context.provided.clone() };
    let issuer = identity.builtin.as_ref().map(|builtin| (ISSUER, builtin.routes()));
    Ok(Opened {
        gateway: gateway.routes(brought, issuer),
        gateway_site: Some(site),
        vouch: vouch(context, &identity),
        loops: loops(gateway, limits).into_iter().chain(identity.key_loop()).collect(),
        ..Opened::default()
    })
}

/// Lets in services that the issuer vouches for.
fn vouch(context: &Context, identity: &Identity) -> Option<Arc<dyn Vouch>> {
    let provider = identity.provider.clone()?;
    Some(Arc::new(IssuedServices { provider, rights: context.services.rights() }))
}

fn loops(gateway: Gateway, limits: Limits) -> [Loop; 3] {
    let history = Loop::new("session-history", gateway.clone(), |gateway, drain| async move {
        gateway.keep_history(drain).await
    });
    let ends = Loop::new("session-ends", gateway, |gateway, drain| async move { gateway.run(drain).await });
    [ends.down_at_most(LONGEST_DOWNTIME), history, Loop::new("limits-sweep", limits, sweep)]
}

async fn sweep(limits: Limits, drain: Drain) -> Result<(), LoopError> {
    while drain.sleep(SWEEP_EVERY).await {
        limits.sweep();
    }
    Ok(())
}
