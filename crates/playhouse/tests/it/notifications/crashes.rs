//! The crash table of notifications: a process is killed at each point between an event and the player, and the player has it once.

use futures::StreamExt;
use serde_json::json;
use testkit::{eventually, need};

use super::receiver::Receiver;
use super::stage::{Process, Stage, news};
use super::tape::{Tape, ids};
use crate::crashes::was_killed;
use crate::shop::Shop;
use crate::*;

/// More than are told with one step of a broadcast.
const MANY: usize = 600;

/// A process that dies at this point.
async fn doomed(stage: &Stage, roles: &str, point: &str) -> Process {
    Process::start(&stage.program(roles).env("TESTKIT_FAULT", point)).await
}

/// Waits until all deliveries of a queue are done.
async fn all_sent(stage: &Stage, open: &'static str) {
    eventually("all deliveries are SENT", PATIENCE, async || {
        let open = stage.count(open).await;
        if open == 0 { Ok(()) } else { Err(format!("{open} are not")) }
    })
    .await;
}

const LIVE: &str = "SELECT COUNT(*) FROM notification_live WHERE state <> 1";
const WEBHOOK: &str = "SELECT COUNT(*) FROM notification_webhook WHERE state <> 1";

#[tokio::test(flavor = "multi_thread")]
async fn a_notifier_killed_anywhere_between_an_event_and_its_acknowledgement_tells_once() {
    let stage = need!(Stage::start().await);
    let door = stage.process("gateway,service-api").await;
    let (ada, publisher) = (stage.player(&door, "ada").await, stage.publisher().await);
    let (mut tape, mut stream) = (Tape::from(0), ada.stream(door.gateway(), None).await);
    // Before the commit nothing has happened.
    let dies = doomed(&stage, "notifier", "notification_intake.uncommitted").await;
    publisher.publish(&[news(ada.user, 100)]).await;
    was_killed(&dies.running).await;
    assert_eq!(ada.inbox(door.gateway()).await.len(), 0);

    let points = ["notification_intake.committed", "notification_live.claimed", "notification_live.handled"];
    for (n, point) in points.into_iter().enumerate() {
        let dies = doomed(&stage, "notifier", point).await;
        publisher.publish(&[news(ada.user, n)]).await;
        was_killed(&dies.running).await;
        // It was killed after a commit: the inbox has one more, and the stream finds it there even while nobody tells.
        assert!(tape.record(&mut stream, n + 1).await, "{point}");
        assert_eq!(ada.inbox(door.gateway()).await.len(), n + 1, "{point}");
        let next = stage.process("notifier").await;
        all_sent(&stage, LIVE).await;
        next.stop().await;
    }
    // All of them come again, for none was acknowledged. Each process took in what was missing before its own event, and died of that: the
    // last event is news, the others are known.
    let _notifier = stage.process("notifier").await;
    stage.all_taken_in(&publisher).await;
    assert!(tape.record(&mut stream, points.len() + 1).await);
    let told: Vec<i64> = tape.notifications.iter().map(|one| one["data"]["n"].as_i64().unwrap()).collect();
    assert_eq!(told, [100, 0, 1, 2], "in the order of the stream");
    door.service().tell(ada.user, "the end").await;
    assert_eq!(stream.expect("notification").await.data["title"], "the end");
    let mut inbox = ada.inbox(door.gateway()).await;
    assert_eq!(inbox.pop().unwrap()["title"], "the end");
    assert_eq!(ids(&inbox), tape.ids());
    all_sent(&stage, LIVE).await;
    assert_eq!(stage.count("SELECT COUNT(*) FROM notification_dlq").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_killed_after_it_did_what_a_service_asked_for_has_done_it_once() {
    let stage = need!(Stage::start().await);
    let door = stage.process("gateway,service-api,notifier").await;
    let ada = stage.player(&door, "ada").await;
    let mut stream = ada.stream(door.gateway(), None).await;
    stream.expect("ready").await;
    for (n, point) in ["notification_live.claimed", "notification_live.handled"].into_iter().enumerate() {
        let dies = doomed(&stage, "gateway,service-api", point).await;
        let body = json!({ "to": { "user_id": ada.user }, "texts": { "en": { "title": point } } });
        assert!(dies.service().request(shop::TOKEN, point, &body).send().await.is_err());
        was_killed(&dies.running).await;
        let again = door.service().request(shop::TOKEN, point, &body).send().await.unwrap();
        assert_eq!(
            (again.status().as_u16(), &again.headers()["idempotency-replayed"]),
            (200, &"true".parse().unwrap())
        );
        assert_eq!(stream.expect("notification").await.data["title"], point);
        all_sent(&stage, LIVE).await;
        assert_eq!(ada.inbox(door.gateway()).await.len(), n + 1);
    }
    door.service().tell(ada.user, "the end").await;
    assert_eq!(stream.expect("notification").await.data["title"], "the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broadcast_that_is_killed_goes_on_behind_the_last_who_was_told() {
    let stage = need!(Stage::start().await);
    let door = stage.process("gateway,service-api").await;
    let shop = Shop::at(door.internal());
    let customers = futures::stream::iter(0..MANY).map(|n| {
        let shop = shop.clone();
        async move { shop.customer(&format!("customer-{n}")).await }
    });
    customers.buffer_unordered(16).collect::<Vec<_>>().await;

    let dies = doomed(&stage, "notifier", "notification_broadcast.step").await;
    let body = json!({ "to": { "all": true }, "texts": { "en": { "title": "to all" } } });
    let (status, sent) = door.service().send("campaign-1", &body).await;
    assert_eq!(status, 202, "{sent}");
    was_killed(&dies.running).await;
    let told = stage.count("SELECT COUNT(*) FROM notification").await;
    assert!(told > 0 && told < MANY as i64, "{told} were told by then");

    let _notifier = stage.process("notifier").await;
    let id = sent["id"].as_str().unwrap();
    eventually("the broadcast is done", PATIENCE, async || {
        let progress = door.service().broadcast(id).await;
        let is_done = progress["state"] == "SENT" && progress["told"] == MANY;
        if is_done { Ok(()) } else { Err(progress.to_string()) }
    })
    .await;
    assert_eq!(stage.count("SELECT COUNT(*) FROM notification").await, MANY as i64);
    assert_eq!(stage.count("SELECT COUNT(DISTINCT user_id) FROM notification").await, MANY as i64);
    assert_eq!(stage.count("SELECT CAST(MAX(position) AS SIGNED) FROM notification_head").await, 1);
    all_sent(&stage, LIVE).await;
    // Asked for once more, it is not done once more.
    assert_eq!(door.service().send("campaign-1", &body).await, (202, sent));
    assert_eq!(stage.count("SELECT COUNT(*) FROM notification_broadcast").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_is_sent_at_most_twice_when_its_sender_is_killed_once() {
    let stage = need!(Stage::start().await);
    let receiver = Receiver::start().await;
    let delivery = "[notification.webhook_delivery]\nlease = \"1s\"\npoll = \"20ms\"\n";
    stage.configure(&format!("{delivery}{}", receiver.settings("hook")));
    let door = stage.process("gateway,service-api").await;
    let ada = stage.player(&door, "ada").await;
    for (point, times) in [("notification_webhook.claimed", 1), ("notification_webhook.handled", 2)] {
        let dies = doomed(&stage, "notifier", point).await;
        let texts = json!({ "en": { "title": point } });
        let body =
            json!({ "to": { "user_id": ada.user }, "texts": texts, "channels": ["live", "webhook:hook"] });
        assert_eq!(door.service().send(point, &body).await.0, 200);
        was_killed(&dies.running).await;
        let next = stage.process("notifier").await;
        all_sent(&stage, WEBHOOK).await;
        let got = receiver.got().into_iter().filter(|got| got.title == point);
        let mut ids: Vec<String> = got.map(|got| got.id).collect();
        assert_eq!(ids.len(), times, "{point}: {ids:?}");
        ids.dedup();
        assert_eq!(ids.len(), 1, "{point}: {ids:?}");
        next.stop().await;
    }
    assert_eq!(ada.inbox(door.gateway()).await.len(), 2);
    assert_eq!(stage.count("SELECT COUNT(*) FROM notification_dlq").await, 0);
}
