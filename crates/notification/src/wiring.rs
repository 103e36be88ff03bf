//! The wiring of notifications: everything from the bus to the players.

use std::sync::Arc;
use std::time::Duration;

use ::config::Reader;
use account::Accounts;
use bus::Bus;
use db::Migrations;
use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use http_server::Right;
use service::{
    Context, Dependency, Loop, Need, OpenError, Opened, OperatorRoute, Provided, Role, Service, Services,
    Settings, Standing, StandingError, StreamConfig,
};
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;

use crate::standing::standing;
use crate::{
    Api, Broadcasts, ChannelQueues, Check, Config, Deliveries, EraseInbox, Inbox, Intake, MIGRATIONS,
    Metrics, Notifications, Parts, Rules, Watch, Webhooks, Wrong, operator, routes,
};

/// To notify players.
pub const RIGHT: Right = Right::new("notifications");

/// The longest downtime of loops that players wait for, however long a store was away.
const LONGEST_DOWNTIME: Duration = Duration::from_secs(1);

/// Notifications as a service. Provides [`Notifications`] and [`Inbox`].
#[derive(Clone, Copy, Debug)]
pub struct Wiring;

impl Service for Wiring {
    fn name(&self) -> &'static str {
        "notification"
    }

    fn migrations(&self) -> Option<Migrations> {
        Some(MIGRATIONS)
    }

    fn rights(&self) -> &'static [Right] {
        &[RIGHT]
    }

    fn service_api(&self) -> Option<OpenApi> {
        Some(Api::openapi())
    }

    fn operator_routes(&self) -> Vec<OperatorRoute> {
        operator::operator_routes()
    }

    fn needs(&self) -> Vec<Need> {
        vec![
            Need::degrades(
                Role::Gateway,
                Dependency::Redis,
                "Streams learn of notifications at their heartbeat instead of at once.",
            ),
            Need::essential(
                Role::Notifier,
                Dependency::Sql,
                "Nothing is put into inboxes and nothing is delivered.",
            ),
            Need::degrades(
                Role::Notifier,
                Dependency::Redis,
                "Inboxes are filled and webhooks are called; streams learn of it at their heartbeat.",
            ),
            Need::degrades(
                Role::Notifier,
                Dependency::Nats,
                "Events become notifications later; notifications of services, broadcasts and webhooks are delivered.",
            ),
        ]
    }

    fn read_settings(&self, reader: &mut Reader<'_>, settings: &mut Settings) {
        settings.put(reader.section::<Config>("notification"));
    }

    /// Finds texts with gaps, and settings with which an event would be delivered twice.
    fn check_settings(&self, reader: &mut Reader<'_>, settings: &Settings, services: Services) {
        let config: &Config = settings.get();
        for Wrong { key, what } in Rules::new(config, &services.events()).err().into_iter().flatten() {
            reader.check(&[&key], false, || what);
        }
        let outlives = config.dedupe_retention > settings.stores.bus.max_age;
        reader.check(&["notification.dedupe_retention", "bus.max_age"], outlives, || {
            "it must be longer than bus.max_age: an event that the bus still has, and that nobody remembers, would be told again"
                .to_owned()
        });
    }

    fn standing<'a>(&'a self, provided: &'a Provided) -> BoxFuture<'a, Result<Standing, StandingError>> {
        async move {
            match provided.find::<Notifications>() {
                Some(notifications) => standing(&notifications).await,
                None => Ok(Standing::default()),
            }
        }
        .boxed()
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<Opened, OpenError>> {
        open(context).boxed_local()
    }
}

async fn open(context: &Context) -> Result<Opened, OpenError> {
    let (config, clock, stores) = (context.settings.get::<Config>(), &context.clock, &context.stores);
    let (db, bus, live) = (&stores.db, &stores.bus, &stores.live);
    let accounts: Accounts = context.get()?;
    let queues: work_queue::Metrics = context.get()?;
    let webhook_metrics = context.metrics.register(webhook::Metrics::new);
    let webhooks = Webhooks::new(db.clone(), &config.webhooks, clock, &webhook_metrics)
        .map_err(|source| OpenError::unusable("notification.webhooks", source))?;
    let metrics = context.metrics.register(Metrics::new);
    let check = Check::new(db.clone(), clock.clone(), metrics.clone());
    let channels = ChannelQueues::new(db, config, &queues, clock);
    let deliveries = Deliveries::new(channels, live.clone(), webhooks, check);
    accounts.on_erase(Arc::new(EraseInbox::new(deliveries.clone())));
    // The settings have been checked for this.
    let rules = Rules::new(config, &context.services.events())
        .map_err(|wrong| OpenError::unusable("notification.templates", format!("{wrong:?}")))?;
    let inbox = Inbox::new(db.clone(), live.clone(), clock.clone(), config);
    let notifications = Notifications::new(Parts {
        process: context.process,
        db: db.clone(),
        accounts,
        rules,
        deliveries,
        broadcasts: Broadcasts::new(db, &config.delivery, &queues, clock),
        clock: clock.clone(),
        metrics: metrics.clone(),
        config: config.clone(),
    });
    context.provide(notifications.clone())?;
    context.provide(inbox.clone())?;

    let mut opened = Opened { service_api: routes(notifications.clone()), ..Opened::default() };
    if context.settings.roles.contains(Role::Gateway) {
        let StreamConfig { heartbeat } = *context.settings.get();
        let watch = Watch::new(live.clone(), inbox, heartbeat, metrics);
        let watch =
            Loop::new("notification-watch", watch, |watch, drain| async move { watch.run(drain).await });
        opened.loops.push(watch.down_at_most(LONGEST_DOWNTIME));
    }
    if context.settings.roles.contains(Role::Notifier) {
        let intake = Intake::new(bus.clone(), notifications.clone());
        // An embedded bus keeps events for consumers that it knows, so this one has to be known before anything is published.
        if let Bus::Memory(_) = bus {
            intake.subscribe().await.map_err(|source| OpenError::unusable("bus", source))?;
        }
        opened.loops.extend(notifier_loops(context, intake, notifications));
    }
    Ok(opened)
}

/// The loops of the role `notifier`.
fn notifier_loops(context: &Context, intake: Intake, notifications: Notifications) -> Vec<Loop> {
    let process = context.process;
    let intake =
        Loop::new("notification-intake", intake, |intake, drain| async move { intake.run(drain).await });
    let deliver = Loop::new("notification-deliveries", notifications.clone(), move |all, drain| async move {
        all.deliveries().run(process, drain).await
    });
    let broadcast =
        Loop::new("notification-broadcasts", notifications.clone(), move |all, drain| async move {
            all.broadcasts().run(process, all.clone(), drain).await
        });
    let keep = Loop::new("notification-keeper", notifications, |all, drain| async move {
        let (deliveries, broadcasts) = (all.deliveries(), all.broadcasts());
        // When one cannot go on all are started again.
        futures::try_join!(all.keep(drain.clone()), deliveries.keep(drain.clone()), broadcasts.keep(drain))
            .map(drop)
    });
    vec![
        intake.down_at_most(LONGEST_DOWNTIME).stops_after(outbox::RELAY),
        deliver.down_at_most(LONGEST_DOWNTIME),
        broadcast.down_at_most(LONGEST_DOWNTIME),
        keep,
    ]
}
