//! The documented lock: it is respected where it is asked for, and no step is done after it was lost.

use std::time::{Duration, Instant};

use base::error::Coded;
use futures::FutureExt;
use futures::future::BoxFuture;
use matchmaking::{Error, Queue};
use testkit::{Proxy, Redis, eventually, need};

use crate::setup::{PATIENCE, Raw, Setup, Tickets, group, id, ids, to, user};

const STEPS: [&str; 5] = ["fetch", "release", "delete", "deindex", "assign"];

/// All names of the lock.
fn names(tickets: &Tickets) -> [String; 4] {
    let name = tickets.key("fetchTicketsLock");
    [0, 1, 2, 3].map(|at| if at == 3 { name.clone() } else { format!("rueidislock:{at}:{name}") })
}

/// One of the steps, on a ticket of its own.
fn step(tickets: &Tickets, step: &'static str, number: usize) -> BoxFuture<'static, Result<(), Error>> {
    let tickets = tickets.clone();
    async move {
        match step {
            "fetch" => tickets.fetch(&"engine".into(), 1).await.map(drop),
            "release" => tickets.release(&[id(number)]).await,
            "delete" => tickets.delete(&id(number)).await.map(drop),
            "deindex" => tickets.deindex(&id(number)).await,
            _ => tickets.assign(&[group("match", vec![id(number)])]).await.map(drop),
        }
    }
    .boxed()
}

/// How many scripts the server has been asked to run.
async fn calls(raw: &mut Raw) -> u64 {
    let text: String = raw.ask(&["INFO", "commandstats"]).await;
    let line = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_waits_for_each_name_of_the_lock_and_goes_on_when_it_is_free() {
    // Of its own: what it is asked is counted.
    let redis = need!(Redis::private().await);
    let tickets = Setup::lock(&redis).open().await;
    let mut raw = tickets.raw().await;
    tickets.create_all(0..40).await;
    for (at, name) in names(&tickets).iter().enumerate() {
        for (number, what) in STEPS.into_iter().enumerate() {
            raw.set(name, b"theirs", 60).await;
            let asked = calls(&mut raw).await;
            let running = tokio::spawn(step(&tickets, what, 39 - at * 5 - number));
            let mut look = raw.clone();
            eventually("it asks for the lock again and again", PATIENCE, || {
                let mut raw = look.clone();
                async move { calls(&mut raw).await >= asked + 4 }
            })
            .await;
            assert!(!running.is_finished(), "{what} does not wait for {name}");
            assert_eq!(look.get(name).await.unwrap(), "theirs", "{what} takes {name} away");
            look.ask::<()>(&["DEL", name]).await;
            let done = tokio::time::timeout(PATIENCE, running).await.expect("it goes on");
            done.unwrap().unwrap();
        }
    }
    for name in names(&tickets) {
        assert_eq!(raw.get(&name).await, None, "{name} is left behind");
    }
    assert_eq!(tickets.all().await.len(), 40 - 4 * 3, "each step was done");
}

#[tokio::test(flavor = "multi_thread")]
async fn joining_and_sweeping_wait_for_the_lock_and_looking_does_not() {
    let redis = need!(Redis::private().await);
    let tickets = Setup::lock(&redis).open().await;
    let gone = Queue { cancel_when_gone: Some(Duration::from_millis(1)), ..Queue::default() };
    let players = tickets.players([("duel", gone)]);
    let (mut raw, name) = (tickets.raw().await, names(&tickets)[0].clone());
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
    // Nothing is overdue: nobody is asked for the lock.
    raw.set(&name, b"theirs", 60).await;
    assert_eq!(players.tick().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_holder_died_ends_by_itself() {
    let tickets = Setup::lock(need!(Redis::shared().await)).open().await;
    let mut raw = tickets.raw().await;
    tickets.create_all(0..1).await;
    let started = Instant::now();
    raw.ask::<()>(&["SET", &names(&tickets)[0], "theirs", "PX", "400"]).await;
    assert_eq!(tickets.take(1).await, ids([0]));
    let waited = started.elapsed();
    assert!(waited >= Duration::from_millis(400) && waited < Duration::from_secs(5), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn making_and_reading_tickets_does_not_wait_for_the_lock() {
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
async fn scripts_need_no_lock_and_take_none() {
    let tickets = Setup::script(need!(Redis::shared().await)).open().await;
    let mut raw = tickets.raw().await;
    tickets.create_all(0..5).await;
    for name in names(&tickets) {
        raw.set(&name, b"theirs", 600).await;
    }
    for (number, what) in STEPS.into_iter().enumerate() {
        step(&tickets, what, number).await.unwrap();
    }
    for name in names(&tickets) {
        assert_eq!(raw.get(&name).await.unwrap(), "theirs");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_whose_lock_was_stolen_does_nothing_and_says_so() {
    let redis = need!(Redis::private().await);
    let proxy = Proxy::to(redis.addr()).await;
    let slow = Setup::lock(&redis).through(proxy.url(&redis.url()), Duration::from_secs(10)).open().await;
    let mut raw = slow.raw().await;
    slow.create_all(0..5).await;
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
    // Between taking the lock and the step there is now time enough to steal it.
    proxy.delay(Duration::from_millis(200)).await;
    for (number, what) in STEPS.into_iter().enumerate() {
        // The release is of the one that is pending.
        let running = tokio::spawn(step(&slow, what, if what == "release" { 0 } else { number }));
        eventually("it has the lock", PATIENCE, || {
            let (mut raw, name) = (raw.clone(), name.clone());
            async move { raw.get(&name).await.is_some() }
        })
        .await;
        raw.set(&name, b"thief", 60).await;
        let error = running.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Locked) && error.is_passing(), "{what}: {error:?}");
        assert_eq!(state(&mut raw).await, before, "{what}");
        assert_eq!(raw.get(&name).await.unwrap(), "thief", "the thief's lock is the thief's");
        raw.ask::<()>(&["DEL", &name]).await;
    }
    proxy.pass().await;
    assert_eq!(slow.take(10).await, ids(1..5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_never_gets_free_is_an_error_that_passes() {
    let tickets = Setup::lock(need!(Redis::shared().await)).open().await;
    let mut raw = tickets.raw().await;
    tickets.create_all(0..1).await;
    raw.set(&names(&tickets)[1], b"theirs", 600).await;
    let error = tickets.fetch(&"engine".into(), 1).await.unwrap_err();
    assert!(matches!(error, Error::Locked) && error.is_passing(), "{error:?}");
    raw.ask::<()>(&["DEL", &names(&tickets)[1]]).await;
    assert_eq!(tickets.take(1).await, ids([0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_is_held_for_as_long_as_a_step_takes() {
    let redis = need!(Redis::private().await);
    let proxy = Proxy::to(redis.addr()).await;
    let slow = Setup::lock(&redis).through(proxy.url(&redis.url()), Duration::from_secs(10)).open().await;
    let mut raw = slow.raw().await;
    slow.create_all(0..1).await;
    slow.release(&ids([0])).await.unwrap();
    // A step whose script has to be loaded takes three ways there and back, which is longer than a lock lives that nobody
    // extends. The lock's own scripts are there.
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
async fn a_caller_that_goes_away_leaves_no_lock_behind() {
    let redis = need!(Redis::shared().await);
    let tickets = Setup::lock(redis).open().await;
    tickets.create_all(0..100).await;
    let started = Instant::now();
    for number in 0..100 {
        // Cut off at any point, from before the lock is asked for to after the step.
        let cut = Duration::from_micros(u64::try_from(number).unwrap() * 20);
        let _ = tokio::time::timeout(cut, tickets.delete(&id(number))).await;
    }
    tickets.fetch(&"engine".into(), 1).await.unwrap();
    // One lock that had to end by itself would have taken longer.
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}
