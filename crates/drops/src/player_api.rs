//! The API for players: the catalog of drops, the line, the stock, purchases. The gateway serves these routes and authenticates players.
//!
//! Handlers are thin: they parse the request, call a use case and map the response. Every error is a problem document whose `type` names
//! its cause.

mod answer;
mod buying;
mod catalog;
mod demo;
mod home;
mod line;
mod stock;
mod stream;
mod webhook;

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use ::service::{
    AllowedCallers, Context, HomePart, OpenError, PlayerRoute, Provided, RateClass, Row, SignedInPlayer,
};
use account::{AccountId, UserId};
use axum::extract::{FromRequestParts, RawPathParams};
use base::{Clock, Code};
use entitlement::{Entitlements, Holding};
use futures::future::try_join_all;
use http::request::Parts;
use http_server::Problem;
use utoipa::OpenApi;

use self::catalog::Catalog;
use crate::error::Error;
use crate::model::{Audience, Terms};
use crate::orders::Orders;
use crate::problem::problem;
use crate::stock::{LiveOptions, Stock, StockFeed, StockMetrics, StockPublisher};
use crate::token::AdmissionTokens;
use crate::{Config, DropId, Drops, Eligibility, PaymentProvider, ReservationId, Room, TokenSecrets};

pub(crate) use demo::{DemoProvider, open_demo_drop};

/// The limit of request bodies. All of them are small.
const MAX_BODY: usize = 16 * 1024;
/// The limit of webhook bodies. A provider may send more fields than we read.
const MAX_WEBHOOK: usize = 64 * 1024;

/// The OpenAPI description of the routes.
#[derive(Debug, OpenApi)]
#[openapi(
    paths(
        catalog::list,
        catalog::show,
        stock::stock,
        stream::stream,
        line::join,
        line::place,
        line::leave,
        line::keys,
        buying::reserve,
        buying::release,
        buying::pay,
        buying::orders,
        buying::order,
        webhook::receive
    ),
    components(schemas(home::DropsHome)),
    tags((name = "drops", description = "Limited sales: waiting in line, reserving and paying"))
)]
pub(crate) struct Api;

/// The use cases behind the routes.
pub(crate) struct UseCases {
    pub(crate) drops: Drops,
    pub(crate) room: Room,
    pub(crate) stock: Stock,
    pub(crate) orders: Orders,
    pub(crate) entitlements: Entitlements,
    pub(crate) secrets: TokenSecrets,
    pub(crate) provider: PaymentProvider,
}

/// The state of the routes. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(crate) struct PlayerApi {
    pub(crate) catalog: Catalog,
    pub(crate) room: Room,
    pub(crate) stock: Stock,
    pub(crate) feed: StockFeed,
    pub(crate) orders: Orders,
    pub(crate) entitlements: Entitlements,
    pub(crate) tokens: AdmissionTokens,
    pub(crate) provider: PaymentProvider,
    /// How often a stock stream sends the snapshot without a change.
    pub(crate) stock_sync: Duration,
    pub(crate) clock: Clock,
}

/// Provides the state of the routes and starts publishing stock changes.
pub(crate) fn open(context: &Context, use_cases: UseCases) -> Result<(), OpenError> {
    let UseCases { drops, room, stock, orders, entitlements, secrets, provider } = use_cases;
    let config: &Config = context.settings.get();
    let (live, metrics) = (&context.stores.live, context.metrics.register(StockMetrics::new));
    let options = LiveOptions {
        min_interval: config.stock_interval,
        sync_interval: config.stock_sync,
        ..LiveOptions::default()
    };
    StockPublisher::new(live.clone(), options, metrics.clone()).follow(&stock);
    let tokens = AdmissionTokens::new(secrets.iter());
    context.provide(PlayerApi {
        catalog: Catalog::new(drops),
        room,
        feed: StockFeed::new(live.clone(), stock.clone(), options, metrics),
        stock,
        orders,
        entitlements,
        tokens: tokens.map_err(|source| OpenError::unusable("drops.keys", source))?,
        provider,
        stock_sync: config.stock_sync,
        clock: context.clock.clone(),
    })
}

/// Builds the configured payment provider, or the demo provider under `dev`.
pub(crate) fn provider(context: &Context) -> PaymentProvider {
    let config: &Config = context.settings.get();
    let mut payments = config.payments.clone();
    if config.demo.is_some() {
        payments.checkout_url =
            context.gateway.as_ref().and_then(|listener| listener.url.join(demo::PATH).ok());
    }
    PaymentProvider::new(&payments)
}

