//! The wiring of the fleet.

use std::time::Duration;

use ::config::Reader;
use db::Migrations;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use service::{Context, Loop, OpenError, Opened, OperatorRoute, Roles, Service, Settings};

use crate::registration::Registration;
use crate::store::Row;
use crate::{Fleet, MIGRATIONS, operator};

/// The fleet as a service. Provides [`Fleet`].
#[derive(Clone, Copy, Debug)]
pub struct Wiring;

#[derive(Clone, Debug)]
pub struct Config {
    /// The roles that some process must have.
    pub expected: Roles,
    /// How often a process says that it runs.
    pub heartbeat: Duration,
}

impl Service for Wiring {
    fn name(&self) -> &'static str {
        "fleet"
    }

    fn migrations(&self) -> Option<Migrations> {
        Some(MIGRATIONS)
    }

    fn operator_routes(&self) -> Vec<OperatorRoute> {
        operator::operator_routes()
    }

    fn read_settings(&self, reader: &mut Reader<'_>, settings: &mut Settings) {
        let allowed = Duration::from_millis(100)..=Duration::from_secs(60);
        let heartbeat = reader.get_within("process.heartbeat", allowed);
        settings.put(Config { expected: reader.get("process.expected_roles"), heartbeat });
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<Opened, OpenError>> {
        async { open(context) }.boxed_local()
    }
}

fn open(context: &Context) -> Result<Opened, OpenError> {
    let (db, config) = (&context.stores.db, context.settings.get::<Config>());
    let fleet = Fleet::new(db.clone(), config.expected.clone(), context.services, context.provided.clone());
    context.provide(fleet)?;
    let row = Row {
        id: context.process,
        version: context.version,
        roles: context.settings.roles.words(),
        admin: context.admin.to_string(),
        heartbeat: config.heartbeat,
    };
    let registration = Registration::new(db.clone(), row);
    let heartbeat = Loop::new("fleet-heartbeat", registration, |registration, drain| async move {
        registration.run(drain).await
    });
    Ok(Opened { loops: vec![heartbeat.down_at_most(config.heartbeat)], ..Opened::default() })
}
