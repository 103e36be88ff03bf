//! The wiring of accounts.

use axum::Router;
use bus::EventKind;
use db::Migrations;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use http_server::Right;
use service::{Context, OpenError, Opened, Provided, Service};
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

    fn service_api(&self) -> Option<OpenApi> {
        Some(Api::openapi())
    }

    fn operator_routes(&self) -> Router<Provided> {
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
