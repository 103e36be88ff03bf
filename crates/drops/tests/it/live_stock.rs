//! Stock changes reach watchers in other processes through a real Redis, also after its connection was cut.

use std::io;
use std::sync::Mutex;

use drops::stock::{LiveOptions, Snapshot, StockFeed, StockMetrics, StockPublisher, StockWatch};
use live::Live;
use redis_store::RedisStore;
use runtime::Drain;
use testkit::{FaultProxy, Redis, RedisNamespace, eventually};

use super::*;

const TERMS: Terms = Terms { units: 1_000, limit: 1_000, hold_ms: MINUTE };
/// Practically no pacing and no full sync; tests that need them override these options.
const OPTIONS: LiveOptions = LiveOptions {
    min_interval: Duration::from_millis(1),
    sync_interval: Duration::from_secs(3600),
    retry: Backoff::new(Duration::from_millis(10), Duration::from_millis(50)),
};

/// The live messages and metrics of one process.
struct Process {
    live: Live,
    metrics: StockMetrics,
    registry: Registry,
    drain: Drain,
}

impl Process {
    async fn start(url: &str, keys: &RedisNamespace) -> Self {
        let redis = redis_store::Redis::open(url, Duration::from_secs(2)).await.unwrap();
        let live = Live::new(&RedisStore::Redis(redis), keys.prefix());
        let mut registry = Registry::default();
        let metrics = StockMetrics::new(&mut registry);
        let (running, drain) = (live.clone(), Drain::new());
        let until = drain.clone();
        // Restarts the loop, as supervision does.
        tokio::spawn(async move {
            while !until.is_requested() {
                if running.run(until.clone()).await.is_err() {
                    until.sleep(Duration::from_millis(20)).await;
                }
            }
        });
        Self { live, metrics, registry, drain }
    }

    fn publish(&self, shop: &Shop, options: LiveOptions) {
        StockPublisher::new(self.live.clone(), options, self.metrics.clone()).follow(&shop.stock);
    }

    fn feed(&self, shop: &Shop, options: LiveOptions) -> StockFeed {
        StockFeed::new(self.live.clone(), shop.stock.clone(), options, self.metrics.clone())
    }

    /// Returns the exposed value of a counter, or 0 if it is not exposed yet.
    fn count(&self, name: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.drain.request();
    }
}

const FAILURES: &str = "inventory_pubsub_failure_total";
const FAILED: &str = "playhouse_drops_stock_publish_attempts_total{outcome=\"failed\"}";
const PUBLISHED: &str = "playhouse_drops_stock_publish_attempts_total{outcome=\"published\"}";
const RECEIVED: &str = "playhouse_drops_stock_feed_messages_total";
const READS: &str = "playhouse_drops_stock_feed_reads_total";

