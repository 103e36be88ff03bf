//! The documented lock: steps respect it if configured, and do nothing after it was lost.

use std::time::{Duration, Instant};

use base::error::Coded;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use matchmaking::model::BackfillId;
use matchmaking::store::{AssignmentGroup, Assignments, ClaimRequest, Coordination, DirectGroup, Holder};
use matchmaking::{Error, Queue};
use testkit::{FaultProxy, Redis, eventually, need};

use crate::setup::{PATIENCE, Raw, Setup, Tickets, group, id, ids, only, to, user};

const STEPS: [&str; 11] = [
    "fetch",
    "release",
    "delete",
    "deindex",
    "assign",
    "claim",
    "assign_directly",
    "assign_backfill",
    "update_backfill",
    "delete_backfill",
    "release_all",
];

/// The steps that hand out or assign tickets: they are refused while another program holds the lock.
const EXCLUSIVE: [&str; 5] = ["fetch", "assign", "claim", "assign_directly", "assign_backfill"];

/// Returns all names of the lock.
fn names(tickets: &Tickets) -> [String; 4] {
    let name = tickets.key("fetchTicketsLock");
    [0, 1, 2, 3].map(|at| if at == 3 { name.clone() } else { format!("rueidislock:{at}:{name}") })
}

/// Runs one of the steps on its own ticket.
fn step(tickets: &Tickets, step: &'static str, number: usize) -> BoxFuture<'static, Result<(), Error>> {
    let tickets = tickets.clone();
    async move {
        match step {
            "fetch" => tickets.fetch(&"engine".into(), 1).await.map(drop),
            "release" => tickets.release(&[id(number)]).await,
            "delete" => tickets.delete(&id(number)).await.map(drop),
            "deindex" => tickets.deindex(&id(number)).await,
            "claim" => tickets.claim(&[request(number)]).await.map(drop),
            "assign_directly" => {
                let AssignmentGroup { tickets: members, encoded_match, .. } =
                    group("direct", vec![id(number)]);
                let assignment = encoded_match.clone();
                let direct = DirectGroup { tickets: members, assignment, encoded_match };
                tickets.assign_directly(&[direct]).await.map(drop)
            }
            "assign_backfill" => {
                let made = group("backfill", vec![id(number)]);
                let (held, assignment) = ([id(number)], Assignments::Shared(only(&made)));
                tickets.assign_backfill(&backfill(), &held, &assignment, &made.encoded_match).await.map(drop)
            }
            "update_backfill" => {
                tickets.update_backfill(&backfill(), &Bytes::new(), &Bytes::new()).await.map(drop)
            }
            "delete_backfill" => tickets.delete_backfill(&backfill()).await.map(drop),
            "release_all" => tickets.release_all().await.map(drop),
            _ => tickets.assign(&[group("match", vec![id(number)])]).await.map(drop),
        }
    }
    .boxed()
}

/// Returns a match of one ticket to claim.
fn request(number: usize) -> ClaimRequest {
    ClaimRequest { number: None, holder: Holder::default(), tickets: vec![id(number)], backfill: None }
}

fn backfill() -> BackfillId {
    BackfillId::parse("dbt8pcfejq8o287bsa0g").unwrap()
}

/// Returns how many scripts the server has run.
async fn calls(raw: &mut Raw) -> u64 {
    let text: String = raw.ask(&["INFO", "commandstats"]).await;
    let line = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_step_waits_for_the_holder_of_the_lock() {
    // A server of its own, because its commands are counted.
    let redis = need!(Redis::private().await);
    let tickets = Setup::lock(&redis).open().await;
    let mut raw = tickets.raw().await;
    tickets.create_all(0..100).await;
    // A process of ours, and programs that hold two or all of the library's keys.
    let [first, second, third, ours] = names(&tickets);
    let holders = [vec![&ours], vec![&first, &second], vec![&second, &third], vec![&first, &second, &third]];
    for (at, names) in holders.into_iter().enumerate() {
        for (number, what) in STEPS.into_iter().enumerate() {
            for name in &names {
                raw.set(name, b"theirs", 60).await;
            }
            let asked = calls(&mut raw).await;
            let running = tokio::spawn(step(&tickets, what, 99 - at * STEPS.len() - number));
            let mut look = raw.clone();
            eventually("it asks for the lock again and again", PATIENCE, || {
                let mut raw = look.clone();
                async move { calls(&mut raw).await >= asked + 4 }
            })
            .await;
            assert!(!running.is_finished(), "{what} does not wait for {names:?}");
            for name in &names {
                assert_eq!(look.get(name).await.unwrap(), "theirs", "{what} takes {name} away");
            }
            // One key of the library may stay.
            for name in &names[..(names.len() - 1).max(1)] {
                look.ask::<()>(&["DEL", name]).await;
            }
            let done = tokio::time::timeout(PATIENCE, running).await.expect("it goes on");
            done.unwrap().unwrap();
            if let Some(name) = names.last() {
                look.ask::<()>(&["DEL", name]).await;
            }
        }
    }
    for name in names(&tickets) {
        assert_eq!(raw.get(&name).await, None, "{name} is left behind");
    }
    assert_eq!(tickets.all().await.len(), 100 - 4 * 4, "each step was done");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_that_is_left_behind_stalls_nobody() {
    let tickets = Setup::lock(need!(Redis::shared().await)).open().await;
    let mut raw = tickets.raw().await;
    tickets.create_all(0..40).await;
    let started = Instant::now();
    for (at, left) in names(&tickets)[..3].iter().enumerate() {
        raw.set(left, b"theirs", 60).await;
        for (number, what) in STEPS.into_iter().enumerate() {
            step(&tickets, what, 39 - at * STEPS.len() - number).await.unwrap();
        }
        assert_eq!(raw.get(left).await.unwrap(), "theirs", "the key of the other program is its own");
        raw.ask::<()>(&["DEL", left]).await;
    }
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    for name in names(&tickets) {
        assert_eq!(raw.get(&name).await, None, "{name} is left behind");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn library_cannot_get_the_majority_while_we_hold_the_lock() {
    let redis = need!(Redis::private().await);
    let proxy = FaultProxy::to(redis.addr()).await;
    let slow = Setup::lock(&redis).through(proxy.url(&redis.url()), Duration::from_secs(10)).open().await;
    let mut raw = slow.raw().await;
    slow.create_all(0..5).await;
    slow.release(&[id(0)]).await.unwrap();
    let [first, second, third, ours] = names(&slow);
    for left in [None, Some(&first), Some(&second), Some(&third)] {
        if let Some(left) = left {
            raw.set(left, b"left", 60).await;
        }
        proxy.delay(Duration::from_millis(200)).await;
        let running = tokio::spawn(step(&slow, "fetch", 0));
        eventually("it has the lock", PATIENCE, || {
            let (mut raw, ours) = (raw.clone(), ours.clone());
            async move { raw.get(&ours).await.is_some() }
        })
        .await;
        // As the library: a key that is there is a failure, and it needs two.
        let mut got = 0;
        for name in [&first, &second, &third] {
            let taken: Option<String> = raw.ask(&["SET", name, "library", "NX", "PX", "1"]).await;
            got += usize::from(taken.is_some());
        }
        assert!(got < 2, "the library got {got} keys while {left:?} was left behind");
        running.await.unwrap().unwrap();
        proxy.pass().await;
        raw.ask::<()>(&["DEL", &first, &second, &third]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_of_another_program_makes_steps_take_its_lock() {
    let redis = need!(Redis::shared().await);
    for step_of in EXCLUSIVE {
        let tickets = Setup::script(redis).open().await;
        let mut raw = tickets.raw().await;
        tickets.create_all(0..5).await;
        let [first, second, _, ours] = names(&tickets);
        for name in [&first, &second] {
            raw.set(name, b"theirs", 60).await;
        }
        let running = tokio::spawn(step(&tickets, step_of, 0));
        eventually("its lock is met", PATIENCE, async || {
            let met = tickets.counter("foreign_locks");
            (met >= 3).then_some(()).ok_or(met)
        })
        .await;
        assert!(!running.is_finished(), "{step_of} runs while another program holds the lock");
        assert!(tickets.find(&id(0)).await.unwrap().assignment.is_none());
        let pending: u64 = raw.ask(&["ZCARD", &tickets.key("proposed_ticket_ids")]).await;
        assert_eq!(pending, 0);
        raw.ask::<()>(&["DEL", &first, &second]).await;
        tokio::time::timeout(PATIENCE, running).await.expect("it goes on").unwrap().unwrap();
        // From now on every step takes the lock, also those that were never refused.
        raw.set(&ours, b"theirs", 60).await;
        let running = tokio::spawn(step(&tickets, "release", 1));
        tokio::time::timeout(Duration::from_millis(300), running).await.expect_err("it waits for the lock");
        raw.ask::<()>(&["DEL", &ours]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_of_our_own_process_is_not_that_of_another_program() {
    let redis = need!(Redis::private().await);
    let proxy = FaultProxy::to(redis.addr()).await;
    let holder = Setup::lock(&redis).through(proxy.url(&redis.url()), Duration::from_secs(10)).open().await;
    let beside = holder.setup.clone().with(|rules| rules.coordination = Coordination::Script);
    let beside = beside.through(redis.url(), Duration::from_secs(10)).open().await;
    let mut raw = holder.raw().await;
    holder.create_all(0..10).await;
    holder.release(&[id(0)]).await.unwrap();
    let [first, _, _, ours] = names(&holder);
    for (number, step_of) in EXCLUSIVE.into_iter().enumerate() {
        // The delay leaves time for the other process between taking the lock and the step.
        proxy.delay(Duration::from_millis(300)).await;
        let running = tokio::spawn(step(&holder, "delete", 9 - number));
        eventually("it has the lock", PATIENCE, || {
            let (mut raw, ours, first) = (raw.clone(), ours.clone(), first.clone());
            async move {
                let (lock, library) = (raw.get(&ours).await, raw.get(&first).await);
                lock.is_some() && lock == library
            }
        })
        .await;
        step(&beside, step_of, number).await.unwrap();
        assert!(!running.is_finished(), "{step_of} did not wait for it");
        running.await.unwrap().unwrap();
        proxy.pass().await;
    }
    assert_eq!(beside.counter("foreign_locks"), 0);
    // A key that another program has left behind still counts while a process of ours holds the lock.
    raw.set(&ours, b"ours", 60).await;
    raw.set(&first, b"theirs", 60).await;
    let running = tokio::spawn(step(&beside, "fetch", 0));
    eventually("its lock is met", PATIENCE, async || {
        let met = beside.counter("foreign_locks");
        (met >= 1).then_some(()).ok_or(met)
    })
    .await;
    raw.ask::<()>(&["DEL", &ours]).await;
    tokio::time::timeout(PATIENCE, running).await.expect("it goes on").unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn join_and_sweep_wait_for_the_lock_and_reads_do_not() {
    let redis = need!(Redis::private().await);
    let tickets = Setup::lock(&redis).open().await;
    let gone = Queue { cancel_when_gone: Some(Duration::from_millis(1)), ..Queue::default() };
    let players = tickets.players([("duel", gone)]);
    let (mut raw, name) = (tickets.raw().await, names(&tickets)[3].clone());
    for what in ["join", "sweep"] {
        raw.set(&name, b"theirs", 60).await;
        let asked = calls(&mut raw).await;
        let (of, running) = (players.clone(), what == "join");
        let running = tokio::spawn(async move {
            if running { of.join(user(0), to("duel")).await.map(drop) } else { of.tick().await.map(drop) }
        });
        let look = raw.clone();
        eventually("it asks for the lock again and again", PATIENCE, || {
            let mut raw = look.clone();
            async move { calls(&mut raw).await >= asked + 5 }
        })
        .await;
        assert!(!running.is_finished(), "{what} does not wait");
        let there = usize::from(what == "sweep");
        assert_eq!(players.tickets(user(0)).await.unwrap().len(), there);
        raw.ask::<()>(&["DEL", &name]).await;
        tokio::time::timeout(PATIENCE, running).await.expect("it goes on").unwrap().unwrap();
        assert_eq!(players.tickets(user(0)).await.unwrap().len(), 1 - there, "{what} was done");
    }
    // Nothing is overdue, so the lock is not taken.
    raw.set(&name, b"theirs", 60).await;
    assert_eq!(players.tick().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_of_a_dead_holder_expires() {
    let tickets = Setup::lock(need!(Redis::shared().await)).open().await;
    let mut raw = tickets.raw().await;
    tickets.create_all(0..1).await;
    let started = Instant::now();
    raw.ask::<()>(&["SET", &names(&tickets)[3], "theirs", "PX", "400"]).await;
    assert_eq!(tickets.take(1).await, ids([0]));
    let waited = started.elapsed();
    assert!(waited >= Duration::from_millis(400) && waited < Duration::from_secs(5), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn creating_and_reading_tickets_does_not_wait_for_the_lock() {
    let tickets = Setup::lock(need!(Redis::shared().await)).open().await;
    let mut raw = tickets.raw().await;
    for name in names(&tickets) {
        raw.set(&name, b"theirs", 600).await;
    }
    tickets.create_all(0..1).await;
    assert!(tickets.find(&id(0)).await.unwrap().data.is_some());
    assert_eq!(tickets.read(&ids([0])).await.unwrap().len(), 1);
    assert_eq!(tickets.list(1).await.unwrap().1, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn script_coordination_takes_no_lock() {
    let tickets = Setup::script(need!(Redis::shared().await)).open().await;
    let mut raw = tickets.raw().await;
    tickets.create_all(0..STEPS.len()).await;
    let [first, second, third, ours] = names(&tickets);
    raw.set(&ours, b"theirs", 600).await;
    for (number, what) in STEPS.into_iter().enumerate() {
        step(&tickets, what, number).await.unwrap();
    }
    assert_eq!(raw.get(&ours).await.unwrap(), "theirs");
    for name in [first, second, third] {
        assert_eq!(raw.get(&name).await, None);
    }
    assert_eq!(tickets.counter("foreign_locks"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn step_with_a_stolen_lock_does_nothing_and_fails() {
    let redis = need!(Redis::private().await);
    let proxy = FaultProxy::to(redis.addr()).await;
    let slow = Setup::lock(&redis).through(proxy.url(&redis.url()), Duration::from_secs(10)).open().await;
    let mut raw = slow.raw().await;
    slow.create_all(0..STEPS.len()).await;
    assert_eq!(slow.take(1).await, ids([0]));
    let state = async |raw: &mut Raw| -> (Vec<String>, Vec<String>, Vec<String>, u64) {
        (
            raw.ask(&["ZRANGE", &slow.key("ticketQueue"), "0", "-1"]).await,
            raw.ask(&["ZRANGE", &slow.key("proposed_ticket_ids"), "0", "-1", "WITHSCORES"]).await,
            slow.keys().await.into_iter().filter(|key| !key.contains("fetchTicketsLock")).collect(),
            raw.ask(&["SCARD", &slow.key("allTickets")]).await,
        )
    };
    let before = state(&mut raw).await;
    let [_, _, _, name] = names(&slow);
    // The delay leaves time to steal the lock between taking it and the step.
    proxy.delay(Duration::from_millis(200)).await;
    for (number, what) in STEPS.into_iter().enumerate() {
        // The released ticket is the pending one.
        let running = tokio::spawn(step(&slow, what, if what == "release" { 0 } else { number }));
        eventually("it has the lock", PATIENCE, || {
            let (mut raw, name) = (raw.clone(), name.clone());
            async move { raw.get(&name).await.is_some() }
        })
        .await;
        raw.set(&name, b"thief", 60).await;
        let error = running.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Locked) && error.is_transient(), "{what}: {error:?}");
        assert_eq!(state(&mut raw).await, before, "{what}");
        assert_eq!(raw.get(&name).await.unwrap(), "thief", "the thief's lock is the thief's");
        raw.ask::<()>(&["DEL", &name]).await;
    }
    proxy.pass().await;
    assert_eq!(slow.take(20).await, ids(1..STEPS.len()));
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_timeout_is_a_transient_error() {
    let tickets = Setup::lock(need!(Redis::shared().await)).open().await;
    let mut raw = tickets.raw().await;
    tickets.create_all(0..1).await;
    raw.set(&names(&tickets)[3], b"theirs", 600).await;
    let error = tickets.fetch(&"engine".into(), 1).await.unwrap_err();
    assert!(matches!(error, Error::Locked) && error.is_transient(), "{error:?}");
    raw.ask::<()>(&["DEL", &names(&tickets)[3]]).await;
    assert_eq!(tickets.take(1).await, ids([0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_is_held_for_the_whole_step() {
    let redis = need!(Redis::private().await);
    let proxy = FaultProxy::to(redis.addr()).await;
    let slow = Setup::lock(&redis).through(proxy.url(&redis.url()), Duration::from_secs(10)).open().await;
    let mut raw = slow.raw().await;
    slow.create_all(0..1).await;
    slow.release(&ids([0])).await.unwrap();
    // A step whose script must be loaded takes three round trips, longer than an unextended lock lives. The lock's own
    // scripts are already loaded.
    proxy.delay(Duration::from_millis(900)).await;
    let running = tokio::spawn(step(&slow, "fetch", 0));
    eventually("it has the lock", PATIENCE, || {
        let (mut raw, name) = (raw.clone(), slow.key("fetchTicketsLock"));
        async move { raw.get(&name).await.is_some() }
    })
    .await;
    let started = Instant::now();
    raw.ask::<()>(&["SCRIPT", "FLUSH"]).await;
    raw.ask::<()>(&["SCRIPT", "LOAD", include_str!("../../src/store/redis/scripts/extend.lua")]).await;
    running.await.unwrap().unwrap();
    assert!(started.elapsed() > Duration::from_secs(5), "{:?}", started.elapsed());
    let pending = slow.key("proposed_ticket_ids");
    assert!(raw.ask::<Option<String>>(&["ZSCORE", &pending, id(0).as_str()]).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_caller_leaves_no_lock_behind() {
    let redis = need!(Redis::shared().await);
    let tickets = Setup::lock(redis).open().await;
    tickets.create_all(0..100).await;
    let started = Instant::now();
    for number in 0..100 {
        // Cancel at any point, from before the lock is requested to after the step.
        let cut = Duration::from_micros(u64::try_from(number).unwrap() * 20);
        let _ = tokio::time::timeout(cut, tickets.delete(&id(number))).await;
    }
    tickets.fetch(&"engine".into(), 1).await.unwrap();
    // A lock that had to expire would have taken longer.
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}
