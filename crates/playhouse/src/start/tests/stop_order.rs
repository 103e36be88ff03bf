//! The order in which the background loops of the product stop.

use std::collections::BTreeSet;
use std::sync::Mutex;

use runtime::lifecycle::{Exit, Signals};
use service::StopOrder;
use tokio::time::timeout;

use super::*;
use crate::services::SERVICES;

/// A configuration with which every loop runs.
const EVERY_LOOP: &str = r#"
[identity]
issuer = "https://id.example.com"
[matchmaking.queues.duel]
[matchmaking.profiles.duel]
players = 2
assigner = "fleet"
[matchmaking.assigners.fleet]
kind = "webhook"
url = "http://127.0.0.1:9000"
"#;

/// Loops that hand work to another loop. That one stops later, so the process still handles the work during the stop.
const REQUIRED: [StopOrder; 3] = [
    // The recorder records the matches that engines leave.
    StopOrder { earlier: "matchmaking-engine", later: "matchmaking-recorder" },
    // The relay publishes the matches that the recorder records.
    StopOrder { earlier: "matchmaking-recorder", later: "outbox-relay" },
    // The intake reads the events that the relay publishes. An embedded bus ends with the process.
    StopOrder { earlier: "outbox-relay", later: "notification-intake" },
];

/// The loops that append events to the outbox.
const APPENDING: [&str; 6] = [
    "drops-admissions",
    "drops-endings",
    "matchmaking-engine",
    "matchmaking-ready-checks",
    "matchmaking-recorder",
    "matchmaking-sweeper",
];

/// The loops that append none: they read, deliver, publish, wake or remove.
const OTHERS: [&str; 33] = [
    "audit-log-cleaner",
    "console-live",
    "console-session-cleaner",
    "drops-gauges",
    "drops-reconciler",
    "drops-reservations",
    "drops-webhooks",
    "fleet-heartbeat",
    "fleet-samples",
    "fleet-watch",
    "idempotency-cleaner",
    "identity-keys",
    "jobs",
    "limits-sweep",
    "matchmaking-abandoned",
    "matchmaking-abandoned-cleaner",
    "matchmaking-account-events",
    "matchmaking-backfills",
    "matchmaking-definitions",
    "matchmaking-expired",
    "matchmaking-presence",
    "matchmaking-pushes",
    "matchmaking-queries",
    "matchmaking-wakes",
    "notification-broadcasts",
    "notification-cleaner",
    "notification-deliveries",
    "notification-intake",
    "notification-watch",
    "outbox-cleaner",
    outbox::RELAY,
    "session-ends",
    "session-history",
];

/// Runs loops with these names and orders until all are up, then stops them. Returns their names in the order in which they ended.
async fn run_and_stop(names: &[&'static str], orders: &[StopOrder]) -> Vec<&'static str> {
    let (started, ended) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(Vec::new())));
    let loops = names.iter().map(|name| {
        let name: &'static str = name;
        let body =
            Loop::new(name, (started.clone(), ended.clone()), move |(started, ended), drain| async move {
                *started.lock().unwrap() += 1;
                drain.requested().await;
                tokio::time::sleep(Duration::from_millis(10)).await;
                ended.lock().unwrap().push(name);
                Ok(())
            });
        let earlier = orders.iter().filter(|order| order.later == name).map(|order| order.earlier);
        earlier.fold(body, Loop::stops_after)
    });
    let loops: Vec<Loop> = loops.collect();
    let (settings, _folder) = settings("");
    let process = Process::new(settings.lifecycle, Metrics::new(VERSION));
    let (signal, signals) = Signals::channel();
    let running = process.run(signals, async move |process| {
        Loop::start_all(loops, process);
        Ok::<(), StartError>(())
    });
    let stop = async {
        while *started.lock().unwrap() < names.len() {
            tokio::task::yield_now().await;
        }
        signal.send("SIGTERM").unwrap();
    };
    let (exit, ()) = timeout(PATIENCE, async { tokio::join!(running, stop) }).await.unwrap();
    assert!(matches!(exit, Exit::Clean), "{exit:?}");
    let ended = ended.lock().unwrap();
    ended.clone()
}

#[tokio::test]
async fn loops_stop_before_the_loops_that_handle_their_work() {
    let loops = open(SERVICES, EVERY_LOOP).await.unwrap().loops;
    let names: Vec<&'static str> = loops.iter().map(Loop::name).collect();
    let orders = Loop::stop_orders(&loops);
    for StopOrder { earlier, later } in &orders {
        let is_known = |name| names.contains(name);
        assert!(is_known(earlier) && is_known(later), "{earlier} before {later}: no such loop in {names:?}");
    }
    let ended = run_and_stop(&names, &orders).await;
    let place = |name: &str| ended.iter().position(|ended| *ended == name).unwrap();
    for StopOrder { earlier, later } in orders.iter().chain(&REQUIRED) {
        assert!(place(earlier) < place(later), "{later} stopped before {earlier}: {ended:?}");
    }
    assert!(
        place("notification-intake") == names.len() - 1 && place("outbox-relay") == names.len() - 2,
        "the relay and the intake must stop last, after every loop that may append an event: {ended:?}"
    );
}

/// Returns whether the loop stops before the relay, directly or through other loops.
fn stops_before_relay(name: &str, orders: &[StopOrder]) -> bool {
    let mut later = orders.iter().filter(|order| order.earlier == name).map(|order| order.later);
    later.any(|later| later == outbox::RELAY || stops_before_relay(later, orders))
}

/// An event appended after the relay has stopped would wait for the next start, or for another process.
#[tokio::test]
async fn loops_that_append_events_stop_before_the_relay() {
    let loops = open(SERVICES, EVERY_LOOP).await.unwrap().loops;
    let found: BTreeSet<&str> = loops.iter().map(Loop::name).collect();
    let known: BTreeSet<&str> = APPENDING.into_iter().chain(OTHERS).collect();
    assert_eq!(found, known, "add a new loop to APPENDING or to OTHERS");
    let orders = Loop::stop_orders(&loops);
    for name in APPENDING {
        assert!(
            stops_before_relay(name, &orders),
            "{name} may append events after the relay has stopped: {orders:?}"
        );
    }
}
