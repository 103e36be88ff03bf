//! What is sent, and what is made of the answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, stream};
use testkit::Program;
use webhook::{Config, Message, Sent};

use crate::PATIENCE;
use crate::receiver::{Receiver, start_raw};
use crate::world::{World, config, refusal, send};

/// An answer that begins with this and never ends.
fn unending(status: StatusCode, beginning: &'static str) -> Response {
    let beginning = stream::iter([Ok::<_, std::io::Error>(Bytes::from(beginning))]);
    (status, Body::from_stream(beginning.chain(stream::pending()))).into_response()
}

#[tokio::test]
async fn a_message_arrives() {
    let (receiver, world) = (Receiver::start(|| StatusCode::NO_CONTENT).await, World::new());
    let (shop, id) = (world.destination(&receiver.url()), "msg_1".parse().unwrap());
    let message = Message { id: &id, body: "{\"a\":1}".into(), traceparent: Some("00-1-2-01") };
    assert_eq!(shop.send(&message).await, Sent::Delivered);
    let (headers, body) = receiver.received().remove(0);
    assert_eq!(body, "{\"a\":1}");
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["webhook-id"], "msg_1");
    assert_eq!(headers["webhook-timestamp"], "784111777");
    assert!(headers["webhook-signature"].to_str().unwrap().starts_with("v1,"));
    assert_eq!(headers["traceparent"], "00-1-2-01");
    assert!(headers["user-agent"].to_str().unwrap().starts_with("playhouse/"));

    let broken = Message { traceparent: Some("no\nheader"), ..message };
    assert_eq!(shop.send(&broken).await, Sent::Delivered, "it is left out");
    world.assert_measured(
        "playhouse_webhook_request_duration_seconds_count{destination=\"shop\",outcome=\"delivered\"} 2",
    );
}

/// This test's program again, for the above alone, with a proxy that leads nowhere.
#[tokio::test]
async fn proxies_of_the_environment_are_not_used() {
    let mut again =
        Program::new(std::env::current_exe().unwrap()).args(["--exact", "delivery::a_message_arrives"]);
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        again = again.env(name, "http://127.0.0.1:1");
    }
    let running = again.env("no_proxy", "").env("NO_PROXY", "").start().unwrap();
    let status = running.wait(PATIENCE).await;
    let said: Vec<String> = running.lines().into_iter().map(|line| line.text).collect();
    assert!(status.success() && said.iter().any(|line| line.contains("1 passed")), "{said:#?}");
}

