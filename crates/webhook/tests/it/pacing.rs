//! Limits of concurrency and backoff.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use futures::future::join_all;
use testkit::eventually;
use tokio::sync::Semaphore;
use webhook::{Config, SendOutcome};

use crate::TIMEOUT;
use crate::fixture::{Fixture, config, refusal, send};
use crate::receiver::Receiver;

const MINUTE: Duration = Duration::from_secs(60);

/// Starts a server that sends one response per permit of the semaphore.
async fn held() -> (Receiver, Arc<Semaphore>) {
    let answers = Arc::new(Semaphore::new(0));
    let taken = answers.clone();
    let receiver = Receiver::start_slow(move || {
        let taken = taken.clone();
        async move {
            taken.acquire().await.unwrap().forget();
            StatusCode::OK.into_response()
        }
    });
    (receiver.await, answers)
}

async fn arrived(receiver: &Receiver, count: usize) {
    eventually("requests", TIMEOUT, || async { (receiver.count() == count).then_some(()) }).await;
}

fn deferred(sent: SendOutcome) -> Duration {
    match sent {
        SendOutcome::Deferred { wait } => wait,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn requests_in_flight_are_limited() {
    let ((receiver, answers), fixture) = (held().await, Fixture::new());
    let shop = Arc::new(fixture.with(Config { max_in_flight: 2, ..config(&receiver.url()) }));
    let sending = [0, 1].map(|_| {
        let shop = shop.clone();
        tokio::spawn(async move { send(&shop).await })
    });
    arrived(&receiver, 2).await;
    assert!(deferred(send(&shop).await) > Duration::ZERO);
    fixture.assert_measured("playhouse_webhook_put_off_total{destination=\"shop\",reason=\"full\"} 1");
    answers.add_permits(3);
    for sent in join_all(sending).await {
        assert_eq!(sent.unwrap(), SendOutcome::Delivered);
    }
    assert_eq!(send(&shop).await, SendOutcome::Delivered);
    assert_eq!(receiver.count(), 3);
}

#[tokio::test]
async fn cancelled_request_frees_its_place() {
    let ((receiver, answers), fixture) = (held().await, Fixture::new());
    let shop = fixture.with(Config { max_in_flight: 1, ..config(&receiver.url()) });
    tokio::select! {
        sent = send(&shop) => panic!("{sent:?}"),
        () = arrived(&receiver, 1) => {}
    }
    answers.add_permits(2);
    assert_eq!(send(&shop).await, SendOutcome::Delivered);
}

#[tokio::test]
async fn failing_destination_backs_off_and_is_probed_by_one_request() {
    let is_well = Arc::new(AtomicBool::new(false));
    let (seen, fixture) = (is_well.clone(), Fixture::new());
    let receiver = Receiver::start(move || match seen.load(Ordering::SeqCst) {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    })
    .await;
    let shop = fixture.destination(&receiver.url());
    let mut longest = Duration::ZERO;
    for failures in 1..=5 {
        let SendOutcome::Failed { backoff, retry_after: None, .. } = send(&shop).await else {
            panic!("the request must fail")
        };
        assert!(backoff >= longest, "{backoff:?} after {longest:?}");
        longest = backoff;
        for _ in 0..3 {
            assert_eq!(deferred(send(&shop).await), backoff);
        }
        assert_eq!(receiver.count(), failures, "nothing is sent during the backoff");
        fixture.clock.advance(backoff);
    }
    fixture.assert_measured("playhouse_webhook_put_off_total{destination=\"shop\",reason=\"resting\"} 15");
    fixture.assert_measured("playhouse_webhook_resting{destination=\"shop\"} 1");

    // Of concurrent requests, one is sent.
    let sent = join_all([send(&shop), send(&shop), send(&shop)]).await;
    assert_eq!(sent.iter().filter(|sent| matches!(sent, SendOutcome::Failed { .. })).count(), 1, "{sent:?}");
    assert_eq!(receiver.count(), 6);

    is_well.store(true, Ordering::SeqCst);
    fixture.clock.advance(MINUTE);
    assert_eq!(send(&shop).await, SendOutcome::Delivered);
    fixture.assert_measured("playhouse_webhook_resting{destination=\"shop\"} 0");
    let sent = join_all([send(&shop), send(&shop), send(&shop)]).await;
    assert_eq!(sent, [SendOutcome::Delivered, SendOutcome::Delivered, SendOutcome::Delivered]);
}

#[tokio::test]
async fn retry_after_is_respected() {
    let hour = MINUTE * 60;
    for (status, header, given) in [
        (StatusCode::TOO_MANY_REQUESTS, "90", Some(Duration::from_secs(90))),
        (StatusCode::SERVICE_UNAVAILABLE, "Sun, 06 Nov 1994 08:51:37 GMT", Some(MINUTE * 2)),
        (StatusCode::SERVICE_UNAVAILABLE, "86400", Some(hour)),
        (StatusCode::SERVICE_UNAVAILABLE, "Sun, 06 Nov 1994 08:00:00 GMT", Some(Duration::ZERO)),
        (StatusCode::SERVICE_UNAVAILABLE, "soon", None),
    ] {
        let (receiver, fixture) =
            (Receiver::start(move || (status, [(RETRY_AFTER, header)])).await, Fixture::new());
        let shop = fixture.destination(&receiver.url());
        let SendOutcome::Failed { retry_after, backoff, .. } = send(&shop).await else {
            panic!("the request must fail")
        };
        assert_eq!(retry_after, given, "{header}");
        match given.unwrap_or_default() {
            Duration::ZERO => {
                assert!(!backoff.is_zero() && backoff <= Duration::from_secs(1), "{header}: {backoff:?}")
            }
            given => assert_eq!(backoff, given, "{header}"),
        }
        fixture.clock.advance(backoff - Duration::from_millis(1));
        assert_eq!(deferred(send(&shop).await), Duration::from_millis(1));
        fixture.clock.advance(Duration::from_millis(1));
        refusal(&shop).await;
        assert_eq!(receiver.count(), 2, "{header}");
    }
}

#[tokio::test]
async fn hanging_destination_delays_no_other() {
    let (silent, fixture) = (Receiver::start_slow(std::future::pending::<Response>).await, Fixture::new());
    let healthy = Receiver::start(|| StatusCode::OK).await;
    let bad = Arc::new(fixture.try_with("bad", config(&silent.url())).unwrap());
    let good = fixture.try_with("good", config(&healthy.url())).unwrap();
    let hanging: Vec<_> = (0..8)
        .map(|_| {
            let bad = bad.clone();
            tokio::spawn(async move { send(&bad).await })
        })
        .collect();
    arrived(&silent, 8).await;
    for _ in 0..50 {
        deferred(send(&bad).await);
        assert_eq!(send(&good).await, SendOutcome::Delivered);
    }
    assert!(hanging.iter().all(|sending| !sending.is_finished()), "the others were still hanging");
    hanging.iter().for_each(tokio::task::JoinHandle::abort);
}
