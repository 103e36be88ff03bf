//! Matchmaking for players with several devices at several processes.

use std::time::Instant;

use reqwest::Method;
use serde_json::json;
use testkit::{eventually, need};

use super::DUEL;
use super::flows::{Player, Setup, stream_of};
use crate::crashes::assert_killed;
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

/// Answers a ready check. Returns the status and the body.
async fn answer(player: &Player, at: &str, id: &str, answer: &str) -> (u16, Value) {
    let path = format!("/v1/matchmaking/tickets/{id}/{answer}");
    let response = player.request(Method::POST, at, &path).send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap_or_default())
}

/// Kills the engine at every point between the question and the match.
#[tokio::test(flavor = "multi_thread")]
async fn players_are_asked_and_engines_that_die_lose_and_double_no_match() {
    let setup = need!(Setup::start().await);
    let asking = DUEL.replace("players = 2", "players = 2\nready_check = \"10s\"");
    // Short, because the next engine takes a match only after most of this time.
    let timeouts = "pending_timeout = \"10s\"\nfunction_timeout = \"1s\"\nevaluator_timeout = \"1s\"\nassigner_timeout = \"2s\"\n";
    setup.configure(&format!("{asking}[matchmaking]\n{timeouts}"));
    let gateways = setup.start_gateways(2).await;
    let [one, two] = [gateways[0].at.as_str(), gateways[1].at.as_str()];
    let (ada, bob) = (setup.player("ada").await, setup.player("bob").await);
    let (adas, bobs) = (ada.join(one, "duel").await.1, bob.join(two, "duel").await.1);
    let (adas, bobs) = (id(&adas).to_owned(), id(&bobs).to_owned());
    assert_eq!(answer(&ada, one, &adas, "accept").await.0, 409);
    let mut streams = [ada.follow(two, &adas).await, bob.follow(one, &bobs).await];
    for stream in &mut streams {
        stream.expect("WAITING").await;
    }

    let doomed =
        setup.program("matchmaking-engine").env("TESTKIT_FAULT", "matchmaking.asked").start().unwrap();
    for stream in &mut streams {
        let asked = stream.expect("READY_CHECK").await;
        assert_eq!(asked["ready_check"]["players"], 2, "{asked}");
        assert_eq!(asked["ready_check"]["answer"], Value::Null, "{asked}");
    }
    assert_killed(&doomed).await;
    let (status, accepted) = answer(&ada, one, &adas, "accept").await;
    assert_eq!((status, &accepted["ready_check"]["answer"]), (200, &json!("accepted")), "{accepted}");
    for (stream, own) in streams.iter_mut().zip([json!("accepted"), Value::Null]) {
        let counted = stream.expect("READY_CHECK").await;
        assert_eq!(counted["ready_check"]["accepted"], 1, "{counted}");
        assert_eq!(counted["ready_check"]["answer"], own, "{counted}");
    }
    assert_eq!(answer(&ada, two, &bobs, "accept").await.0, 404, "another player's ticket looks missing");
    assert_eq!(answer(&bob, one, &adas, "decline").await.0, 404);
    assert_eq!(answer(&bob, two, &bobs, "accept").await.0, 200);
    for stream in &mut streams {
        assert_eq!(stream.expect("READY_CHECK").await["ready_check"]["accepted"], 2);
    }

    // One dies before it asks for a server, the next one after the assignment. The third one finds the match made.
    for point in ["matchmaking.accepted", "matchmaking.assigned"] {
        let doomed = setup.program("matchmaking-engine").env("TESTKIT_FAULT", point).start().unwrap();
        assert_killed(&doomed).await;
    }
    let engine = setup.program("matchmaking-engine").start().unwrap();
    addresses(&engine).await;
    let mut connections = Vec::new();
    for (player, id) in [(&ada, &adas), (&bob, &bobs)] {
        let assigned = eventually("it is assigned", PATIENCE, async || {
            let (_, found) = ticket(player, one, id).await;
            (found["state"] == "ASSIGNED").then_some(found)
        })
        .await;
        assert_eq!(assigned["ready_check"], Value::Null, "{assigned}");
        connections.push(assigned["assignment"]["connection"].clone());
    }
    assert_eq!(connections[0], connections[1]);
    for stream in &mut streams {
        stream.expect("ASSIGNED").await;
    }

    // The next match is declined by one of them.
    let again = |id: &str| json!({ "queue": "duel", "replaces": id });
    let mut next = Vec::new();
    for (player, id) in [(&ada, &adas), (&bob, &bobs)] {
        let request = player.request(Method::POST, one, "/v1/matchmaking/tickets").json(&again(id));
        let joined: Value = request.send().await.unwrap().json().await.unwrap();
        next.push(joined["ticket_id"].as_str().unwrap().to_owned());
    }
    let mut streams = [ada.follow(one, &next[0]).await, bob.follow(two, &next[1]).await];
    for stream in &mut streams {
        while stream.next().await.unwrap().1["state"] != "READY_CHECK" {}
    }
    for _ in 0..2 {
        assert_eq!(answer(&bob, one, &next[1], "decline").await.0, 204, "repeating it is fine");
    }
    assert_eq!(streams[1].expect("GONE").await["reason"], "declined");
    assert_eq!(streams[0].expect("WAITING").await["reason"], "not-everyone-accepted");
    let (status, problem) = answer(&ada, two, &next[0], "accept").await;
    assert_eq!(
        (status, &problem["type"]),
        (409, &json!("urn:playhouse:problem:no-ready-check")),
        "{problem}"
    );
    assert_eq!(ticket(&bob, one, &next[1]).await.0, 404);
    engine.sigterm();
    assert_eq!(engine.wait(PATIENCE).await.code(), Some(0));
}
