//! Tickets of absent players.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use http_server::Connection;
use matchmaking::store::Coordination;
use matchmaking::{PlayerState, Players, Queue};
use runtime::Drain;
use testkit::{FaultProxy, Redis, eventually, need};

use crate::setup::{PATIENCE, Setup, Tickets, to, user};

const GONE: Duration = Duration::from_millis(900);

/// The step of the manual clock.
const STEP: Duration = Duration::from_millis(10);

for_every_store! {
    ticket_is_cancelled_if_its_player_never_opens_a_stream,
    ticket_is_kept_while_a_stream_is_open_and_cancelled_after_it_closes,
    stream_in_any_process_keeps_all_tickets_of_its_player,
    assigned_ticket_is_not_cancelled_for_absence,
    concurrent_sweeps_cancel_each_ticket_once,
    loop_cancels_overdue_tickets_and_watchers_see_it,
    queue_that_starts_to_cancel_knows_the_streams_that_are_open,
}

fn queue() -> Queue {
    Queue { cancel_when_gone: Some(GONE), ..Queue::default() }
}

fn players(tickets: &Tickets) -> Players {
    tickets.players([("duel", queue()), ("patient", Queue::default())])
}

/// Lets time pass, and calls `look` repeatedly.
async fn during(tickets: &Tickets, time: Duration, look: impl AsyncFn()) {
    let start = tickets.clock.now();
    advance_until(tickets, async || {
        look().await;
        tickets.clock.now().distance(start) >= time
    })
    .await;
}

/// Sweeps until a ticket is cancelled. Returns how long that took.
async fn time_to_cancel(tickets: &Tickets, players: &Players) -> Duration {
    let start = tickets.clock.now();
    advance_until(tickets, async || players.tick().await.unwrap() == 1).await;
    tickets.clock.now().distance(start)
}

/// Lets time pass until the condition holds.
async fn advance_until(tickets: &Tickets, is_so: impl AsyncFn() -> bool) {
    if tickets.is_in_redis() {
        return eventually("it is so", PATIENCE, async || is_so().await).await;
    }
    for _ in 0..PATIENCE.as_millis() / STEP.as_millis() {
        tickets.pass(STEP);
        if is_so().await {
            return;
        }
    }
    panic!("it never was so");
}

fn assert_in_time(tickets: &Tickets, took: Duration) {
    assert!(took >= GONE, "{took:?}: too early");
    let late = took - GONE;
    assert!(tickets.is_in_redis() || late <= STEP, "{took:?}: too late");
}

async fn ticket_is_cancelled_if_its_player_never_opens_a_stream(setup: Setup) {
    let tickets = setup.open().await;
    let players = players(&tickets);
    let patient = players.join(user(1), to("patient")).await.unwrap().ticket;
    let before = tickets.clock.now();
    let ticket = players.join(user(0), to("duel")).await.unwrap().ticket;
    time_to_cancel(&tickets, &players).await;
    assert_in_time(&tickets, tickets.clock.now().distance(before));
    assert_eq!(players.tickets(user(0)).await.unwrap(), []);
    assert_eq!(tickets.all().await, [patient.id], "which waits until its time is over");
    assert_eq!(tickets.counter("tickets_abandoned"), 1);
    assert_eq!(players.tick().await.unwrap(), 0);
    let next = players.join(user(0), to("duel")).await.unwrap();
    assert!(next.is_new && next.ticket.id != ticket.id);
}

async fn ticket_is_kept_while_a_stream_is_open_and_cancelled_after_it_closes(setup: Setup) {
    let tickets = setup.open().await;
    let players = players(&tickets);
    let ticket = players.join(user(0), to("duel")).await.unwrap().ticket;
    let [one, two] = [players.mark_present(user(0)), players.mark_present(user(0))];
    let stays = async || {
        during(&tickets, GONE * 2, async || assert_eq!(players.tick().await.unwrap(), 0)).await;
    };
    stays().await;
    drop(one);
    stays().await;
    assert_eq!(players.tickets(user(0)).await.unwrap(), std::slice::from_ref(&ticket));
    // However long no report could be sent.
    tickets.pass(GONE * 2);
    assert_eq!(players.tick().await.unwrap(), 0);
    // Some time after the last report of the open stream, and before the next one.
    tickets.pass(GONE / 4);
    drop(two);
    assert_in_time(&tickets, time_to_cancel(&tickets, &players).await);
}

