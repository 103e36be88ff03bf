//! Parties of players at several processes.

use reqwest::Method;
use serde_json::json;
use testkit::{eventually, need};

use super::flows::{Events, Gateway, Player, Setup};
use super::shop::OPERATOR_TOKEN;
use crate::crashes::assert_killed;
use crate::*;

/// Two teams of two with similar ratings.
const ARENA: &str = r#"
[matchmaking.queues.arena]
numbers = ["mmr"]
max_party = 2
[matchmaking.queues.duel]
[matchmaking.profiles.arena]
function = "rules"
assigner = "one_each"
rules = '''
name = "arena"
[attributes.mmr]
type = "number"
[teams.red]
max = 2
[teams.blue]
max = 2
[rules.similar]
type = "batch-distance"
attribute = "mmr"
max = 50
party = "each"
'''
[matchmaking.profiles.arena.pools.all]
filters = ["queue = arena"]
[matchmaking.assigners.one_each]
addresses = ["{match_id}.test:7777"]
"#;

/// A signed-in player at a gateway.
struct Client {
    player: Player,
    at: String,
    id: String,
    stream: Events,
}

impl Client {
    /// Signs a player in and opens the player's stream.
    async fn start(setup: &Setup, gateway: &Gateway, name: &str) -> Self {
        let (player, at) = (setup.player(name).await, gateway.at.clone());
        let id = player.me(&at).await.1["user_id"].as_str().unwrap().to_owned();
        let stream = player.with_new_connections().request(Method::GET, &at, "/v1/stream");
        Self { stream: Events::new(stream.send().await.unwrap()), player, at, id }
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let request = self.player.request(Method::POST, &self.at, &format!("/v1/parties{path}")).json(&body);
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    async fn party(&self) -> Value {
        let (status, mine) = self.player.get(&self.at, "/v1/parties").await;
        assert_eq!(status, 200, "{mine}");
        mine
    }

    /// Waits for an event of the stream.
    async fn until(&mut self, name: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let (event, data) = self.stream.next().await.expect("the stream has ended");
            if event == name && is_it(&data) {
                return data;
            }
        }
    }

    async fn until_members(&mut self, members: &[&str]) -> Value {
        self.until("party", |data| {
            let listed = data["party"]["members"].as_array().into_iter().flatten();
            listed.map(|member| member["user_id"].as_str().unwrap()).eq(members.iter().copied())
        })
        .await
    }
}

fn problem<'a>((status, problem): &'a (u16, Value), cause: &str) -> &'a Value {
    assert_eq!(problem["type"], format!("urn:playhouse:problem:parties:{cause}"), "{status} {problem}");
    assert_eq!(problem["status"], *status);
    problem
}

