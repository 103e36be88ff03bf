//! How a service becomes part of the program.
//!
//! A service crate implements [`Service`] in its `wiring.rs`, and the program has one list of them. Everything that a program does
//! with its services, it does by walking that list: reading and checking settings, migrations, rights, API documents, `doctor`,
//! operator routes, opening, background loops, listeners.
//!
//! # Invariants
//! - **A service is opened in the order of the list**, and uses only what services before it [provide](Context::provide).
//! - **Operator routes exist before the stores are open.** They answer 503 until the service provides what they [use](Open).
//! - **A service knows no other service's settings.** It reads its own, and finds them again by their type.

mod context;
mod error;
mod events;
mod home;
mod listen;
mod needs;
mod opened;
mod operator;
mod player;
mod provided;
mod reach;
mod role;
mod services;
mod settings;
mod standing;

use base::Clock;
use base::finding::Finding;
use bus::EventKind;
use config::Reader;
use db::Migrations;
use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use http_server::Right;
use redis_store::Trial;
use utoipa::openapi::OpenApi;

pub use context::{Context, GatewayListener, Stores};
pub use error::OpenError;
pub use events::{PlayerEvents, event};
pub use home::HomePart;
pub use listen::Listen;
pub use needs::{Dependency, Need};
pub use opened::{Loop, Opened, StopOrder};
pub use operator::{
    Access, IssuedOperators, Operator, OperatorRoute, OperatorRow, ProbedBy, Proof, TokenHolder,
    VouchForOperators,
};
pub use player::{Class, PlayerRoute, RouteMethod, Row, SignedInPlayer, SignedInUser, Who};
pub use provided::{Open, Provided};
pub use reach::Reach;
pub use role::{Role, Roles};
pub use services::Services;
pub use settings::{Settings, StoreConfigs, StreamConfig};
pub use standing::{Lease, Standing, StandingError};

/// A service of the program. All methods but [`open`](Self::open) only declare: no store is open when they are called.
pub trait Service: Sync {
    /// The name of its crate.
    fn name(&self) -> &'static str;

    /// Its tables.
    fn migrations(&self) -> Option<Migrations> {
        None
    }

    /// What callers of the service API may be allowed to do, beside [`Right::READ`] and [`Right::OPERATOR`].
    fn rights(&self) -> &'static [Right] {
        &[]
    }

    /// The events that it publishes.
    fn events(&self) -> Vec<EventKind> {
        Vec::new()
    }

    /// Describes its routes of the service API.
    fn service_api(&self) -> Option<OpenApi> {
        None
    }

    /// Describes its [player routes](Self::player_routes).
    fn gateway_api(&self) -> Option<OpenApi> {
        None
    }

    /// Its routes for players. The gateway serves them behind its guard.
    fn player_routes(&self) -> Vec<PlayerRoute> {
        Vec::new()
    }

    /// Its parts of `/v1/home`.
    fn home_parts(&self) -> Vec<HomePart> {
        Vec::new()
    }

    /// Its routes of the admin API. The guard asks who calls, and writes changes into the audit log.
    fn operator_routes(&self) -> Vec<OperatorRoute> {
        Vec::new()
    }

    /// Its routes of the service API that are an operator's work, done by a service. They are written into the audit log too.
    fn audited_service_routes(&self) -> Vec<(RouteMethod, String)> {
        Vec::new()
    }

    /// Its Lua scripts, each with a call on scratch keys. A process does not start on a Redis that refuses one.
    fn scripts(&self) -> Vec<Trial> {
        Vec::new()
    }

    /// What its part of a role can do while a server is away. What is not declared here goes on as if nothing had happened.
    fn needs(&self) -> Vec<Need> {
        Vec::new()
    }

    /// Reads its settings and puts them where [`Settings::get`] finds them.
    fn read_settings(&self, _reader: &mut Reader<'_>, _settings: &mut Settings) {}

    /// Checks its settings against those of the stores, listeners and roles, once all are read.
    fn check_settings(&self, _reader: &mut Reader<'_>, _settings: &Settings, _services: Services) {}

    /// Changes its settings for `playhouse dev`, so that there is something to try.
    fn prepare_dev(&self, _settings: &mut Settings) {}

    /// Looks at what it depends on outside of the stores, for `playhouse doctor`. Changes nothing.
    fn examine<'a>(
        &'a self,
        _settings: &'a Settings,
        _clock: &'a Clock,
    ) -> LocalBoxFuture<'a, Vec<Examined>> {
        async { Vec::new() }.boxed_local()
    }

    /// Says what waits for an operator, for `playhouse status`. It asks the shared stores through what it provides itself.
    fn standing<'a>(&'a self, _provided: &'a Provided) -> BoxFuture<'a, Result<Standing, StandingError>> {
        async { Ok(Standing::default()) }.boxed()
    }

    /// Opens it on open stores, and provides what other services and its own routes use.
    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<Opened, OpenError>>;
}

/// What `doctor` has to say of one thing.
#[derive(Clone, Debug)]
pub struct Examined {
    pub name: &'static str,
    /// Where it is.
    pub place: String,
    pub findings: Vec<Finding>,
}
