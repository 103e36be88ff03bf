//! What a stream says, and to whom.

use reqwest::Method;
use serde_json::json;
use testkit::{eventually, need};
use tokio::net::TcpSocket;

use super::stage::{Process, Stage, news};
use super::tape::{Stream, Tape};
use crate::*;

const QUEUE: &str = "[matchmaking.queues.duel]\n";

async fn ready(stream: &mut Stream) -> Value {
    let ready = stream.expect("ready").await;
    assert_eq!(ready.data["last_event_id"], ready.id.unwrap().to_string(), "{ready:?}");
    ready.data
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_begins_where_it_is_told_to_and_says_where_that_is() {
    let stage = need!(Stage::start().await);
    let door = Process::start(
        &stage.program("gateway,service-api").args(["--set", "gateway.stream_heartbeat=100ms"]),
    )
    .await;
    let (ada, at) = (stage.player(&door, "ada").await, door.gateway());
    let mut fresh = ada.stream(at, None).await;
    assert_eq!(ready(&mut fresh).await, json!({ "last_event_id": "0", "resumed": false }));
    assert!((200..1000).contains(&fresh.retry.unwrap()), "{:?}", fresh.retry);
    for n in 1..=3 {
        door.service().tell(ada.user, &format!("number {n}")).await;
        let told = fresh.expect("notification").await;
        assert_eq!((told.id, &told.data["title"]), (Some(n), &json!(format!("number {n}"))), "{told:?}");
    }
    // It says that it is alive while there is nothing to say.
    let beats = fresh.beats + 3;
    tokio::time::timeout(PATIENCE, async {
        while fresh.beats < beats {
            assert!(fresh.read(1024).await, "the stream is over");
            assert!(fresh.pop().is_none());
        }
    })
    .await
    .expect("beats of the heart");

    for (last, begins_at, resumed, behind) in [
        (None, 3, false, 0),
        (Some(3), 3, true, 0),
        (Some(1), 1, true, 2),
        (Some(0), 0, true, 3),
        // An id that this inbox never had: of another one, or of one that was restored since.
        (Some(4), 3, false, 0),
        (Some(i64::MAX), 3, false, 0),
    ] {
        let mut stream = ada.stream(at, last).await;
        let expected = json!({ "last_event_id": begins_at.to_string(), "resumed": resumed });
        assert_eq!(ready(&mut stream).await, expected, "{last:?}");
        let mut tape = Tape::from(begins_at);
        assert!(tape.record(&mut stream, behind).await, "{last:?}");
        assert_eq!(tape.last, 3, "{last:?}");
    }
    for garbage in ["x", "-1", "1.5", "99999999999999999999", "1 2", "é"] {
        let request = ada.request(Method::GET, at, "/v1/stream").header("last-event-id", garbage);
        let response = request.send().await.unwrap();
        let (status, kind) = (response.status(), response.headers()["content-type"].clone());
        assert_eq!((status.as_u16(), kind.to_str().unwrap()), (400, "application/problem+json"), "{garbage}");
        let problem: Value = response.json().await.unwrap();
        assert!(problem["detail"].as_str().unwrap().contains("Last-Event-ID"), "{problem}");
    }
    // A page that cannot set the header says it in the address. An empty one is none.
    for (path, begins_at) in [("/v1/stream?last_event_id=2", "2"), ("/v1/stream?last_event_id=", "3")] {
        let mut response = ada.request(Method::GET, at, path).send().await.unwrap();
        let mut text = String::new();
        while !text.contains("event: ready") {
            text += std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap();
        }
        assert!(text.contains(&format!("id: {begins_at}\nevent: ready")), "{path}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_player_has_so_many_streams_and_no_more_until_one_is_closed() {
    let stage = need!(Stage::start().await);
    let door =
        Process::start(&stage.program("gateway,service-api").args(["--set", "gateway.max_streams=3"])).await;
    let (ada, bob, at) = (stage.player(&door, "ada").await, stage.player(&door, "bob").await, door.gateway());
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(ada.stream(at, None).await);
    }
    let refused = ada.request(Method::GET, at, "/v1/stream").send().await.unwrap();
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"), "{refused:?}");
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    let _of_bob = bob.stream(at, None).await;
    drop(streams.pop());
    eventually("there is room again", PATIENCE, async || {
        ada.request(Method::GET, at, "/v1/stream").send().await.unwrap().status() == 200
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_player_does_on_one_device_the_other_hears_from_another_process() {
    let stage = need!(Stage::start().await);
    stage.configure(QUEUE);
    let doors = [stage.process("gateway,service-api").await, stage.process("gateway,service-api").await];
    let [one, two] = [doors[0].gateway(), doors[1].gateway()];
    let (ada, bob) = (stage.player(&doors[0], "ada").await, stage.player(&doors[0], "bob").await);
    let (mut phone, mut of_bob) = (ada.stream(one, None).await, bob.stream(one, None).await);
    ready(&mut phone).await;
    ready(&mut of_bob).await;

    let (status, ticket) = ada.post(two, "/v1/matchmaking/tickets", &json!({ "queue": "duel" })).await;
    assert_eq!(status, 201, "{ticket}");
    let told = phone.expect("ticket").await;
    assert_eq!((&told.data["ticket_id"], &told.data["state"]), (&ticket["ticket_id"], &json!("WAITING")));
    // Who comes later is told what there is.
    let mut laptop = ada.stream(two, None).await;
    ready(&mut laptop).await;
    assert_eq!(laptop.expect("ticket").await.data["ticket_id"], ticket["ticket_id"]);

    doors[0].service().tell(ada.user, "hello").await;
    let told = phone.expect("notification").await;
    assert_eq!(laptop.expect("notification").await.data, told.data);
    let (_, counts) = ada.post(two, "/v1/notifications/mark", &json!({ "mark": "read", "up_to": 1 })).await;
    for stream in [&mut phone, &mut laptop] {
        let told = stream.expect_counts(&counts).await;
        assert_eq!((told.id, &told.data), (None, &counts));
        assert_eq!(told.data, json!({ "unread": 0, "unseen": 0 }));
    }
    let path = format!("/v1/matchmaking/tickets/{}", ticket["ticket_id"].as_str().unwrap());
    assert_eq!(ada.request(Method::DELETE, two, &path).send().await.unwrap().status(), 204);
    for stream in [&mut phone, &mut laptop] {
        assert_eq!(stream.expect("ticket").await.data["state"], "GONE");
    }
    // Of all that nobody else has heard anything.
    doors[0].service().tell(bob.user, "and you").await;
    assert_eq!(of_bob.expect("notification").await.data["title"], "and you");
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_that_changed_while_a_client_was_cut_off_are_sent_when_it_resumes() {
    let stage = need!(Stage::start().await);
    let door = stage.process("gateway,service-api").await;
    let ada = stage.player(&door, "ada").await;
    let mut stream = ada.stream(door.gateway(), None).await;
    ready(&mut stream).await;
    door.service().tell(ada.user, "unread").await;
    let last = stream.expect("notification").await.id;
    drop(stream);
    let mark = json!({ "mark": "read", "up_to": 1 });
    let (status, counts) = ada.post(door.gateway(), "/v1/notifications/mark", &mark).await;
    assert_eq!((status, &counts["unread"]), (200, &json!(0)), "{counts}");

    let mut resumed = ada.stream(door.gateway(), last).await;
    assert_eq!(ready(&mut resumed).await["resumed"], true);
    assert_eq!(resumed.expect("inbox").await.data, counts);
}

/// Two processes publish after their commits, in any order: the last message may have the older counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_reads_the_counts_and_does_not_trust_those_of_a_message() {
    let stage = need!(Stage::start().await);
    let door = stage.process("gateway,service-api").await;
    let ada = stage.player(&door, "ada").await;
    let mut stream = ada.stream(door.gateway(), None).await;
    ready(&mut stream).await;
    door.service().tell(ada.user, "unread").await;
    stream.expect("notification").await;
    let mut connection = stage.fleet.redis.keyspace().connect().await;
    let late = json!({ "counts": { "unread": 7, "unseen": 7 } }).to_string();
    let mut publish = redis::cmd("PUBLISH");
    publish.arg(format!("live:{}", ada.user)).arg(late);
    let heard: u64 = publish.query_async(&mut connection).await.unwrap();
    assert_eq!(heard, 1);
    assert_eq!(stream.expect("inbox").await.data, json!({ "unread": 1, "unseen": 1 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_is_told_in_their_language() {
    let stage = need!(Stage::start().await);
    let door = stage.process("gateway,service-api").await;
    let _notifier = stage.process("notifier").await;
    let ada = stage.player(&door, "ada").await;
    let wanted = [
        ("ja-JP, en;q=0.5", "ja", "ニュース7"),
        ("en, ja;q=0.9", "en", "News 7"),
        ("de, fr;q=0.9", "en", "News 7"),
        ("de, ja;q=0.1, *;q=0.01", "ja", "ニュース7"),
    ];
    let mut streams = Vec::new();
    for (languages, ..) in wanted {
        let headers = format!("accept-language: {languages}\r\n");
        streams.push(Stream::ask(TcpSocket::new_v4().unwrap(), door.gateway(), &ada.token, &headers).await);
    }
    for stream in &mut streams {
        ready(stream).await;
    }
    stage.publisher().await.publish(&[news(ada.user, 7)]).await;
    for (stream, (languages, language, title)) in streams.iter_mut().zip(wanted) {
        let told = stream.expect("notification").await.data;
        assert_eq!((&told["language"], &told["title"]), (&json!(language), &json!(title)), "{languages}");
        let request = ada.request(Method::GET, door.gateway(), "/v1/notifications");
        let response = request.header("accept-language", languages).send().await.unwrap();
        let inbox: Value = response.json().await.unwrap();
        assert_eq!(inbox["notifications"][0]["title"], title, "{languages}");
    }
}
