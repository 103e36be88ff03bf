//! A match, as both who play it hear of it.

use serde_json::json;
use testkit::{eventually, need};

use super::stage::Stage;
use super::tape::Stream;
use crate::gateway::DUEL;
use crate::*;

/// Where the player is to play, as the ticket on the stream says; and the notification that came with it.
async fn hears_of_the_match(stream: &mut Stream) -> (String, Value) {
    let (mut connection, mut notification) = (None, None);
    while connection.is_none() || notification.is_none() {
        let told = stream.next().await.unwrap();
        match (told.name.as_str(), told.data["state"].as_str()) {
            ("ticket", Some("ASSIGNED")) => {
                connection = Some(told.data["assignment"]["connection"].as_str().unwrap().to_owned());
            }
            ("notification", _) => notification = Some(told.data),
            _ => {}
        }
    }
    (connection.unwrap(), notification.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn both_players_of_a_match_are_told_on_their_streams_and_in_their_inboxes() {
    let stage = need!(Stage::start().await);
    stage.configure(DUEL);
    let doors = [stage.process("gateway,service-api").await, stage.process("gateway,service-api").await];
    let _engine = stage.process("matchmaking-engine,outbox-relay").await;
    let _notifier = stage.process("notifier").await;
    let players = [stage.player(&doors[0], "ada").await, stage.player(&doors[1], "bob").await];
    let mut streams = Vec::new();
    for (player, door) in players.iter().zip(&doors) {
        streams.push(player.stream(door.gateway(), None).await);
    }
    for (player, door) in players.iter().zip(doors.iter().rev()) {
        let (status, ticket) =
            player.post(door.gateway(), "/v1/matchmaking/tickets", &json!({ "queue": "duel" })).await;
        assert_eq!(status, 201, "{ticket}");
    }
    let mut places = Vec::new();
    for stream in &mut streams {
        let (place, notification) = hears_of_the_match(stream).await;
        assert_eq!(notification["template"], "match-made", "{notification}");
        assert!(notification["body"].as_str().unwrap().contains(&place), "{place}: {notification}");
        places.push(place);
    }
    assert_eq!(places[0], places[1]);
    for player in &players {
        eventually("it is in the inbox, once", PATIENCE, async || {
            let inbox = player.inbox(doors[0].gateway()).await;
            let templates: Vec<&Value> = inbox.iter().map(|one| &one["template"]).collect();
            if templates == ["match-made"] { Ok(()) } else { Err(format!("{inbox:?}")) }
        })
        .await;
    }
}