async fn stream_in_any_process_keeps_all_tickets_of_its_player(setup: Setup) {
    let tickets = setup.open().await;
    let beside = || Queue { allow_other_queues: true, ..queue() };
    let open = |tickets: &Tickets| tickets.players([("a", beside()), ("b", beside())]);
    let players = open(&tickets);
    let elsewhere = open(&tickets.elsewhere().await);
    // The stream is open before the tickets exist, and knows none of them.
    let stream = elsewhere.mark_present(user(0));
    for queue in ["a", "b"] {
        players.join(user(0), to(queue)).await.unwrap();
    }
    during(&tickets, GONE * 2, async || {
        // The process that sweeps is not the one with the stream.
        elsewhere.tick().await.unwrap();
        players.tick().await.unwrap();
    })
    .await;
    assert_eq!(players.tickets(user(0)).await.unwrap().len(), 2);
    drop(stream);
    elsewhere.tick().await.unwrap();
    let cancelled = AtomicUsize::new(0);
    let sweep = async || {
        cancelled.fetch_add(players.tick().await.unwrap(), Ordering::Relaxed);
    };
    during(&tickets, GONE + Duration::from_millis(100), sweep).await;
    assert_eq!(cancelled.into_inner(), 2);
}

async fn assigned_ticket_is_not_cancelled_for_absence(setup: Setup) {
    let tickets = setup.open().await;
    let players = players(&tickets);
    let ticket = players.join(user(0), to("duel")).await.unwrap().ticket;
    tickets.play("match", &[&ticket]).await;
    during(&tickets, GONE * 2, async || assert_eq!(players.tick().await.unwrap(), 0)).await;
    let ticket = players.ticket(user(0), ticket.id.as_str()).await.unwrap();
    assert_eq!(ticket.state, PlayerState::Assigned);
    if tickets.is_in_redis() {
        assert!(!tickets.keys().await.contains(&"presence".to_owned()), "and is looked at no more");
    }
}

async fn concurrent_sweeps_cancel_each_ticket_once(setup: Setup) {
    let tickets = setup.open().await;
    // More than one script handles, unless each of them has to take the lock.
    let count = if tickets.setup.rules.coordination == Coordination::Lock { 60 } else { 1200 };
    let sweepers =
        [players(&tickets), players(&tickets.elsewhere().await), players(&tickets.elsewhere().await)];
    let joining = (0..count).map(|number| {
        let players = sweepers[number % 3].clone();
        async move { players.join(user(number as u128), to("duel")).await.unwrap() }
    });
    join_all(joining).await;
    let cancelled = AtomicUsize::new(0);
    eventually("all are cancelled", PATIENCE, async || {
        tickets.pass(Duration::from_millis(100));
        let swept = join_all(sweepers.iter().map(Players::tick)).await;
        let swept = swept.into_iter().map(Result::unwrap).sum::<usize>();
        cancelled.fetch_add(swept, Ordering::Relaxed) + swept >= count
    })
    .await;
    assert_eq!(cancelled.into_inner(), count);
    assert_eq!(tickets.all().await, []);
}