async fn shop() -> (TestDatabase, Shop, DropId, VerifiedAdmission) {
    let place = TestDatabase::sqlite().unwrap();
    let shop = Shop::open(&place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    (place, shop, drop, ada)
}

/// Waits until a watcher has seen a version.
async fn sees(watch: &mut StockWatch, version: i64) -> Snapshot {
    let seen = tokio::time::timeout(PATIENCE, watch.newer_than(version - 1)).await;
    seen.expect("the version is seen").unwrap()
}

/// Waits until all watchers have seen a version.
async fn all_see(watches: &mut [StockWatch], version: i64, reserved: i64) {
    for watch in watches {
        let seen = sees(watch, version).await;
        assert_eq!((seen.version, seen.reserved), (version, reserved));
    }
}

/// Captures the log of this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// Runs on one thread, so that the log of all tasks is captured.
#[tokio::test]
async fn a_purchase_succeeds_if_its_stock_cannot_be_published() {
    let server = testkit::need!(Redis::shared().await);
    let (keys, log) = (server.namespace(), Log::default());
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _captured = tracing::subscriber::set_default(subscriber);
    let (_place, shop, drop, ada) = shop().await;
    let proxy = FaultProxy::to(server.addr()).await;
    let (here, there) =
        (Process::start(&proxy.url(keys.url()), &keys).await, Process::start(keys.url(), &keys).await);
    let paced = LiveOptions { sync_interval: Duration::from_millis(500), ..OPTIONS };
    let mut watch = there.feed(&shop, paced).watch(drop).await.unwrap();
    // Publishing retries for at least a second, so a purchase that waited for it would be noticed.
    let slow = Backoff::new(Duration::from_secs(1), Duration::from_secs(1));
    // The interval delays the next message, so that its attempts are not counted.
    here.publish(&shop, LiveOptions { retry: slow, min_interval: Duration::from_secs(1), ..OPTIONS });
    shop.reserve(ada, 1).await.unwrap();
    assert_eq!(sees(&mut watch, 2).await.reserved, 1);
    eventually("the change is published", PATIENCE, async || here.count(PUBLISHED) == 1).await;
    proxy.cut().await;
    let order = shop.ordered(ada, 1).await;
    shop.orders.record(&webhook(&order, WebhookKind::Succeeded)).await.unwrap();
    assert_eq!(shop.owned(&order).await, 1);
    assert_eq!(here.count(FAILURES), 0, "the purchase does not wait for the message");
    eventually("publishing is given up", PATIENCE, async || here.count(FAILURES) > 0).await;
    assert_eq!((here.count(FAILED), here.count(FAILURES), here.count(PUBLISHED)), (3, 1, 1));
    let text = log.text();
    let warnings: Vec<&str> = text.lines().filter(|line| line.contains("was not published")).collect();
    assert_eq!(warnings.len(), 1, "{text}");
    assert!(warnings[0].contains("WARN") && warnings[0].contains("attempts=3"), "{text}");
    // The next full sync shows the change to watchers.
    let version = shop.stock.levels(drop).await.unwrap().version;
    assert_eq!(sees(&mut watch, version).await.sold, 1);
    // When Redis is back, changes are published again.
    proxy.pass().await;
    eventually("changes are published again", PATIENCE, async || {
        shop.reserve(ada, 1).await.unwrap();
        here.count(PUBLISHED) > 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_watchers_cost_one_message_per_change_and_one_read() {
    const WATCHERS: usize = 100_000;
    const CHANGES: i64 = 4;
    const BURST: i64 = 20;
    let server = testkit::need!(Redis::shared().await);
    let keys = server.namespace();
    let (_place, shop, drop, ada) = shop().await;
    let (here, there) = (Process::start(keys.url(), &keys).await, Process::start(keys.url(), &keys).await);
    here.publish(&shop, LiveOptions { min_interval: Duration::from_millis(500), ..OPTIONS });
    let feed = there.feed(&shop, OPTIONS);
    let watches = futures::future::join_all((0..WATCHERS).map(|_| feed.watch(drop))).await;
    let mut watches: Vec<StockWatch> = watches.into_iter().map(Result::unwrap).collect();
    assert_eq!(there.count(READS), 1, "all watchers share the first read");
    for change in 1..=CHANGES {
        shop.reserve(ada, 1).await.unwrap();
        all_see(&mut watches, 1 + change, change).await;
    }
    assert_eq!((there.count(RECEIVED), there.count(READS)), (CHANGES as u64, 1));
    // Changes within one interval share a message.
    for _ in 0..BURST {
        shop.reserve(ada, 1).await.unwrap();
    }
    all_see(&mut watches, 1 + CHANGES + BURST, CHANGES + BURST).await;
    let received = there.count(RECEIVED) - CHANGES as u64;
    assert!(received < BURST as u64 / 2, "{received} messages for {BURST} changes");
    assert_eq!(there.count(READS), 1);
    let mut late = feed.watch(drop).await.unwrap();
    assert_eq!(late.current(), shop.stock.snapshot(drop).await.unwrap());
    assert_eq!(there.count(READS), 1, "a later watcher needs no read");
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_within_an_interval_share_a_message() {
    let server = testkit::need!(Redis::shared().await);
    let keys = server.namespace();
    let (_place, shop, drop, ada) = shop().await;
    let (here, there) = (Process::start(keys.url(), &keys).await, Process::start(keys.url(), &keys).await);
    here.publish(&shop, LiveOptions { min_interval: Duration::from_secs(2), ..OPTIONS });
    let mut watch = there.feed(&shop, OPTIONS).watch(drop).await.unwrap();
    for _ in 0..50 {
        shop.reserve(ada, 1).await.unwrap();
    }
    let last = shop.stock.snapshot(drop).await.unwrap();
    assert_eq!(last.version, 51, "each reserve was a change");
    assert_eq!(sees(&mut watch, last.version).await, last, "the newest change is not lost");
    let received = there.count(RECEIVED);
    assert!((2..10).contains(&received), "{received} messages for 50 changes");
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_are_updated_at_a_bounded_rate() {
    let server = testkit::need!(Redis::shared().await);
    let keys = server.namespace();
    let (_place, shop, drop, ada) = shop().await;
    let (here, there) = (Process::start(keys.url(), &keys).await, Process::start(keys.url(), &keys).await);
    here.publish(&shop, OPTIONS);
    let feed = there.feed(&shop, LiveOptions { min_interval: Duration::from_secs(2), ..OPTIONS });
    let mut watch = feed.watch(drop).await.unwrap();
    for _ in 0..20 {
        shop.reserve(ada, 1).await.unwrap();
    }
    let mut updates = 0;
    while watch.current().version < 21 {
        tokio::time::timeout(PATIENCE, watch.changed()).await.expect("the last change is seen").unwrap();
        updates += 1;
    }
    assert!(updates < 5, "{updates} updates for 20 changes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_triggers_a_read() {
    let server = testkit::need!(Redis::shared().await);
    let keys = server.namespace();
    let (_place, shop, drop, ada) = shop().await;
    let proxy = FaultProxy::to(server.addr()).await;
    let there = Process::start(&proxy.url(keys.url()), &keys).await;
    let mut watch = there.feed(&shop, OPTIONS).watch(drop).await.unwrap();
    proxy.cut().await;
    // No process publishes this change, so only the gap can make the watcher read it.
    shop.reserve(ada, 3).await.unwrap();
    proxy.pass().await;
    assert_eq!(sees(&mut watch, 2).await.reserved, 3);
    assert_eq!(there.count(RECEIVED), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_sync_shows_changes_without_a_message() {
    let (_place, shop, drop, ada) = shop().await;
    let live = Live::new(&RedisStore::Memory, "");
    let metrics = StockMetrics::new(&mut Registry::default());
    let options = LiveOptions { sync_interval: Duration::from_millis(50), ..OPTIONS };
    let feed = StockFeed::new(live, shop.stock.clone(), options, metrics);
    let mut watch = feed.watch(drop).await.unwrap();
    assert_eq!(watch.current().version, 1);
    shop.reserve(ada, 2).await.unwrap();
    assert_eq!(sees(&mut watch, 2).await.reserved, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drop_without_watchers_is_unsubscribed() {
    let server = testkit::need!(Redis::shared().await);
    let keys = server.namespace();
    let (_place, shop, drop, _) = shop().await;
    let there = Process::start(keys.url(), &keys).await;
    let options = LiveOptions { sync_interval: Duration::from_millis(50), ..OPTIONS };
    let feed = there.feed(&shop, options);
    let unknown = DropId::generate();
    assert!(matches!(feed.watch(unknown).await, Err(Error::NoSuchDrop(found)) if found == unknown));
    let watch = feed.watch(drop).await.unwrap();
    let channels = async || there.live.positions::<DropId>().len();
    assert_eq!(channels().await, 1);
    std::mem::drop(watch);
    eventually("the feed unsubscribes", PATIENCE, async || channels().await == 0).await;
    let mut again = feed.watch(drop).await.unwrap();
    assert_eq!(again.current().total, TERMS.units);
}

#[tokio::test(flavor = "multi_thread")]
async fn pollers_read_several_stocks_in_one_query() {
    let (_place, shop, one, ada) = shop().await;
    let two = shop.drop_of(Terms { units: 7, ..TERMS }).await;
    shop.reserve(ada, 4).await.unwrap();
    let found = shop.stock.snapshots(&[two, DropId::generate(), one]).await.unwrap();
    let shown: Vec<_> = found.iter().map(|found| (found.drop, found.total, found.available)).collect();
    assert_eq!(shown, [(two, 7, 7), (one, 1_000, 996)]);
    assert_eq!(shop.stock.snapshots(&[]).await.unwrap(), []);
    assert_eq!(shop.stock.snapshot(one).await.unwrap(), found[1]);
}
