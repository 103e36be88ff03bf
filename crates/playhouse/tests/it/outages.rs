//! Stores that go away under load: nothing is lost, nothing fails for good, and it goes on as before.

use std::collections::BTreeSet;
use std::time::Instant;

use testkit::{Proxy, eventually, need};

use super::crashes::{serve, start};
use super::fleet::Fleet;
use super::shop::{self, Load, Shop};
use super::*;

/// Purchases per second: a steady load that any machine carries, so that what is measured is getting over an outage.
const RATE: u32 = 40;
/// How long after recovery everything has to be as before.
const RECOVERY: Duration = Duration::from_secs(5);
/// How long a rate is measured.
const WINDOW: Duration = Duration::from_secs(4);

struct Scene {
    fleet: Fleet,
    shop: Shop,
    load: Load,
    admin: String,
    _running: Running,
}

impl Scene {
    /// A process of all the roles that matter, under load, whose stores are at these addresses.
    async fn under_load(fleet: Fleet, db: Option<String>, bus: Option<String>) -> Self {
        let mut program = serve(&fleet, "service-api,outbox-relay");
        if let Some(url) = db {
            program = program.env("PLAYHOUSE_DB_URL", url);
        }
        if let Some(url) = bus {
            program = program.env("PLAYHOUSE_BUS_URL", url);
        }
        let (running, at) = start(&program).await;
        let shop = Shop::at(&at["internal"]);
        let mut customers = Vec::new();
        for n in 0..5 {
            customers.push(shop.customer(&format!("customer-{n}")).await);
        }
        let load = Load::start(&shop, customers, RATE);
        let scene = Self { fleet, shop, load, admin: at["admin"].clone(), _running: running };
        eventually("purchases go through as they come", PATIENCE * 2, async || {
            let (bought, stored) = scene.shares().await;
            if bought >= 0.95 && stored >= 0.95 {
                Ok(())
            } else {
                Err(format!("{bought} bought, {stored} stored"))
            }
        })
        .await;
        scene
    }

    /// Of the purchases that are begun in a while, the share that is committed, and whose events are stored. In comparison with what
    /// is offered at the same time, a busy machine does not look like an outage.
    async fn shares(&self) -> (f64, f64) {
        let count = async || {
            let stored = shop::stream_length(&self.fleet.nats.url()).await;
            (self.load.offered() as f64, self.load.count() as f64, stored as f64)
        };
        let before = count().await;
        tokio::time::sleep(WINDOW).await;
        let after = count().await;
        let offered = after.0 - before.0;
        ((after.1 - before.1) / offered, (after.2 - before.2) / offered)
    }

    /// Everything is as before within the time, and nothing was lost or given up.
    async fn gets_over_it(self, recovered: Instant) {
        tokio::time::sleep(RECOVERY.saturating_sub(recovered.elapsed())).await;
        let (bought, stored) = self.shares().await;
        // What is caught up with comes on top.
        assert!(bought >= 0.95 && stored >= 0.95, "of what was offered: {bought} bought, {stored} stored");
        let promised = self.load.finish().await;
        shop::everything_arrived(&self.fleet.nats.url(), &promised).await;
        assert!(shop::in_outbox(&self.admin, "failed").await.is_empty());
        drop(self.shop);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_away_for_half_a_minute_is_got_over() {
    let fleet = need!(Fleet::start().await);
    let mut scene = Scene::under_load(fleet, None, None).await;
    scene.fleet.nats.kill().await.unwrap();
    let (offered, bought) = (scene.load.offered(), scene.load.count());
    tokio::time::sleep(Duration::from_secs(30)).await;
    // Whoever buys does not notice.
    let share = (scene.load.count() - bought) as f64 / (scene.load.offered() - offered) as f64;
    assert!(share >= 0.95, "{share} of what was offered was bought meanwhile");
    let waiting = shop::in_outbox(&scene.admin, "open").await;
    assert!(waiting.len() > 500, "{}", waiting.len());
    assert!(
        waiting.iter().all(|event| event["attempts"].as_u64() <= Some(1)),
        "an outage counted as an attempt"
    );
    scene.fleet.nats.start_again().await.unwrap();
    scene.gets_over_it(Instant::now()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_restarts_is_got_over() {
    let fleet = need!(Fleet::start().await);
    let mut scene = Scene::under_load(fleet, None, None).await;
    scene.fleet.sql.kill().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    scene.fleet.sql.start_again().await.unwrap();
    scene.gets_over_it(Instant::now()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_between_us_and_nats_is_got_over() {
    let fleet = need!(Fleet::start().await);
    let proxy = Proxy::to(fleet.nats.addr()).await;
    let url = proxy.url(&fleet.nats.url());
    let scene = Scene::under_load(fleet, None, Some(url)).await;
    proxy.half_open().await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    proxy.pass().await;
    scene.gets_over_it(Instant::now()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_between_us_and_the_database_is_got_over() {
    let fleet = need!(Fleet::start().await);
    let proxy = Proxy::to(fleet.sql.addr()).await;
    let url = proxy.url(fleet.database.url());
    let scene = Scene::under_load(fleet, Some(url), None).await;
    proxy.half_open().await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    proxy.pass().await;
    scene.gets_over_it(Instant::now()).await;
}

/// A relay that stood still beyond its lease changes nothing that it no longer owns.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_stood_still_beyond_its_lease_changes_nothing() {
    let fleet = need!(Fleet::start().await);
    let proxy = Proxy::to(fleet.nats.addr()).await;
    let (_gateway, at) = start(&serve(&fleet, "service-api")).await;
    let shop = Shop::at(&at["internal"]);
    let ada = shop.customer("ada").await;
    let slow = serve(&fleet, "outbox-relay")
        .env("PLAYHOUSE_BUS_URL", proxy.url(&fleet.nats.url()))
        .env("PLAYHOUSE_BUS_TIMEOUT", "60s");
    let (slow, slow_at) = start(&slow).await;
    eventually("the sign-in is published", PATIENCE, async || {
        shop::in_outbox(&at["admin"], "open").await.is_empty()
    })
    .await;

    // It claims, publishes, and hears nothing.
    proxy.half_open().await;
    let mut promised = BTreeSet::new();
    for n in 0..5 {
        promised.insert(shop.buy(&ada, "gems", &format!("order-{n}")).await);
    }
    eventually("it has claimed an event", PATIENCE, async || {
        shop::in_outbox(&at["admin"], "open").await.iter().any(|event| event["state"] == "IN_FLIGHT")
    })
    .await;
    slow.pause().await;
    let (_other, _) = start(&serve(&fleet, "outbox-relay")).await;
    shop::everything_arrived(&fleet.nats.url(), &promised).await;
    eventually("everything is marked", PATIENCE, async || {
        shop::in_outbox(&at["admin"], "open").await.is_empty()
    })
    .await;
    let published = shop::in_outbox(&at["admin"], "published").await;

    proxy.pass().await;
    slow.resume();
    let stale = "work_finished_total{queue=\"outbox\",outcome=\"stale\"}";
    eventually("it knows that it came too late", PATIENCE * 4, async || {
        let (_, metrics) = get(format!("http://{}/metrics", slow_at["admin"])).await;
        let text = metrics.as_str().unwrap_or_default().to_owned();
        if text.contains(stale) { Ok(()) } else { Err(text) }
    })
    .await;
    assert_eq!(shop::in_outbox(&at["admin"], "published").await, published, "not a column has changed");
    shop::everything_arrived(&fleet.nats.url(), &promised).await;
}
