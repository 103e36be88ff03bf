//! Events are published three times while notifiers are killed.

use std::collections::BTreeSet;

use testkit::{Seed, need};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::setup::{Player, Process, Setup, news};
use super::stream_client::{Received, numbers};
use crate::*;

const USERS: usize = 50;
/// These events are published three times, the others once: no repeat makes up for a lost one.
const REPEATED: usize = 10_000;
const SINGLE: usize = 2_000;
const EVENTS: usize = REPEATED + SINGLE;
const NOTIFIERS: usize = 3;
const KILLS: usize = 6;
const KILL_INTERVAL: Duration = Duration::from_secs(2);

/// Reads a player's stream until all their notifications have arrived.
async fn follow(player: Player, at: String) -> Received {
    let (mut received, mut stream) = (Received::after(0), player.stream(&at, Some(0)).await);
    assert!(received.read_until(&mut stream, EVENTS / USERS).await, "the stream ended");
    received
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_events_and_kills_notify_every_player_once() {
    let setup = need!(Setup::start().await);
    let api = setup.process("gateway,service-api").await;
    let mut notifiers = Vec::new();
    for _ in 0..NOTIFIERS {
        notifiers.push(setup.process("notifier").await);
    }
    let mut players = Vec::new();
    for n in 0..USERS {
        players.push(setup.player(&api, &format!("player-{n}")).await);
    }
    let mut streams = JoinSet::new();
    for player in &players {
        streams.spawn(follow(player.clone(), api.gateway().to_owned()));
    }

    let bodies: Vec<String> = (0..EVENTS).map(|n| news(players[n % USERS].user, n)).collect();
    let (round, _) = watch::channel(0);
    let mut publishers = JoinSet::new();
    let seed = Seed::new();
    for (number, bodies) in (1..).zip([&bodies[..], &bodies[..REPEATED], &bodies[..REPEATED]]) {
        let (mut bodies, mut round) = (bodies.to_vec(), round.subscribe());
        let publisher = setup.publisher().await;
        let mut choices = seed.choices(number);
        publishers.spawn(async move {
            choices.shuffle(&mut bodies);
            // Some before each kill, so that notifiers always have events in flight.
            for (number, some) in bodies.chunks(EVENTS.div_ceil(KILLS)).enumerate() {
                round.wait_for(|round| *round > number).await.unwrap();
                publisher.publish(some).await;
            }
        });
    }
    let (mut interval, mut choices) = (tokio::time::interval(KILL_INTERVAL), seed.choices(0));
    for number in 1..=KILLS {
        interval.tick().await;
        round.send_replace(number);
        tokio::time::sleep(KILL_INTERVAL.mul_f64(choices.f64() / 2.0)).await;
        notifiers.swap_remove(choices.usize(..NOTIFIERS)).kill().await;
        notifiers.push(Process::start(&setup.program("notifier")).await);
    }
    while let Some(published) = publishers.join_next().await {
        published.unwrap();
    }

    let (mut different, mut count) = (BTreeSet::new(), 0);
    while let Some(received) = streams.join_next().await {
        let received = received.unwrap();
        count += received.ids().len();
        different.extend(numbers(&received.notifications));
    }
    assert_eq!((count, different.len()), (EVENTS, EVENTS));
    setup.wait_until_acknowledged(&setup.publisher().await).await;
    assert_eq!(setup.count("SELECT COUNT(*) FROM notification").await, EVENTS as i64);
    assert_eq!(setup.count("SELECT COUNT(*) FROM notification_event").await, EVENTS as i64);
    assert_eq!(setup.count("SELECT COUNT(*) FROM notification_dlq").await, 0);
    testkit::eventually("all deliveries are marked as sent", PATIENCE, async || {
        setup.count("SELECT COUNT(*) FROM notification_live WHERE state <> 1").await == 0
    })
    .await;
    assert_eq!(setup.count("SELECT COUNT(*) FROM notification_live").await, EVENTS as i64);
    // No inbox has more than these.
    for player in &players {
        let (_, page) = player.get(api.gateway(), "/v1/notifications?limit=1").await;
        assert_eq!(page["last_event_id"], (EVENTS / USERS).to_string(), "{page}");
    }
}
