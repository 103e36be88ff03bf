//! Streams while the stores are away, and while the processes are replaced.

use std::time::Instant;

use reqwest::Method;
use serde_json::json;
use testkit::{Proxy, eventually, free_port, need};
use tokio::task::JoinSet;

use super::stage::{Player, Process, Publisher, Stage, news};
use super::tape::{Stream, Tape, numbers};
use crate::*;

/// How often the streams of [`Stage`] look for what they were not told.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How much is told at a time.
const SOME: usize = 50;

/// A player with a stream that told some already.
struct Listening {
    door: Process,
    _notifier: Process,
    ada: Player,
    publisher: Publisher,
    tape: Tape,
    stream: Stream,
}

impl Listening {
    async fn on(stage: &Stage) -> Self {
        let (door, _notifier) = (stage.process("gateway,service-api").await, stage.process("notifier").await);
        let ada = stage.player(&door, "ada").await;
        let publisher = stage.publisher().await;
        let (mut tape, mut stream) = (Tape::from(0), ada.stream(door.gateway(), Some(0)).await);
        publisher.publish(&some(&ada, 0)).await;
        assert!(tape.record(&mut stream, SOME).await);
        Self { door, _notifier, ada, publisher, tape, stream }
    }
}

fn some(player: &Player, from: usize) -> Vec<String> {
    (from..from + SOME).map(|n| news(player.user, n)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_streams_tell_everything_within_a_heartbeat() {
    let mut stage = need!(Stage::start().await);
    let Listening { door, _notifier, ada, publisher, mut tape, mut stream } = Listening::on(&stage).await;

    stage.fleet.redis.kill().await.unwrap();
    // Told by a service, so that nothing but the way to the stream is in question.
    for n in 0..3 {
        let begun = Instant::now();
        door.service().tell(ada.user, &format!("without Redis {n}")).await;
        let answered = Instant::now();
        assert!(tape.record(&mut stream, SOME + n + 1).await);
        let after = answered.elapsed();
        assert!(after < HEARTBEAT * 2, "{after:?} after the answer, which took {:?}", answered - begun);
    }
    publisher.publish(&some(&ada, SOME)).await;
    assert!(tape.record(&mut stream, 2 * SOME + 3).await);

    stage.fleet.redis.start_again().await.unwrap();
    publisher.publish(&some(&ada, 2 * SOME)).await;
    assert!(tape.record(&mut stream, 3 * SOME + 3).await);
    assert_eq!(numbers(&tape.notifications).len(), 3 * SOME);
    // Once the process listens to Redis again, nobody waits for a heartbeat.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (told, begun) = (tape.notifications.len(), Instant::now());
        door.service().tell(ada.user, "once more").await;
        assert!(tape.record(&mut stream, told + 1).await);
        let after = begun.elapsed();
        if after < HEARTBEAT / 4 {
            break;
        }
        assert!(Instant::now() < deadline, "it still takes {after:?}");
    }
}

/// Worse than one that is away: it takes every question and answers none.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_says_nothing_holds_up_no_stream() {
    let mut stage = need!(Stage::start().await);
    stage.configure("[hot]\ntimeout = \"5s\"\n[matchmaking.queues.duel]\n");
    let Listening { door, _notifier, ada, publisher, mut tape, mut stream } = Listening::on(&stage).await;

    stage.fleet.redis.pause().await.unwrap();
    // One that was open, and one that is opened now.
    let (mut late_tape, mut late) = (Tape::from(0), ada.stream(door.gateway(), Some(0)).await);
    publisher.publish(&some(&ada, SOME)).await;
    for (tape, stream) in [(&mut tape, &mut stream), (&mut late_tape, &mut late)] {
        while tape.notifications.len() < 2 * SOME {
            tape.take(stream.next_within(HEARTBEAT * 4).await.expect("the stream is over"));
        }
    }
    stage.fleet.redis.resume().unwrap();
    publisher.publish(&some(&ada, 2 * SOME)).await;
    for (tape, stream) in [(&mut tape, &mut stream), (&mut late_tape, &mut late)] {
        assert!(tape.record(stream, 3 * SOME).await);
        assert_eq!(numbers(&tape.notifications).len(), 3 * SOME);
    }
    // Tickets are told again, too.
    let (status, ticket) =
        ada.post(door.gateway(), "/v1/matchmaking/tickets", &json!({ "queue": "duel" })).await;
    assert_eq!(status, 201, "{ticket}");
    for stream in [&mut stream, &mut late] {
        assert_eq!(stream.expect("ticket").await.data["ticket_id"], ticket["ticket_id"]);
    }
}

