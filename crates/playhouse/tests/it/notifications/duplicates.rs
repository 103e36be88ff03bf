//! Every event comes three times, and those who take them in die again and again.

use std::collections::BTreeSet;

use testkit::{Seed, need};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::stage::{Player, Process, Stage, news};
use super::tape::{Tape, numbers};
use crate::*;

const USERS: usize = 50;
/// So many come three times, and some once only: nobody makes good for what is lost of them.
const REPEATED: usize = 10_000;
const SINGLE: usize = 2_000;
const EVENTS: usize = REPEATED + SINGLE;
const NOTIFIERS: usize = 3;
const KILLS: usize = 6;
const BETWEEN: Duration = Duration::from_secs(2);

/// Follows a player's stream until all their notifications are there, and one more that is the last.
async fn follow(player: Player, at: String) -> Tape {
    let (mut tape, mut stream) = (Tape::from(0), player.stream(&at, Some(0)).await);
    assert!(tape.record(&mut stream, EVENTS / USERS).await, "the stream is over");
    tape
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_repeats_and_kills_tells_everybody_everything_once() {
    let stage = need!(Stage::start().await);
    let door = stage.process("gateway,service-api").await;
    let mut notifiers = Vec::new();
    for _ in 0..NOTIFIERS {
        notifiers.push(stage.process("notifier").await);
    }
    let mut players = Vec::new();
    for n in 0..USERS {
        players.push(stage.player(&door, &format!("player-{n}")).await);
    }
    let mut streams = JoinSet::new();
    for player in &players {
        streams.spawn(follow(player.clone(), door.gateway().to_owned()));
    }

    let bodies: Vec<String> = (0..EVENTS).map(|n| news(players[n % USERS].user, n)).collect();
    let (begun, _) = watch::channel(0);
    let mut publishers = JoinSet::new();
    let seed = Seed::new();
    for (number, bodies) in (1..).zip([&bodies[..], &bodies[..REPEATED], &bodies[..REPEATED]]) {
        let (mut bodies, mut begun) = (bodies.to_vec(), begun.subscribe());
        let publisher = stage.publisher().await;
        let mut choices = seed.choices(number);
        publishers.spawn(async move {
            choices.shuffle(&mut bodies);
            // Some before each kill, so that there is always something in hand.
            for (turn, some) in bodies.chunks(EVENTS.div_ceil(KILLS)).enumerate() {
                begun.wait_for(|turns| *turns > turn).await.unwrap();
                publisher.publish(some).await;
            }
        });
    }
    let (mut beat, mut choices) = (tokio::time::interval(BETWEEN), seed.choices(0));
    for turn in 1..=KILLS {
        beat.tick().await;
        begun.send_replace(turn);
        tokio::time::sleep(BETWEEN.mul_f64(choices.f64() / 2.0)).await;
        notifiers.swap_remove(choices.usize(..NOTIFIERS)).kill().await;
        notifiers.push(Process::start(&stage.program("notifier")).await);
    }
    while let Some(published) = publishers.join_next().await {
        published.unwrap();
    }

    let (mut everything, mut told) = (BTreeSet::new(), 0);
    while let Some(tape) = streams.join_next().await {
        let tape = tape.unwrap();
        told += tape.ids().len();
        everything.extend(numbers(&tape.notifications));
    }
    assert_eq!((told, everything.len()), (EVENTS, EVENTS));
    stage.all_taken_in(&stage.publisher().await).await;
    assert_eq!(stage.count("SELECT COUNT(*) FROM notification").await, EVENTS as i64);
    assert_eq!(stage.count("SELECT COUNT(*) FROM notification_event").await, EVENTS as i64);
    assert_eq!(stage.count("SELECT COUNT(*) FROM notification_dlq").await, 0);
    testkit::eventually("all deliveries are written down", PATIENCE, async || {
        stage.count("SELECT COUNT(*) FROM notification_live WHERE state <> 1").await == 0
    })
    .await;
    assert_eq!(stage.count("SELECT COUNT(*) FROM notification_live").await, EVENTS as i64);
    // Nobody was told anything besides: what comes now is the next.
    for player in &players {
        let (_, page) = player.get(door.gateway(), "/v1/notifications?limit=1").await;
        assert_eq!(page["last_event_id"], (EVENTS / USERS).to_string(), "{page}");
    }
}
