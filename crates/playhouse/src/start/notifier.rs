//! The wiring of notifications.

use std::time::Duration;

use account::Accounts;
use base::Clock;
use base::id::ProcessId;
use bus::Bus;
use db::Db;
use notification::{
    Broadcasts, Check, Deliveries, Inbox, Intake, Live, Notifications, Parts, Rules, Watch, Webhooks,
};
use redis_store::RedisStore;
use runtime::lifecycle::LoopError;
use runtime::{Metrics, Process};

use super::StartError;
use super::services::RELAY;
use crate::{Role, Settings, asyncapi};

/// How soon players are told again after a store was away, however long that was.
const DOWN: Duration = Duration::from_secs(1);

/// The ways to players and destinations.
pub(super) struct Ways {
    live: Live,
    pub(super) deliveries: Deliveries,
    broadcasts: Broadcasts,
    metrics: notification::Metrics,
}

impl Ways {
    pub(super) fn open(
        settings: &Settings,
        (db, redis_store): (&Db, &RedisStore),
        clock: &Clock,
        metrics: &Metrics,
        queues: &work_queue::Metrics,
    ) -> Result<Self, StartError> {
        let config = &settings.notification;
        let live = Live::new(redis_store, &config.key_prefix);
        let webhook_metrics = metrics.register(webhook::Metrics::new);
        let webhooks = Webhooks::new(db.clone(), &config.webhooks, clock, &webhook_metrics)
            .map_err(|source| StartError::Store { store: "notification.webhooks", source: source.into() })?;
        let configs = (&config.delivery, &config.webhook_delivery);
        let metrics = metrics.register(notification::Metrics::new);
        let check = Check::new(db.clone(), clock.clone(), metrics.clone());
        let deliveries = Deliveries::new(db, configs, queues, live.clone(), webhooks, check);
        Ok(Self { live, deliveries, broadcasts: Broadcasts::new(db, &config.delivery, queues), metrics })
    }
}

/// Everything from the bus to the players.
pub(super) struct Notifier {
    id: ProcessId,
    pub(super) notifications: Notifications,
    pub(super) inbox: Inbox,
    live: Live,
    intake: Option<Intake>,
    watch: Option<Watch>,
}

impl Notifier {
    pub(super) fn open(
        id: ProcessId,
        clock: &Clock,
        settings: &Settings,
        (db, bus): (&Db, &Bus),
        Ways { live, deliveries, broadcasts, metrics }: Ways,
        accounts: &Accounts,
    ) -> Result<Self, StartError> {
        let config = settings.notification.clone();
        // The settings have been checked for this.
        let rules = Rules::new(&config, &asyncapi::events()).map_err(|wrong| StartError::Store {
            store: "notification.templates",
            source: format!("{wrong:?}").into(),
        })?;
        let inbox = Inbox::new(db.clone(), live.clone(), clock.clone(), &config);
        let notifications = Notifications::new(Parts {
            process: id,
            db: db.clone(),
            accounts: accounts.clone(),
            rules,
            deliveries,
            broadcasts,
            clock: clock.clone(),
            metrics: metrics.clone(),
            config,
        });
        let roles = &settings.roles;
        let intake = roles.contains(Role::Notifier).then(|| Intake::new(bus.clone(), notifications.clone()));
        let every = settings.gateway.stream_heartbeat;
        let watch =
            roles.contains(Role::Gateway).then(|| Watch::new(live.clone(), inbox.clone(), every, metrics));
        Ok(Self { id, notifications, inbox, live, intake, watch })
    }

    /// Subscribes the intake to an embedded bus, before anything is published there: the bus keeps events for consumers that it
    /// knows.
    pub(super) async fn subscribe_embedded(&self, bus: &Bus) -> Result<(), LoopError> {
        match (bus, &self.intake) {
            (Bus::Memory(_), Some(intake)) => intake.subscribe().await.map(drop),
            _ => Ok(()),
        }
    }

    /// Starts the loops.
    pub(super) fn start(&self, process: &mut Process) {
        if let Some(watch) = self.watch.clone() {
            let live = self.live.clone();
            process.supervise_within("notification-streams", DOWN, move |drain| {
                let live = live.clone();
                async move { live.run(drain).await }
            });
            process.supervise_within("notification-watch", DOWN, move |drain| {
                let watch = watch.clone();
                async move { watch.run(drain).await }
            });
        }
        let Some(intake) = self.intake.clone() else { return };
        process.supervise_within("notification-intake", DOWN, move |drain| {
            let intake = intake.clone();
            async move { intake.run(drain).await }
        });
        process.stop_after("notification-intake", &[RELAY]);
        let (id, notifications) = (self.id, self.notifications.clone());
        process.supervise_within("notification-deliveries", DOWN, move |drain| {
            let notifications = notifications.clone();
            async move { notifications.deliveries().run(id, drain).await }
        });
        let notifications = self.notifications.clone();
        process.supervise_within("notification-broadcasts", DOWN, move |drain| {
            let notifications = notifications.clone();
            async move { notifications.broadcasts().run(id, notifications.clone(), drain).await }
        });
        let notifications = self.notifications.clone();
        process.supervise("notification-keeper", move |drain| {
            let notifications = notifications.clone();
            async move {
                // When one cannot go on all are started again.
                futures::try_join!(
                    notifications.keep(drain.clone()),
                    notifications.deliveries().keep(drain.clone()),
                    notifications.broadcasts().keep(drain),
                )
                .map(drop)
            }
        });
    }
}