async fn queue_that_starts_to_cancel_knows_the_streams_that_are_open(setup: Setup) {
    let tickets = setup.open().await;
    let players = tickets.players([("duel", Queue::default())]);
    let drain = Drain::new();
    let (looping, until) = (players.clone(), drain.clone());
    let running = tokio::spawn(async move { looping.run(until).await.unwrap() });
    let stream = players.mark_present(user(0));
    players.set_queues(Arc::new([("duel".to_owned(), queue())].into()));
    let present = players.join(user(0), to("duel")).await.unwrap().ticket;
    players.join(user(1), to("duel")).await.unwrap();
    advance_until(&tickets, async || {
        players.tick().await.unwrap();
        players.tickets(user(1)).await.unwrap().is_empty()
    })
    .await;
    assert_eq!(players.tickets(user(0)).await.unwrap(), [present], "the stream was opened before the change");
    drop(stream);
    // The loop alone finds it. It may see the end of the stream only after some of that time has passed.
    eventually("it is cancelled", PATIENCE, async || {
        tickets.pass(STEP);
        players.tickets(user(0)).await.unwrap().is_empty()
    })
    .await;
    drain.request();
    tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap();
}

async fn loop_cancels_overdue_tickets_and_watchers_see_it(setup: Setup) {
    let tickets = setup.open().await;
    let players = players(&tickets);
    let drain = Drain::new();
    let (frontend, running) = (tickets.frontend.clone(), players.clone());
    let (of, also) = (drain.clone(), drain.clone());
    let listening = tokio::spawn(async move { frontend.run(of).await });
    let sweeping = tokio::spawn(async move { running.run(also).await });

    let [stays, goes] = [0, 1].map(user);
    let connection = Connection::new(([127, 0, 0, 1], 1).into(), drain.clone());
    let kept = players.join(stays, to("duel")).await.unwrap().ticket;
    let mut watching = pin!(players.watch(stays, kept.id.as_str(), &connection).await.unwrap());
    assert_eq!(watching.next().await.unwrap().unwrap(), kept);
    let lost = players.join(goes, to("duel")).await.unwrap().ticket;
    // A watcher elsewhere does not count as the player.
    let mut looking = pin!(tickets.frontend.watch(lost.id.as_str(), &connection).await.unwrap());
    // The loop uses real time, so the manual clock must not run ahead.
    let start = tickets.clock.now();
    let time = eventually("time has passed", PATIENCE, async || {
        tickets.pass(STEP * 4);
        tickets.clock.now().distance(start) >= GONE * 3
    });
    let ((), end) = tokio::join!(time, tokio::time::timeout(PATIENCE, looking.next()));
    let end = end.expect("the watcher gets an event").unwrap();
    assert!(matches!(end, Err(matchmaking::Error::NotFound(id)) if id == lost.id.as_str()));
    assert_eq!(players.tickets(stays).await.unwrap(), [kept]);
    assert_eq!(players.tickets(goes).await.unwrap(), []);
    assert_eq!(tickets.counter("tickets_abandoned"), 1);
    drain.request();
    for ended in [listening, sweeping] {
        tokio::time::timeout(PATIENCE, ended).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn player_who_returns_during_a_sweep_keeps_the_ticket() {
    // A server of its own, because its commands are counted.
    let redis = need!(Redis::private().await);
    let proxy = FaultProxy::to(redis.addr()).await;
    let quick = Setup::script(&redis).open().await;
    let slow = quick.setup.clone().through(proxy.url(&redis.url()), PATIENCE).open().await;
    let (here, there) = (players(&quick), players(&slow));
    // The server has all scripts from here on.
    here.join(user(1), to("duel")).await.unwrap();
    time_to_cancel(&quick, &here).await;
    let mut raw = quick.raw().await;
    raw.ask::<()>(&["CONFIG", "RESETSTAT"]).await;
    let ticket = here.join(user(0), to("duel")).await.unwrap().ticket;
    during(&quick, GONE * 2, async || {}).await;
    proxy.delay(Duration::from_millis(150)).await;
    let sweeping = tokio::spawn(async move { there.tick().await });
    eventually("it has looked", PATIENCE, || {
        let mut raw = raw.clone();
        async move { raw.ask::<String>(&["INFO", "commandstats"]).await.contains("cmdstat_zrangebyscore:") }
    })
    .await;
    let _stream = here.mark_present(user(0));
    assert_eq!(here.tick().await.unwrap(), 0);
    assert_eq!(sweeping.await.unwrap().unwrap(), 0);
    assert_eq!(here.tickets(user(0)).await.unwrap(), [ticket]);
}
