//! The crash table: a process is killed at each point between a purchase and the stream, and nothing is lost or doubled.

use std::collections::BTreeSet;

use testkit::{Folder, eventually, need};

use super::fleet::Fleet;
use super::shop::{self, Load, Shop};
use super::*;

/// A fleet's processes that the shop may use, with short leases.
pub(super) fn serve(fleet: &Fleet, roles: &str) -> Program {
    shop::let_in(fleet.serve(&["--roles", roles, "--set", "db.migrate=true", "--set", "outbox.lease=1s"]))
        .env("PLAYHOUSE_BUS_TIMEOUT", "2s")
        .env("PLAYHOUSE_DB_ACQUIRE_TIMEOUT", "2s")
        .env("PLAYHOUSE_OUTBOX_POLL", "50ms")
}

pub(super) async fn start(program: &Program) -> (Running, HashMap<String, String>) {
    let running = program.start().unwrap();
    let addresses = addresses(&running).await;
    (running, addresses)
}

/// It was ended as by `kill -9`.
pub(super) async fn was_killed(running: &Running) {
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(running.wait(PATIENCE).await.signal(), Some(9), "it should have been killed");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_the_commit_nothing_happened_and_the_retry_succeeds() {
    let fleet = need!(Fleet::start().await);
    let (doomed, at) =
        start(&serve(&fleet, "service-api").env("TESTKIT_FAULT", "entitlement.uncommitted")).await;
    let shop = Shop::at(&at["internal"]);
    let ada = shop.customer("ada").await;
    let body = shop::purchase(&ada, "gems");
    assert_eq!(shop.try_post("/entitlements/grant", Some("order-1"), &body).await, None);
    was_killed(&doomed).await;

    let (_next, at) = start(&serve(&fleet, "service-api,outbox-relay")).await;
    shop.moves_to(&at["internal"]);
    let (status, list) =
        shop.get(&format!("/users/{}/accounts/{}/entitlements", ada.user, ada.account)).await;
    assert_eq!((status, &list["entitlements"]), (200, &serde_json::json!([])));
    let event = shop.buy(&ada, "gems", "order-1").await;
    shop::everything_arrived(&fleet.nats.url(), &BTreeSet::from([event])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_the_commit_any_relay_publishes_and_the_retry_is_answered_as_before() {
    let fleet = need!(Fleet::start().await);
    let (doomed, at) =
        start(&serve(&fleet, "service-api").env("TESTKIT_FAULT", "entitlement.committed")).await;
    let shop = Shop::at(&at["internal"]);
    let ada = shop.customer("ada").await;
    let body = shop::purchase(&ada, "gems");
    assert_eq!(shop.try_post("/entitlements/grant", Some("order-1"), &body).await, None);
    was_killed(&doomed).await;

    let (_relay, _) = start(&serve(&fleet, "outbox-relay")).await;
    let (_next, at) = start(&serve(&fleet, "service-api")).await;
    shop.moves_to(&at["internal"]);
    let event = shop.buy(&ada, "gems", "order-1").await;
    shop::everything_arrived(&fleet.nats.url(), &BTreeSet::from([event])).await;
}

/// The relay dies with events in hand; another one has to get them to the stream.
async fn a_relay_dies(point: &str) {
    let fleet = need!(Fleet::start().await);
    let (_gateway, at) = start(&serve(&fleet, "service-api")).await;
    let shop = Shop::at(&at["internal"]);
    let ada = shop.customer("ada").await;
    let mut promised = BTreeSet::new();
    for n in 0..20 {
        promised.insert(shop.buy(&ada, &format!("gems-{}", n % 3), &format!("order-{n}")).await);
    }
    let doomed = serve(&fleet, "outbox-relay").env("TESTKIT_FAULT", point).start().unwrap();
    was_killed(&doomed).await;
    let held = shop::in_outbox(&at["admin"], "open").await;
    assert!(held.iter().any(|event| event["state"] == "IN_FLIGHT"), "{held:?}");

    let (_relay, _) = start(&serve(&fleet, "outbox-relay")).await;
    shop::everything_arrived(&fleet.nats.url(), &promised).await;
    eventually("everything is marked", PATIENCE, async || {
        let open = shop::in_outbox(&at["admin"], "open").await;
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
    })
    .await;
    // However often it was published.
    shop::everything_arrived(&fleet.nats.url(), &promised).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_killed_between_claim_and_publish_is_taken_over() {
    a_relay_dies("outbox.claimed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_killed_between_publish_and_mark_is_taken_over_and_nothing_is_doubled() {
    a_relay_dies("outbox.handled").await;
}

/// Processes die at every point, again and again, under load.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_killed_wherever_nothing_is_lost_or_doubled() {
    const POINTS: [&str; 4] =
        ["entitlement.uncommitted@5", "entitlement.committed@9", "outbox.claimed@4", "outbox.handled@6"];
    let fleet = need!(Fleet::start().await);
    let (first, at) = start(&serve(&fleet, "service-api,outbox-relay")).await;
    let shop = Shop::at(&at["internal"]);
    let mut customers = Vec::new();
    for n in 0..5 {
        customers.push(shop.customer(&format!("customer-{n}")).await);
    }
    let load = Load::start(&shop, customers, 60);
    let mut running = first;
    for point in POINTS {
        let (doomed, at) =
            start(&serve(&fleet, "service-api,outbox-relay").env("TESTKIT_FAULT", point)).await;
        shop.moves_to(&at["internal"]);
        running.kill();
        was_killed(&doomed).await;
        let (next, at) = start(&serve(&fleet, "service-api,outbox-relay")).await;
        shop.moves_to(&at["internal"]);
        running = next;
    }
    let enough = load.count() + 100;
    eventually("more is bought", PATIENCE * 2, async || load.count() >= enough).await;
    let promised = load.finish().await;
    shop::everything_arrived(&fleet.nats.url(), &promised).await;
}

/// The same with embedded stores: one process, killed at each point and started again.
#[tokio::test(flavor = "multi_thread")]
async fn an_embedded_process_killed_wherever_loses_and_doubles_nothing() {
    let folder = Folder::fresh().unwrap();
    let shop = Shop::at("nowhere");
    let mut promised = BTreeSet::new();
    let mut ada = None;
    for point in ["entitlement.uncommitted", "entitlement.committed", "outbox.claimed@2", "outbox.handled@2"]
    {
        let (doomed, at) = start(&shop::embedded(&folder).env("TESTKIT_FAULT", point)).await;
        shop.moves_to(&at["internal"]);
        let customer = shop.customer("ada").await;
        assert_eq!(ada.get_or_insert_with(|| customer.user.clone()), &customer.user);
        let mut unanswered = Vec::new();
        for n in 0..20 {
            let key = format!("{point}-{n}");
            let body = shop::purchase(&customer, &format!("gems-{}", n % 3));
            match shop.try_post("/entitlements/grant", Some(&key), &body).await {
                Some((200, answer)) => drop(promised.insert(answer["event_id"].as_str().unwrap().to_owned())),
                _ => unanswered.push((n, key)),
            }
        }
        was_killed(&doomed).await;
        let (next, at) = start(&shop::embedded(&folder)).await;
        shop.moves_to(&at["internal"]);
        for (n, key) in unanswered {
            promised.insert(shop.buy(&customer, &format!("gems-{}", n % 3), &key).await);
        }
        eventually("everything is published", PATIENCE, async || {
            let open = shop::in_outbox(&at["admin"], "open").await;
            if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
        })
        .await;
        let published = shop::in_outbox(&at["admin"], "published").await;
        let published: BTreeSet<String> = published
            .iter()
            .filter(|event| event["kind"] == "playhouse.entitlement.granted.v1")
            .map(|event| event["id"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(published, promised, "{point}");
        assert!(shop::in_outbox(&at["admin"], "failed").await.is_empty());
        next.sigterm();
        assert_eq!(next.wait(PATIENCE).await.code(), Some(0));
    }
    assert_eq!(promised.len(), 80);
}
