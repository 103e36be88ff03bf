//! Notifications on real stores: one suite over SQLite, MariaDB and, where there is one, MySQL.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod broadcasts;
mod deliveries;
mod erased_everywhere;
mod erasing;
mod events;
mod inboxes;
mod intake;
mod order;
mod positions;
mod receiver;
mod rules;
mod sending;
mod streams;
mod unreadable;
mod webhooks;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use account::{Accounts, SignIn, UserId};
use base::id::{ProcessId, Uuid};
use base::{Backoff, Clock};
use bus::Bus;
use config::{Setting, Value as Configured};
use db::{Db, DbUrl};
use hierlock::{LockManager, Options, Provisioner};
use live::{Live, Message, Player, Subscription, SubscriptionEvent, Topics};
use notification::{
    Broadcasts, Channel, ChannelQueues, Config, Counts, CountsChanged, DeadLetter, DeadLetterFilter,
    Deliveries, DeliveryCheck, EraseInbox, Filter, Head, Inbox, Intake, Language, Metrics, Notification,
    NotificationAdded, Notifications, Parts, Rules, TemplateConfig, TextConfig, TextTemplate, Webhooks,
};
use outbox::Outbox;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use redis_store::RedisStore;
use sqlx::{AssertSqlSafe, ConnectOptions};
use testkit::TestDatabase;
use work_queue::{State, WorkQueue};

const PATIENCE: Duration = Duration::from_secs(30);
const BUCKETS: u32 = 1_000;
/// The users `uuid(0)` and following exist in every test.
const SEEDED: u128 = 20;
/// An event of another publisher. The test configuration has a template for it.
const SOLD: &str = "shop.sold.v1";

/// How a process is set up.
#[derive(Clone)]
struct Setup {
    config: Config,
    redis_store: RedisStore,
    /// The prefix of channel names in Redis.
    prefix: String,
    clock: Clock,
}

impl Default for Setup {
    fn default() -> Self {
        let (redis_store, prefix) = (RedisStore::Memory, String::new());
        Self { config: config(), redis_store, prefix, clock: Clock::system() }
    }
}

impl Setup {
    fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut setup = Self::default();
        change(&mut setup.config);
        setup
    }
}

/// The notification service of one process.
#[derive(Clone)]
struct Process {
    id: ProcessId,
    db: Db,
    live: Live,
    accounts: Accounts,
    inbox: Inbox,
    notifications: Notifications,
    registry: Arc<Registry>,
    setup: Setup,
}

impl Process {
    /// Migrates the database, adds the seeded users and opens the service.
    async fn open(database: &TestDatabase, setup: Setup) -> Self {
        let config = db_config(database);
        let db = Db::open(&config).await.unwrap();
        let sets = [db::MIGRATIONS, outbox::MIGRATIONS, account::MIGRATIONS, notification::MIGRATIONS];
        db.migrate(&sets).await.unwrap();
        if let Some(server) = config.server() {
            hierlock::create_tables(&mut server.connect().await.unwrap()).await.unwrap();
            Provisioner::new(server, BUCKETS).run(|_| ()).await.unwrap();
        }
        let process = Self::on(db, database, setup).await;
        process.add_users((0..SEEDED).map(uuid)).await;
        process
    }

    /// Adds users with these ids.
    async fn add_users(&self, users: impl Iterator<Item = Uuid>) {
        let rows: Vec<String> =
            users.map(|user| format!("(X'{}', 'active', '', 1)", user.simple())).collect();
        for some in rows.chunks(1_000) {
            let rows = some.join(", ");
            self.sql(&format!("INSERT INTO users (user_id, state, roles, created_at) VALUES {rows}")).await;
        }
    }

    /// Opens another process. On SQLite, which serves one process, it shares the database.
    async fn another(&self, database: &TestDatabase, setup: Setup) -> Self {
        let db = if database.is_server() {
            Db::open(&db_config(database)).await.unwrap()
        } else {
            self.db.clone()
        };
        Self::on(db, database, setup).await
    }

