//! The generator against a frontend that misbehaves on demand.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod frontend;

use std::time::Duration;

use frontend::{Behaviour, start};
use open_match_load::{Faults, LoadReport, Options, Target, closed_loop, idle, open_loop, preload};

const NONE: Duration = Duration::ZERO;

fn options() -> Options {
    Options {
        connections: Some(4),
        timeout: Duration::from_secs(2),
        linger_every: 1,
        linger: Duration::from_millis(50),
    }
}

/// Offers 200 players at 1,000 per second.
fn offer(behaviour: Behaviour) -> LoadReport {
    offer_with(behaviour, &options())
}

fn offer_with(behaviour: Behaviour, options: &Options) -> LoadReport {
    let target = start(behaviour);
    open_match_load::run(open_loop(&target, options, 1000.0, NONE, Duration::from_millis(200)))
        .unwrap()
        .unwrap()
}

#[test]
fn all_players_are_assigned() {
    let report = offer(Behaviour::default());
    assert!(report.is_flawless(), "{report}");
    assert_eq!((report.started, report.assigned, report.latency.count()), (200, 200, 200));
}

#[test]
fn players_with_their_own_connections_are_assigned() {
    let report = offer_with(Behaviour::default(), &Options { connections: None, ..options() });
    assert!(report.is_flawless(), "{report}");
    assert_eq!(report.assigned, 200);
}

#[test]
fn closed_loop_leaves_no_player_unmatched() {
    let target = start(Behaviour::default());
    for players in [16, 7] {
        let report =
            open_match_load::run(closed_loop(&target, &options(), players, NONE, Duration::from_millis(300)))
                .unwrap()
                .unwrap();
        assert!(report.is_flawless(), "{report}");
        assert!(report.assigned > 20, "{report}");
    }
}

#[test]
fn few_streams_per_connection_are_enough() {
    let report = offer(Behaviour { max_streams: Some(2), ..Behaviour::default() });
    assert!(report.is_flawless(), "{report}");
}

#[test]
fn connections_closed_by_the_server_are_reopened() {
    let report = offer(Behaviour { goaway_after: 30, ..Behaviour::default() });
    assert!(report.is_flawless(), "{report}");
}

#[test]
fn opponents_with_different_connections_are_detected() {
    let report = offer(Behaviour { apart_every: 10, ..Behaviour::default() });
    assert_eq!(report.faults, Faults { alone: 20, ..Faults::default() }, "{report}");
    assert!(!report.is_flawless());
}

#[test]
fn second_assignment_is_detected() {
    let options = Options { linger: Duration::from_secs(2), ..options() };
    let report = offer_with(Behaviour { twice: true, ..Behaviour::default() }, &options);
    assert_eq!(report.faults, Faults { changed: 200, ..Faults::default() }, "{report}");
}

#[test]
fn errors_are_counted() {
    let report = offer(Behaviour { refuse: true, ..Behaviour::default() });
    assert_eq!(report.assigned, 0);
    let expected = [("gRPC status 14: not now".to_owned(), 200)];
    assert_eq!(report.failures, expected.into(), "{report}");
}

#[test]
fn silence_is_a_timeout() {
    let options = Options { timeout: Duration::from_millis(300), ..options() };
    let report = offer_with(Behaviour { silent: true, ..Behaviour::default() }, &options);
    assert_eq!(report.failures, [("timeout".to_owned(), 200)].into(), "{report}");
}

#[test]
fn late_generator_is_reported() {
    let target = start(Behaviour::default());
    let offered = async {
        tokio::task::spawn_local(async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            std::thread::sleep(Duration::from_millis(300));
        });
        open_loop(&target, &options(), 1000.0, NONE, Duration::from_millis(500)).await
    };
    let report = open_match_load::run(offered).unwrap().unwrap();
    assert!(report.warnings().iter().any(|warning| warning.contains("late")), "{report}");
}

#[test]
fn idle_watchers_stay() {
    let target: Target = start(Behaviour { silent: true, ..Behaviour::default() });
    let watched = async {
        let idle = idle(&target, &options(), 300).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        (idle.waiting(), idle.errors())
    };
    assert_eq!(open_match_load::run(watched).unwrap(), (300, vec![]));
}

#[test]
fn too_few_streams_for_the_watchers_are_an_error() {
    let target = start(Behaviour { silent: true, max_streams: Some(10), ..Behaviour::default() });
    let refused = open_match_load::run(idle(&target, &options(), 300)).unwrap().unwrap_err();
    assert!(refused.to_string().contains("40 streams"), "{refused}");
}

#[test]
fn preload_creates_distinct_tickets() {
    let target = start(Behaviour { silent: true, ..Behaviour::default() });
    let mut tickets = open_match_load::run(preload(&target, &options(), 1000)).unwrap().unwrap();
    tickets.sort();
    tickets.dedup();
    assert_eq!(tickets.len(), 1000);
}
