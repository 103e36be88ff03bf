//! Store outages under load: nothing is lost, nothing fails permanently, and throughput recovers.

use std::collections::BTreeSet;
use std::time::Instant;

use testkit::{FaultProxy, eventually, need};

use super::crashes::{serve, start};
use super::fleet::Fleet;
use super::shop::{self, Load, Shop};
use super::*;

/// Purchases per second: a load that any machine handles, so that the test measures recovery and not capacity.
const RATE: u32 = 40;
/// How long after an outage throughput may take to recover.
const RECOVERY: Duration = Duration::from_secs(5);
/// The measuring period of a rate.
const WINDOW: Duration = Duration::from_secs(4);

struct Setup {
    fleet: Fleet,
    shop: Shop,
    load: Load,
    admin: String,
    _running: RunningProgram,
}

impl Setup {
    /// Starts a process with these store URLs and puts it under load.
    async fn under_load(fleet: Fleet, db: Option<String>, bus: Option<String>) -> Self {
        let mut program = serve(&fleet, "service-api,outbox-relay");
        if let Some(url) = db {
            program = program.env("PLAYHOUSE_DB_URL", url);
        }
        if let Some(url) = bus {
            program = program.env("PLAYHOUSE_BUS_URL", url);
        }
        let (running, at) = start(&program).await;
        let shop = Shop::at(&at["service_api"]);
        let mut customers = Vec::new();
        for n in 0..5 {
            customers.push(shop.customer(&format!("customer-{n}")).await);
        }
        let load = Load::start(&shop, customers, RATE);
        let setup = Self { fleet, shop, load, admin: at["admin"].clone(), _running: running };
        eventually("purchases complete at the offered rate", PATIENCE * 2, async || {
            let (bought, stored) = setup.shares().await;
            if bought >= 0.95 && stored >= 0.95 {
                Ok(())
            } else {
                Err(format!("{bought} bought, {stored} stored"))
            }
        })
        .await;
        setup
    }

    /// Returns the shares of offered purchases that were committed and whose events were stored, over one `WINDOW`. Shares of the
    /// offered load keep a busy machine from looking like an outage.
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

    /// Asserts that throughput is back within `RECOVERY` and that no event was lost or failed.
    async fn assert_recovered(self, recovered: Instant) {
        tokio::time::sleep(RECOVERY.saturating_sub(recovered.elapsed())).await;
        let (bought, stored) = self.shares().await;
        // The backlog may raise the shares above 1.
        assert!(bought >= 0.95 && stored >= 0.95, "of what was offered: {bought} bought, {stored} stored");
        let promised = self.load.finish().await;
        shop::assert_all_published(&self.fleet.nats.url(), &promised).await;
        assert!(shop::in_outbox(&self.admin, "failed").await.is_empty());
        drop(self.shop);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_recover_from_30_seconds_without_nats() {
    let fleet = need!(Fleet::start().await);
    let mut setup = Setup::under_load(fleet, None, None).await;
    setup.fleet.nats.kill().await.unwrap();
    let (offered, bought) = (setup.load.offered(), setup.load.count());
    tokio::time::sleep(Duration::from_secs(30)).await;
    // Purchases do not need NATS.
    let share = (setup.load.count() - bought) as f64 / (setup.load.offered() - offered) as f64;
    assert!(share >= 0.95, "only {share} of the offered purchases completed");
    let waiting = shop::in_outbox(&setup.admin, "open").await;
    assert!(waiting.len() > 500, "{}", waiting.len());
    assert!(waiting.iter().all(|event| event["attempts"].as_u64() <= Some(1)), "the outage used up attempts");
    setup.fleet.nats.start_again().await.unwrap();
    setup.assert_recovered(Instant::now()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_recover_from_a_database_restart() {
    let fleet = need!(Fleet::start().await);
    let mut setup = Setup::under_load(fleet, None, None).await;
    setup.fleet.sql.kill().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    setup.fleet.sql.start_again().await.unwrap();
    setup.assert_recovered(Instant::now()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_recover_from_a_silent_nats_connection() {
    let fleet = need!(Fleet::start().await);
    let proxy = FaultProxy::to(fleet.nats.addr()).await;
    let url = proxy.url(&fleet.nats.url());
    let setup = Setup::under_load(fleet, None, Some(url)).await;
    proxy.half_open().await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    proxy.pass().await;
    setup.assert_recovered(Instant::now()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_recover_from_a_silent_database_connection() {
    let fleet = need!(Fleet::start().await);
    let proxy = FaultProxy::to(fleet.sql.addr()).await;
    let url = proxy.url(fleet.database.url());
    let setup = Setup::under_load(fleet, Some(url), None).await;
    proxy.half_open().await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    proxy.pass().await;
    setup.assert_recovered(Instant::now()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_paused_beyond_its_lease_changes_nothing() {
    let fleet = need!(Fleet::start().await);
    let proxy = FaultProxy::to(fleet.nats.addr()).await;
    let (_gateway, at) = start(&serve(&fleet, "service-api")).await;
    let shop = Shop::at(&at["service_api"]);
    let ada = shop.customer("ada").await;
    let slow = serve(&fleet, "outbox-relay")
        .env("PLAYHOUSE_BUS_URL", proxy.url(&fleet.nats.url()))
        .env("PLAYHOUSE_BUS_TIMEOUT", "60s");
    let (slow, slow_at) = start(&slow).await;
    eventually("the sign-in is published", PATIENCE, async || {
        shop::in_outbox(&at["admin"], "open").await.is_empty()
    })
    .await;

    // It claims and publishes, but gets no acknowledgement.
    proxy.half_open().await;
    let mut promised = BTreeSet::new();
    for n in 0..5 {
        promised.insert(shop.buy(&ada, "gems", &format!("order-{n}")).await);
    }
    eventually("the relay has claimed an event", PATIENCE, async || {
        shop::in_outbox(&at["admin"], "open").await.iter().any(|event| event["state"] == "IN_FLIGHT")
    })
    .await;
    slow.pause().await;
    let (_other, _) = start(&serve(&fleet, "outbox-relay")).await;
    shop::assert_all_published(&fleet.nats.url(), &promised).await;
    eventually("everything is marked", PATIENCE, async || {
        shop::in_outbox(&at["admin"], "open").await.is_empty()
    })
    .await;
    let published = shop::in_outbox(&at["admin"], "published").await;

    proxy.pass().await;
    slow.resume();
    let stale = "playhouse_work_finished_total{queue=\"outbox\",outcome=\"stale\"}";
    eventually("the paused relay counts stale claims", PATIENCE * 4, async || {
        let (_, metrics) = get(format!("http://{}/metrics", slow_at["admin"])).await;
        let text = metrics.as_str().unwrap_or_default().to_owned();
        if text.contains(stale) { Ok(()) } else { Err(text) }
    })
    .await;
    assert_eq!(shop::in_outbox(&at["admin"], "published").await, published, "the paused relay changed a row");
    shop::assert_all_published(&fleet.nats.url(), &promised).await;
}
