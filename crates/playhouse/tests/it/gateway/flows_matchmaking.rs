//! Matchmaking for players: several devices, several processes, one ticket.

use std::time::Instant;

use serde_json::json;
use testkit::{eventually, need};

use super::DUEL;
use super::flows::{Player, Scene, stream_of};
use crate::*;

/// Beside the one of which matches are made, one of which none are.
fn queues() -> String {
    format!(
        "{DUEL}[matchmaking.queues.nobody]\ncancel_when_gone = \"2s\"\n[matchmaking]\nwatch_check = \"1m\"\n"
    )
}

/// After which time without a stream a ticket of the queue `nobody` is cancelled.
const GONE: Duration = Duration::from_secs(2);

async fn ticket(player: &Player, at: &str, id: &str) -> (u16, Value) {
    player.get(at, &format!("/v1/matchmaking/tickets/{id}")).await
}

fn id(ticket: &Value) -> &str {
    ticket["ticket_id"].as_str().unwrap_or_else(|| panic!("no ticket: {ticket}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn two_devices_at_two_processes_have_one_ticket_and_both_hear_of_the_match() {
    let scene = need!(Scene::start().await);
    scene.configure(&queues());
    let doors = scene.gateways(2).await;
    let [one, two] = [doors[0].at.as_str(), doors[1].at.as_str()];
    let engine = scene.program("matchmaking-engine").start().unwrap();
    addresses(&engine).await;
    let (phone, laptop, bob) =
        (scene.player("ada").await, scene.sign_in("ada").await, scene.player("bob").await);

    let (joined, again) = tokio::join!(phone.join(one, "duel"), laptop.join(two, "duel"));
    let mut statuses = [joined.0, again.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 201], "{joined:?} {again:?}");
    assert_eq!(joined.1["ticket_id"], again.1["ticket_id"]);
    let of_ada = id(&joined.1);
    let mut streams = [phone.follow(one, of_ada).await, laptop.follow(two, of_ada).await];
    for stream in &mut streams {
        stream.expect("WAITING").await;
    }

    // What is another's is not there.
    assert_eq!(ticket(&bob, two, of_ada).await.0, 404);
    assert_eq!(bob.get(two, &stream_of(of_ada)).await.0, 404);
    bob.leave(two, of_ada).await;
    assert_eq!(ticket(&phone, two, of_ada).await.1["state"], "WAITING");
    assert_eq!(bob.get(one, "/v1/matchmaking/tickets").await.1["tickets"], json!([]));

    let (status, waiting) = bob.join(two, "duel").await;
    assert_eq!(status, 201, "{waiting}");
    let mut connections = Vec::new();
    for stream in &mut streams {
        connections.push(stream.expect("ASSIGNED").await["assignment"]["connection"].clone());
    }
    let of_bob = eventually("bob has a match too", PATIENCE, async || {
        let (_, found) = ticket(&bob, one, id(&waiting)).await;
        found["assignment"]["connection"].as_str().map(str::to_owned)
    })
    .await;
    assert_eq!(connections, [json!(of_bob), json!(of_bob)]);
    let (_, home) = laptop.get(one, "/v1/home").await;
    assert_eq!(home["matchmaking"]["data"]["tickets"][0]["state"], "ASSIGNED", "{home}");
    engine.sigterm();
    assert_eq!(engine.wait(PATIENCE).await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_that_is_taken_back_at_one_process_is_gone_at_the_other() {
    let scene = need!(Scene::start().await);
    scene.configure(&queues());
    let doors = scene.gateways(2).await;
    let [one, two] = [doors[0].at.as_str(), doors[1].at.as_str()];
    let (ada, bob) = (scene.player("ada").await, scene.player("bob").await);
    let (_, waiting) = ada.join(one, "duel").await;
    let mut stream = ada.follow(two, id(&waiting)).await;
    stream.expect("WAITING").await;
    assert_eq!(bob.leave(one, id(&waiting)).await, 204, "as good as gone to whoever has no such ticket");
    assert_eq!(ticket(&ada, two, id(&waiting)).await.0, 200);
    assert_eq!(ada.leave(one, id(&waiting)).await, 204);
    stream.expect("GONE").await;
    assert_eq!(stream.last().await, "end");
    assert_eq!(ticket(&ada, two, id(&waiting)).await.0, 404);
    assert_eq!(ada.leave(two, id(&waiting)).await, 204, "twice is as good as once");
    let (status, next) = ada.join(two, "duel").await;
    assert_eq!(status, 201);
    assert_ne!(id(&next), id(&waiting));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_is_cancelled_when_the_last_stream_is_gone_and_not_before() {
    let scene = need!(Scene::start().await);
    scene.configure(&queues());
    let doors = scene.gateways(2).await;
    let [one, two] = [doors[0].at.as_str(), doors[1].at.as_str()];
    let ada = scene.player("ada").await;
    let (_, waiting) = ada.join(one, "nobody").await;
    let id = id(&waiting);
    let mut streams = vec![ada.elsewhere().follow(one, id).await, ada.elsewhere().follow(two, id).await];
    for stream in &mut streams {
        stream.expect("WAITING").await;
    }
    // Longer than that, with both streams and with the one at the other process.
    for _ in 0..2 {
        let since = Instant::now();
        while since.elapsed() < GONE * 3 / 2 {
            assert_eq!(ticket(&ada, one, id).await.0, 200, "{:?}", since.elapsed());
            tokio::time::sleep(GONE / 20).await;
        }
        drop(streams.remove(0));
    }
    let closed = Instant::now();
    eventually("the ticket is cancelled", PATIENCE, async || ticket(&ada, one, id).await.0 == 404).await;
    let after = closed.elapsed();
    // The store may have heard of the end of the stream a little before we look at the clock, or later.
    assert!(after > GONE * 9 / 10 && after < GONE * 2, "{after:?}");
    assert_eq!(ada.join(two, "nobody").await.0, 201);
}
