//! The generator against a frontend that can be told to do wrong.

#![expect(clippy::unwrap_used, reason = "a test that fails has failed")]

mod frontend;

use std::time::Duration;

use frontend::{Behaviour, start};
use open_match_load::{Faults, Options, Outcome, Target, closed_loop, idle, open_loop, preload};

const NONE: Duration = Duration::ZERO;

fn options() -> Options {
    Options {
        connections: Some(4),
        timeout: Duration::from_secs(2),
        linger_every: 1,
        linger: Duration::from_millis(50),
    }
}

/// 200 players at 1,000 per second.
fn offer(behaviour: Behaviour) -> Outcome {
    offer_with(behaviour, &options())
}

fn offer_with(behaviour: Behaviour, options: &Options) -> Outcome {
    let target = start(behaviour);
    open_match_load::run(open_loop(&target, options, 1000.0, NONE, Duration::from_millis(200)))
        .unwrap()
        .unwrap()
}

#[test]
fn everybody_is_assigned() {
    let outcome = offer(Behaviour::default());
    assert!(outcome.flawless(), "{outcome}");
    assert_eq!((outcome.started, outcome.assigned, outcome.latency.count()), (200, 200, 200));
}

#[test]
fn everybody_is_assigned_over_a_connection_of_their_own() {
    let outcome = offer_with(Behaviour::default(), &Options { connections: None, ..options() });
    assert!(outcome.flawless(), "{outcome}");
    assert_eq!(outcome.assigned, 200);
}

#[test]
fn a_closed_loop_ends_with_nobody_left() {
    let target = start(Behaviour::default());
    for players in [16, 7] {
        let outcome =
            open_match_load::run(closed_loop(&target, &options(), players, NONE, Duration::from_millis(300)))
                .unwrap()
                .unwrap();
        assert!(outcome.flawless(), "{outcome}");
        assert!(outcome.assigned > 20, "{outcome}");
    }
}

#[test]
fn few_streams_per_connection_are_enough() {
    let outcome = offer(Behaviour { max_streams: Some(2), ..Behaviour::default() });
    assert!(outcome.flawless(), "{outcome}");
}

#[test]
fn connections_that_the_server_closes_are_opened_again() {
    let outcome = offer(Behaviour { goodbye_after: 30, ..Behaviour::default() });
    assert!(outcome.flawless(), "{outcome}");
}

#[test]
fn opponents_who_are_sent_apart_are_noticed() {
    let outcome = offer(Behaviour { apart_every: 10, ..Behaviour::default() });
    assert_eq!(outcome.faults, Faults { alone: 20, ..Faults::default() }, "{outcome}");
    assert!(!outcome.flawless());
}

#[test]
fn a_second_assignment_is_noticed() {
    let options = Options { linger: Duration::from_secs(2), ..options() };
    let outcome = offer_with(Behaviour { twice: true, ..Behaviour::default() }, &options);
    assert_eq!(outcome.faults, Faults { changed: 200, ..Faults::default() }, "{outcome}");
}

#[test]
fn errors_are_counted() {
    let outcome = offer(Behaviour { refuse: true, ..Behaviour::default() });
    assert_eq!(outcome.assigned, 0);
    let expected = [("gRPC status 14: not now".to_owned(), 200)];
    assert_eq!(outcome.failures, expected.into(), "{outcome}");
}

#[test]
fn silence_is_a_timeout() {
    let options = Options { timeout: Duration::from_millis(300), ..options() };
    let outcome = offer_with(Behaviour { silent: true, ..Behaviour::default() }, &options);
    assert_eq!(outcome.failures, [("timeout".to_owned(), 200)].into(), "{outcome}");
}

#[test]
fn a_generator_that_is_late_says_so() {
    let target = start(Behaviour::default());
    let offered = async {
        tokio::task::spawn_local(async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            std::thread::sleep(Duration::from_millis(300));
        });
        open_loop(&target, &options(), 1000.0, NONE, Duration::from_millis(500)).await
    };
    let outcome = open_match_load::run(offered).unwrap().unwrap();
    assert!(outcome.complaints().iter().any(|complaint| complaint.contains("late")), "{outcome}");
}

#[test]
fn idle_watchers_stay() {
    let target: Target = start(Behaviour { silent: true, ..Behaviour::default() });
    let watched = async {
        let idle = idle(&target, &options(), 300).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        (idle.waiting(), idle.troubles())
    };
    assert_eq!(open_match_load::run(watched).unwrap(), (300, vec![]));
}

#[test]
fn idle_watchers_that_find_no_room_are_an_error() {
    let target = start(Behaviour { silent: true, max_streams: Some(10), ..Behaviour::default() });
    let refused = open_match_load::run(idle(&target, &options(), 300)).unwrap().unwrap_err();
    assert!(refused.to_string().contains("40 streams"), "{refused}");
}

#[test]
fn tickets_are_created_ahead() {
    let target = start(Behaviour { silent: true, ..Behaviour::default() });
    let mut tickets = open_match_load::run(preload(&target, &options(), 1000)).unwrap().unwrap();
    tickets.sort();
    tickets.dedup();
    assert_eq!(tickets.len(), 1000);
}