#[tokio::test]
async fn every_success_is_one_and_nothing_else() {
    for (status, is_good) in
        [(200, true), (201, true), (202, true), (204, true), (299, true)].into_iter().chain([
            (304, false),
            (400, false),
            (401, false),
            (404, false),
            (429, false),
            (500, false),
            (503, false),
        ])
    {
        let status = StatusCode::from_u16(status).unwrap();
        let (receiver, world) = (Receiver::start(move || (status, "so be it")).await, World::new());
        match send(&world.destination(&receiver.url())).await {
            Sent::Delivered => assert!(is_good, "{status}"),
            Sent::Refused { cause, retry_after: None, rest } => {
                assert!(!is_good, "{status}");
                assert!(cause.starts_with(&format!("it answered {status}")), "{cause}");
                assert!(!rest.is_zero());
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(receiver.count(), 1, "{status}: it is tried once");
    }
}

#[tokio::test]
async fn who_is_gone_says_so() {
    let (receiver, world) = (Receiver::start(|| (StatusCode::GONE, "bye")).await, World::new());
    let shop = world.destination(&receiver.url());
    for _ in 0..2 {
        let cause = "it answered 410 Gone: bye".to_owned();
        assert_eq!(
            send(&shop).await,
            Sent::Gone { cause },
            "it does not rest: to send no more is the caller's"
        );
    }
    world.assert_measured(
        "playhouse_webhook_request_duration_seconds_count{destination=\"shop\",outcome=\"gone\"} 2",
    );
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let (elsewhere, world) = (Receiver::start(|| StatusCode::OK).await, World::new());
    for status in [301, 302, 303, 307, 308] {
        let (status, url) = (StatusCode::from_u16(status).unwrap(), elsewhere.url());
        let receiver = Receiver::start(move || (status, [("location", url.clone())])).await;
        let cause = refusal(&world.destination(&receiver.url())).await;
        assert!(cause.contains(status.as_str()) && cause.contains("redirects are not followed"), "{cause}");
    }
    assert_eq!(elsewhere.count(), 0);
}

#[tokio::test]
async fn who_does_not_answer_is_given_up() {
    let world = World::new();
    let silent = Receiver::start_slow(std::future::pending).await;
    let good = Receiver::start(|| unending(StatusCode::OK, "I")).await;
    let bad = Receiver::start(|| unending(StatusCode::BAD_GATEWAY, "Well, I")).await;
    let impatient = |receiver: &Receiver| {
        world.with(Config { timeout: Duration::from_secs(1), ..config(&receiver.url()) })
    };
    let [silent, good, bad] = [impatient(&silent), impatient(&good), impatient(&bad)];
    let (silent, good, bad) = tokio::join!(refusal(&silent), send(&good), refusal(&bad));
    assert_eq!(silent, "it did not answer within 1s");
    // What the status has said counts, although the rest does not come.
    assert_eq!(good, Sent::Delivered);
    assert_eq!(bad, "it answered 502 Bad Gateway: Well, I");
}

#[tokio::test]
async fn of_a_huge_answer_little_is_read() {
    for status in [StatusCode::OK, StatusCode::INTERNAL_SERVER_ERROR] {
        let (written, world) = (Arc::new(AtomicUsize::new(0)), World::new());
        let counted = written.clone();
        let receiver = Receiver::start(move || {
            let (counted, chunk) = (counted.clone(), Bytes::from(vec![b'x'; 64 << 10]));
            let endless = stream::repeat_with(move || {
                counted.fetch_add(chunk.len(), Ordering::Relaxed);
                Ok::<_, std::io::Error>(chunk.clone())
            });
            (status, Body::from_stream(endless)).into_response()
        })
        .await;
        match send(&world.destination(&receiver.url())).await {
            Sent::Delivered => assert_eq!(status, 200),
            Sent::Refused { cause, .. } => {
                assert_eq!(cause, format!("it answered {status}: {}", "x".repeat(200)));
            }
            other => panic!("{other:?}"),
        }
        let written = written.load(Ordering::Relaxed);
        assert!(
            written < 32 << 20,
            "{written} bytes, where what is not read fills the buffers of the sockets"
        );
    }
}

#[tokio::test]
async fn who_hangs_up_is_judged_by_what_was_said() {
    let world = World::new();
    for (answer, verdict) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhal", None),
        (
            "HTTP/1.1 500 No\r\ncontent-length: 100\r\n\r\nhal",
            Some("it answered 500 Internal Server Error: hal"),
        ),
        ("HTTP/1.1 200 OK\r\ncontent-le", Some("")),
        ("SSH-2.0-OpenSSH_9.2\r\n", Some("")),
        ("", Some("")),
    ] {
        let url = start_raw(answer).await;
        match (send(&world.destination(&format!("{url}?token=psst"))).await, verdict) {
            (Sent::Delivered, None) => {}
            (Sent::Refused { cause, .. }, Some(verdict)) => {
                assert!(cause.starts_with(verdict), "{answer:?}: {cause}");
                assert!(!cause.contains("psst") && !cause.contains("hook"), "{cause}");
            }
            (other, _) => panic!("{answer:?}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn who_is_not_there_is_told_from_who_refuses() {
    let world = World::new();
    let cause = refusal(&world.destination("http://127.0.0.1:1/hook?token=psst")).await;
    assert!(cause.contains("refused") && !cause.contains("psst"), "{cause}");
    world.assert_measured(
        "playhouse_webhook_request_duration_seconds_count{destination=\"shop\",outcome=\"failed\"} 1",
    );
    world.assert_measured("playhouse_webhook_resting{destination=\"shop\"} 1");
}
