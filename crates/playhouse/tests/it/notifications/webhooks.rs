//! A working webhook destination beside a failing one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use axum::http::StatusCode;
use reqwest::Client;
use serde_json::json;
use testkit::{eventually, need};

use super::receiver::Receiver;
use super::setup::{Process, Setup};
use crate::*;

/// How many notifications are sent, and at which interval.
const COUNT: usize = 60;
const INTERVAL: Duration = Duration::from_millis(20);
const ATTEMPTS: usize = 2;

const SETTINGS: &str = r#"
[notification.webhook_delivery]
poll = "20ms"
max_attempts = 2
retry_min = "10ms"
retry_max = "20ms"
"#;

/// Sends notifications to a user by these channels at a steady rate. Returns the start of each request by title.
async fn send_all(
    api: &Process,
    user: uuid::Uuid,
    what: &str,
    channels: &[&str],
) -> BTreeMap<String, Instant> {
    let (service, mut interval) = (api.service(), tokio::time::interval(INTERVAL));
    let mut started = BTreeMap::new();
    for n in 0..COUNT {
        interval.tick().await;
        let title = format!("{what} {n}");
        let body =
            json!({ "to": { "user_id": user }, "texts": { "en": { "title": title } }, "channels": channels });
        started.insert(title.clone(), Instant::now());
        assert_eq!(service.send(&title.replace(' ', "-"), &body).await.0, 200);
    }
    started
}

/// Returns the median and the 99th percentile of the time until a notification reached the receiver.
async fn latency(receiver: &Receiver, started: &BTreeMap<String, Instant>) -> (Duration, Duration) {
    let mut times = eventually("the good destination has received everything", PATIENCE, async || {
        let requests = receiver.requests();
        let times = requests.iter().filter_map(|request| Some(request.at - *started.get(&request.title)?));
        let times: Vec<Duration> = times.collect();
        if times.len() == started.len() {
            Ok(times)
        } else {
            Err(format!("{} of {}", times.len(), started.len()))
        }
    })
    .await;
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

async fn dead_letters(process: &Process) -> Vec<Value> {
    let url = format!("http://{}/dlq?kind=webhook&destination=webhook:bad&limit=1000", process.admin());
    let (status, found) = shop::admin_get(url).await;
    assert_eq!(status, 200, "{found}");
    found["letters"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_destination_delays_no_other_and_loses_nothing() {
    let setup = need!(Setup::start().await);
    let (good, bad) = (Receiver::start().await, Receiver::start().await);
    bad.set_response(StatusCode::INTERNAL_SERVER_ERROR, Duration::from_millis(50));
    setup.configure(&format!("{SETTINGS}{}{}", good.settings("good"), bad.settings("bad")));
    let api = setup.process("gateway,service-api").await;
    let notifier = setup.process("notifier").await;
    let ada = setup.player(&api, "ada").await;

    let alone = send_all(&api, ada.user, "alone", &["webhook:good"]).await;
    let alone = latency(&good, &alone).await;
    let beside = send_all(&api, ada.user, "beside", &["webhook:good", "webhook:bad"]).await;
    let titles: BTreeSet<String> = beside.keys().cloned().collect();
    let beside = latency(&good, &beside).await;
    let slack = Duration::from_millis(200);
    assert!(beside.0 < alone.0 * 3 + slack && beside.1 < alone.1 * 3 + slack, "{alone:?}, then {beside:?}");

    let dead = eventually("deliveries to the bad destination are dead letters", PATIENCE * 2, async || {
        let dead = dead_letters(&notifier).await;
        if dead.len() == COUNT { Ok(dead) } else { Err(format!("{} of {COUNT}", dead.len())) }
    })
    .await;
    for dead_letter in &dead {
        assert_eq!(dead_letter["attempts"], ATTEMPTS, "{dead_letter}");
        assert!(dead_letter["cause"].as_str().unwrap().contains("500"), "{dead_letter}");
        assert_eq!(dead_letter["user_id"], json!(ada.user), "{dead_letter}");
    }
    let attempts = bad.requests().len();
    assert_eq!(attempts, COUNT * ATTEMPTS, "wrong number of attempts");

    bad.set_response(StatusCode::OK, Duration::ZERO);
    let replay = format!("http://{}/dlq/replay?kind=webhook&rate=1000&expected={COUNT}", notifier.admin());
    let replayed = Client::new()
        .post(replay)
        .bearer_auth(shop::OPERATOR_TOKEN)
        .send()
        .await
        .unwrap()
        .json::<Value>()
        .await
        .unwrap();
    assert_eq!(replayed["matching"], COUNT, "{replayed}");
    let arrived = eventually("the bad destination has received everything", PATIENCE * 2, async || {
        let requests = bad.requests();
        let accepted = requests.iter().filter(|request| request.status == StatusCode::OK);
        let arrived: Vec<String> = accepted.map(|request| request.title.clone()).collect();
        if arrived.len() >= COUNT { Ok(arrived) } else { Err(format!("{} of {COUNT}", arrived.len())) }
    })
    .await;
    assert_eq!(arrived.len(), COUNT);
    assert_eq!(arrived.into_iter().collect::<BTreeSet<_>>(), titles);
    let ids: BTreeSet<String> = bad.requests().into_iter().map(|request| request.id).collect();
    assert_eq!(ids.len(), COUNT, "a replay has another webhook-id");
    assert_eq!(dead_letters(&notifier).await, [] as [Value; 0]);
    let different: BTreeSet<String> = good.requests().into_iter().map(|request| request.id).collect();
    assert_eq!(different.len(), good.requests().len(), "the good destination received a webhook twice");
}