/// Returns the routes, each with its row in the authorization table.
pub(crate) fn routes() -> Vec<PlayerRoute> {
    use AllowedCallers::{Anyone, Player};
    use RateClass::{Issuer, Page, Read, Stream, Write};
    let changing = |row: Row| row.with_max_body(MAX_BODY);
    vec![
        PlayerRoute::new(Row::get("/v1/drops", Player, Read), catalog::list),
        PlayerRoute::new(Row::get("/v1/drops/jwks", Anyone, Page), line::keys),
        PlayerRoute::new(Row::get("/v1/drops/{drop_id}", Player, Read), catalog::show),
        PlayerRoute::new(
            Row::get("/v1/drops/{drop_id}/stock", Player, Read).with_extra_timeout(stock::MAX_WAIT),
            stock::stock,
        ),
        PlayerRoute::new(Row::get("/v1/drops/{drop_id}/stream", Player, Stream), stream::stream),
        PlayerRoute::new(changing(Row::post("/v1/drops/{drop_id}/join", Player, Write)), line::join),
        PlayerRoute::new(Row::get("/v1/drops/{drop_id}/place", Player, Read), line::place),
        PlayerRoute::new(changing(Row::post("/v1/drops/{drop_id}/leave", Player, Write)), line::leave),
        PlayerRoute::new(
            changing(Row::post("/v1/drops/{drop_id}/reservations", Player, Write)),
            buying::reserve,
        ),
        PlayerRoute::new(
            changing(Row::delete("/v1/drops/{drop_id}/reservations/{reservation_id}", Player, Write)),
            buying::release,
        ),
        PlayerRoute::new(
            changing(Row::post("/v1/drops/{drop_id}/reservations/{reservation_id}/pay", Player, Write)),
            buying::pay,
        ),
        PlayerRoute::new(Row::get("/v1/orders", Player, Read), buying::orders),
        PlayerRoute::new(Row::get("/v1/orders/{order_id}", Player, Read), buying::order),
        // No rate limit: a provider sends the payments of all players from a few addresses.
        PlayerRoute::new(
            Row::post("/v1/payments/webhook", Anyone, Issuer).with_max_body(MAX_WEBHOOK),
            webhook::receive,
        ),
        PlayerRoute::new(Row::get(demo::PATH, Anyone, Page), demo::show),
        PlayerRoute::new(changing(Row::post(demo::PATH, Anyone, Page)), demo::pay),
    ]
}

/// Returns the part of `/v1/home` that concerns drops.
pub(crate) fn home_parts() -> Vec<HomePart> {
    vec![HomePart::new("drops", "DropsHome", home::read)]
}

impl PlayerApi {
    /// Reads which of the resources that the terms mention the account owns now.
    async fn eligibility(
        &self,
        terms: &Terms,
        player: &SignedInPlayer,
        account: AccountId,
    ) -> Result<Eligibility, Error> {
        let required = match &terms.who {
            Audience::Owns(resource) => Some(resource),
            Audience::Anyone | Audience::Role(_) => None,
        };
        let user = user_of(player);
        let owned = terms.lanes.iter().chain(required).map(|resource| async move {
            let holding = Holding { user, account, resource: resource.clone() };
            match self.entitlements.get(&holding).await {
                Ok(found) => Ok(found.in_force.then(|| resource.clone())),
                Err(entitlement::Error::NotFound(_)) => Ok(None),
                Err(error) => Err(Error::from(error)),
            }
        });
        let owns = try_join_all(owned).await?.into_iter().flatten().collect();
        Ok(Eligibility { roles: player.roles.iter().map(|role| (*role).to_owned()).collect(), owns })
    }
}

fn user_of(player: &SignedInPlayer) -> UserId {
    UserId::from_uuid(player.user)
}

/// The ids in the path of a route.
#[derive(Clone, Debug)]
struct PathIds(BTreeMap<String, String>);

impl<S: Send + Sync> FromRequestParts<S> for PathIds {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let unreadable = |_| Problem::new(Code::InvalidArgument).detail("The path is not valid UTF-8.");
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(unreadable)?;
        Ok(Self(params.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()))
    }
}

impl PathIds {
    fn get<T: FromStr>(&self, name: &'static str) -> Result<T, Problem> {
        let found = self.0.get(name).and_then(|text| text.parse().ok());
        found.ok_or_else(|| {
            let what = "is not an id".to_owned();
            problem(Error::Invalid { field: name, what })
        })
    }

    fn drop(&self) -> Result<DropId, Problem> {
        self.get("drop_id")
    }

    fn reservation(&self) -> Result<ReservationId, Problem> {
        self.get("reservation_id")
    }
}

/// Finds the state of the routes where there is no extractor.
fn player_api(provided: &Provided) -> Result<PlayerApi, Problem> {
    let not_yet =
        || Problem::new(Code::Unavailable).detail("Drops are still starting; try again in a moment.");
    provided.find().ok_or_else(not_yet)
}
