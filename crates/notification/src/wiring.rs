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
use outbox::Outbox;
use screens::{Figure, Step, Subject};
use service::{
    Context, Dependency, JobKind, Loop, Need, OpenError, OperatorRoute, PlayerData, Provided, Role, Screen,
    Service, ServiceParts, ServiceStatus, Services, Settings, StatusError, StreamConfig,
};
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;

use crate::status::status;
use crate::{
    Api, Broadcasts, ChannelQueues, Config, Deliveries, DeliveryCheck, EraseInbox, Inbox, Intake, MIGRATIONS,
    Metrics, Notifications, Parts, Rules, StreamWatcher, TemplateError, Webhooks, admin, console,
    dead_letters, routes, steps,
};

/// The right to notify players.
pub const RIGHT: Right = Right::new("notifications");

/// The longest pause before a failed loop restarts, for loops that players wait for.
const MAX_DOWNTIME: Duration = Duration::from_secs(1);

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
        admin::operator_routes()
    }

    fn screens(&self) -> Vec<Screen> {
        console::screens()
    }

    fn player_data(&self) -> Vec<PlayerData> {
        console::player_data()
    }

    fn jobs(&self) -> Vec<JobKind> {
        dead_letters::jobs()
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
            let outbox = provided.find::<Outbox>();
            match provided.find::<Notifications>() {
                Some(notifications) => {
                    Ok(steps::steps(&notifications, outbox.as_ref(), subject, limit).await?)
                }
                None => Ok(Vec::new()),
            }
        }
        .boxed()
    }

    fn needs(&self) -> Vec<Need> {
        vec![
            Need::degrades(
                Role::Gateway,
                Dependency::Redis,
                "Streams receive notifications at their heartbeat instead of at once.",
            ),
            Need::essential(
                Role::Notifier,
                Dependency::Sql,
                "Nothing is added to inboxes and nothing is delivered.",
            ),
            Need::degrades(
                Role::Notifier,
                Dependency::Redis,
                "Inboxes are filled and webhooks are called; streams receive notifications at their heartbeat.",
            ),
            Need::degrades(
                Role::Notifier,
                Dependency::Nats,
                "Events become notifications later; requests of services, broadcasts and webhooks continue.",
            ),
        ]
    }

    fn read_settings(&self, reader: &mut Reader<'_>, settings: &mut Settings) {
        settings.put(reader.section::<Config>("notification"));
    }

    /// Finds mistakes in templates, and retentions with which an event would notify twice.
    fn check_settings(&self, reader: &mut Reader<'_>, settings: &Settings, services: Services) {
        let config: &Config = settings.get();
        for TemplateError { key, what } in Rules::new(config, &services.events()).err().into_iter().flatten()
        {
            reader.check(&[&key], false, || what);
        }
        let outlives = config.dedupe_retention > settings.stores.bus.max_age;
        reader.check(&["notification.dedupe_retention", "bus.max_age"], outlives, || {
            "must be longer than bus.max_age: otherwise an event that the bus still has, and whose id was removed, would notify again"
                .to_owned()
        });
    }

    fn status<'a>(&'a self, provided: &'a Provided) -> BoxFuture<'a, Result<ServiceStatus, StatusError>> {
        async move {
            match provided.find::<Notifications>() {
                Some(notifications) => status(&notifications).await,
                None => Ok(ServiceStatus::default()),
            }
        }
        .boxed()
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        open(context).boxed_local()
    }
}

async fn open(context: &Context) -> Result<ServiceParts, OpenError> {
    let (config, clock, stores) = (context.settings.get::<Config>(), &context.clock, &context.stores);
    let (db, bus, live) = (&stores.db, &stores.bus, &stores.live);
    let accounts: Accounts = context.get()?;
    let queues: work_queue::Metrics = context.get()?;
    let webhook_metrics = context.metrics.register(webhook::Metrics::new);
    let webhooks = Webhooks::new(db.clone(), &config.webhooks, clock, &webhook_metrics)
        .map_err(|source| OpenError::unusable("notification.webhooks", source))?;
    let metrics = context.metrics.register(Metrics::new);
    let check = DeliveryCheck::new(db.clone(), clock.clone(), metrics.clone());
    let channels = ChannelQueues::new(db, config, &queues, clock);
    let deliveries = Deliveries::new(channels, live.clone(), webhooks, check);
    accounts.on_erase(Arc::new(EraseInbox::new(deliveries.clone())));
    // `check_settings` has checked them.
    let rules = Rules::new(config, &context.services.events())
        .map_err(|errors| OpenError::unusable("notification.templates", format!("{errors:?}")))?;
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

    let mut parts = ServiceParts { service_api: routes(notifications.clone()), ..ServiceParts::default() };
    if context.settings.roles.contains(Role::Gateway) {
        let StreamConfig { heartbeat } = *context.settings.get();
        let watcher = StreamWatcher::new(live.clone(), inbox, heartbeat, metrics);
        let watch =
            Loop::new(
                "notification-watch",
                watcher,
                |watcher, drain| async move { watcher.run(drain).await },
            );
        parts.loops.push(watch.with_max_downtime(MAX_DOWNTIME));
    }
    if context.settings.roles.contains(Role::Notifier) {
        let intake = Intake::new(bus.clone(), notifications.clone());
        // An embedded bus keeps events only for existing consumers, so this one must exist before the first event.
        if let Bus::Memory(_) = bus {
            intake.subscribe().await.map_err(|source| OpenError::unusable("bus", source))?;
        }
        parts.loops.extend(notifier_loops(context, intake, notifications));
    }
    Ok(parts)
}

/// Returns the loops of the role `notifier`.
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
    let clean = Loop::new("notification-cleaner", notifications, |all, drain| async move {
        let (deliveries, broadcasts) = (all.deliveries(), all.broadcasts());
        // If one fails, supervision restarts all of them.
        futures::try_join!(
            all.run_retention(drain.clone()),
            deliveries.run_retention(drain.clone()),
            broadcasts.run_retention(drain)
        )
        .map(drop)
    });
    vec![
        intake.with_max_downtime(MAX_DOWNTIME).stops_after(outbox::RELAY),
        deliver.with_max_downtime(MAX_DOWNTIME),
        broadcast.with_max_downtime(MAX_DOWNTIME),
        clean,
    ]
}