/// The process dies after its commit and before it publishes: nobody receives a message, and no connection is lost.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_a_process_that_died_before_it_published_are_sent_at_a_heartbeat() {
    let stage = need!(Stage::start().await);
    stage.configure("[matchmaking.queues.duel]\n");
    let other = stage.process("gateway,service-api").await;
    let ada = stage.player(&other, "ada").await;
    let mut stream = ada.stream(other.gateway(), None).await;
    stream.expect("ready").await;
    other.service().tell(ada.user, "unread").await;
    stream.expect("notification").await;
    let dies_after = async |point: &str, path: &str, body: &Value| {
        let doomed = Process::start(&stage.program("gateway,service-api").env("TESTKIT_FAULT", point)).await;
        let request = ada.request(Method::POST, doomed.gateway(), path).json(body);
        assert!(request.send().await.is_err(), "{point}: it has answered");
        doomed.running.wait(PATIENCE).await;
    };

    let mark = json!({ "mark": "read", "up_to": 1 });
    dies_after("notification.marked", "/v1/notifications/mark", &mark).await;
    stream.expect_counts(&json!({ "unread": 0, "unseen": 0 })).await;

    dies_after("matchmaking.joined", "/v1/matchmaking/tickets", &json!({ "queue": "duel" })).await;
    let ticket = stream.expect("ticket").await;
    assert_eq!(ticket.data["state"], "WAITING", "{ticket:?}");
}

