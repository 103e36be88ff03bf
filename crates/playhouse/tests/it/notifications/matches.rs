//! Both players of a match are notified.

use serde_json::json;
use testkit::{eventually, need};

use super::setup::Setup;
use super::stream_client::Stream;
use crate::gateway::DUEL;
use crate::*;

/// Waits for the assigned ticket and the notification on a stream. Returns the connection and the notification.
async fn wait_for_match(stream: &mut Stream) -> (String, Value) {
    let (mut connection, mut notification) = (None, None);
    while connection.is_none() || notification.is_none() {
        let event = stream.next().await.unwrap();
        match (event.name.as_str(), event.data["state"].as_str()) {
            ("ticket", Some("ASSIGNED")) => {
                connection = Some(event.data["assignment"]["connection"].as_str().unwrap().to_owned());
            }
            ("notification", _) => notification = Some(event.data),
            _ => {}
        }
    }
    (connection.unwrap(), notification.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn both_players_of_a_match_are_notified_by_stream_and_inbox() {
    let setup = need!(Setup::start().await);
    setup.configure(DUEL);
    let apis = [setup.process("gateway,service-api").await, setup.process("gateway,service-api").await];
    let _engine = setup.process("matchmaking-engine,outbox-relay").await;
    let _notifier = setup.process("notifier").await;
    let players = [setup.player(&apis[0], "ada").await, setup.player(&apis[1], "bob").await];
    let mut streams = Vec::new();
    for (player, api) in players.iter().zip(&apis) {
        streams.push(player.stream(api.gateway(), None).await);
    }
    for (player, api) in players.iter().zip(apis.iter().rev()) {
        let (status, ticket) =
            player.post(api.gateway(), "/v1/matchmaking/tickets", &json!({ "queue": "duel" })).await;
        assert_eq!(status, 201, "{ticket}");
    }
    let mut connections = Vec::new();
    for stream in &mut streams {
        let (connection, notification) = wait_for_match(stream).await;
        assert_eq!(notification["template"], "match-made", "{notification}");
        assert!(notification["body"].as_str().unwrap().contains(&connection), "{connection}: {notification}");
        connections.push(connection);
    }
    assert_eq!(connections[0], connections[1]);
    for player in &players {
        eventually("the inbox has the notification once", PATIENCE, async || {
            let inbox = player.inbox(apis[0].gateway()).await;
            let templates: Vec<&Value> = inbox.iter().map(|one| &one["template"]).collect();
            if templates == ["match-made"] { Ok(()) } else { Err(format!("{inbox:?}")) }
        })
        .await;
    }
}
