//! The fleet under load, and its recovery from faults.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use testkit::{Database, Folder, NatsCluster, Redis, RunningProgram, SqlServer, eventually};
use tokio::time::MissedTickBehavior;

use super::fault::{Fault, FaultEnd};
use super::players::{DOMAIN, Players};
use super::shop::{self, Load, Shop};
use super::size::Size;
use super::stored::{Stored, Verdict};
use super::timeline::{Counts, SPAN, Timeline};
use super::{PATIENCE, playhouse};

/// The roles of the three processes.
const ROLES: [&str; 3] = [
    "gateway,service-api,outbox-relay,matchmaking-engine",
    "matchmaking-frontend,matchmaking-engine,outbox-relay",
    "notifier,outbox-relay",
];
/// How long the backlog may take to be stored, after the deadline for the rate.
const CATCH_UP: Duration = Duration::from_secs(120);

/// A fleet under load.
pub(crate) struct Fleet {
    // Fields are dropped in this order: each needs the ones below it.
    timeline: Timeline,
    /// Grants and matches per second.
    rates: [u32; 2],
    started: Instant,
    load: Arc<(Load, Players)>,
    admin: String,
    processes: Vec<RunningProgram>,
    cluster: NatsCluster,
    _folder: Folder,
    _redis: Redis,
    _database: Database,
    _sql: SqlServer,
}

/// The measurements of one fault.
#[derive(Debug)]
pub(crate) struct Report {
    fault: Fault,
    began: Instant,
    end: FaultEnd,
    /// When the fleet was back at the offered rate. None if it was not in time.
    recovered: Option<Instant>,
    caught_up: Duration,
    /// The number of events that were given up.
    failed: usize,
}

impl Fleet {
    /// Starts servers, processes and load, and waits until events are stored at the offered rate.
    pub(crate) async fn start(size: &Size) -> Result<Self, testkit::Error> {
        let (sql, redis, cluster) =
            tokio::try_join!(SqlServer::private(), Redis::private(), NatsCluster::start())?;
        let (database, folder) = (sql.database().await, Folder::fresh().unwrap());
        let config = folder.path().join("playhouse.toml");
        std::fs::write(&config, settings(size)).unwrap();
        let program = playhouse(&["serve", "--print-addresses"])
            .env("PLAYHOUSE_CONFIG", &config)
            .env("PLAYHOUSE_DB_URL", database.url())
            .env("PLAYHOUSE_REDIS_URL", redis.url())
            .env("PLAYHOUSE_BUS_URL", cluster.url());
        let (mut processes, mut addresses) = (Vec::new(), HashMap::new());
        for roles in ROLES {
            let running = program.clone().arg("--roles").arg(roles).start().unwrap();
            let line = running.wait_for_line("\"admin\":", PATIENCE * 3).await;
            let bound: HashMap<String, String> = serde_json::from_str(&line).unwrap();
            for (listener, address) in bound {
                addresses.entry(listener).or_insert(address);
            }
            processes.push(running);
        }
        // HTTP/2, because a connection per waiting request would add load that is not measured.
        let client = reqwest::Client::builder().http2_prior_knowledge();
        let shop = Shop::with_client(client, &addresses["service_api"]);
        let customers = (0..size.customers).map(async |n| shop.customer(&format!("customer-{n}")).await);
        let customers = futures::future::join_all(customers).await;
        let load = Load::with_missed_ticks(&shop, customers, size.grants, MissedTickBehavior::Burst);
        let players = Players::start(&addresses["open_match"], size.matches);
        let load = Arc::new((load, players));
        let offered = {
            let load = load.clone();
            move || [load.0.offered(), load.1.offered()]
        };
        let timeline = Timeline::start(cluster.urls(), offered).await;
        let started = Instant::now();
        let fleet = Self {
            timeline,
            rates: [size.grants, size.matches],
            started,
            load,
            admin: addresses["admin"].clone(),
            processes,
            cluster,
            _folder: folder,
            _redis: redis,
            _database: database,
            _sql: sql,
        };
        let is_warm = || fleet.timeline.recovered_since(started);
        eventually("events are stored at the offered rate", PATIENCE * 2, async || is_warm()).await;
        Ok(fleet)
    }

