//! Streams during store outages and rolling restarts.

use std::time::Instant;

use reqwest::Method;
use serde_json::json;
use testkit::{FaultProxy, eventually, free_port, need};
use tokio::task::JoinSet;

use super::setup::{Player, Process, Publisher, Setup, news};
use super::stream_client::{Received, Stream, numbers};
use crate::*;

/// How often the streams of [`Setup] look for missed notifications.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Notifications per batch.
const BATCH: usize = 50;

/// A player with an open stream that has received the first batch.
struct ListeningPlayer {
    api: Process,
    _notifier: Process,
    ada: Player,
    publisher: Publisher,
    received: Received,
    stream: Stream,
}

impl ListeningPlayer {
    async fn on(setup: &Setup) -> Self {
        let (api, _notifier) = (setup.process("gateway,service-api").await, setup.process("notifier").await);
        let ada = setup.player(&api, "ada").await;
        let publisher = setup.publisher().await;
        let (mut received, mut stream) = (Received::after(0), ada.stream(api.gateway(), Some(0)).await);
        publisher.publish(&batch(&ada, 0)).await;
        assert!(received.read_until(&mut stream, BATCH).await);
        Self { api, _notifier, ada, publisher, received, stream }
    }
}

/// The events of one batch for a player.
fn batch(player: &Player, from: usize) -> Vec<String> {
    (from..from + BATCH).map(|n| news(player.user, n)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_streams_deliver_within_a_heartbeat() {
    let mut setup = need!(Setup::start().await);
    let ListeningPlayer { api, _notifier, ada, publisher, mut received, mut stream } =
        ListeningPlayer::on(&setup).await;

    setup.fleet.redis.kill().await.unwrap();
    // Sent by a service, so that only the path to the stream depends on Redis.
    for n in 0..3 {
        let started = Instant::now();
        api.service().notify(ada.user, &format!("without Redis {n}")).await;
        let responded = Instant::now();
        assert!(received.read_until(&mut stream, BATCH + n + 1).await);
        let after = responded.elapsed();
        assert!(after < HEARTBEAT * 2, "{after:?} after the response, which took {:?}", responded - started);
    }
    publisher.publish(&batch(&ada, BATCH)).await;
    assert!(received.read_until(&mut stream, 2 * BATCH + 3).await);

    setup.fleet.redis.start_again().await.unwrap();
    publisher.publish(&batch(&ada, 2 * BATCH)).await;
    assert!(received.read_until(&mut stream, 3 * BATCH + 3).await);
    assert_eq!(numbers(&received.notifications).len(), 3 * BATCH);
    // Once the process is subscribed to Redis again, no stream waits for a heartbeat.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (count, started) = (received.notifications.len(), Instant::now());
        api.service().notify(ada.user, "once more").await;
        assert!(received.read_until(&mut stream, count + 1).await);
        let after = started.elapsed();
        if after < HEARTBEAT / 4 {
            break;
        }
        assert!(Instant::now() < deadline, "it still takes {after:?}");
    }
}

/// Harder than an unreachable Redis: it accepts every command and answers none.
#[tokio::test(flavor = "multi_thread")]
async fn silent_redis_delays_no_stream() {
    let mut setup = need!(Setup::start().await);
    setup.configure("[redis]\ntimeout = \"5s\"\n[matchmaking.queues.duel]\n");
    let ListeningPlayer { api, _notifier, ada, publisher, mut received, mut stream } =
        ListeningPlayer::on(&setup).await;

    setup.fleet.redis.pause().await.unwrap();
    // A stream that was open before, and one opened now.
    let (mut late_tape, mut late) = (Received::after(0), ada.stream(api.gateway(), Some(0)).await);
    publisher.publish(&batch(&ada, BATCH)).await;
    for (received, stream) in [(&mut received, &mut stream), (&mut late_tape, &mut late)] {
        while received.notifications.len() < 2 * BATCH {
            received.add(stream.next_within(HEARTBEAT * 4).await.expect("the stream ended"));
        }
    }
    setup.fleet.redis.resume().unwrap();
    publisher.publish(&batch(&ada, 2 * BATCH)).await;
    for (received, stream) in [(&mut received, &mut stream), (&mut late_tape, &mut late)] {
        assert!(received.read_until(stream, 3 * BATCH).await);
        assert_eq!(numbers(&received.notifications).len(), 3 * BATCH);
    }
    // Tickets are sent again, too.
    let (status, ticket) =
        ada.post(api.gateway(), "/v1/matchmaking/tickets", &json!({ "queue": "duel" })).await;
    assert_eq!(status, 201, "{ticket}");
    for stream in [&mut stream, &mut late] {
        assert_eq!(stream.expect("ticket").await.data["ticket_id"], ticket["ticket_id"]);
    }
}

/// The process dies after its commit and before it publishes: no live message is sent, and no connection is lost.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_a_process_killed_before_publishing_are_sent_at_a_heartbeat() {
    let setup = need!(Setup::start().await);
    setup.configure("[matchmaking.queues.duel]\n");
    let other = setup.process("gateway,service-api").await;
    let ada = setup.player(&other, "ada").await;
    let mut stream = ada.stream(other.gateway(), None).await;
    stream.expect("ready").await;
    other.service().notify(ada.user, "unread").await;
    stream.expect("notification").await;
    let kill_after = async |point: &str, path: &str, body: &Value| {
        let doomed = Process::start(&setup.program("gateway,service-api").env("TESTKIT_FAULT", point)).await;
        let request = ada.request(Method::POST, doomed.gateway(), path).json(body);
        assert!(request.send().await.is_err(), "{point}: it has responded");
        doomed.running.wait(PATIENCE).await;
    };

    let mark = json!({ "mark": "read", "up_to": 1 });
    kill_after("notification.marked", "/v1/notifications/mark", &mark).await;
    stream.expect_counts(&json!({ "unread": 0, "unseen": 0 })).await;

    kill_after("matchmaking.joined", "/v1/matchmaking/tickets", &json!({ "queue": "duel" })).await;
    let ticket = stream.expect("ticket").await;
    assert_eq!(ticket.data["state"], "WAITING", "{ticket:?}");
}

