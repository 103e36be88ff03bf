//! The event of a match whose players were notified is published, whichever process dies.

use std::collections::BTreeSet;

use sqlx::Connection;

use super::*;
use crate::crashes::assert_killed;
use crate::shop::{admin_get, in_outbox, operators};

/// Returns an embedded process with a static assigner. A webhook assigner needs the database before the recorder does.
fn embedded(folder: &Folder) -> Program {
    let (file, database) = (folder.path().join("play.toml"), folder.path().join("playhouse.db"));
    let settings = format!(
        "[db]\nurl = \"sqlite:{}\"\nmigrate = true\n[matchmaking.profiles.duel]\nplayers = 2\nassigner = \"demo\"\n\
         [matchmaking.assigners.demo]\nkind = \"static\"\naddresses = [\"{{match_id}}.demo.invalid:7777\"]\n{}",
        database.display(),
        operators(),
    );
    std::fs::write(&file, settings).unwrap();
    let listen =
        ["gateway", "service_api", "admin", "open_match"].map(|name| format!("listen.{name}=127.0.0.1:0"));
    let serve = playhouse_without_token(&["serve", "--print-addresses", "--config", file.to_str().unwrap()]);
    serve.args(listen.iter().flat_map(|address| ["--set", address.as_str()]))
}

/// Creates a ticket and waits for its assignment. Returns the match id, or `None` if the process ends first.
async fn play(address: String) -> Option<String> {
    let client = Client::new();
    let tickets = format!("http://{address}/v1/frontendservice/tickets");
    let made = client.post(&tickets).json(&json!({ "ticket": {} })).send().await.ok()?;
    let made: Value = made.json().await.ok()?;
    let id = made["id"].as_str()?;
    let mut watching = client.get(format!("{tickets}/{id}/assignments")).send().await.ok()?;
    let update: Value = serde_json::from_slice(&watching.chunk().await.ok()??).ok()?;
    let connection = update["result"]["assignment"]["connection"].as_str()?;
    Some(connection.split('.').next()?.to_owned())
}

/// Counts the published events in the outbox of a process.
async fn count_published(admin: &str) -> i64 {
    let mut count = 0;
    for row in in_outbox(admin, "published").await {
        let (_, row) = admin_get(format!("http://{admin}/outbox/{}", row["id"].as_str().unwrap())).await;
        count += row["events"].as_array().map_or(1, Vec::len) as i64;
    }
    count
}

/// Returns the last stream position that the intake of a stopped process reached. Each embedded bus counts from 1.
async fn intake_position(folder: &Folder) -> i64 {
    let position = sqlx::query_scalar("SELECT MAX(position) FROM notification_intake");
    position.fetch_one(&mut database(folder).await).await.unwrap()
}

/// Opens the database of an embedded process.
async fn database(folder: &Folder) -> sqlx::SqliteConnection {
    let file = format!("sqlite:{}", folder.path().join("playhouse.db").display());
    sqlx::SqliteConnection::connect(&file).await.unwrap()
}

/// Returns the matches whose events are published.
async fn published(admin: &str) -> BTreeSet<String> {
    let mut matches = BTreeSet::new();
    for row in in_outbox(admin, "published").await {
        let (status, row) = admin_get(format!("http://{admin}/outbox/{}", row["id"].as_str().unwrap())).await;
        assert_eq!(status, 200, "{row}");
        let events = row["events"].as_array().into_iter().flatten();
        matches.extend(events.filter_map(|event| event["data"]["match_id"].as_str().map(str::to_owned)));
    }
    matches
}

