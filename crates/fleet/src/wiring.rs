//! The wiring of the fleet.

use std::time::Duration;

use ::config::Reader;
use db::Migrations;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use screens::{Combine, Figure, Measure, Unit};
use service::{Context, Loop, OpenError, OperatorRoute, Roles, Screen, Service, ServiceParts, Settings};

use crate::console::Nodes;
use crate::doctor::Doctor;
use crate::registration::Registration;
use crate::samples::Sampler;
use crate::store::Row;
use crate::watch::Watch;
use crate::{Fleet, MIGRATIONS, admin, console};

/// The fleet as a service. Provides [`Fleet`].
#[derive(Clone, Copy, Debug)]
pub struct Wiring;

/// What a process uses of its machine.
const FIGURES: [Figure; 2] = [
    Figure {
        name: "cpu",
        title: "Processor cores in use",
        unit: Unit::PerSecond,
        metric: "process_cpu_seconds",
        labels: &[],
        measure: Measure::Rate,
        combine: Combine::Sum,
        href: console::NODES,
    },
    Figure {
        name: "memory",
        title: "Memory of the largest process",
        unit: Unit::Bytes,
        metric: "process_resident_memory_bytes",
        labels: &[],
        measure: Measure::Gauge,
        combine: Combine::Max,
        href: console::NODES,
    },
];

#[derive(Clone, Debug)]
pub struct Config {
    /// The roles that at least one process must have.
    pub expected: Roles,
    /// How often a process sends a heartbeat.
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
        admin::operator_routes()
    }

    fn screens(&self) -> Vec<Screen> {
        console::screens()
    }

    fn figures(&self) -> Vec<Figure> {
        FIGURES.to_vec()
    }

    fn read_settings(&self, reader: &mut Reader<'_>, settings: &mut Settings) {
        let allowed = Duration::from_millis(100)..=Duration::from_secs(60);
        let heartbeat = reader.get_within("process.heartbeat", allowed);
        settings.put(Config { expected: reader.get("process.expected_roles"), heartbeat });
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        async { open(context) }.boxed_local()
    }
}

fn open(context: &Context) -> Result<ServiceParts, OpenError> {
    let (db, config) = (&context.stores.db, context.settings.get::<Config>());
    let fleet = Fleet::new(db.clone(), config.expected.clone(), context.services, context.provided.clone());
    context.provide(fleet.clone())?;
    let doctor = Doctor::new(db.clone(), context.settings.clone(), context.services, context.clock.clone());
    context.provide(Nodes::new(fleet.clone(), context.process, context.readiness.clone(), doctor))?;
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
    let watch = Watch::new(fleet, context.process);
    let watch = Loop::new("fleet-watch", watch, |watch, drain| async move { watch.run(drain).await });
    let mut loops = vec![heartbeat.with_max_downtime(config.heartbeat), watch];
    let figures = context.services.figures();
    if !figures.is_empty() {
        let sampler = Sampler::new(db.clone(), context.process, context.metrics.clone(), figures);
        loops.push(Loop::new(
            "fleet-samples",
            sampler,
            |sampler, drain| async move { sampler.run(drain).await },
        ));
    }
    Ok(ServiceParts { loops, ..ServiceParts::default() })
}