/// A gap makes a stream read its counts.
#[tokio::test(flavor = "multi_thread")]
async fn counts_that_changed_while_redis_was_away_are_sent_when_it_is_back() {
    let stage = need!(Stage::start().await);
    let proxy = Proxy::to(stage.fleet.redis.addr()).await;
    let cut_off =
        stage.program("gateway,service-api").env("PLAYHOUSE_HOT_URL", proxy.url(&stage.fleet.redis.url()));
    let (cut_off, other) = (Process::start(&cut_off).await, stage.process("gateway,service-api").await);
    let ada = stage.player(&other, "ada").await;
    let mut stream = ada.stream(cut_off.gateway(), None).await;
    stream.expect("ready").await;
    other.service().tell(ada.user, "unread").await;
    stream.expect("notification").await;

    proxy.cut().await;
    let mark = json!({ "mark": "read", "up_to": 1 });
    let (status, counts) = ada.post(other.gateway(), "/v1/notifications/mark", &mark).await;
    assert_eq!((status, &counts["unread"]), (200, &json!(0)), "{counts}");
    proxy.pass().await;
    stream.expect_counts(&counts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tickets_that_could_not_be_read_are_read_when_their_store_is_back() {
    let stage = need!(Stage::start().await);
    stage.configure("[matchmaking.queues.duel]\n");
    // A way to the tickets that can be cut off while live messages pass.
    let proxy = Proxy::to(stage.fleet.redis.addr()).await;
    let door = stage.program("gateway,service-api");
    let door = door.env("PLAYHOUSE_MATCHMAKING_ASSIGNMENTS_URL", proxy.url(&stage.fleet.redis.url()));
    let door = Process::start(&door).await;
    let ada = stage.player(&door, "ada").await;
    let (status, ticket) =
        ada.post(door.gateway(), "/v1/matchmaking/tickets", &json!({ "queue": "duel" })).await;
    assert_eq!(status, 201, "{ticket}");

    proxy.cut().await;
    let mut stream = ada.stream(door.gateway(), None).await;
    stream.expect("ready").await;
    // The rest of the stream does not wait for it.
    for n in 0..3 {
        door.service().tell(ada.user, &format!("meanwhile {n}")).await;
        stream.expect("notification").await;
    }
    door.running.wait_for_line("a stream cannot watch a ticket", PATIENCE).await;
    proxy.pass().await;
    assert_eq!(stream.expect("ticket").await.data["ticket_id"], ticket["ticket_id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_bus_services_are_heard_and_with_it_the_events_that_waited() {
    let mut stage = need!(Stage::start().await);
    let Listening { door, _notifier, ada, mut tape, mut stream, .. } = Listening::on(&stage).await;
    stage.fleet.nats.kill().await.unwrap();
    door.service().tell(ada.user, "without NATS").await;
    assert!(tape.record(&mut stream, SOME + 1).await);
    stage.fleet.nats.start_again().await.unwrap();
    stage.publisher().await.publish(&some(&ada, SOME)).await;
    assert!(tape.record(&mut stream, 2 * SOME + 1).await);
    assert_eq!(numbers(&tape.notifications).len(), 2 * SOME);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_started_again_costs_no_stream_and_no_notification() {
    let mut stage = need!(Stage::start().await);
    let Listening { door: _door, _notifier, ada, publisher, mut tape, mut stream } =
        Listening::on(&stage).await;

    stage.fleet.sql.kill().await.unwrap();
    publisher.publish(&some(&ada, SOME)).await;
    // The stream goes on saying that it is alive.
    let beats = stream.beats + 3;
    tokio::time::timeout(PATIENCE, async {
        while stream.beats < beats {
            assert!(stream.read(1024).await, "the stream is over");
            stream.pop().into_iter().for_each(|told| tape.take(told));
        }
    })
    .await
    .expect("beats of the heart");
    stage.fleet.sql.start_again().await.unwrap();
    assert!(tape.record(&mut stream, 2 * SOME).await);
    publisher.publish(&some(&ada, 2 * SOME)).await;
    assert!(tape.record(&mut stream, 3 * SOME).await);
    assert_eq!(numbers(&tape.notifications).len(), 3 * SOME);
    stage.all_taken_in(&publisher).await;
    assert_eq!(stage.count("SELECT COUNT(*) FROM notification").await, 3 * SOME as i64);
    assert_eq!(stage.count("SELECT COUNT(*) FROM notification_dlq").await, 0);
}

/// Follows wherever it can, until so many notifications are there. Returns how often it was told to connect elsewhere.
async fn follow(player: Player, doors: [String; 2], count: usize) -> usize {
    let (mut tape, mut reconnects) = (Tape::from(0), 0);
    loop {
        let mut stream = player.stream(&doors[reconnects % 2], Some(tape.last)).await;
        while tape.notifications.len() < count {
            let told = stream.next().await.expect("nobody closes a stream without a word");
            if told.name == "reconnect" {
                assert!(stream.next().await.is_none(), "more after the last word");
                reconnects += 1;
                break;
            }
            tape.take(told);
        }
        if tape.notifications.len() == count {
            assert_eq!(numbers(&tape.notifications).len(), count);
            return reconnects;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replacing_the_processes_one_after_the_other_loses_nobody_anything() {
    const PLAYERS: usize = 10;
    const ROUNDS: usize = 4;
    let stage = need!(Stage::start().await);
    let at = [0, 1].map(|_| format!("127.0.0.1:{}", free_port().unwrap()));
    let programs = at.clone().map(|at| {
        stage.program("gateway,service-api").args(["--set".to_owned(), format!("listen.gateway={at}")])
    });
    let mut doors = [Process::start(&programs[0]).await, Process::start(&programs[1]).await];
    let mut notifier = stage.process("notifier").await;
    let (mut players, mut followers) = (Vec::new(), JoinSet::new());
    for n in 0..PLAYERS {
        let player = stage.player(&doors[0], &format!("player-{n}")).await;
        followers.spawn(follow(player.clone(), at.clone(), SOME * (2 * ROUNDS + 1)));
        players.push(player);
    }
    let publisher = stage.publisher().await;
    let tell = async |round: usize| {
        for player in &players {
            publisher.publish(&some(player, round * SOME)).await;
        }
    };
    for round in 0..ROUNDS {
        let replaced = round % 2;
        // While it stops, and while it is away.
        doors[replaced].running.sigterm();
        tell(2 * round).await;
        assert_eq!(doors[replaced].running.wait(PATIENCE).await.code(), Some(0));
        eventually("everybody is at the other process", PATIENCE, async || {
            doors[1 - replaced].metric("playhouse_gateway_streams").await == PLAYERS as f64
        })
        .await;
        let next = stage.process("notifier").await;
        std::mem::replace(&mut notifier, next).stop().await;
        tell(2 * round + 1).await;
        doors[replaced] = Process::start(&programs[replaced]).await;
    }
    tell(2 * ROUNDS).await;
    let mut reconnects = 0;
    while let Some(followed) = followers.join_next().await {
        reconnects += followed.unwrap();
    }
    assert!(reconnects >= PLAYERS, "{reconnects}");
}
