//! Wires the outbox into the process: its relay, its cleaner and its admin API.

use std::time::Duration;

use config::Reader;
use db::Migrations;
use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use jobs::Jobs;
use screens::{Figure, Step, Subject};
use service::{
    Context, Dependency, JobKind, Loop, Need, OpenError, OperatorRoute, Provided, Role, Screen, Service,
    ServiceParts, ServiceStatus, Settings, StatusError,
};

use crate::admin::{self, OutboxAdmin};
use crate::status::status;
use crate::{Config, MIGRATIONS, Metrics, Outbox, Relay, TABLE};
use crate::{bulk, console, steps};

/// The name of the loop that publishes events. Loops that append to the outbox stop before it.
pub const RELAY: &str = "outbox-relay";

/// The longest backoff before the relay restarts, however long a store was unreachable.
const LONGEST_DOWNTIME: Duration = Duration::from_secs(1);

/// The outbox as a service. Provides [`Outbox`].
#[derive(Clone, Copy, Debug)]
pub struct Wiring;

struct OutboxConfig(Config);

impl Service for Wiring {
    fn name(&self) -> &'static str {
        "outbox"
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

    fn jobs(&self) -> Vec<JobKind> {
        bulk::jobs()
    }

    fn figures(&self) -> Vec<Figure> {
        steps::figures()
    }

    fn steps<'a>(
        &'a self,
        provided: &'a Provided,
        subject: &'a Subject,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Step>, StatusError>> {
        async move {
            match provided.find::<Outbox>() {
                Some(outbox) => Ok(steps::steps(&outbox, subject, limit).await?),
                None => Ok(Vec::new()),
            }
        }
        .boxed()
    }

    fn needs(&self) -> Vec<Need> {
        const DELAYED: &str =
            "Events wait in the outbox and are published later; requests are answered as usual.";
        const STOPPED: &str = "No event is published; events wait in the outbox.";
        vec![
            Need::degrades(Role::Gateway, Dependency::Nats, DELAYED),
            Need::degrades(Role::ServiceApi, Dependency::Nats, DELAYED),
            Need::degrades(
                Role::MatchmakingEngine,
                Dependency::Nats,
                "Matches are made and recorded; their events wait in the outbox.",
            ),
            Need::essential(Role::OutboxRelay, Dependency::Sql, STOPPED),
            Need::essential(Role::OutboxRelay, Dependency::Nats, STOPPED),
        ]
    }

    fn read_settings(&self, reader: &mut Reader<'_>, settings: &mut Settings) {
        settings.put(OutboxConfig(reader.section("outbox")));
    }

    fn status<'a>(&'a self, provided: &'a Provided) -> BoxFuture<'a, Result<ServiceStatus, StatusError>> {
        async move {
            match provided.find::<Outbox>() {
                Some(outbox) => status(&outbox).await,
                None => Ok(ServiceStatus::default()),
            }
        }
        .boxed()
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        async { open(context) }.boxed_local()
    }
}

fn open(context: &Context) -> Result<ServiceParts, OpenError> {
    let metrics = context.get::<Metrics>()?.for_queue(TABLE);
    let OutboxConfig(config) = context.settings.get();
    let (db, clock) = (context.stores.db.clone(), context.clock.clone());
    let outbox = Outbox::new(db, config.clone(), metrics, clock);
    context.provide(outbox.clone())?;
    context.provide(OutboxAdmin::new(outbox.clone(), context.get::<Jobs>()?))?;
    if !context.settings.roles.contains(Role::OutboxRelay) {
        return Ok(ServiceParts::default());
    }
    let relay = Relay::new(context.process, outbox, context.stores.bus.clone());
    let publish = Loop::new(RELAY, relay.clone(), |relay, drain| async move { relay.run(drain).await });
    let clean =
        Loop::new("outbox-cleaner", relay.clone(), |relay, drain| async move { relay.clean(drain).await });
    Ok(ServiceParts {
        loops: vec![publish.with_max_downtime(LONGEST_DOWNTIME), clean],
        // The embedded bus keeps events only for consumers it knows. By then all of them have subscribed.
        after_all_open: Some(restore_bus(relay).boxed_local()),
        ..ServiceParts::default()
    })
}

/// Restores the events of an embedded bus from the outbox.
async fn restore_bus(relay: Relay) -> Result<(), OpenError> {
    let events = relay.restore_bus().await.map_err(|source| OpenError::unusable("outbox", source))?;
    if events > 0 {
        tracing::info!(events, "restored the embedded bus from the outbox");
    }
    Ok(())
}