    /// Injects a fault, and waits until the backlog is stored.
    pub(crate) async fn endure(&mut self, fault: Fault) -> Report {
        let began = Instant::now();
        let end = fault.inject(&mut self.cluster).await;
        let deadline = fault.deadline(end);
        let mut recovered = None;
        // A rate is measured over a span, so it is known one span after the deadline.
        while recovered.is_none() && Instant::now() < deadline + SPAN {
            tokio::time::sleep(Duration::from_millis(50)).await;
            recovered = self.timeline.recovered_since(end.at);
        }
        self.cluster.start_again().await.unwrap();
        self.cluster.wait_until_healthy().await;
        // New events are stored meanwhile too, so there may be more than were offered until now.
        self.wait_until_stored(self.offered()).await;
        let caught_up = end.at.elapsed();
        let failed = shop::in_outbox(&self.admin, "failed").await.len();
        Report { fault, began, end, recovered, caught_up, failed }
    }

    fn offered(&self) -> Counts {
        [self.load.0.offered(), self.load.1.offered()]
    }

    /// Waits until at least `expected` events are stored.
    async fn wait_until_stored(&self, expected: Counts) {
        eventually("the backlog is stored", CATCH_UP, async || {
            let stored = self.timeline.stored();
            let is_stored = (0..2).all(|kind| stored[kind] >= expected[kind]);
            is_stored.then_some(()).ok_or_else(|| format!("{stored:?} of {expected:?} grants and matches"))
        })
        .await;
    }

    /// Stops the load, and compares the responses with the events in the stream.
    pub(crate) async fn finish(self) -> Verdict {
        let Self { load, admin, processes, cluster, .. } = &self;
        let exited: Vec<_> = processes.iter().filter_map(RunningProgram::exit_status).collect();
        assert!(exited.is_empty(), "a process has exited: {exited:?}");
        // If the generator cannot keep up, the test shows nothing about the intended rate.
        let share = |kind: usize| {
            self.offered()[kind] as f64 / (f64::from(self.rates[kind]) * self.started.elapsed().as_secs_f64())
        };
        assert!(
            share(0) >= 0.95 && share(1) >= 0.95,
            "only {:.2} of the grants, {:.2} of the matches were offered",
            share(0),
            share(1)
        );
        let (bought, assigned) = tokio::join!(load.0.finish(), load.1.finish());
        self.wait_until_stored([bought.len() as u64, assigned.len() as u64]).await;
        let failed = shop::in_outbox(admin, "failed").await;
        assert!(failed.is_empty(), "{} events were given up, the first: {}", failed.len(), failed[0]);
        eventually("the outbox is empty", PATIENCE, async || {
            let open = shop::in_outbox(admin, "open").await;
            open.is_empty().then_some(()).ok_or_else(|| format!("{} events", open.len()))
        })
        .await;
        Stored::read(cluster.urls()).await.check(&bought, &assigned)
    }
}

impl Report {
    /// Returns whether the fleet recovered in time and gave up no event.
    pub(crate) fn is_good(&self) -> bool {
        self.failed == 0 && self.recovered.is_some_and(|time| time <= self.fault.deadline(self.end))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, began, end, recovered, caught_up, failed } = self;
        let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        let since = |time: Instant| seconds(time.duration_since(end.at));
        let (lasted, led, allowed) =
            (seconds(end.at - *began), since(end.leader_at), since(fault.deadline(*end)));
        let (recovered, caught_up) = (recovered.map_or_else(|| "NOT".to_owned(), since), seconds(*caught_up));
        write!(f, "{fault:<28} {lasted:>8} {led:>8} {recovered:>10} {allowed:>8} {caught_up:>10} {failed:>8}")
    }
}

fn settings(size: &Size) -> String {
    let timeout = size.bus_timeout;
    let settings = format!(
        r#"
[db]
migrate = true
[locks]
buckets = 1000
[identity]
issuer = "none:"
[listen]
gateway = "127.0.0.1:0"
service_api = "127.0.0.1:0"
admin = "127.0.0.1:0"
open_match = "127.0.0.1:0"
[bus]
replicas = 3
timeout = "{timeout}"
[matchmaking.profiles.duel]
players = 2
assigner = "one_each"
[matchmaking.assigners.one_each]
addresses = ["{{match_id}}{DOMAIN}"]
"#
    );
    settings + &shop::services()
}