async fn queue_alone(client: &Client, mmr: u32) -> Value {
    let body = json!({ "queue": "arena", "numbers": { "mmr": mmr } });
    let request = client.player.request(Method::POST, &client.at, "/v1/matchmaking/tickets").json(&body);
    request.send().await.unwrap().json().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn party_by_code_is_matched_together_and_every_member_gets_the_match() {
    let setup = need!(Setup::start().await);
    setup.configure(ARENA);
    let gateways = setup.start_gateways(2).await;
    let engine = setup.program("matchmaking-engine").start().unwrap();
    addresses(&engine).await;
    let mut ada = Client::start(&setup, &gateways[0], "ada").await;
    let mut bob = Client::start(&setup, &gateways[1], "bob").await;
    let [mut eve, mut dan, far] = [
        Client::start(&setup, &gateways[0], "eve").await,
        Client::start(&setup, &gateways[1], "dan").await,
        Client::start(&setup, &gateways[1], "far").await,
    ];
    assert_eq!(ada.party().await, json!({ "party": null, "invitations": [] }));
    problem(&ada.post("/ticket", json!({ "queue": "arena" })).await, "no-party");

    let (status, party) = ada.post("", json!({ "numbers": { "mmr": 1000 } })).await;
    assert_eq!((status, party["leader"].as_str()), (201, Some(&*ada.id)), "{party}");
    problem(&bob.post("/join", json!({ "code": "22222" })).await, "wrong-code");
    let join = json!({ "code": party["code"], "numbers": { "mmr": 1020 } });
    let (status, joined) = bob.post("/join", join).await;
    assert_eq!(status, 200, "{joined}");
    assert_eq!(
        joined["members"][1],
        json!({
            "user_id": bob.id, "name": "Player bob", "numbers": { "mmr": 1020.0 }, "strings": {}, "tags": []
        })
    );
    let members = [ada.id.clone(), bob.id.clone()];
    let members = members.each_ref().map(String::as_str);
    for client in [&mut ada, &mut bob] {
        client.until_members(&members).await;
    }
    let (_, home) = bob.player.get(&bob.at, "/v1/home").await;
    assert_eq!(home["party"]["data"]["party"]["party_id"], party["party_id"], "{home}");

    // A member who waits alone is named.
    let (_, alone) = bob.player.join(&bob.at, "duel").await;
    problem(&bob.post("/ticket", json!({ "queue": "arena" })).await, "not-leader");
    let refused = ada.post("/ticket", json!({ "queue": "arena" })).await;
    assert_eq!(problem(&refused, "member-waits-elsewhere")["user_id"], bob.id);
    assert_eq!(bob.player.leave(&bob.at, alone["ticket_id"].as_str().unwrap()).await, 204);

    let (status, ticket) = ada.post("/ticket", json!({ "queue": "arena" })).await;
    assert_eq!(status, 201, "{ticket}");
    let id = ticket["ticket_id"].clone();
    for client in [&mut ada, &mut bob] {
        let seen = client.until("party", |data| !data["party"]["ticket"].is_null()).await;
        assert_eq!(seen["party"]["ticket"], json!({ "ticket_id": id, "queue": "arena" }));
    }
    assert_eq!(bob.player.join(&bob.at, "duel").await.0, 409, "bob waits with the party");
    assert_eq!(ada.post("/ticket", json!({ "queue": "arena" })).await.0, 200);

    queue_alone(&far, 3000).await;
    for (client, mmr) in [(&eve, 1010), (&dan, 1030)] {
        queue_alone(client, mmr).await;
    }
    let mut connections = Vec::new();
    for client in [&mut ada, &mut bob, &mut eve, &mut dan] {
        let assigned = client.until("ticket", |ticket| ticket["state"] == "ASSIGNED").await;
        connections.push(assigned["assignment"].clone());
    }
    let connection = &connections[0]["connection"];
    assert!(connections.iter().all(|other| other["connection"] == *connection), "{connections:?}");
    assert_eq!(connections[0], connections[1], "a party has one ticket");
    bob.until("party", |data| data["party"]["ticket"].is_null()).await;
    // The event of the match names all players.
    eventually("bob is notified", PATIENCE, async || {
        let (_, tickets) = bob.player.get(&bob.at, "/v1/matchmaking/tickets").await;
        tickets["tickets"][0]["state"] == "ASSIGNED"
    })
    .await;
    engine.sigterm();
    assert_eq!(engine.wait(PATIENCE).await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_a_queued_party_cancels_the_ticket_and_a_ban_removes_the_member() {
    let setup = need!(Setup::start().await);
    setup.configure(ARENA);
    let gateways = setup.start_gateways(2).await;
    let relay = setup.program("outbox-relay").start().unwrap();
    addresses(&relay).await;
    let mut ada = Client::start(&setup, &gateways[0], "ada").await;
    let mut bob = Client::start(&setup, &gateways[1], "bob").await;
    let skill = json!({ "numbers": { "mmr": 1000 } });
    let (_, party) = ada.post("", skill.clone()).await;
    let (status, invited) = ada.post("/invitations", json!({ "user_id": bob.id })).await;
    assert_eq!((status, &invited["invited"]), (200, &json!([bob.id])));
    let news = bob.until("party", |data| data["invitations"] != json!([])).await;
    assert_eq!(news["invitations"][0]["leader_name"], "Player ada", "{news}");
    let accept = format!("/invitations/{}/accept", party["party_id"].as_str().unwrap());
    assert_eq!(bob.post(&accept, skill).await.0, 200);
    problem(&bob.post("", json!({})).await, "in-another-party");
    let [ada_id, bob_id] = [ada.id.clone(), bob.id.clone()];

    let (status, ticket) = ada.post("/ticket", json!({ "queue": "arena" })).await;
    assert_eq!(status, 201, "{ticket}");
    bob.until("ticket", |ticket| ticket["state"] == "WAITING").await;
    assert_eq!(bob.post("/leave", Value::Null).await.0, 204);
    for client in [&mut ada, &mut bob] {
        let gone = client.until("ticket", |ticket| ticket["state"] == "GONE").await;
        assert_eq!(gone["ticket_id"], ticket["ticket_id"]);
    }
    ada.until_members(&[&ada_id]).await;
    bob.until("party", |data| data["party"].is_null()).await;

    let code = ada.party().await["party"]["code"].clone();
    assert_eq!(bob.post("/join", json!({ "code": code })).await.0, 200);
    ada.until_members(&[&ada_id, &bob_id]).await;
    assert_eq!(bob.post("/leader", json!({ "user_id": ada_id })).await.0, 200, "ada leads already");
    problem(&bob.post("/kick", json!({ "user_id": ada_id })).await, "not-leader");
    let ban = format!("http://{}/users/{bob_id}/ban", gateways[0].admin);
    let banned =
        reqwest::Client::new().post(ban).bearer_auth(OPERATOR_TOKEN).json(&json!({ "reason": "test" }));
    let banned = banned.send().await.unwrap();
    assert!(banned.status().is_success(), "{banned:?}");
    ada.until_members(&[&ada_id]).await;
    relay.sigterm();
    assert_eq!(relay.wait(PATIENCE).await.code(), Some(0));
}

/// A party of two makes a match, and is asked whether it is ready.
const FRIENDS: &str = r#"
[matchmaking.queues.friends]
max_party = 2
[matchmaking.profiles.friends]
function = "rules"
assigner = "one_each"
ready_check = "60s"
rules = '''
name = "friends"
[teams.friends]
min = 2
max = 2
'''
[matchmaking.assigners.one_each]
addresses = ["{match_id}.test:7777"]
"#;

/// Sends a request to a gateway that is killed at a fault point, so that the response is lost.
async fn lose_the_gateway(setup: &Setup, point: &str, client: &Client, path: &str, body: Value) {
    let doomed = setup.program("gateway,service-api").env("TESTKIT_FAULT", point);
    let doomed = Gateway::start(&doomed).await;
    let request = client.player.with_new_connections().request(Method::POST, &doomed.at, path).json(&body);
    request.send().await.unwrap_err();
    assert_killed(&doomed.running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_killed_at_each_change_of_a_party_loses_and_doubles_nothing() {
    const CHANGED: &str = "matchmaking.party.changed";
    let setup = need!(Setup::start().await);
    setup.configure(FRIENDS);
    let gateways = setup.start_gateways(1).await;
    let mut ada = Client::start(&setup, &gateways[0], "ada").await;
    let mut bob = Client::start(&setup, &gateways[0], "bob").await;
    let [ada_id, bob_id] = [ada.id.clone(), bob.id.clone()];

    lose_the_gateway(&setup, CHANGED, &ada, "/v1/parties", json!({})).await;
    let (status, party) = ada.post("", json!({})).await;
    assert_eq!((status, party["members"].as_array().unwrap().len()), (200, 1), "{party}");

    // The other member learns of it, although nothing was published.
    let join = json!({ "code": party["code"] });
    lose_the_gateway(&setup, CHANGED, &bob, "/v1/parties/join", join.clone()).await;
    ada.until_members(&[&ada_id, &bob_id]).await;
    let (status, joined) = bob.post("/join", join).await;
    assert_eq!((status, &joined["party_id"]), (200, &party["party_id"]), "{joined}");
    problem(&bob.post("", json!({})).await, "in-another-party");
    assert_eq!(ada.party().await["party"]["members"].as_array().unwrap().len(), 2);

    let queue = json!({ "queue": "friends" });
    lose_the_gateway(&setup, CHANGED, &ada, "/v1/parties/ticket", queue.clone()).await;
    let (status, ticket) = ada.post("/ticket", queue.clone()).await;
    assert_eq!((status, &ticket["state"]), (200, &json!("WAITING")), "{ticket}");
    for client in [&mut ada, &mut bob] {
        let seen = client.until("ticket", |ticket| ticket["state"] == "WAITING").await;
        assert_eq!(seen["ticket_id"], ticket["ticket_id"], "one ticket for both");
    }

    // A member who leaves cancels the ticket in the same step.
    lose_the_gateway(&setup, CHANGED, &bob, "/v1/parties/leave", Value::Null).await;
    assert_eq!(bob.post("/leave", Value::Null).await.0, 204);
    for client in [&mut ada, &mut bob] {
        let gone = client.until("ticket", |ticket| ticket["state"] == "GONE").await;
        assert_eq!(gone["ticket_id"], ticket["ticket_id"]);
    }
    assert_eq!(bob.party().await["party"], Value::Null);

    // An answer to a ready check counts, also if its gateway dies, and the match is made once.
    assert_eq!(bob.post("/join", json!({ "code": party["code"] })).await.0, 200);
    let (status, ticket) = ada.post("/ticket", queue).await;
    assert_eq!(status, 201, "{ticket}");
    let engine = setup.program("matchmaking-engine").start().unwrap();
    addresses(&engine).await;
    for client in [&mut ada, &mut bob] {
        client.until("ticket", |ticket| ticket["state"] == "READY_CHECK").await;
    }
    let accept = format!("/v1/matchmaking/tickets/{}/accept", ticket["ticket_id"].as_str().unwrap());
    lose_the_gateway(&setup, "matchmaking.ready.answered", &bob, &accept, Value::Null).await;
    for client in [&bob, &ada] {
        let answer = client.player.request(Method::POST, &client.at, &accept).send().await.unwrap();
        assert_eq!(answer.status(), 200);
    }
    let mut connections = Vec::new();
    for client in [&mut ada, &mut bob] {
        let assigned = client.until("ticket", |ticket| ticket["state"] == "ASSIGNED").await;
        connections.push(assigned["assignment"]["connection"].clone());
    }
    assert_eq!(connections[0], connections[1]);
    engine.sigterm();
    assert_eq!(engine.wait(PATIENCE).await.code(), Some(0));
}
