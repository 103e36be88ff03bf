//! The list of services.

use std::fmt;

use bus::EventKind;
use db::Migrations;
use http_server::Right;
use redis_store::Trial;
use screens::Figure;

use crate::{HomePart, JobKind, OperatorRoute, PlayerData, PlayerRoute, RouteMethod, Screen, Service};

/// The services of a program, in the order in which they are migrated and opened.
#[derive(Clone, Copy)]
pub struct Services(pub &'static [&'static dyn Service]);

impl Services {
    pub fn iter(self) -> impl Iterator<Item = &'static dyn Service> {
        self.0.iter().copied()
    }

    /// Returns all migrations of the database: its own, and those of the services in their order.
    pub fn migrations(self) -> impl Iterator<Item = Migrations> {
        std::iter::once(db::MIGRATIONS).chain(self.iter().filter_map(Service::migrations))
    }

    /// Returns all rights that callers of the service API can have.
    pub fn rights(self) -> Vec<Right> {
        let own = self.iter().flat_map(|service| service.rights().iter().copied());
        [Right::READ].into_iter().chain(own).chain([Right::OPERATOR]).collect()
    }

    pub fn events(self) -> Vec<EventKind> {
        self.iter().flat_map(Service::events).collect()
    }

    pub fn scripts(self) -> Vec<Trial> {
        self.iter().flat_map(Service::scripts).collect()
    }

    pub fn player_routes(self) -> Vec<PlayerRoute> {
        self.iter().flat_map(Service::player_routes).collect()
    }

    pub fn home_parts(self) -> Vec<HomePart> {
        self.iter().flat_map(Service::home_parts).collect()
    }

    pub fn operator_routes(self) -> Vec<OperatorRoute> {
        self.iter().flat_map(Service::operator_routes).collect()
    }

    pub fn screens(self) -> Vec<Screen> {
        self.iter().flat_map(Service::screens).collect()
    }

    pub fn player_data(self) -> Vec<PlayerData> {
        self.iter().flat_map(Service::player_data).collect()
    }

    pub fn jobs(self) -> Vec<JobKind> {
        self.iter().flat_map(Service::jobs).collect()
    }

    pub fn figures(self) -> Vec<Figure> {
        self.iter().flat_map(Service::figures).collect()
    }

    pub fn audited_service_routes(self) -> Vec<(RouteMethod, String)> {
        self.iter().flat_map(Service::audited_service_routes).collect()
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(Service::name)).finish()
    }
}
