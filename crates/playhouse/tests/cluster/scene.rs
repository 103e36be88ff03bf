//! The fleet, its load, and what becomes of both in a fault.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use testkit::{Database, Folder, NatsCluster, Redis, Running, SqlServer, eventually};
use tokio::time::MissedTickBehavior;

use super::fault::{Fault, Mended};
use super::players::{DOMAIN, Players};
use super::shop::{self, Load, Shop};
use super::size::Size;
use super::stored::{Stored, Verdict};
use super::timeline::{Counts, SPAN, Timeline};
use super::{PATIENCE, playhouse};

/// Three processes, all roles, most of them twice.
const ROLES: [&str; 3] = [
    "gateway,service-api,outbox-relay,matchmaking-engine",
    "matchmaking-frontend,matchmaking-engine,outbox-relay",
    "notifier,outbox-relay",
];
/// How long what waited may take to be stored, beyond the time in which the rate has to be back.
const CATCH_UP: Duration = Duration::from_secs(120);

/// A fleet under load.
pub(crate) struct Scene {
    // Dropped in this order: first what needs the next.
    timeline: Timeline,
    /// Grants and matches per second.
    rates: [u32; 2],
    started: Instant,
    load: Arc<(Load, Players)>,
    admin: String,
    processes: Vec<Running>,
    cluster: NatsCluster,
    _folder: Folder,
    _redis: Redis,
    _database: Database,
    _sql: SqlServer,
}

/// How a fault went.
#[derive(Debug)]
pub(crate) struct Report {
    fault: Fault,
    began: Instant,
    mended: Mended,
    /// When the rate was back; `None`: not in time.
    back: Option<Instant>,
    caught_up: Duration,
    /// How many events were given up.
    failed: usize,
}

impl Scene {
    /// Starts servers, processes and load, and waits until everything is stored as it is offered.
    pub(crate) async fn start(size: &Size) -> Result<Self, testkit::Error> {
        let (sql, redis, cluster) =
            tokio::try_join!(SqlServer::private(), Redis::private(), NatsCluster::start())?;
        let (database, folder) = (sql.database().await, Folder::fresh().unwrap());
        let config = folder.path().join("playhouse.toml");
        std::fs::write(&config, settings(size)).unwrap();
        let program = playhouse(&["serve", "--print-addresses"])
            .env("PLAYHOUSE_CONFIG", &config)
            .env("PLAYHOUSE_DB_URL", database.url())
            .env("PLAYHOUSE_HOT_URL", redis.url())
            .env("PLAYHOUSE_BUS_URL", cluster.url());
        let (mut processes, mut addresses) = (Vec::new(), HashMap::new());
        for roles in ROLES {
            let running = program.clone().arg("--roles").arg(roles).start().unwrap();
            let line = running.wait_for_line("\"admin\":", PATIENCE * 3).await;
            let its: HashMap<String, String> = serde_json::from_str(&line).unwrap();
            for (listener, address) in its {
                addresses.entry(listener).or_insert(address);
            }
            processes.push(running);
        }
        // A connection per request that waits would be a load of its own, on both sides.
        let client = reqwest::Client::builder().http2_prior_knowledge();
        let shop = Shop::with_client(client, &addresses["internal"]);
        let customers = (0..size.customers).map(async |n| shop.customer(&format!("customer-{n}")).await);
        let customers = futures::future::join_all(customers).await;
        let load = Load::with_beat(&shop, customers, size.grants, MissedTickBehavior::Burst);
        let players = Players::start(&addresses["open_match"], size.matches);
        let load = Arc::new((load, players));
        let offered = {
            let load = load.clone();
            move || [load.0.offered(), load.1.offered()]
        };
        let timeline = Timeline::start(cluster.urls(), offered).await;
        let started = Instant::now();
        let scene = Self {
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
        let warm = || scene.timeline.back_since(started);
        eventually("everything is stored as it is offered", PATIENCE * 2, async || warm()).await;
        Ok(scene)
    }

    /// Lets a fault happen, and watches until its traces are gone.
    pub(crate) async fn suffer(&mut self, fault: Fault) -> Report {
        let began = Instant::now();
        let mended = fault.happen(&mut self.cluster).await;
        let deadline = fault.deadline(mended);
        let mut back = None;
        // A rate that is back in time is known a span later.
        while back.is_none() && Instant::now() < deadline + SPAN {
            tokio::time::sleep(Duration::from_millis(50)).await;
            back = self.timeline.back_since(mended.at);
        }
        self.cluster.start_again().await.unwrap();
        self.cluster.healthy().await;
        // All that was offered before; what comes meanwhile is stored too, so there may be more.
        self.is_stored(self.offered()).await;
        let caught_up = mended.at.elapsed();
        let failed = shop::in_outbox(&self.admin, "failed").await.len();
        Report { fault, began, mended, back, caught_up, failed }
    }

    fn offered(&self) -> Counts {
        [self.load.0.offered(), self.load.1.offered()]
    }

    /// Waits until at least so much is stored.
    async fn is_stored(&self, owed: Counts) {
        eventually("what waited is stored", CATCH_UP, async || {
            let stored = self.timeline.stored();
            let is_stored = (0..2).all(|kind| stored[kind] >= owed[kind]);
            is_stored.then_some(()).ok_or_else(|| format!("{stored:?} of {owed:?} grants and matches"))
        })
        .await;
    }

    /// Ends the load and compares what was answered with what is stored.
    pub(crate) async fn finish(self) -> Verdict {
        let Self { load, admin, processes, cluster, .. } = &self;
        let exited: Vec<_> = processes.iter().filter_map(Running::exit_status).collect();
        assert!(exited.is_empty(), "a process has ended: {exited:?}");
        // A generator that cannot keep up would only show that less is survived.
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
        self.is_stored([bought.len() as u64, assigned.len() as u64]).await;
        let failed = shop::in_outbox(admin, "failed").await;
        assert!(failed.is_empty(), "{} events were given up, the first: {}", failed.len(), failed[0]);
        eventually("nothing is left in the outbox", PATIENCE, async || {
            let open = shop::in_outbox(admin, "open").await;
            open.is_empty().then_some(()).ok_or_else(|| format!("{} events", open.len()))
        })
        .await;
        Stored::read(cluster.urls()).await.check(&bought, &assigned)
    }
}

impl Report {
    /// Whether the rate was back in time and nothing was given up.
    pub(crate) fn is_good(&self) -> bool {
        self.failed == 0 && self.back.is_some_and(|back| back <= self.fault.deadline(self.mended))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, began, mended, back, caught_up, failed } = self;
        let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        let since = |time: Instant| seconds(time.duration_since(mended.at));
        let (lasted, led, allowed) =
            (seconds(mended.at - *began), since(mended.led), since(fault.deadline(*mended)));
        let (back, caught_up) = (back.map_or_else(|| "NOT".to_owned(), since), seconds(*caught_up));
        write!(f, "{fault:<28} {lasted:>8} {led:>8} {back:>10} {allowed:>8} {caught_up:>10} {failed:>8}")
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
internal = "127.0.0.1:0"
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