    async fn on(db: Db, database: &TestDatabase, setup: Setup) -> Self {
        let options = Options { buckets: BUCKETS, wait_timeout: PATIENCE, ..Options::default() };
        let locks = match db_config(database).server() {
            Some(server) => LockManager::mysql(server, &options).await.unwrap(),
            None => LockManager::in_process(&options, &setup.clock),
        };
        let Setup { config, redis_store, prefix, clock } = setup.clone();
        let mut registry = Registry::default();
        db.register_metrics(&mut registry);
        let queues = work_queue::Metrics::new(&mut registry, "outbox");
        let live = Live::new(&redis_store, &prefix);
        let sends = webhook::Metrics::new(&mut registry);
        let webhooks = Webhooks::new(db.clone(), &config.webhooks, &clock, &sends).unwrap();
        let metrics = Metrics::new(&mut registry);
        let check = DeliveryCheck::new(db.clone(), clock.clone(), metrics.clone());
        let channels = ChannelQueues::new(&db, &config, &queues, &clock);
        let deliveries = Deliveries::new(channels, live.clone(), webhooks, check);
        let outbox = Outbox::new(db.clone(), queue_config(), queues.clone(), clock.clone());
        let accounts = Accounts::new(db.clone(), locks, outbox, clock.clone());
        accounts.on_erase(Arc::new(EraseInbox::new(deliveries.clone())));
        let id = ProcessId::generate();
        let notifications = Notifications::new(Parts {
            process: id,
            db: db.clone(),
            accounts: accounts.clone(),
            rules: Rules::new(&config, &rules::kinds()).unwrap(),
            deliveries,
            broadcasts: Broadcasts::new(&db, &config.delivery, &queues, &clock),
            clock: clock.clone(),
            metrics,
            config: config.clone(),
        });
        let inbox = Inbox::new(db.clone(), live.clone(), clock, &config);
        Self { id, db, live, accounts, inbox, notifications, registry: Arc::new(registry), setup }
    }

    fn intake(&self, bus: &Bus) -> Intake {
        Intake::new(bus.clone(), self.notifications.clone())
    }

    /// Opens the queue of a channel, to look at its items.
    fn queue(&self, table: &'static str) -> WorkQueue {
        let config = match table {
            notification::WEBHOOK => &self.setup.config.webhook_delivery,
            _ => &self.setup.config.delivery,
        };
        let metrics = work_queue::Metrics::new(&mut Registry::default(), "outbox");
        WorkQueue::new(table, self.db.clone(), config.clone(), metrics, self.setup.clock.clone())
            .unordered()
            .into()
    }

    async fn states(&self, table: &'static str) -> Vec<State> {
        let mut items = self.queue(table).list(work_queue::Filter::All, 10_000).await.unwrap();
        items.reverse();
        items.into_iter().map(|item| item.state).collect()
    }

    /// Runs the workers of all channels until the drain is requested.
    fn deliver(&self) -> Running {
        let (notifications, id, drain) = (self.notifications.clone(), self.id, runtime::Drain::new());
        let until = drain.clone();
        let task = tokio::spawn(async move { notifications.deliveries().run(id, until).await.unwrap() });
        Running { drain, task }
    }

    async fn user(&self, name: &str) -> UserId {
        let sign_in = SignIn {
            issuer: "test".to_owned(),
            subject: name.to_owned(),
            display_name: None,
            roles: Vec::new(),
        };
        self.accounts.sign_in(&sign_in).await.unwrap().user.id
    }

    /// Returns the notifications of an inbox, oldest first.
    async fn all(&self, user: Uuid) -> Vec<Notification> {
        self.inbox.after(user, 0, 100_000).await.unwrap().notifications
    }

    async fn titles(&self, user: Uuid) -> Vec<String> {
        self.all(user).await.iter().map(|one| one.text(&[]).unwrap().1.title.clone()).collect()
    }

    /// Returns all dead letters with their payloads.
    async fn dead_letters(&self) -> Vec<DeadLetter> {
        let page = self.notifications.dead_letters(&DeadLetterFilter::default(), 10_000).await.unwrap();
        let listed = page.dead_letters;
        assert!(listed.iter().all(|dead_letter| dead_letter.payload.is_empty()), "a list has no payloads");
        let whole = listed.iter().map(|dead_letter| self.notifications.dead_letter(dead_letter.id));
        futures::future::try_join_all(whole).await.unwrap()
    }

