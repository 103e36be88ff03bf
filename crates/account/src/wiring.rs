//! Wires accounts into the process.

use bus::EventKind;
use db::Migrations;
use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use http_server::Right;
use screens::{Step, Subject};
use service::{
    Context, Dependency, Need, OpenError, OperatorRoute, Provided, Role, RouteMethod, Screen, Service,
    ServiceParts, StatusError,
};
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;

use crate::console::PlayerConsole;
use crate::http::Api;
use crate::{Accounts, MIGRATIONS, admin, console, events, routes};

/// The right to sign users in, link identities and create accounts.
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
        let operations = ["ban", "unban", "end-sessions", "erase"];
        operations
            .map(|operation| (RouteMethod::Post, format!("/internal/v1/users/{{user_id}}/{operation}")))
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
                "Users cannot be looked up, so nearly every request gets 503; players seen in the last minute can still \
                 queue for matches, and open streams stay open.",
            ),
            Need::essential(
                Role::ServiceApi,
                Dependency::Sql,
                "Nothing can be granted, sent or read: requests get 503 and can be retried.",
            ),
        ]
    }

    fn operator_routes(&self) -> Vec<OperatorRoute> {
        admin::operator_routes()
    }

    fn screens(&self) -> Vec<Screen> {
        console::screens()
    }

    fn steps<'a>(
        &'a self,
        provided: &'a Provided,
        subject: &'a Subject,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Step>, StatusError>> {
        async move {
            match provided.find::<Accounts>() {
                Some(accounts) => accounts.steps(subject, limit).await,
                None => Ok(Vec::new()),
            }
        }
        .boxed()
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        async { open(context) }.boxed_local()
    }
}

fn open(context: &Context) -> Result<ServiceParts, OpenError> {
    let stores = &context.stores;
    let accounts =
        Accounts::new(stores.db.clone(), stores.locks.clone(), context.get()?, context.clock.clone());
    context.provide(accounts.clone())?;
    let (services, provided) = (context.services, context.provided.clone());
    context.provide(PlayerConsole { accounts: accounts.clone(), services, provided })?;
    Ok(ServiceParts { service_api: routes(accounts), ..ServiceParts::default() })
}
