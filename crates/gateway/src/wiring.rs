//! The wiring of the gateway: the issuer of players' tokens, and the listener for players.

mod identity;
mod routes;
mod settings;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::config::Reader;
use account::{Accounts, UserId};
use base::Clock;
use base::error::{Coded, chain};
use base::id::Uuid;
use db::Migrations;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use http_server::{CallerVerifier, HostPattern, Problem, Site};
use limits::Limits;
use redis_store::Trial;
use runtime::lifecycle::{Drain, LoopError};
use screens::Figure;
use serde_json::Value;
use service::{
    Context, Dependency, DependencyCheck, IssuerOperators, Loop, Need, OpenError, OperatorRoute, PlayerData,
    Role, Screen, Service, ServiceParts, Services, Settings,
};
use sessions::SessionHistory;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;

use self::identity::{BuiltinIssuer, Identity};
use crate::config::Config;
use crate::http::{Api, Description, ISSUER, rows};
use crate::limits_admin::LimitsAdmin;
use crate::metrics::Metrics;
use crate::services::{IssuedOperators, IssuedServices};
use crate::{Gateway, Parts, ServiceRoutes, console, limits_admin};

const NAME: &str = "gateway";
/// The longest downtime of the loop that closes streams of ended sessions, however long Redis was unreachable.
const MAX_DOWNTIME: Duration = Duration::from_secs(1);
/// How often unused rate limits are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// The wiring of the gateway and of the issuer.
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
        identity::operator_routes().into_iter().chain(limits_admin::operator_routes()).collect()
    }

    fn screens(&self) -> Vec<Screen> {
        console::screens()
    }

    fn figures(&self) -> Vec<Figure> {
        console::FIGURES.to_vec()
    }

    fn player_data(&self) -> Vec<PlayerData> {
        vec![PlayerData::new("sessions", export_sessions)]
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
                "Access tokens cannot be verified and nobody can sign in.",
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

    fn examine<'a>(
        &'a self,
        settings: &'a Settings,
        clock: &'a Clock,
    ) -> LocalBoxFuture<'a, Vec<DependencyCheck>> {
        async {
            let config: &oidc::Config = settings.get();
            let findings = oidc::examine(config, clock).await;
            vec![DependencyCheck { name: "identity", address: config.issuer.to_string(), findings }]
        }
        .boxed_local()
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        async { open(context) }.boxed_local()
    }
}

fn open(context: &Context) -> Result<ServiceParts, OpenError> {
    let config: &Config = context.settings.get();
    let accounts: Accounts = context.get()?;
    let (lifetime, fresh) = (config.session.lifetime, config.user_cache);
    let history = SessionHistory::new(context.stores.db.clone(), lifetime, fresh, context.clock.clone());
    // Also in processes without the gateway: services ban and erase users in any process.
    accounts.on_sessions_end(Arc::new(history.clone()));
    accounts.on_erase(Arc::new(history.clone()));
    context.provide(history.clone())?;
    let identity = Identity::open(context, config)?;
    context.provide(BuiltinIssuer(identity.builtin.clone()))?;
    if let Some(builtin) = &identity.builtin {
        context.provide(builtin.clone())?;
    }
    let operators = identity.provider.clone().map(|provider| Arc::new(IssuedOperators(provider)) as _);
    context.provide(IssuerOperators(operators))?;
    if let Some(provider) = &identity.provider {
        // Operators sign in at the console with it.
        context.provide(provider.clone())?;
    }
    let Some(listener) = &context.gateway else {
        context.provide(LimitsAdmin::new(context, &config.limits, None))?;
        // Processes without a gateway also accept tokens of the issuer, from services and operators.
        let loops = identity.key_loop().into_iter().collect();
        return Ok(ServiceParts {
            caller_verifier: caller_verifier(context, &identity),
            loops,
            ..ServiceParts::default()
        });
    };
    let public_url = config.public_url(listener);
    let public_host = public_url.host_str().map(HostPattern::of);
    // The guard checks origins itself, because the check depends on how the caller is authenticated.
    let site =
        Site::with_checked_origins(context.settings.listen.allowed_hosts.iter().cloned().chain(public_host));

    let redis_store = &context.stores.redis_store;
    let limit_metrics = context.metrics.register(limits::Metrics::new);
    let (prefix, timeout) = (&config.session.key_prefix, config.limits.timeout);
    let limits = Limits::new(redis_store, prefix, timeout, limit_metrics, context.clock.clone());
    context.provide(LimitsAdmin::new(context, &config.limits, Some(limits.clone())))?;
    let gateway = Gateway::new(Parts {
        public_url,
        version: context.version,
        openapi: {
            let (document, services) = (listener.openapi, context.services);
            LazyLock::new(Box::new(move || Description::new(&document(services))))
        },
        trusted_proxies: context.settings.listen.limits.trusted_proxies.clone(),
        provider: identity.provider.clone(),
        redis_store: redis_store.clone(),
        live: context.stores.live.clone(),
        limits: limits.clone(),
        history,
        accounts,
        entitlements: context.get()?,
        inbox: context.get()?,
        players: context.get()?,
        parties: context.get()?,
        stream_config: *context.settings.get(),
        clock: context.clock.clone(),
        metrics: context.metrics.register(Metrics::new),
        home_parts: context.services.home_parts(),
        provided: context.provided.clone(),
        config: config.clone(),
    });
    let gateway = gateway.map_err(|source| OpenError::unusable("gateway.session.keys", source))?;

    routes::check(&rows(), context.services)?;
    let services =
        ServiceRoutes { routes: context.services.player_routes(), provided: context.provided.clone() };
    let issuer = identity.builtin.as_ref().map(|builtin| (ISSUER, builtin.routes()));
    Ok(ServiceParts {
        gateway: gateway.routes(services, issuer),
        gateway_site: Some(site),
        caller_verifier: caller_verifier(context, &identity),
        loops: loops(gateway, limits).into_iter().chain(identity.key_loop()).collect(),
        ..ServiceParts::default()
    })
}

/// Creates the verifier of services with tokens of the issuer.
fn caller_verifier(context: &Context, identity: &Identity) -> Option<Arc<dyn CallerVerifier>> {
    let provider = identity.provider.clone()?;
    Some(Arc::new(IssuedServices { provider, rights: context.services.rights() }))
}

/// Exports what the record of sessions has about a user.
async fn export_sessions(history: SessionHistory, user: Uuid) -> Result<Value, Problem> {
    history.export(UserId::from_uuid(user)).await.map_err(|error| {
        tracing::error!(cause = chain(&error), "cannot read the record of sessions");
        Problem::new(error.code())
    })
}

fn loops(gateway: Gateway, limits: Limits) -> [Loop; 3] {
    let history = Loop::new("session-history", gateway.clone(), |gateway, drain| async move {
        gateway.run_history(drain).await
    });
    let ends =
        Loop::new("session-ends", gateway, |gateway, drain| async move { gateway.run_streams(drain).await });
    [ends.with_max_downtime(MAX_DOWNTIME), history, Loop::new("limits-sweep", limits, sweep)]
}

async fn sweep(limits: Limits, drain: Drain) -> Result<(), LoopError> {
    while drain.sleep(SWEEP_EVERY).await {
        limits.sweep();
    }
    Ok(())
}