/// A gap makes the stream read its counts.
#[tokio::test(flavor = "multi_thread")]
async fn counts_changed_during_a_redis_outage_are_sent_afterwards() {
    let setup = need!(Setup::start().await);
    let proxy = FaultProxy::to(setup.fleet.redis.addr()).await;
    let cut_off =
        setup.program("gateway,service-api").env("PLAYHOUSE_REDIS_URL", proxy.url(&setup.fleet.redis.url()));
    let (cut_off, other) = (Process::start(&cut_off).await, setup.process("gateway,service-api").await);
    let ada = setup.player(&other, "ada").await;
    let mut stream = ada.stream(cut_off.gateway(), None).await;
    stream.expect("ready").await;
    other.service().notify(ada.user, "unread").await;
    stream.expect("notification").await;

    proxy.cut().await;
    let mark = json!({ "mark": "read", "up_to": 1 });
    let (status, counts) = ada.post(other.gateway(), "/v1/notifications/mark", &mark).await;
    assert_eq!((status, &counts["unread"]), (200, &json!(0)), "{counts}");
    proxy.pass().await;
    stream.expect_counts(&counts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tickets_unreadable_during_an_outage_are_sent_afterwards() {
    let setup = need!(Setup::start().await);
    setup.configure("[matchmaking.queues.duel]\n");
    // A connection to the tickets that can be cut while live messages pass.
    let proxy = FaultProxy::to(setup.fleet.redis.addr()).await;
    let api = setup.program("gateway,service-api");
    let api = api.env("PLAYHOUSE_MATCHMAKING_ASSIGNMENTS_URL", proxy.url(&setup.fleet.redis.url()));
    let api = Process::start(&api).await;
    let ada = setup.player(&api, "ada").await;
    let (status, ticket) =
        ada.post(api.gateway(), "/v1/matchmaking/tickets", &json!({ "queue": "duel" })).await;
    assert_eq!(status, 201, "{ticket}");

    proxy.cut().await;
    let mut stream = ada.stream(api.gateway(), None).await;
    stream.expect("ready").await;
    // The rest of the stream does not wait for the tickets.
    for n in 0..3 {
        api.service().notify(ada.user, &format!("meanwhile {n}")).await;
        stream.expect("notification").await;
    }
    api.running.wait_for_line("a stream cannot watch a ticket", PATIENCE).await;
    proxy.pass().await;
    assert_eq!(stream.expect("ticket").await.data["ticket_id"], ticket["ticket_id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_outage_delays_events_but_not_requests_of_services() {
    let mut setup = need!(Setup::start().await);
    let ListeningPlayer { api, _notifier, ada, mut received, mut stream, .. } =
        ListeningPlayer::on(&setup).await;
    setup.fleet.nats.kill().await.unwrap();
    api.service().notify(ada.user, "without NATS").await;
    assert!(received.read_until(&mut stream, BATCH + 1).await);
    setup.fleet.nats.start_again().await.unwrap();
    setup.publisher().await.publish(&batch(&ada, BATCH)).await;
    assert!(received.read_until(&mut stream, 2 * BATCH + 1).await);
    assert_eq!(numbers(&received.notifications).len(), 2 * BATCH);
}

#[tokio::test(flavor = "multi_thread")]
async fn database_restart_loses_no_stream_and_no_notification() {
    let mut setup = need!(Setup::start().await);
    let ListeningPlayer { api: _door, _notifier, ada, publisher, mut received, mut stream } =
        ListeningPlayer::on(&setup).await;

    setup.fleet.sql.kill().await.unwrap();
    publisher.publish(&batch(&ada, BATCH)).await;
    // The stream keeps sending heartbeats.
    let heartbeats = stream.heartbeats + 3;
    tokio::time::timeout(PATIENCE, async {
        while stream.heartbeats < heartbeats {
            assert!(stream.read(1024).await, "the stream ended");
            stream.pop().into_iter().for_each(|event| received.add(event));
        }
    })
    .await
    .expect("no heartbeats");
    setup.fleet.sql.start_again().await.unwrap();
    assert!(received.read_until(&mut stream, 2 * BATCH).await);
    publisher.publish(&batch(&ada, 2 * BATCH)).await;
    assert!(received.read_until(&mut stream, 3 * BATCH).await);
    assert_eq!(numbers(&received.notifications).len(), 3 * BATCH);
    setup.wait_until_acknowledged(&publisher).await;
    assert_eq!(setup.count("SELECT COUNT(*) FROM notification").await, 3 * BATCH as i64);
    assert_eq!(setup.count("SELECT COUNT(*) FROM notification_dlq").await, 0);
}

/// Reads the stream at either process until `count` notifications have arrived. Returns the number of `reconnect` events.
async fn follow(player: Player, gateways: [String; 2], count: usize) -> usize {
    let (mut received, mut reconnects) = (Received::after(0), 0);
    loop {
        let mut stream = player.stream(&gateways[reconnects % 2], Some(received.last)).await;
        while received.notifications.len() < count {
            let event = stream.next().await.expect("the stream ended without a reconnect event");
            if event.name == "reconnect" {
                assert!(stream.next().await.is_none(), "an event after reconnect");
                reconnects += 1;
                break;
            }
            received.add(event);
        }
        if received.notifications.len() == count {
            assert_eq!(numbers(&received.notifications).len(), count);
            return reconnects;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rolling_restart_loses_no_notification() {
    const PLAYERS: usize = 10;
    const ROUNDS: usize = 4;
    let setup = need!(Setup::start().await);
    let at = [0, 1].map(|_| format!("127.0.0.1:{}", free_port().unwrap()));
    let programs = at.clone().map(|at| {
        setup.program("gateway,service-api").args(["--set".to_owned(), format!("listen.gateway={at}")])
    });
    let mut apis = [Process::start(&programs[0]).await, Process::start(&programs[1]).await];
    let mut notifier = setup.process("notifier").await;
    let (mut players, mut followers) = (Vec::new(), JoinSet::new());
    for n in 0..PLAYERS {
        let player = setup.player(&apis[0], &format!("player-{n}")).await;
        followers.spawn(follow(player.clone(), at.clone(), BATCH * (2 * ROUNDS + 1)));
        players.push(player);
    }
    let publisher = setup.publisher().await;
    let publish = async |round: usize| {
        for player in &players {
            publisher.publish(&batch(player, round * BATCH)).await;
        }
    };
    for round in 0..ROUNDS {
        let replaced = round % 2;
        // Publishes while the process stops and while it is down.
        apis[replaced].running.sigterm();
        publish(2 * round).await;
        assert_eq!(apis[replaced].running.wait(PATIENCE).await.code(), Some(0));
        eventually("every player is connected to the other process", PATIENCE, async || {
            apis[1 - replaced].metric("playhouse_gateway_streams").await == PLAYERS as f64
        })
        .await;
        let next = setup.process("notifier").await;
        std::mem::replace(&mut notifier, next).stop().await;
        publish(2 * round + 1).await;
        apis[replaced] = Process::start(&programs[replaced]).await;
    }
    publish(2 * ROUNDS).await;
    let mut reconnects = 0;
    while let Some(followed) = followers.join_next().await {
        reconnects += followed.unwrap();
    }
    assert!(reconnects >= PLAYERS, "{reconnects}");
}
