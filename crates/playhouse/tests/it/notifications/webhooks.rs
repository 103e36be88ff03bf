//! Destinations that work, beside one that does not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use axum::http::StatusCode;
use reqwest::Client;
use serde_json::json;
use testkit::{eventually, need};

use super::receiver::Receiver;
use super::stage::{Process, Stage};
use crate::*;

/// How many notifications are sent, and how often.
const COUNT: usize = 60;
const PACE: Duration = Duration::from_millis(20);
const ATTEMPTS: usize = 2;

const SETTINGS: &str = r#"
[notification.webhook_delivery]
poll = "20ms"
max_attempts = 2
retry_min = "10ms"
retry_max = "20ms"
"#;

/// Tells a user things by these channels, at a steady pace. Returns when each was begun to be told, by its title.
async fn tell(door: &Process, user: uuid::Uuid, what: &str, channels: &[&str]) -> BTreeMap<String, Instant> {
    let (service, mut beat) = (door.service(), tokio::time::interval(PACE));
    let mut begun = BTreeMap::new();
    for n in 0..COUNT {
        beat.tick().await;
        let title = format!("{what} {n}");
        let body =
            json!({ "to": { "user_id": user }, "texts": { "en": { "title": title } }, "channels": channels });
        begun.insert(title.clone(), Instant::now());
        assert_eq!(service.send(&title.replace(' ', "-"), &body).await.0, 200);
    }
    begun
}

/// Half of these took at most the first time to get to the receiver, 99 % the second.
async fn latency(receiver: &Receiver, begun: &BTreeMap<String, Instant>) -> (Duration, Duration) {
    let mut times = eventually("a healthy destination has everything", PATIENCE, async || {
        let got = receiver.got();
        let times = got.iter().filter_map(|got| Some(got.at - *begun.get(&got.title)?));
        let times: Vec<Duration> = times.collect();
        if times.len() == begun.len() {
            Ok(times)
        } else {
            Err(format!("{} of {}", times.len(), begun.len()))
        }
    })
    .await;
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

async fn letters(process: &Process) -> Vec<Value> {
    let url = format!("http://{}/dlq?kind=webhook&destination=webhook:bad&limit=1000", process.admin());
    let (status, found) = shop::admin_get(url).await;
    assert_eq!(status, 200, "{found}");
    found["letters"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_fails_costs_the_others_nothing_and_loses_nothing() {
    let stage = need!(Stage::start().await);
    let (good, bad) = (Receiver::start().await, Receiver::start().await);
    bad.answers(StatusCode::INTERNAL_SERVER_ERROR, Duration::from_millis(50));
    stage.configure(&format!("{SETTINGS}{}{}", good.settings("good"), bad.settings("bad")));
    let door = stage.process("gateway,service-api").await;
    let notifier = stage.process("notifier").await;
    let ada = stage.player(&door, "ada").await;

    let alone = tell(&door, ada.user, "alone", &["webhook:good"]).await;
    let alone = latency(&good, &alone).await;
    let beside = tell(&door, ada.user, "beside", &["webhook:good", "webhook:bad"]).await;
    let titles: BTreeSet<String> = beside.keys().cloned().collect();
    let beside = latency(&good, &beside).await;
    let slack = Duration::from_millis(200);
    assert!(beside.0 < alone.0 * 3 + slack && beside.1 < alone.1 * 3 + slack, "{alone:?}, then {beside:?}");

    let dead = eventually("what the bad one refused is dead", PATIENCE * 2, async || {
        let dead = letters(&notifier).await;
        if dead.len() == COUNT { Ok(dead) } else { Err(format!("{} of {COUNT}", dead.len())) }
    })
    .await;
    for letter in &dead {
        assert_eq!(letter["attempts"], ATTEMPTS, "{letter}");
        assert!(letter["cause"].as_str().unwrap().contains("500"), "{letter}");
        assert_eq!(letter["user_id"], json!(ada.user), "{letter}");
    }
    let tried = bad.got().len();
    assert_eq!(tried, COUNT * ATTEMPTS, "each is tried so often, and no more");

    bad.answers(StatusCode::OK, Duration::ZERO);
    let replay = format!("http://{}/dlq/replay?kind=webhook&limit=1000&rate=1000", notifier.admin());
    let replayed = Client::new()
        .post(replay)
        .bearer_auth(shop::OPERATOR_TOKEN)
        .send()
        .await
        .unwrap()
        .json::<Value>()
        .await
        .unwrap();
    assert_eq!((&replayed["replayed"], &replayed["failed"]), (&json!(COUNT), &json!([])), "{replayed}");
    let arrived = eventually("the bad one is told after all", PATIENCE * 2, async || {
        let got = bad.got();
        let arrived: Vec<String> =
            got.iter().filter(|got| got.answer == StatusCode::OK).map(|got| got.title.clone()).collect();
        if arrived.len() >= COUNT { Ok(arrived) } else { Err(format!("{} of {COUNT}", arrived.len())) }
    })
    .await;
    assert_eq!(arrived.len(), COUNT);
    assert_eq!(arrived.into_iter().collect::<BTreeSet<_>>(), titles);
    let ids: BTreeSet<String> = bad.got().into_iter().map(|got| got.id).collect();
    assert_eq!(ids.len(), COUNT, "a replay has the id that it had");
    assert_eq!(letters(&notifier).await, [] as [Value; 0]);
    let twice: BTreeSet<String> = good.got().into_iter().map(|got| got.id).collect();
    assert_eq!(twice.len(), good.got().len(), "the good one was told twice");
}
