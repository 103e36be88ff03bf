//! The interface between a service and the program.
//!
//! A service crate implements [`Service`] in its `wiring.rs`, and the program has one list of services. The program iterates over
//! that list for everything: settings, migrations, rights, API documents, `doctor`, operator routes, opening, background loops and
//! listeners.
//!
//! # Invariants
//! - **Services open in the order of the list**, and a service uses only values that earlier services [provide](Context::provide).
//! - **Operator routes exist before the stores are open.** They answer 503 until the service provides the value that they [use](Open).
//! - **A service does not know the settings of other services.** It reads its own and finds them by their type.

mod connector;
mod context;
mod error;
mod events;
mod home;
mod job;
mod listen;
mod needs;
mod operator;
mod parts;
mod player;
mod player_data;
mod provided;
mod role;
mod screen;
mod services;
mod settings;
mod status;
mod steps;

use base::Clock;
use base::finding::Finding;
use bus::EventKind;
use config::Reader;
use db::Migrations;
use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use http_server::Right;
use redis_store::Trial;
use screens::{Figure, Step, Subject};
use utoipa::openapi::OpenApi;

pub use connector::StoreConnector;
pub use context::{Context, GatewayListener, Stores};
pub use error::OpenError;
pub use events::{PlayerEvents, event};
pub use home::HomePart;
pub use job::{JobError, JobKind, JobStep, StepReport};
pub use listen::{Listen, OpenMatchApi, OpenMatchPort};
pub use needs::{Dependency, Need};
pub use operator::{
    Access, AdminApi, Credential, DryRun, IssuerOperators, Operator, OperatorRoute, OperatorRow,
    OperatorVerifier, ProbeAccess, Proof, TokenHolder,
};
pub use parts::{Loop, ServiceParts, StopOrder};
pub use player::{AllowedCallers, PlayerRoute, RateClass, RouteMethod, Row, SignedInPlayer, SignedInUser};
pub use player_data::PlayerData;
pub use provided::{Open, Provided};
pub use role::{Role, Roles};
pub use screen::{Menu, Screen, ScreenRequest};
pub use services::Services;
pub use settings::{ConsoleConfig, ServiceApiConfig, Settings, StoreConfigs, StreamConfig};
pub use status::{Lease, ServiceStatus, StatusError};

/// A service of the program. No store is open when its methods are called, except [`open`](Self::open) and [`status`](Self::status).
pub trait Service: Sync {
    /// Returns the name of its crate.
    fn name(&self) -> &'static str;

    /// Returns the migrations of its tables.
    fn migrations(&self) -> Option<Migrations> {
        None
    }

    /// Returns the rights that callers of the service API can have in addition to [`Right::READ`] and [`Right::OPERATOR`].
    fn rights(&self) -> &'static [Right] {
        &[]
    }

    /// Returns the events that it publishes.
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

    /// Returns its routes for players. The gateway serves them behind its guard.
    fn player_routes(&self) -> Vec<PlayerRoute> {
        Vec::new()
    }

    /// Returns its parts of `/v1/home`.
    fn home_parts(&self) -> Vec<HomePart> {
        Vec::new()
    }

    /// Returns its routes of the admin API. The guard authenticates the operator and records changes in the audit log.
    fn operator_routes(&self) -> Vec<OperatorRoute> {
        Vec::new()
    }

    /// Returns its screens of the console.
    fn screens(&self) -> Vec<Screen> {
        Vec::new()
    }

    /// Returns its data about users.
    fn player_data(&self) -> Vec<PlayerData> {
        Vec::new()
    }

    /// Returns the kinds of jobs that it starts.
    fn jobs(&self) -> Vec<JobKind> {
        Vec::new()
    }

    /// Returns the figures of its metrics that the overview of the console charts.
    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }

    /// Returns the steps that it knows of a subject, in any order, at most `limit`: the newest ones. Reads indexed columns only.
    fn steps<'a>(
        &'a self,
        _provided: &'a Provided,
        _subject: &'a Subject,
        _limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Step>, StatusError>> {
        async { Ok(Vec::new()) }.boxed()
    }

    /// Returns its routes of the service API that do the work of an operator. They are recorded in the audit log too.
    fn audited_service_routes(&self) -> Vec<(RouteMethod, String)> {
        Vec::new()
    }

    /// Returns its Lua scripts, each with a trial call on scratch keys. A process does not start if Redis rejects one.
    fn scripts(&self) -> Vec<Trial> {
        Vec::new()
    }

    /// Returns how its roles depend on servers. A role continues unaffected if a server that is not declared here is unreachable.
    fn needs(&self) -> Vec<Need> {
        Vec::new()
    }

    /// Reads its settings and stores them for [`Settings::get`].
    fn read_settings(&self, _reader: &mut Reader<'_>, _settings: &mut Settings) {}

    /// Checks its settings against those of stores, listeners and roles, after all settings are read.
    fn check_settings(&self, _reader: &mut Reader<'_>, _settings: &Settings, _services: Services) {}

    /// Changes its settings for `playhouse dev`, so that there is something to try out.
    fn prepare_dev(&self, _settings: &mut Settings) {}

    /// Checks its dependencies other than the stores, for `playhouse doctor`. Changes nothing.
    fn examine<'a>(
        &'a self,
        _settings: &'a Settings,
        _clock: &'a Clock,
    ) -> LocalBoxFuture<'a, Vec<DependencyCheck>> {
        async { Vec::new() }.boxed_local()
    }

    /// Reports what needs an operator, for `playhouse status`. Reads the shared stores through the values that it provides itself.
    fn status<'a>(&'a self, _provided: &'a Provided) -> BoxFuture<'a, Result<ServiceStatus, StatusError>> {
        async { Ok(ServiceStatus::default()) }.boxed()
    }

    /// Opens the service on open stores and provides the values that other services and its own routes use.
    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>>;
}

/// The findings of `doctor` about one dependency.
#[derive(Clone, Debug)]
pub struct DependencyCheck {
    pub name: &'static str,
    /// The URL or another description of where it is.
    pub address: String,
    pub findings: Vec<Finding>,
}
