//! How fast engines drain a long queue.

use std::time::{Duration, Instant};

use bytes::Bytes;
use open_match_load::{Checks, Options};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use crate::args::Args;
use crate::results::{Results, Row};
use crate::system::{SystemKind, TestBed};

const TICKETS: usize = 50_000;
const INDEX: &str = "allTickets";
const PENDING: &str = "proposed_ticket_ids";
const POLL_INTERVAL: Duration = Duration::from_millis(3);
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) async fn drain(test_bed: &TestBed, kind: SystemKind, args: &Args, results: &mut Results) {
    for (engines, row) in [(1, Row::Drain), (2, Row::DrainByTwo)] {
        for _ in 0..args.rounds() {
            let rate = once(test_bed, kind, engines, results).await;
            results.add(row, kind, rate);
        }
    }
}

/// Returns the tickets per second, from the first poll that sees an engine at work until the last ticket is gone.
///
/// Tickets that are gone at the first poll are not counted, because the time they took is unknown.
async fn once(test_bed: &TestBed, kind: SystemKind, engines: usize, results: &mut Results) -> f64 {
    let mut system = test_bed.start(kind, 0).await;
    let tickets = open_match_load::preload(&system.target, &Options::default(), TICKETS).await.unwrap();
    let mut redis = system.connect().await;
    assert_eq!(queue_length(&mut redis).await, (TICKETS, 0), "tickets that were created wait in {INDEX}");
    let mut watcher = redis.clone();
    let watch = tokio::task::spawn_local(async move {
        let started = Instant::now();
        let mut first = None;
        loop {
            let ((left, pending), now) = (queue_length(&mut watcher).await, Instant::now());
            if first.is_none() && (left < TICKETS || pending > 0) {
                first = Some((left, now));
            }
            match first {
                Some((counted, since)) if left == 0 => return (counted, (now - since).max(POLL_INTERVAL)),
                _ => assert!(started.elapsed() < TIMEOUT, "{left} tickets are left after {TIMEOUT:?}"),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    });
    test_bed.add_engines(&mut system, engines).await;
    let (counted, time) = watch.await.unwrap();
    let rate = counted as f64 / time.as_secs_f64();
    let checks = assignments(&mut redis, &tickets).await;
    results.print(
        kind,
        &format!("{engines} engine(s) drained {counted} of {TICKETS} tickets in {time:?}: {rate:.0}/s"),
    );
    results.add_faults(kind, checks.faults());
    rate
}

/// Returns how many tickets wait, and how many of them an engine has fetched.
async fn queue_length(redis: &mut MultiplexedConnection) -> (usize, usize) {
    redis::pipe().scard(INDEX).zcard(PENDING).query_async(redis).await.unwrap()
}

/// Waits until all assignments are written, and compares them.
async fn assignments(redis: &mut MultiplexedConnection, tickets: &[Bytes]) -> Checks {
    let started = Instant::now();
    loop {
        match try_assignments(redis, tickets).await {
            Some(checks) => return checks,
            None => assert!(started.elapsed() < TIMEOUT, "a ticket has left the queue and is not assigned"),
        }
    }
}

async fn try_assignments(redis: &mut MultiplexedConnection, tickets: &[Bytes]) -> Option<Checks> {
    let mut checks = Checks::default();
    for tickets in tickets.chunks(1000) {
        let keys: Vec<Vec<u8>> = tickets.iter().map(|ticket| [b"assign:", &ticket[..]].concat()).collect();
        let values: Vec<Option<Vec<u8>>> = redis.mget(keys).await.unwrap();
        for (ticket, value) in tickets.iter().zip(values) {
            checks.record_first(ticket, &open_match_load::connection_of(value?.into())?);
        }
    }
    Some(checks)
}