async fn wait_until_published(admin: &str, notified: &BTreeSet<String>) {
    eventually("every match of a notified player is published", PATIENCE, async || {
        let published = published(admin).await;
        let missing: Vec<_> = notified.difference(&published).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} of {}", notified.len())) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_kill_right_after_the_notification_loses_no_event() {
    let folder = Folder::fresh().unwrap();
    let program = embedded(&folder);
    let mut notified = BTreeSet::new();
    for _ in 0..3 {
        let running = program.start().unwrap();
        let address = addresses(&running).await["open_match"].clone();
        let (one, two) = (tokio::spawn(play(address.clone())), tokio::spawn(play(address)));
        notified.insert(one.await.unwrap().unwrap());
        running.kill();
        running.wait(PATIENCE).await;
        notified.extend(two.await.unwrap());
    }
    assert!(notified.len() >= 3, "{notified:?}");
    let running = program.start().unwrap();
    wait_until_published(&addresses(&running).await["admin"], &notified).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_stop_while_matches_are_made_loses_no_event() {
    let folder = Folder::fresh().unwrap();
    let program = embedded(&folder);
    let running = program.start().unwrap();
    let address = addresses(&running).await["open_match"].clone();
    let mut players: futures::stream::FuturesUnordered<_> =
        (0..200).map(|_| tokio::spawn(play(address.clone()))).collect();
    // Some players are notified, others are not yet.
    let mut notified = BTreeSet::from([players.next().await.unwrap().unwrap().unwrap()]);
    running.sigterm();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
    while let Some(played) = players.next().await {
        notified.extend(played.unwrap());
    }
    eprintln!("{} matches before the stop", notified.len());
    let intake_position = intake_position(&folder).await;
    let running = program.start().unwrap();
    let admin = addresses(&running).await["admin"].clone();
    wait_until_published(&admin, &notified).await;
    eventually("nothing is left in the outbox", PATIENCE, async || {
        in_outbox(&admin, "open").await.is_empty()
    })
    .await;
    // The process left nothing to the next one: engine, relay and intake stopped in this order.
    assert_eq!(intake_position, count_published(&admin).await);
}

/// The test locks the database, so that the engine still waits for the record when the loops must stop.
#[tokio::test(flavor = "multi_thread")]
async fn embedded_stop_while_a_match_is_recorded_leaves_nothing_to_the_next_process() {
    let folder = Folder::fresh().unwrap();
    let program = embedded(&folder);
    let running = program.start().unwrap();
    let at = addresses(&running).await;
    let mut lock = database(&folder).await;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut lock).await.unwrap();
    let players = [0, 1].map(|_| tokio::spawn(play(at["open_match"].clone())));
    eventually("a match is assigned", PATIENCE, async || {
        let (_, metrics) = get(format!("http://{}/metrics", at["admin"])).await;
        let metrics = metrics.as_str().unwrap();
        metrics.lines().any(|line| {
            line.starts_with("minimatch_backend_assign_to_redis_latency_seconds_count ")
                && !line.ends_with(" 0")
        })
    })
    .await;
    running.sigterm();
    eventually("the listener is closed", PATIENCE, async || {
        tokio::net::TcpStream::connect(&at["open_match"]).await.is_err()
    })
    .await;
    // Loops that do not wait for the engine end meanwhile. The engine waits one second for the record.
    tokio::time::sleep(Duration::from_millis(500)).await;
    sqlx::query("ROLLBACK").execute(&mut lock).await.unwrap();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
    join_all(players).await;
    let intake_position = intake_position(&folder).await;
    let running = program.start().unwrap();
    let admin = addresses(&running).await["admin"].clone();
    eventually("nothing is left in the outbox", PATIENCE, async || {
        in_outbox(&admin, "open").await.is_empty()
    })
    .await;
    assert_eq!(intake_position, count_published(&admin).await);
}

/// Kills the engine at every point between the assignment and the notification.
#[tokio::test(flavor = "multi_thread")]
async fn engine_killed_at_any_point_loses_and_duplicates_no_match() {
    let matchmaking = need!(Matchmaking::start().await);
    let store = matchmaking.store().await;
    let mut expected = 0;
    for point in ["matchmaking.notified", "matchmaking.assigned", "matchmaking.recorded"] {
        let tickets = make_tickets(&store, 2).await;
        expected += 1;
        let doomed = matchmaking.program("matchmaking-engine").env("TESTKIT_FAULT", point).start().unwrap();
        assert_killed(&doomed).await;
        let seen = store.watch_states(&tickets).await.unwrap();
        assert!(seen.iter().all(|seen| matches!(seen, WatchState::Assigned(_))), "{point}: {seen:?}");
        let left = store.unrecorded_size().await.unwrap().0;
        assert_eq!(left > 0, point != "matchmaking.notified", "{point}: {left}");
    }
    // A later engine may have recovered entries of an earlier one. One more dies during its recovery.
    let left = store.unrecorded_size().await.unwrap().0;
    let doomed = matchmaking.program("matchmaking-engine").env("TESTKIT_FAULT", "matchmaking.recovered");
    assert_killed(&doomed.start().unwrap()).await;
    assert_eq!(store.unrecorded_size().await.unwrap().0, left);
    let mut pushes = store.ticket_events().await.unwrap();
    let _next = matchmaking.serve("matchmaking-engine,outbox-relay");
    for _ in 0..left {
        let push = tokio::time::timeout(PATIENCE, pushes.next()).await.unwrap();
        assert!(
            matches!(push, Some(TicketEvent::Assigned(_))),
            "the recovery did not notify players: {push:?}"
        );
    }
    assert_eq!(matches_on_the_bus(&matchmaking.fleet.nats.url(), expected).await.len(), expected);
    eventually("nothing is left", PATIENCE, async || store.unrecorded_size().await.unwrap().0 == 0).await;
    assert_eq!(messages_on_the_bus(&matchmaking.fleet.nats.url()).await, expected as u64);
}

/// Counts the messages in the event stream.
async fn messages_on_the_bus(url: &str) -> u64 {
    let stream =
        jetstream::new(async_nats::connect(url).await.unwrap()).get_stream("PLAYHOUSE").await.unwrap();
    stream.cached_info().state.messages
}

/// NATS is down, so nothing has left the outbox when Redis loses its data.
#[tokio::test(flavor = "multi_thread")]
async fn redis_emptied_after_the_notification_loses_no_event() {
    let mut matchmaking = need!(Matchmaking::start().await);
    let running = matchmaking.serve("matchmaking-frontend,matchmaking-engine,outbox-relay");
    let address = addresses(&running).await["open_match"].clone();
    matchmaking.fleet.nats.kill().await.unwrap();
    let players = join_all((0..40).map(|_| tokio::spawn(play(address.clone())))).await;
    let notified: BTreeSet<String> = players.into_iter().map(|played| played.unwrap().unwrap()).collect();
    assert_eq!(notified.len(), 20);
    let (entries, _) = matchmaking.store().await.unrecorded_size().await.unwrap();
    assert_eq!(entries, 0, "matches in Redis wait for the bus");

    matchmaking.fleet.redis.kill().await.unwrap();
    matchmaking.fleet.redis.start_again().await.unwrap();
    matchmaking.fleet.nats.start_again().await.unwrap();
    let matches = matches_on_the_bus(&matchmaking.fleet.nats.url(), notified.len()).await;
    assert_eq!(matches.into_keys().collect::<BTreeSet<_>>(), notified);
}
