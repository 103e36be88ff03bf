//! Matchmaking for players with several devices at several processes.

use std::time::Instant;

use serde_json::json;
use testkit::{eventually, need};

use super::DUEL;
use super::flows::{Player, Setup, stream_of};
use crate::*;

/// The queue `duel`, and the queue `nobody` whose tickets are never matched.
fn queues() -> String {
    format!(
        "{DUEL}[matchmaking.queues.nobody]\ncancel_when_gone = \"2s\"\n[matchmaking]\nwatch_check = \"1m\"\n"
    )
}

/// How long after its last stream a ticket of the queue `nobody` is cancelled.
const CANCEL_AFTER: Duration = Duration::from_secs(2);

async fn ticket(player: &Player, at: &str, id: &str) -> (u16, Value) {
    player.get(at, &format!("/v1/matchmaking/tickets/{id}")).await
}

fn id(ticket: &Value) -> &str {
    ticket["ticket_id"].as_str().unwrap_or_else(|| panic!("no ticket: {ticket}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn two_devices_share_one_ticket_and_both_get_the_match() {
    let setup = need!(Setup::start().await);
    setup.configure(&queues());
    let gateways = setup.start_gateways(2).await;
    let [one, two] = [gateways[0].at.as_str(), gateways[1].at.as_str()];
    let engine = setup.program("matchmaking-engine").start().unwrap();
    addresses(&engine).await;
    let (phone, laptop, bob) =
        (setup.player("ada").await, setup.sign_in("ada").await, setup.player("bob").await);

    let (joined, again) = tokio::join!(phone.join(one, "duel"), laptop.join(two, "duel"));
    let mut statuses = [joined.0, again.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 201], "{joined:?} {again:?}");
    assert_eq!(joined.1["ticket_id"], again.1["ticket_id"]);
    let ada_ticket = id(&joined.1);
    let mut streams = [phone.follow(one, ada_ticket).await, laptop.follow(two, ada_ticket).await];
    for stream in &mut streams {
        stream.expect("WAITING").await;
    }

    // Other players' tickets look missing.
    assert_eq!(ticket(&bob, two, ada_ticket).await.0, 404);
    assert_eq!(bob.get(two, &stream_of(ada_ticket)).await.0, 404);
    bob.leave(two, ada_ticket).await;
    assert_eq!(ticket(&phone, two, ada_ticket).await.1["state"], "WAITING");
    assert_eq!(bob.get(one, "/v1/matchmaking/tickets").await.1["tickets"], json!([]));

    let (status, waiting) = bob.join(two, "duel").await;
    assert_eq!(status, 201, "{waiting}");
    let mut connections = Vec::new();
    for stream in &mut streams {
        connections.push(stream.expect("ASSIGNED").await["assignment"]["connection"].clone());
    }
    let bobs_connection = eventually("bob has a match too", PATIENCE, async || {
        let (_, found) = ticket(&bob, one, id(&waiting)).await;
        found["assignment"]["connection"].as_str().map(str::to_owned)
    })
    .await;
    assert_eq!(connections, [json!(bobs_connection), json!(bobs_connection)]);
    let (_, home) = laptop.get(one, "/v1/home").await;
    assert_eq!(home["matchmaking"]["data"]["tickets"][0]["state"], "ASSIGNED", "{home}");
    engine.sigterm();
    assert_eq!(engine.wait(PATIENCE).await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn ticket_cancelled_at_one_process_is_gone_at_the_other() {
    let setup = need!(Setup::start().await);
    setup.configure(&queues());
    let gateways = setup.start_gateways(2).await;
    let [one, two] = [gateways[0].at.as_str(), gateways[1].at.as_str()];
    let (ada, bob) = (setup.player("ada").await, setup.player("bob").await);
    let (_, waiting) = ada.join(one, "duel").await;
    let mut stream = ada.follow(two, id(&waiting)).await;
    stream.expect("WAITING").await;
    assert_eq!(bob.leave(one, id(&waiting)).await, 204, "another player's ticket looks missing");
    assert_eq!(ticket(&ada, two, id(&waiting)).await.0, 200);
    assert_eq!(ada.leave(one, id(&waiting)).await, 204);
    stream.expect("GONE").await;
    assert_eq!(stream.end_code().await, "ticket_gone");
    assert_eq!(ticket(&ada, two, id(&waiting)).await.0, 404);
    assert_eq!(ada.leave(two, id(&waiting)).await, 204, "leaving twice succeeds");
    let (status, next) = ada.join(two, "duel").await;
    assert_eq!(status, 201);
    assert_ne!(id(&next), id(&waiting));
}

#[tokio::test(flavor = "multi_thread")]
async fn ticket_is_cancelled_only_after_its_last_stream_closed() {
    let setup = need!(Setup::start().await);
    setup.configure(&queues());
    let gateways = setup.start_gateways(2).await;
    let [one, two] = [gateways[0].at.as_str(), gateways[1].at.as_str()];
    let ada = setup.player("ada").await;
    let (_, waiting) = ada.join(one, "nobody").await;
    let id = id(&waiting);
    let mut streams = vec![
        ada.with_new_connections().follow(one, id).await,
        ada.with_new_connections().follow(two, id).await,
    ];
    for stream in &mut streams {
        stream.expect("WAITING").await;
    }
    // Longer than the delay: with both streams, then with one at the other process.
    for _ in 0..2 {
        let since = Instant::now();
        while since.elapsed() < CANCEL_AFTER * 3 / 2 {
            assert_eq!(ticket(&ada, one, id).await.0, 200, "{:?}", since.elapsed());
            tokio::time::sleep(CANCEL_AFTER / 20).await;
        }
        drop(streams.remove(0));
    }
    let closed = Instant::now();
    eventually("the ticket is cancelled", PATIENCE, async || ticket(&ada, one, id).await.0 == 404).await;
    let after = closed.elapsed();
    // The store may learn of the end of the stream slightly before or after the clock is read.
    assert!(after > CANCEL_AFTER * 9 / 10 && after < CANCEL_AFTER * 2, "{after:?}");
    assert_eq!(ada.join(two, "nobody").await.0, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_time_is_estimated_from_recent_matches_and_unknown_without_any() {
    let setup = need!(Setup::start().await);
    setup.configure(&queues());
    let gateways = setup.start_gateways(1).await;
    let one = gateways[0].at.as_str();
    let engine = setup.program("matchmaking-engine").start().unwrap();
    addresses(&engine).await;
    let mut players = Vec::new();
    for name in ["ada", "bob", "cleo", "dan", "eve", "fay", "gus"] {
        players.push(setup.player(name).await);
    }
    let (alone, matched) = players.split_last().unwrap();
    let (status, first) = alone.join(one, "nobody").await;
    assert_eq!((status, &first["estimate"]), (201, &Value::Null), "nothing is known: {first}");
    for player in matched {
        player.join(one, "duel").await;
    }
    for player in matched {
        eventually("everyone plays", PATIENCE, async || {
            let (_, found) = player.get(one, "/v1/matchmaking/tickets").await;
            let ticket = found["tickets"][0].clone();
            (ticket["state"] == "ASSIGNED" && ticket["estimate"].is_null()).then_some(()).ok_or(ticket)
        })
        .await;
    }
    alone.leave(one, id(&first)).await;
    let joined = eventually("the matches are known", PATIENCE, async || {
        let (_, joined) = alone.join(one, "duel").await;
        if joined["estimate"].is_null() {
            // A ticket that has waited for longer than all others has no estimate any more: begin anew.
            alone.leave(one, id(&joined)).await;
            return Err(joined);
        }
        Ok(joined)
    })
    .await;
    assert_eq!(joined["estimate"]["basis"], "recent-matches", "{joined}");
    assert!(joined["estimate"]["seconds"].as_u64().is_some_and(|seconds| seconds < 60), "{joined}");
    let mut stream = alone.follow(one, id(&joined)).await;
    assert!(stream.expect("WAITING").await.get("estimate").is_some(), "streams have the field too");
    let (_, other) = matched[0].join(one, "nobody").await;
    assert_eq!(other["estimate"], Value::Null, "no profile matches this queue: {other}");
}
