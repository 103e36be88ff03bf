//! When nothing is sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use futures::future::join_all;
use testkit::eventually;
use tokio::sync::Semaphore;
use webhook::{Config, Sent};

use crate::PATIENCE;
use crate::receiver::Receiver;
use crate::world::{World, config, refusal, send};

const MINUTE: Duration = Duration::from_secs(60);

/// A server that answers as often as it is let.
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
    eventually("requests", PATIENCE, || async { (receiver.count() == count).then_some(()) }).await;
}

fn not_now(sent: Sent) -> Duration {
    match sent {
        Sent::NotNow { wait } => wait,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn no_more_requests_are_made_than_it_may_have() {
    let ((receiver, answers), world) = (held().await, World::new());
    let shop = Arc::new(world.with(Config { max_in_flight: 2, ..config(&receiver.url()) }));
    let sending = [0, 1].map(|_| {
        let shop = shop.clone();
        tokio::spawn(async move { send(&shop).await })
    });
    arrived(&receiver, 2).await;
    assert!(not_now(send(&shop).await) > Duration::ZERO);
    world.assert_measured("playhouse_webhook_put_off_total{destination=\"shop\",reason=\"full\"} 1");
    answers.add_permits(3);
    for sent in join_all(sending).await {
        assert_eq!(sent.unwrap(), Sent::Delivered);
    }
    assert_eq!(send(&shop).await, Sent::Delivered);
    assert_eq!(receiver.count(), 3);
}

#[tokio::test]
async fn who_gives_up_makes_room() {
    let ((receiver, answers), world) = (held().await, World::new());
    let shop = world.with(Config { max_in_flight: 1, ..config(&receiver.url()) });
    tokio::select! {
        sent = send(&shop) => panic!("{sent:?}"),
        () = arrived(&receiver, 1) => {}
    }
    answers.add_permits(2);
    assert_eq!(send(&shop).await, Sent::Delivered);
}

#[tokio::test]
async fn who_fails_rests_and_is_asked_by_one_until_it_is_back() {
    let is_well = Arc::new(AtomicBool::new(false));
    let (seen, world) = (is_well.clone(), World::new());
    let receiver = Receiver::start(move || match seen.load(Ordering::SeqCst) {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    })
    .await;
    let shop = world.destination(&receiver.url());
    let mut longest = Duration::ZERO;
    for failures in 1..=5 {
        let Sent::Refused { rest, retry_after: None, .. } = send(&shop).await else {
            panic!("it has failed")
        };
        assert!(rest >= longest, "{rest:?} after {longest:?}");
        longest = rest;
        for _ in 0..3 {
            assert_eq!(not_now(send(&shop).await), rest);
        }
        assert_eq!(receiver.count(), failures, "nothing is sent while it rests");
        world.clock.advance(rest);
    }
    world.assert_measured("playhouse_webhook_put_off_total{destination=\"shop\",reason=\"resting\"} 15");
    world.assert_measured("playhouse_webhook_resting{destination=\"shop\"} 1");

    // Of those who come at once, one goes.
    let sent = join_all([send(&shop), send(&shop), send(&shop)]).await;
    assert_eq!(sent.iter().filter(|sent| matches!(sent, Sent::Refused { .. })).count(), 1, "{sent:?}");
    assert_eq!(receiver.count(), 6);

    is_well.store(true, Ordering::SeqCst);
    world.clock.advance(MINUTE);
    assert_eq!(send(&shop).await, Sent::Delivered);
    world.assert_measured("playhouse_webhook_resting{destination=\"shop\"} 0");
    let sent = join_all([send(&shop), send(&shop), send(&shop)]).await;
    assert_eq!(sent, [Sent::Delivered, Sent::Delivered, Sent::Delivered]);
}

#[tokio::test]
async fn who_asks_for_time_is_given_it() {
    let hour = MINUTE * 60;
    for (status, asked, given) in [
        (StatusCode::TOO_MANY_REQUESTS, "90", Some(Duration::from_secs(90))),
        (StatusCode::SERVICE_UNAVAILABLE, "Sun, 06 Nov 1994 08:51:37 GMT", Some(MINUTE * 2)),
        (StatusCode::SERVICE_UNAVAILABLE, "86400", Some(hour)),
        (StatusCode::SERVICE_UNAVAILABLE, "Sun, 06 Nov 1994 08:00:00 GMT", Some(Duration::ZERO)),
        (StatusCode::SERVICE_UNAVAILABLE, "soon", None),
    ] {
        let (receiver, world) =
            (Receiver::start(move || (status, [(RETRY_AFTER, asked)])).await, World::new());
        let shop = world.destination(&receiver.url());
        let Sent::Refused { retry_after, rest, .. } = send(&shop).await else { panic!("it has failed") };
        assert_eq!(retry_after, given, "{asked}");
        match given.unwrap_or_default() {
            Duration::ZERO => assert!(!rest.is_zero() && rest <= Duration::from_secs(1), "{asked}: {rest:?}"),
            given => assert_eq!(rest, given, "{asked}"),
        }
        world.clock.advance(rest - Duration::from_millis(1));
        assert_eq!(not_now(send(&shop).await), Duration::from_millis(1));
        world.clock.advance(Duration::from_millis(1));
        refusal(&shop).await;
        assert_eq!(receiver.count(), 2, "{asked}");
    }
}

#[tokio::test]
async fn one_that_hangs_delays_no_other() {
    let (silent, world) = (Receiver::start_slow(std::future::pending::<Response>).await, World::new());
    let healthy = Receiver::start(|| StatusCode::OK).await;
    let bad = Arc::new(world.try_with("bad", config(&silent.url())).unwrap());
    let good = world.try_with("good", config(&healthy.url())).unwrap();
    let hanging: Vec<_> = (0..8)
        .map(|_| {
            let bad = bad.clone();
            tokio::spawn(async move { send(&bad).await })
        })
        .collect();
    arrived(&silent, 8).await;
    for _ in 0..50 {
        not_now(send(&bad).await);
        assert_eq!(send(&good).await, Sent::Delivered);
    }
    assert!(hanging.iter().all(|sending| !sending.is_finished()), "all of that while they hang");
    hanging.iter().for_each(tokio::task::JoinHandle::abort);
}
