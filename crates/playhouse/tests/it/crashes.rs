//! The crash table: a process killed at any point between a purchase and the event stream loses and duplicates nothing.

use std::collections::BTreeSet;

use testkit::{Folder, eventually, need};

use super::fleet::Fleet;
use super::shop::{self, Load, Shop};
use super::*;

/// A process of a fleet that the shop may call, with short leases.
pub(super) fn serve(fleet: &Fleet, roles: &str) -> Program {
    shop::with_credentials(fleet.serve(&[
        "--roles",
        roles,
        "--set",
        "db.migrate=true",
        "--set",
        "outbox.lease=1s",
    ]))
    .env("PLAYHOUSE_BUS_TIMEOUT", "2s")
    .env("PLAYHOUSE_DB_ACQUIRE_TIMEOUT", "2s")
    .env("PLAYHOUSE_OUTBOX_POLL", "50ms")
}

pub(super) async fn start(program: &Program) -> (RunningProgram, HashMap<String, String>) {
    let running = program.start().unwrap();
    let addresses = addresses(&running).await;
    (running, addresses)
}

/// Waits for the process and asserts that SIGKILL ended it.
pub(super) async fn assert_killed(running: &RunningProgram) {
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(running.wait(PATIENCE).await.signal(), Some(9), "it was not killed");
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_before_the_commit_has_no_effect_and_the_retry_succeeds() {
    let fleet = need!(Fleet::start().await);
    let (doomed, at) =
        start(&serve(&fleet, "service-api").env("TESTKIT_FAULT", "entitlement.uncommitted")).await;
    let shop = Shop::at(&at["service_api"]);
    let ada = shop.customer("ada").await;
    let body = shop::purchase(&ada, "gems");
    assert_eq!(shop.try_post("/entitlements/grant", Some("order-1"), &body).await, None);
    assert_killed(&doomed).await;

    let (_next, at) = start(&serve(&fleet, "service-api,outbox-relay")).await;
    shop.set_address(&at["service_api"]);
    let (status, list) =
        shop.get(&format!("/users/{}/accounts/{}/entitlements", ada.user, ada.account)).await;
    assert_eq!((status, &list["entitlements"]), (200, &serde_json::json!([])));
    let event = shop.buy(&ada, "gems", "order-1").await;
    shop::assert_all_published(&fleet.nats.url(), &BTreeSet::from([event])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_after_the_commit_loses_no_event_and_the_retry_gets_the_recorded_response() {
    let fleet = need!(Fleet::start().await);
    let (doomed, at) =
        start(&serve(&fleet, "service-api").env("TESTKIT_FAULT", "entitlement.committed")).await;
    let shop = Shop::at(&at["service_api"]);
    let ada = shop.customer("ada").await;
    let body = shop::purchase(&ada, "gems");
    assert_eq!(shop.try_post("/entitlements/grant", Some("order-1"), &body).await, None);
    assert_killed(&doomed).await;

    let (_relay, _) = start(&serve(&fleet, "outbox-relay")).await;
    let (_next, at) = start(&serve(&fleet, "service-api")).await;
    shop.set_address(&at["service_api"]);
    let event = shop.buy(&ada, "gems", "order-1").await;
    shop::assert_all_published(&fleet.nats.url(), &BTreeSet::from([event])).await;
}

/// Kills a relay at this point, while it holds claims. Another relay has to publish its events.
async fn kill_relay_at(point: &str) {
    let fleet = need!(Fleet::start().await);
    let (_gateway, at) = start(&serve(&fleet, "service-api")).await;
    let shop = Shop::at(&at["service_api"]);
    let ada = shop.customer("ada").await;
    let mut promised = BTreeSet::new();
    for n in 0..20 {
        promised.insert(shop.buy(&ada, &format!("gems-{}", n % 3), &format!("order-{n}")).await);
    }
    let doomed = serve(&fleet, "outbox-relay").env("TESTKIT_FAULT", point).start().unwrap();
    assert_killed(&doomed).await;
    let held = shop::in_outbox(&at["admin"], "open").await;
    assert!(held.iter().any(|event| event["state"] == "IN_FLIGHT"), "{held:?}");

    let (_relay, _) = start(&serve(&fleet, "outbox-relay")).await;
    shop::assert_all_published(&fleet.nats.url(), &promised).await;
    eventually("everything is marked", PATIENCE, async || {
        let open = shop::in_outbox(&at["admin"], "open").await;
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
    })
    .await;
    // Repeated publishes are deduplicated.
    shop::assert_all_published(&fleet.nats.url(), &promised).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_killed_between_claim_and_publish_loses_nothing() {
    kill_relay_at("outbox.claimed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_killed_between_publish_and_mark_duplicates_nothing() {
    kill_relay_at("outbox.handled").await;
}

/// Processes die at each point in turn.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_kills_under_load_lose_and_duplicate_nothing() {
    const POINTS: [&str; 4] =
        ["entitlement.uncommitted@5", "entitlement.committed@9", "outbox.claimed@4", "outbox.handled@6"];
    let fleet = need!(Fleet::start().await);
    let (first, at) = start(&serve(&fleet, "service-api,outbox-relay")).await;
    let shop = Shop::at(&at["service_api"]);
    let mut customers = Vec::new();
    for n in 0..5 {
        customers.push(shop.customer(&format!("customer-{n}")).await);
    }
    let load = Load::start(&shop, customers, 60);
    let mut running = first;
    for point in POINTS {
        let (doomed, at) =
            start(&serve(&fleet, "service-api,outbox-relay").env("TESTKIT_FAULT", point)).await;
        shop.set_address(&at["service_api"]);
        running.kill();
        assert_killed(&doomed).await;
        let (next, at) = start(&serve(&fleet, "service-api,outbox-relay")).await;
        shop.set_address(&at["service_api"]);
        running = next;
    }
    let enough = load.count() + 100;
    eventually("more is bought", PATIENCE * 2, async || load.count() >= enough).await;
    let promised = load.finish().await;
    shop::assert_all_published(&fleet.nats.url(), &promised).await;
}

/// One process with embedded stores is killed at each point and restarted.
#[tokio::test(flavor = "multi_thread")]
async fn embedded_process_killed_at_any_point_loses_and_duplicates_nothing() {
    let folder = Folder::fresh().unwrap();
    let shop = Shop::at("nowhere");
    let mut promised = BTreeSet::new();
    let mut ada = None;
    for point in ["entitlement.uncommitted", "entitlement.committed", "outbox.claimed@2", "outbox.handled@2"]
    {
        let (doomed, at) = start(&shop::embedded(&folder).env("TESTKIT_FAULT", point)).await;
        shop.set_address(&at["service_api"]);
        let customer = shop.customer("ada").await;
        assert_eq!(ada.get_or_insert_with(|| customer.user.clone()), &customer.user);
        let mut unanswered = Vec::new();
        for n in 0..20 {
            let key = format!("{point}-{n}");
            let body = shop::purchase(&customer, &format!("gems-{}", n % 3));
            match shop.try_post("/entitlements/grant", Some(&key), &body).await {
                Some((200, response)) => {
                    promised.insert(response["event_id"].as_str().unwrap().to_owned());
                }
                _ => unanswered.push((n, key)),
            }
        }
        assert_killed(&doomed).await;
        let (next, at) = start(&shop::embedded(&folder)).await;
        shop.set_address(&at["service_api"]);
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
