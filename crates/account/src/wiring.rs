//! The wiring of accounts.

use bus::EventKind;
use db::Migrations;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use http_server::Right;
use service::{Context, Dependency, Need, OpenError, Opened, OperatorRoute, Role, RouteMethod, Service};
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;

use crate::http::Api;
use crate::{Accounts, MIGRATIONS, events, operator, routes};

/// To sign users in, link identities and make accounts.
pub const RIGHT: Right = Right::new("accounts");

/// Accounts as a service. Provides [`Accounts`].
#[derive(Clone, Copy, Debug)]
pub struct Wiring;

impl Service for Wiring {
    fn name(&self) -> &'static str {
        "account"
    }

    fn migrations(&self) -> Option<Migrations> {
        Some(MIGRATIONS)
    }

    fn rights(&self) -> &'static [Right] {
        &[RIGHT]
    }

    fn events(&self) -> Vec<EventKind> {
        events()
    }

    fn audited_service_routes(&self) -> Vec<(RouteMethod, String)> {
        let of_operators = ["ban", "unban", "erase"];
        of_operators
            .map(|what| (RouteMethod::Post, format!("/internal/v1/users/{{user_id}}/{what}")))
            .to_vec()
    }

    fn service_api(&self) -> Option<OpenApi> {
        Some(Api::openapi())
    }

    fn needs(&self) -> Vec<Need> {
        vec![
            Need::essential(
                Role::Gateway,
                Dependency::Sql,
                "Users cannot be found, so nearly every request is answered with 503; players who were seen in the last minute still \
                 queue for matches, and open streams stay open.",
            ),
            Need::essential(
                Role::ServiceApi,
                Dependency::Sql,
                "Nothing can be granted, sent or read: requests are answered with 503 and can be repeated.",
            ),
        ]
    }

    fn operator_routes(&self) -> Vec<OperatorRoute> {
        operator::operator_routes()
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<Opened, OpenError>> {
        async { open(context) }.boxed_local()
    }
}

fn open(context: &Context) -> Result<Opened, OpenError> {
    let stores = &context.stores;
    let accounts =
        Accounts::new(stores.db.clone(), stores.locks.clone(), context.get()?, context.clock.clone());
    context.provide(accounts.clone())?;
    Ok(Opened { service_api: routes(accounts), ..Opened::default() })
}
