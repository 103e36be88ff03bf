//! The crash table of notifications: a process is killed at each point between an event and the player, who is notified once.

use futures::StreamExt;
use serde_json::json;
use testkit::{eventually, need};

use super::receiver::Receiver;
use super::setup::{Process, Setup, news};
use super::stream_client::{Received, ids};
use crate::crashes::assert_killed;
use crate::shop::Shop;
use crate::*;

/// More users than one step of a broadcast notifies.
const USERS: usize = 600;

/// Starts a process that dies at this point.
async fn start_doomed(setup: &Setup, roles: &str, point: &str) -> Process {
    Process::start(&setup.program(roles).env("TESTKIT_FAULT", point)).await
}

/// Waits until a query for unsent deliveries counts none.
async fn wait_until_sent(setup: &Setup, open: &'static str) {
    eventually("all deliveries are SENT", PATIENCE, async || {
        let open = setup.count(open).await;
        if open == 0 { Ok(()) } else { Err(format!("{open} are not sent")) }
    })
    .await;
}

const LIVE: &str = "SELECT COUNT(*) FROM notification_live WHERE state <> 1";
const WEBHOOK: &str = "SELECT COUNT(*) FROM notification_webhook WHERE state <> 1";

#[tokio::test(flavor = "multi_thread")]
async fn notifier_killed_at_any_point_of_the_intake_notifies_once() {
    let setup = need!(Setup::start().await);
    let api = setup.process("gateway,service-api").await;
    let (ada, publisher) = (setup.player(&api, "ada").await, setup.publisher().await);
    let (mut received, mut stream) = (Received::after(0), ada.stream(api.gateway(), None).await);
    // A kill before the commit has no effect.
    let doomed = start_doomed(&setup, "notifier", "notification_intake.uncommitted").await;
    publisher.publish(&[news(ada.user, 100)]).await;
    assert_killed(&doomed.running).await;
    assert_eq!(ada.inbox(api.gateway()).await.len(), 0);

    let points = ["notification_intake.committed", "notification_live.claimed", "notification_live.handled"];
    for (n, point) in points.into_iter().enumerate() {
        let doomed = start_doomed(&setup, "notifier", point).await;
        publisher.publish(&[news(ada.user, n)]).await;
        assert_killed(&doomed.running).await;
        // A kill after the commit: the inbox has one more, and the stream finds it although no live message was published.
        assert!(received.read_until(&mut stream, n + 1).await, "{point}");
        assert_eq!(ada.inbox(api.gateway()).await.len(), n + 1, "{point}");
        let next = setup.process("notifier").await;
        wait_until_sent(&setup, LIVE).await;
        next.stop().await;
    }
    // All events are delivered again, as none was acknowledged. Each process first took in the event that its predecessor had missed,
    // and died on that one. So only the last event is new.
    let _notifier = setup.process("notifier").await;
    setup.wait_until_acknowledged(&publisher).await;
    assert!(received.read_until(&mut stream, points.len() + 1).await);
    let order: Vec<i64> =
        received.notifications.iter().map(|one| one["data"]["n"].as_i64().unwrap()).collect();
    assert_eq!(order, [100, 0, 1, 2], "not in the order of the stream");
    api.service().notify(ada.user, "the end").await;
    assert_eq!(stream.expect("notification").await.data["title"], "the end");
    let mut inbox = ada.inbox(api.gateway()).await;
    assert_eq!(inbox.pop().unwrap()["title"], "the end");
    assert_eq!(ids(&inbox), received.ids());
    wait_until_sent(&setup, LIVE).await;
    assert_eq!(setup.count("SELECT COUNT(*) FROM notification_dlq").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn process_killed_while_it_serves_a_request_notifies_once() {
    let setup = need!(Setup::start().await);
    let api = setup.process("gateway,service-api,notifier").await;
    let ada = setup.player(&api, "ada").await;
    let mut stream = ada.stream(api.gateway(), None).await;
    stream.expect("ready").await;
    for (n, point) in ["notification_live.claimed", "notification_live.handled"].into_iter().enumerate() {
        let doomed = start_doomed(&setup, "gateway,service-api", point).await;
        let body = json!({ "to": { "user_id": ada.user }, "texts": { "en": { "title": point } } });
        assert!(doomed.service().request(shop::TOKEN, point, &body).send().await.is_err());
        assert_killed(&doomed.running).await;
        let again = api.service().request(shop::TOKEN, point, &body).send().await.unwrap();
        assert_eq!(
            (again.status().as_u16(), &again.headers()["idempotency-replayed"]),
            (200, &"true".parse().unwrap())
        );
        assert_eq!(stream.expect("notification").await.data["title"], point);
        wait_until_sent(&setup, LIVE).await;
        assert_eq!(ada.inbox(api.gateway()).await.len(), n + 1);
    }
    api.service().notify(ada.user, "the end").await;
    assert_eq!(stream.expect("notification").await.data["title"], "the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn broadcast_resumes_after_kill() {
    let setup = need!(Setup::start().await);
    let api = setup.process("gateway,service-api").await;
    let shop = Shop::at(api.service_api());
    let customers = futures::stream::iter(0..USERS).map(|n| {
        let shop = shop.clone();
        async move { shop.customer(&format!("customer-{n}")).await }
    });
    customers.buffer_unordered(16).collect::<Vec<_>>().await;

    let doomed = start_doomed(&setup, "notifier", "notification_broadcast.step").await;
    let body = json!({ "to": { "all": true }, "texts": { "en": { "title": "to all" } } });
    let (status, sent) = api.service().send("campaign-1", &body).await;
    assert_eq!(status, 202, "{sent}");
    assert_killed(&doomed.running).await;
    let notified = setup.count("SELECT COUNT(*) FROM notification").await;
    assert!(notified > 0 && notified < USERS as i64, "{notified} were notified before the kill");

    let _notifier = setup.process("notifier").await;
    let id = sent["id"].as_str().unwrap();
    eventually("the broadcast is done", PATIENCE, async || {
        let progress = api.service().broadcast(id).await;
        let is_done = progress["state"] == "SENT" && progress["notified"] == USERS;
        if is_done { Ok(()) } else { Err(progress.to_string()) }
    })
    .await;
    assert_eq!(setup.count("SELECT COUNT(*) FROM notification").await, USERS as i64);
    assert_eq!(setup.count("SELECT COUNT(DISTINCT user_id) FROM notification").await, USERS as i64);
    assert_eq!(setup.count("SELECT CAST(MAX(position) AS SIGNED) FROM notification_head").await, 1);
    wait_until_sent(&setup, LIVE).await;
    // A repeated request does not repeat the broadcast.
    assert_eq!(api.service().send("campaign-1", &body).await, (202, sent));
    assert_eq!(setup.count("SELECT COUNT(*) FROM notification_broadcast").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_is_sent_at_most_twice_if_its_sender_is_killed_once() {
    let setup = need!(Setup::start().await);
    let receiver = Receiver::start().await;
    let delivery = "[notification.webhook_delivery]\nlease = \"1s\"\npoll = \"20ms\"\n";
    setup.configure(&format!("{delivery}{}", receiver.settings("hook")));
    let api = setup.process("gateway,service-api").await;
    let ada = setup.player(&api, "ada").await;
    for (point, times) in [("notification_webhook.claimed", 1), ("notification_webhook.handled", 2)] {
        let doomed = start_doomed(&setup, "notifier", point).await;
        let texts = json!({ "en": { "title": point } });
        let body =
            json!({ "to": { "user_id": ada.user }, "texts": texts, "channels": ["live", "webhook:hook"] });
        assert_eq!(api.service().send(point, &body).await.0, 200);
        assert_killed(&doomed.running).await;
        let next = setup.process("notifier").await;
        wait_until_sent(&setup, WEBHOOK).await;
        let requests = receiver.requests().into_iter().filter(|request| request.title == point);
        let mut ids: Vec<String> = requests.map(|request| request.id).collect();
        assert_eq!(ids.len(), times, "{point}: {ids:?}");
        ids.dedup();
        assert_eq!(ids.len(), 1, "{point}: {ids:?}");
        next.stop().await;
    }
    assert_eq!(ada.inbox(api.gateway()).await.len(), 2);
    assert_eq!(setup.count("SELECT COUNT(*) FROM notification_dlq").await, 0);
}
