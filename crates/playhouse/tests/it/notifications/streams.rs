//! The events of streams and who receives them.

use reqwest::Method;
use serde_json::json;
use testkit::{eventually, need};
use tokio::net::TcpSocket;

use super::setup::{Process, Setup, news};
use super::stream_client::{Received, Stream};
use crate::*;

const QUEUE: &str = "[matchmaking.queues.duel]\n";

async fn expect_ready(stream: &mut Stream) -> Value {
    let ready = stream.expect("ready").await;
    assert_eq!(ready.data["last_event_id"], ready.id.unwrap().to_string(), "{ready:?}");
    ready.data
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_starts_at_the_requested_position() {
    let setup = need!(Setup::start().await);
    let api = Process::start(
        &setup.program("gateway,service-api").args(["--set", "gateway.stream_heartbeat=100ms"]),
    )
    .await;
    let (ada, at) = (setup.player(&api, "ada").await, api.gateway());
    let mut fresh = ada.stream(at, None).await;
    assert_eq!(expect_ready(&mut fresh).await, json!({ "last_event_id": "0", "resumed": false }));
    assert!((200..1000).contains(&fresh.retry.unwrap()), "{:?}", fresh.retry);
    for n in 1..=3 {
        api.service().notify(ada.user, &format!("number {n}")).await;
        let event = fresh.expect("notification").await;
        assert_eq!((event.id, &event.data["title"]), (Some(n), &json!(format!("number {n}"))), "{event:?}");
    }
    // Heartbeats are sent while there are no events.
    let heartbeats = fresh.heartbeats + 3;
    tokio::time::timeout(PATIENCE, async {
        while fresh.heartbeats < heartbeats {
            assert!(fresh.read(1024).await, "the stream ended");
            assert!(fresh.pop().is_none());
        }
    })
    .await
    .expect("no heartbeats");

    for (last, starts_at, resumed, missed) in [
        (None, 3, false, 0),
        (Some(3), 3, true, 0),
        (Some(1), 1, true, 2),
        (Some(0), 0, true, 3),
        // A position that this inbox never had: of another inbox, or from before a restore.
        (Some(4), 3, false, 0),
        (Some(i64::MAX), 3, false, 0),
    ] {
        let mut stream = ada.stream(at, last).await;
        let expected = json!({ "last_event_id": starts_at.to_string(), "resumed": resumed });
        assert_eq!(expect_ready(&mut stream).await, expected, "{last:?}");
        let mut received = Received::after(starts_at);
        assert!(received.read_until(&mut stream, missed).await, "{last:?}");
        assert_eq!(received.last, 3, "{last:?}");
    }
    for garbage in ["x", "-1", "1.5", "99999999999999999999", "1 2", "é"] {
        let request = ada.request(Method::GET, at, "/v1/stream").header("last-event-id", garbage);
        let response = request.send().await.unwrap();
        let (status, kind) = (response.status(), response.headers()["content-type"].clone());
        assert_eq!((status.as_u16(), kind.to_str().unwrap()), (400, "application/problem+json"), "{garbage}");
        let problem: Value = response.json().await.unwrap();
        assert!(problem["detail"].as_str().unwrap().contains("Last-Event-ID"), "{problem}");
    }
    // A page that cannot set the header uses the query. An empty value means no position.
    for (path, starts_at) in [("/v1/stream?last_event_id=2", "2"), ("/v1/stream?last_event_id=", "3")] {
        let mut response = ada.request(Method::GET, at, path).send().await.unwrap();
        assert_eq!(
            response.headers()["x-playhouse-heartbeat"],
            "100",
            "clients notice dead connections by it"
        );
        let mut text = String::new();
        while !text.contains("event: ready") {
            text += std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap();
        }
        assert!(text.contains(&format!("id: {starts_at}\nevent: ready")), "{path}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn open_streams_per_player_are_limited() {
    let setup = need!(Setup::start().await);
    let api =
        Process::start(&setup.program("gateway,service-api").args(["--set", "gateway.max_streams=3"])).await;
    let (ada, bob, at) = (setup.player(&api, "ada").await, setup.player(&api, "bob").await, api.gateway());
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(ada.stream(at, None).await);
    }
    let refused = ada.request(Method::GET, at, "/v1/stream").send().await.unwrap();
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"), "{refused:?}");
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    let _other_player = bob.stream(at, None).await;
    drop(streams.pop());
    eventually("another stream can be opened", PATIENCE, async || {
        ada.request(Method::GET, at, "/v1/stream").send().await.unwrap().status() == 200
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_on_one_device_reach_streams_at_every_process() {
    let setup = need!(Setup::start().await);
    setup.configure(QUEUE);
    let apis = [setup.process("gateway,service-api").await, setup.process("gateway,service-api").await];
    let [one, two] = [apis[0].gateway(), apis[1].gateway()];
    let (ada, bob) = (setup.player(&apis[0], "ada").await, setup.player(&apis[0], "bob").await);
    let (mut phone, mut bobs_stream) = (ada.stream(one, None).await, bob.stream(one, None).await);
    expect_ready(&mut phone).await;
    expect_ready(&mut bobs_stream).await;

    let (status, ticket) = ada.post(two, "/v1/matchmaking/tickets", &json!({ "queue": "duel" })).await;
    assert_eq!(status, 201, "{ticket}");
    let event = phone.expect("ticket").await;
    assert_eq!((&event.data["ticket_id"], &event.data["state"]), (&ticket["ticket_id"], &json!("WAITING")));
    // A later stream gets the current tickets.
    let mut laptop = ada.stream(two, None).await;
    expect_ready(&mut laptop).await;
    assert_eq!(laptop.expect("ticket").await.data["ticket_id"], ticket["ticket_id"]);

    apis[0].service().notify(ada.user, "hello").await;
    let event = phone.expect("notification").await;
    assert_eq!(laptop.expect("notification").await.data, event.data);
    let (_, counts) = ada.post(two, "/v1/notifications/mark", &json!({ "mark": "read", "up_to": 1 })).await;
    for stream in [&mut phone, &mut laptop] {
        let event = stream.expect_counts(&counts).await;
        assert_eq!((event.id, &event.data), (None, &counts));
        assert_eq!(event.data, json!({ "unread": 0, "unseen": 0 }));
    }
    let path = format!("/v1/matchmaking/tickets/{}", ticket["ticket_id"].as_str().unwrap());
    assert_eq!(ada.request(Method::DELETE, two, &path).send().await.unwrap().status(), 204);
    for stream in [&mut phone, &mut laptop] {
        assert_eq!(stream.expect("ticket").await.data["state"], "GONE");
    }
    // Other players received none of this.
    apis[0].service().notify(bob.user, "and you").await;
    assert_eq!(bobs_stream.expect("notification").await.data["title"], "and you");
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_changed_while_a_client_was_cut_off_are_sent_when_it_resumes() {
    let setup = need!(Setup::start().await);
    let api = setup.process("gateway,service-api").await;
    let ada = setup.player(&api, "ada").await;
    let mut stream = ada.stream(api.gateway(), None).await;
    expect_ready(&mut stream).await;
    api.service().notify(ada.user, "unread").await;
    let last = stream.expect("notification").await.id;
    drop(stream);
    let mark = json!({ "mark": "read", "up_to": 1 });
    let (status, counts) = ada.post(api.gateway(), "/v1/notifications/mark", &mark).await;
    assert_eq!((status, &counts["unread"]), (200, &json!(0)), "{counts}");

    let mut resumed = ada.stream(api.gateway(), last).await;
    assert_eq!(expect_ready(&mut resumed).await["resumed"], true);
    assert_eq!(resumed.expect("inbox").await.data, counts);
}

/// Two processes publish after their commits in any order, so the last message may have the older counts.
#[tokio::test(flavor = "multi_thread")]
async fn stream_reads_the_counts_instead_of_trusting_a_message() {
    let setup = need!(Setup::start().await);
    let api = setup.process("gateway,service-api").await;
    let ada = setup.player(&api, "ada").await;
    let mut stream = ada.stream(api.gateway(), None).await;
    expect_ready(&mut stream).await;
    api.service().notify(ada.user, "unread").await;
    stream.expect("notification").await;
    let mut connection = setup.fleet.redis.namespace().connect().await;
    let late = json!({ "counts": { "unread": 7, "unseen": 7 } }).to_string();
    let mut publish = redis::cmd("PUBLISH");
    publish.arg(format!("live:{}", ada.user)).arg(late);
    let receivers: u64 = publish.query_async(&mut connection).await.unwrap();
    assert_eq!(receivers, 1);
    assert_eq!(stream.expect("inbox").await.data, json!({ "unread": 1, "unseen": 1 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_are_sent_in_the_language_of_the_client() {
    let setup = need!(Setup::start().await);
    let api = setup.process("gateway,service-api").await;
    let _notifier = setup.process("notifier").await;
    let ada = setup.player(&api, "ada").await;
    let cases = [
        ("ja-JP, en;q=0.5", "ja", "ニュース7"),
        ("en, ja;q=0.9", "en", "News 7"),
        ("de, fr;q=0.9", "en", "News 7"),
        ("de, ja;q=0.1, *;q=0.01", "ja", "ニュース7"),
    ];
    let mut streams = Vec::new();
    for (languages, ..) in cases {
        let headers = format!("accept-language: {languages}\r\n");
        streams
            .push(Stream::open_on(TcpSocket::new_v4().unwrap(), api.gateway(), &ada.token, &headers).await);
    }
    for stream in &mut streams {
        expect_ready(stream).await;
    }
    setup.publisher().await.publish(&[news(ada.user, 7)]).await;
    for (stream, (languages, language, title)) in streams.iter_mut().zip(cases) {
        let event = stream.expect("notification").await.data;
        assert_eq!((&event["language"], &event["title"]), (&json!(language), &json!(title)), "{languages}");
        let request = ada.request(Method::GET, api.gateway(), "/v1/notifications");
        let response = request.header("accept-language", languages).send().await.unwrap();
        let inbox: Value = response.json().await.unwrap();
        assert_eq!(inbox["notifications"][0]["title"], title, "{languages}");
    }
}
