//! The wiring of jobs.

use db::Migrations;
use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use service::{
    Context, Lease, Loop, OpenError, OperatorRoute, Provided, Screen, Service, ServiceParts, ServiceStatus,
    StatusError,
};

use crate::{Jobs, MIGRATIONS, TABLE, admin, console};

/// The name of the loop that runs jobs.
pub const LOOP: &str = "jobs";

/// Jobs as a service. Provides [`Jobs`], and [`work_queue::Metrics`] for all queues.
#[derive(Clone, Copy, Debug)]
pub struct Wiring;

impl Service for Wiring {
    fn name(&self) -> &'static str {
        "jobs"
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

    fn status<'a>(&'a self, provided: &'a Provided) -> BoxFuture<'a, Result<ServiceStatus, StatusError>> {
        async move {
            let Some(jobs) = provided.find::<Jobs>() else { return Ok(ServiceStatus::default()) };
            let leases = jobs.queue.overview().await?.leases.into_iter();
            let leases = leases.map(|(holder, items)| Lease { holder, queue: TABLE, items }).collect();
            Ok(ServiceStatus { leases, ..ServiceStatus::default() })
        }
        .boxed()
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        async { open(context) }.boxed_local()
    }
}

fn open(context: &Context) -> Result<ServiceParts, OpenError> {
    let metrics = context.metrics.register(|registry| work_queue::Metrics::new(registry, TABLE));
    let jobs = Jobs::new(context.stores.db.clone(), &metrics, context.clock.clone());
    context.provide(metrics)?;
    context.provide(jobs.clone())?;
    let (process, kinds, provided) = (context.process, context.services.jobs(), context.provided.clone());
    // In every process, because every process has an admin listener on which operators start jobs.
    let run = Loop::new(LOOP, (jobs, kinds, provided), move |(jobs, kinds, provided), drain| async move {
        jobs.run(process, kinds, provided, drain).await
    });
    Ok(ServiceParts { loops: vec![run], ..ServiceParts::default() })
}
