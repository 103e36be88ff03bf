//! Tickets whose players are gone.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use http_server::Connection;
use matchmaking::store::Coordination;
use matchmaking::{PlayerState, Players, Queue};
use runtime::Drain;
use testkit::{Proxy, Redis, eventually, need};

use crate::setup::{PATIENCE, Setup, Tickets, to, user};

const GONE: Duration = Duration::from_millis(900);

/// How far our own clock moves at a time.
const STEP: Duration = Duration::from_millis(10);

for_every_store! {
    a_ticket_is_cancelled_so_long_after_it_was_made_if_nobody_comes,
    while_a_stream_is_open_nothing_is_cancelled_and_its_end_is_what_counts,
    a_stream_in_any_process_keeps_all_tickets_of_its_player,
    a_ticket_with_a_match_is_not_cancelled,
    several_who_sweep_cancel_each_ticket_once,
    the_loop_does_all_of_it_and_watchers_are_told,
}

fn queue() -> Queue {
    Queue { cancel_when_gone: Some(GONE), ..Queue::default() }
}

fn players(tickets: &Tickets) -> Players {
    tickets.players([("duel", queue()), ("patient", Queue::default())])
}

/// Lets time pass, and looks at it all the while.
async fn during(tickets: &Tickets, time: Duration, look: impl AsyncFn()) {
    let start = tickets.clock.now();
    watch_the_clock(tickets, async || {
        look().await;
        tickets.clock.now().distance(start) >= time
    })
    .await;
}

/// Sweeps until a ticket is cancelled, and tells how long that took.
async fn time_to_cancel(tickets: &Tickets, players: &Players) -> Duration {
    let start = tickets.clock.now();
    watch_the_clock(tickets, async || players.tick().await.unwrap() == 1).await;
    tickets.clock.now().distance(start)
}

/// Lets time pass until something is so.
async fn watch_the_clock(tickets: &Tickets, is_so: impl AsyncFn() -> bool) {
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

async fn a_ticket_is_cancelled_so_long_after_it_was_made_if_nobody_comes(setup: Setup) {
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
    assert!(next.created && next.ticket.id != ticket.id);
}

async fn while_a_stream_is_open_nothing_is_cancelled_and_its_end_is_what_counts(setup: Setup) {
    let tickets = setup.open().await;
    let players = players(&tickets);
    let ticket = players.join(user(0), to("duel")).await.unwrap().ticket;
    let [one, two] = [players.present(user(0)), players.present(user(0))];
    let stays = async || {
        during(&tickets, GONE * 2, async || assert_eq!(players.tick().await.unwrap(), 0)).await;
    };
    stays().await;
    drop(one);
    stays().await;
    assert_eq!(players.tickets(user(0)).await.unwrap(), std::slice::from_ref(&ticket));
    // However long nobody could say so.
    tickets.pass(GONE * 2);
    assert_eq!(players.tick().await.unwrap(), 0);
    // Some time after it was last said that the stream is open, and before it would be said again.
    tickets.pass(GONE / 4);
    drop(two);
    assert_in_time(&tickets, time_to_cancel(&tickets, &players).await);
}

async fn a_stream_in_any_process_keeps_all_tickets_of_its_player(setup: Setup) {
    let tickets = setup.open().await;
    let beside = || Queue { beside_others: true, ..queue() };
    let open = |tickets: &Tickets| tickets.players([("a", beside()), ("b", beside())]);
    let players = open(&tickets);
    let elsewhere = open(&tickets.elsewhere().await);
    // It is open before the tickets are made, and knows none of them.
    let stream = elsewhere.present(user(0));
    for queue in ["a", "b"] {
        players.join(user(0), to(queue)).await.unwrap();
    }
    during(&tickets, GONE * 2, async || {
        // The one that sweeps is not the one that has the stream.
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

async fn a_ticket_with_a_match_is_not_cancelled(setup: Setup) {
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

async fn several_who_sweep_cancel_each_ticket_once(setup: Setup) {
    let tickets = setup.open().await;
    // More than one script takes, but where each of them has to take the lock.
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

async fn the_loop_does_all_of_it_and_watchers_are_told(setup: Setup) {
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
    // Who looks on from elsewhere is not the player.
    let mut looking = pin!(tickets.frontend.watch(lost.id.as_str(), &connection).await.unwrap());
    // The loop goes by real time: our own clock does not overtake it.
    let start = tickets.clock.now();
    let time = eventually("time has passed", PATIENCE, async || {
        tickets.pass(STEP * 4);
        tickets.clock.now().distance(start) >= GONE * 3
    });
    let ((), end) = tokio::join!(time, tokio::time::timeout(PATIENCE, looking.next()));
    let end = end.expect("it is told").unwrap();
    assert!(matches!(end, Err(matchmaking::Error::NotFound(id)) if id == lost.id));
    assert_eq!(players.tickets(stays).await.unwrap(), [kept]);
    assert_eq!(players.tickets(goes).await.unwrap(), []);
    assert_eq!(tickets.counter("tickets_abandoned"), 1);
    drain.request();
    for ended in [listening, sweeping] {
        tokio::time::timeout(PATIENCE, ended).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_back_between_the_look_and_the_sweep_keeps_the_ticket() {
    // Of its own: what it is asked is counted.
    let redis = need!(Redis::private().await);
    let proxy = Proxy::to(redis.addr()).await;
    let quick = Setup::script(&redis).open().await;
    let slow = quick.setup.clone().through(proxy.url(&redis.url()), PATIENCE).open().await;
    let (here, there) = (players(&quick), players(&slow));
    // The server knows all scripts from here on.
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
    let _stream = here.present(user(0));
    assert_eq!(here.tick().await.unwrap(), 0);
    assert_eq!(sweeping.await.unwrap().unwrap(), 0);
    assert_eq!(here.tickets(user(0)).await.unwrap(), [ticket]);
}
