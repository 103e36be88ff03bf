//! Requests, and the handling of responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, stream};
use testkit::Program;
use webhook::{Config, Message, SendOutcome};

use crate::TIMEOUT;
use crate::fixture::{Fixture, config, refusal, send};
use crate::receiver::{Receiver, start_raw};

/// Returns a response whose body starts with `beginning` and never ends.
fn unending(status: StatusCode, beginning: &'static str) -> Response {
    let beginning = stream::iter([Ok::<_, std::io::Error>(Bytes::from(beginning))]);
    (status, Body::from_stream(beginning.chain(stream::pending()))).into_response()
}

#[tokio::test]
async fn message_arrives() {
    let (receiver, fixture) = (Receiver::start(|| StatusCode::NO_CONTENT).await, Fixture::new());
    let (shop, id) = (fixture.destination(&receiver.url()), "msg_1".parse().unwrap());
    let message = Message { id: &id, body: "{\"a\":1}".into(), traceparent: Some("00-1-2-01") };
    assert_eq!(shop.send(&message).await, SendOutcome::Delivered);
    let (headers, body) = receiver.received().remove(0);
    assert_eq!(body, "{\"a\":1}");
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["webhook-id"], "msg_1");
    assert_eq!(headers["webhook-timestamp"], "784111777");
    assert!(headers["webhook-signature"].to_str().unwrap().starts_with("v1,"));
    assert_eq!(headers["traceparent"], "00-1-2-01");
    assert!(headers["user-agent"].to_str().unwrap().starts_with("playhouse/"));

    let broken = Message { traceparent: Some("no\nheader"), ..message };
    assert_eq!(shop.send(&broken).await, SendOutcome::Delivered, "an invalid traceparent is omitted");
    fixture.assert_measured(
        "playhouse_webhook_request_duration_seconds_count{destination=\"shop\",outcome=\"delivered\"} 2",
    );
}

/// Runs the test above in another process whose environment has an unreachable proxy.
#[tokio::test]
async fn proxies_of_the_environment_are_not_used() {
    let mut again =
        Program::new(std::env::current_exe().unwrap()).args(["--exact", "delivery::message_arrives"]);
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        again = again.env(name, "http://127.0.0.1:1");
    }
    let running = again.env("no_proxy", "").env("NO_PROXY", "").start().unwrap();
    let status = running.wait(TIMEOUT).await;
    let output: Vec<String> = running.lines().into_iter().map(|line| line.text).collect();
    assert!(status.success() && output.iter().any(|line| line.contains("1 passed")), "{output:#?}");
}

#[tokio::test]
async fn only_success_statuses_count_as_delivered() {
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
        let (receiver, fixture) = (Receiver::start(move || (status, "body")).await, Fixture::new());
        match send(&fixture.destination(&receiver.url())).await {
            SendOutcome::Delivered => assert!(is_good, "{status}"),
            SendOutcome::Failed { cause, retry_after: None, backoff } => {
                assert!(!is_good, "{status}");
                assert!(cause.starts_with(&format!("it answered {status}")), "{cause}");
                assert!(!backoff.is_zero());
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(receiver.count(), 1, "{status}: one attempt");
    }
}

#[tokio::test]
async fn gone_destination_is_reported() {
    let (receiver, fixture) = (Receiver::start(|| (StatusCode::GONE, "bye")).await, Fixture::new());
    let shop = fixture.destination(&receiver.url());
    for _ in 0..2 {
        let cause = "it answered 410 Gone: bye".to_owned();
        assert_eq!(
            send(&shop).await,
            SendOutcome::Gone { cause },
            "no backoff: the caller disables the destination"
        );
    }
    fixture.assert_measured(
        "playhouse_webhook_request_duration_seconds_count{destination=\"shop\",outcome=\"gone\"} 2",
    );
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let (elsewhere, fixture) = (Receiver::start(|| StatusCode::OK).await, Fixture::new());
    for status in [301, 302, 303, 307, 308] {
        let (status, url) = (StatusCode::from_u16(status).unwrap(), elsewhere.url());
        let receiver = Receiver::start(move || (status, [("location", url.clone())])).await;
        let cause = refusal(&fixture.destination(&receiver.url())).await;
        assert!(cause.contains(status.as_str()) && cause.contains("Redirects are not followed"), "{cause}");
    }
    assert_eq!(elsewhere.count(), 0);
}

#[tokio::test]
async fn silent_destination_times_out() {
    let fixture = Fixture::new();
    let silent = Receiver::start_slow(std::future::pending).await;
    let good = Receiver::start(|| unending(StatusCode::OK, "I")).await;
    let bad = Receiver::start(|| unending(StatusCode::BAD_GATEWAY, "Well, I")).await;
    let impatient = |receiver: &Receiver| {
        fixture.with(Config { timeout: Duration::from_secs(1), ..config(&receiver.url()) })
    };
    let [silent, good, bad] = [impatient(&silent), impatient(&good), impatient(&bad)];
    let (silent, good, bad) = tokio::join!(refusal(&silent), send(&good), refusal(&bad));
    assert_eq!(silent, "it did not answer within 1s");
    // The status counts even if the body does not end.
    assert_eq!(good, SendOutcome::Delivered);
    assert_eq!(bad, "it answered 502 Bad Gateway: Well, I");
}

#[tokio::test]
async fn only_the_beginning_of_a_huge_response_is_read() {
    for status in [StatusCode::OK, StatusCode::INTERNAL_SERVER_ERROR] {
        let (written, fixture) = (Arc::new(AtomicUsize::new(0)), Fixture::new());
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
        match send(&fixture.destination(&receiver.url())).await {
            SendOutcome::Delivered => assert_eq!(status, 200),
            SendOutcome::Failed { cause, .. } => {
                assert_eq!(cause, format!("it answered {status}: {}", "x".repeat(200)));
            }
            other => panic!("{other:?}"),
        }
        let written = written.load(Ordering::Relaxed);
        assert!(written < 32 << 20, "{written} bytes; unread bytes fill the socket buffers");
    }
}

#[tokio::test]
async fn truncated_response_counts_by_its_status() {
    let fixture = Fixture::new();
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
        match (send(&fixture.destination(&format!("{url}?token=psst"))).await, verdict) {
            (SendOutcome::Delivered, None) => {}
            (SendOutcome::Failed { cause, .. }, Some(verdict)) => {
                assert!(cause.starts_with(verdict), "{answer:?}: {cause}");
                assert!(!cause.contains("psst") && !cause.contains("hook"), "{cause}");
            }
            (other, _) => panic!("{answer:?}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn refused_connection_is_a_failure() {
    let fixture = Fixture::new();
    let cause = refusal(&fixture.destination("http://127.0.0.1:1/hook?token=psst")).await;
    assert!(cause.contains("refused") && !cause.contains("psst"), "{cause}");
    fixture.assert_measured(
        "playhouse_webhook_request_duration_seconds_count{destination=\"shop\",outcome=\"failed\"} 1",
    );
    fixture.assert_measured("playhouse_webhook_resting{destination=\"shop\"} 1");
}
