//! The wiring of drops.

use std::sync::Arc;

use ::config::Reader;
use account::Accounts;
use bus::EventKind;
use db::Migrations;
use entitlement::Entitlements;
use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use http_server::Right;
use outbox::Outbox;
use redis_store::Trial;
use screens::{Figure, Step, Subject};
use service::{
    Context, Dependency, HomePart, Need, OpenError, OperatorRoute, PlayerData, PlayerRoute, Provided, Role,
    RouteMethod, Screen, Service, ServiceParts, ServiceStatus, Settings, StatusError,
};
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;

use crate::console::{self, DropsConsole};
use crate::findings::read_findings;
use crate::gauges::{DropMetrics, Gauges};
use crate::http::{Api, audited_service_routes, operator_routes, service_routes};
use crate::line::TRIALS;
use crate::orders::Orders;
use crate::stock::Stock;
use crate::worker::Worker;
use crate::{
    Config, Drops, DropsEraser, Line, MIGRATIONS, Room, RoomMetrics, TokenSecrets, events, orders, player_api,
};

/// Allows a service to create, open and close drops, and to adjust their stock.
pub const RIGHT: Right = Right::new("drops");

/// Drops as a service. Provides [`Drops`], [`Line`], [`Room`], [`Stock`], [`Orders`],
/// [`PaymentProvider`](crate::PaymentProvider), [`TokenSecrets`] and [`DropsConsole`].
#[derive(Clone, Copy, Debug)]
pub struct Wiring;

impl Service for Wiring {
    fn name(&self) -> &'static str {
        "drops"
    }

    fn migrations(&self) -> Option<Migrations> {
        Some(MIGRATIONS)
    }

    fn rights(&self) -> &'static [Right] {
        &[RIGHT]
    }

    fn events(&self) -> Vec<EventKind> {
        events().into_iter().chain(orders::events()).collect()
    }

    fn service_api(&self) -> Option<OpenApi> {
        Some(Api::openapi())
    }

    fn operator_routes(&self) -> Vec<OperatorRoute> {
        operator_routes()
    }

    fn screens(&self) -> Vec<Screen> {
        console::screens()
    }

    fn player_data(&self) -> Vec<PlayerData> {
        console::player_data()
    }

    fn figures(&self) -> Vec<Figure> {
        console::figures()
    }

    fn steps<'a>(
        &'a self,
        provided: &'a Provided,
        subject: &'a Subject,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Step>, StatusError>> {
        async move {
            match provided.find::<DropsConsole>() {
                Some(drops) => Ok(console::steps(&drops, subject, limit).await?),
                None => Ok(Vec::new()),
            }
        }
        .boxed()
    }

    fn audited_service_routes(&self) -> Vec<(RouteMethod, String)> {
        audited_service_routes()
    }

    fn gateway_api(&self) -> Option<OpenApi> {
        Some(player_api::Api::openapi())
    }

    fn player_routes(&self) -> Vec<PlayerRoute> {
        player_api::routes()
    }

    fn home_parts(&self) -> Vec<HomePart> {
        player_api::home_parts()
    }

    fn scripts(&self) -> Vec<Trial> {
        TRIALS.to_vec()
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::degrades(
            Role::Gateway,
            Dependency::Redis,
            "Positions in the lines of drops are unknown. Admissions and purchases continue from SQL, except in drops that pause without \
             Redis.",
        )]
    }

    fn prepare_dev(&self, settings: &mut Settings) {
        settings.put(settings.get::<Config>().clone().or_demo());
    }

    fn read_settings(&self, reader: &mut Reader<'_>, settings: &mut Settings) {
        settings.put(reader.section::<Config>("drops"));
    }

    fn status<'a>(&'a self, provided: &'a Provided) -> BoxFuture<'a, Result<ServiceStatus, StatusError>> {
        async move {
            match provided.find::<Orders>() {
                Some(orders) => read_findings(&orders).await,
                None => Ok(ServiceStatus::default()),
            }
        }
        .boxed()
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        open(context).boxed_local()
    }
}

async fn open(context: &Context) -> Result<ServiceParts, OpenError> {
    let (config, stores, clock) = (context.settings.get::<Config>(), &context.stores, &context.clock);
    let (db, outbox) = (&stores.db, context.get::<Outbox>()?);
    let accounts: Accounts = context.get()?;
    let entitlements: Entitlements = context.get()?;
    let line = Line::new(&stores.redis_store, &config.key_prefix);
    let drops = Drops::new(db.clone(), outbox.clone(), clock.clone());
    let room = Room::new(drops.clone(), line.clone(), context.metrics.register(RoomMetrics::new));
    let stock = Stock::new(db.clone());
    let orders = Orders::new(db.clone(), stock.clone(), entitlements.clone(), outbox, clock.clone());
    accounts.on_erase(Arc::new(DropsEraser::new(stock.clone())));
    let unusable = |source| OpenError::unusable("drops.keys", source);
    let secrets = TokenSecrets::load(db, &config.keys).await.map_err(unusable)?;
    let provider = player_api::provider(context);
    context.provide(secrets.clone())?;
    context.provide(provider.clone())?;
    context.provide(drops.clone())?;
    context.provide(line.clone())?;
    context.provide(room.clone())?;
    context.provide(stock.clone())?;
    context.provide(orders.clone())?;
    context.provide(DropsConsole::new(drops.clone(), stock.clone(), line.clone(), orders.clone()))?;

    let service_api = service_routes().with_state(context.provided.clone());
    let mut opened = ServiceParts { service_api, ..ServiceParts::default() };
    if let Some(demo) = &config.demo {
        context.provide(demo.clone())?;
        let (drops, clock) = (drops.clone(), clock.clone());
        opened.after_all_open = Some(player_api::open_demo_drop(drops, clock).boxed_local());
    }
    // The gateway role also runs the loops: a process that serves drops keeps them running, so no role can be forgotten.
    if context.settings.roles.contains(Role::Gateway) {
        player_api::open(
            context,
            player_api::UseCases {
                drops: drops.clone(),
                room: room.clone(),
                stock: stock.clone(),
                orders: orders.clone(),
                entitlements,
                secrets,
                provider,
            },
        )?;
        let gauges = Gauges::new(db.clone(), line, context.metrics.register(DropMetrics::new));
        let (reconcile_every, webhook_retention) =
            (config.reconcile_every, config.payments.webhook_retention);
        opened.loops =
            Worker { drops, room, stock, orders, webhook_retention, gauges, reconcile_every }.loops();
    }
    Ok(opened)
}