    async fn count(&self, table: &str) -> i64 {
        self.number(&format!("SELECT COUNT(*) FROM {table}")).await
    }

    /// Returns the number that a query reads.
    async fn number(&self, text: &str) -> i64 {
        let text = AssertSqlSafe(text.to_owned());
        let mut connection = self.db.connection().await.unwrap();
        let (count,): (i64,) = db::on!(connection, raw => sqlx::query_as(text).fetch_one(raw).await.unwrap());
        count
    }

    /// Runs SQL directly, past the service.
    async fn sql(&self, text: &str) {
        let mut tx = self.db.begin().await.unwrap();
        let text = AssertSqlSafe(text.to_owned());
        db::on!(tx, connection => { sqlx::raw_sql(text).execute(connection).await.unwrap(); });
        tx.commit().await.unwrap();
    }

    fn measured(&self, name: &str) -> u64 {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |value| value.trim().parse().unwrap())
    }
}

/// The live messages of this service.
#[derive(Clone, Debug, PartialEq)]
enum PlayerMessage {
    Notification(Arc<Notification>),
    Counts(Counts),
}

impl Topics for PlayerMessage {
    type Key = Player;

    fn read(message: &Message<Player>) -> Option<Self> {
        let counts = || message.read::<CountsChanged>().map(|counts| Self::Counts(*counts));
        message.read::<NotificationAdded>().map(Self::Notification).or_else(counts)
    }
}

/// Subscribes to the live messages of a player.
async fn follow(live: &Live, user: Uuid) -> Subscription<PlayerMessage> {
    live.subscribe(Player(user)).await
}

/// A loop in the background, until it is stopped.
struct Running {
    drain: runtime::Drain,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    async fn stop(self) {
        self.drain.request();
        self.task.await.unwrap();
    }
}

fn db_config(database: &TestDatabase) -> db::Config {
    let url = DbUrl::parse(&Configured::Text(database.url())).unwrap();
    db::Config { url, max_connections: 16, acquire_timeout: Duration::from_secs(10), migrate: false }
}

/// Short times for tests, except where a test relies on nothing happening.
fn queue_config() -> work_queue::Config {
    work_queue::Config {
        workers: 2,
        batch: 100,
        poll: Duration::from_millis(20),
        lease: Duration::from_secs(60),
        max_attempts: 3,
        retry: Backoff::new(Duration::from_millis(20), Duration::from_millis(50)),
        retention: Duration::from_secs(3600),
    }
}

fn config() -> Config {
    const DAY: Duration = Duration::from_secs(86_400);
    Config {
        language: Language("en".to_owned()),
        batch: 200,
        max_attempts: 5,
        retention: 30 * DAY,
        read_retention: 7 * DAY,
        dedupe_retention: 37 * DAY,
        dead_retention: 30 * DAY,
        delivery: queue_config(),
        webhook_delivery: queue_config(),
        templates: BTreeMap::from([(
            "sold".to_owned(),
            template(Some(SOLD), &["thing"], "You bought {thing}"),
        )]),
        webhooks: BTreeMap::new(),
    }
}

fn template(event: Option<&str>, fields: &[&str], title: &str) -> TemplateConfig {
    let text = TextConfig { title: Some(TextTemplate::parse(title).unwrap()), body: None };
    TemplateConfig {
        event: event.map(ToOwned::to_owned),
        fields: fields.iter().map(|field| (*field).to_owned()).collect(),
        channels: vec![Channel::Live],
        expires_after: None,
        off: false,
        texts: BTreeMap::from([("en".to_owned(), text)]),
    }
}

/// Sets the channels of the template for [`SOLD`].
fn set_channels(config: &mut Config, channels: &[&str]) {
    let channels = channels.iter().map(|channel| channel.parse().unwrap()).collect();
    config.templates.get_mut("sold").unwrap().channels = channels;
}

fn uuid(number: u128) -> Uuid {
    Uuid::from_u128(number)
}
