//! The wiring of the outbox: its relay, and what operators see of it.

use std::time::Duration;

use config::Reader;
use db::Migrations;
use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use service::{
    Context, Dependency, Loop, Need, OpenError, Opened, OperatorRoute, Provided, Role, Service, Settings,
    Standing, StandingError,
};

use crate::operator::{self, Operator};
use crate::standing::standing;
use crate::{Config, MIGRATIONS, Metrics, Outbox, Relay, TABLE};

/// The loop that publishes events. Loops that append to the outbox stop before it.
pub const RELAY: &str = "outbox-relay";

/// The longest downtime of the relay, however long a store was away.
const LONGEST_DOWNTIME: Duration = Duration::from_secs(1);

/// The outbox as a service. Provides [`Outbox`], and [`Metrics`] for further queues.
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
        operator::operator_routes()
    }

    fn needs(&self) -> Vec<Need> {
        const LATE: &str =
            "Events wait in the outbox and are published later; requests are answered as usual.";
        const NOTHING: &str = "No event is published; events wait in the outbox.";
        vec![
            Need::degrades(Role::Gateway, Dependency::Nats, LATE),
            Need::degrades(Role::ServiceApi, Dependency::Nats, LATE),
            Need::degrades(
                Role::MatchmakingEngine,
                Dependency::Nats,
                "Matches are made and recorded; their events wait in the outbox.",
            ),
            Need::essential(Role::OutboxRelay, Dependency::Sql, NOTHING),
            Need::essential(Role::OutboxRelay, Dependency::Nats, NOTHING),
        ]
    }

    fn read_settings(&self, reader: &mut Reader<'_>, settings: &mut Settings) {
        settings.put(OutboxConfig(reader.section("outbox")));
    }

    fn standing<'a>(&'a self, provided: &'a Provided) -> BoxFuture<'a, Result<Standing, StandingError>> {
        async move {
            match provided.find::<Outbox>() {
                Some(outbox) => standing(&outbox).await,
                None => Ok(Standing::default()),
            }
        }
        .boxed()
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<Opened, OpenError>> {
        async { open(context) }.boxed_local()
    }
}

fn open(context: &Context) -> Result<Opened, OpenError> {
    let metrics = context.metrics.register(|registry| Metrics::new(registry, TABLE));
    let OutboxConfig(config) = context.settings.get();
    let (db, clock) = (context.stores.db.clone(), context.clock.clone());
    let outbox = Outbox::new(db, config.clone(), metrics.clone(), clock);
    context.provide(metrics)?;
    context.provide(outbox.clone())?;
    context.provide(Operator::new(outbox.clone()))?;
    if !context.settings.roles.contains(Role::OutboxRelay) {
        return Ok(Opened::default());
    }
    let relay = Relay::new(context.process, outbox, context.stores.bus.clone());
    let publish = Loop::new(RELAY, relay.clone(), |relay, drain| async move { relay.run(drain).await });
    let keep =
        Loop::new("outbox-keeper", relay.clone(), |relay, drain| async move { relay.keep(drain).await });
    Ok(Opened {
        loops: vec![publish.down_at_most(LONGEST_DOWNTIME), keep],
        // An embedded bus keeps events for consumers that it knows: they have subscribed by then.
        when_all_are_open: Some(fill(relay).boxed_local()),
        ..Opened::default()
    })
}

/// Fills an embedded bus with the events that are still in the outbox.
async fn fill(relay: Relay) -> Result<(), OpenError> {
    let events = relay.fill().await.map_err(|source| OpenError::unusable("outbox", source))?;
    if events > 0 {
        tracing::info!(events, "the embedded bus was filled from the outbox");
    }
    Ok(())
}
