//! The server as Playhouse and players reach it: signed webhooks, streams and actions over HTTP.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

use std::time::Duration;

use base::Clock;
use base::Timestamp;
use example_game_server::duel::Rules;
use example_game_server::results::Journal;
use example_game_server::{GameServer, Options, ServiceApi};
use reqwest::{Client, Response, StatusCode};
use serde_json::{Value, json};
use testkit::Folder;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use url::Url;
use uuid::Uuid;
use webhook::{Secrets, Verifier};

const SECRET: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
const OTHER_SECRET: &str = "whsec_OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEwOTg=";
const MATCH: Uuid = Uuid::from_u128(1);
const PATIENCE: Duration = Duration::from_secs(10);

/// A running game server, whose Playhouse is away.
struct Running {
    server: GameServer,
    url: String,
    client: Client,
    clock: Clock,
    journal: Journal,
    stop: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
    _folder: Folder,
}

impl Running {
    async fn start() -> Self {
        let folder = Folder::fresh().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let clock = Clock::manual(Timestamp::from_millis(1_800_000_000_000));
        let journal = Journal::open(folder.path()).unwrap();
        let nobody = Url::parse("http://127.0.0.1:9").unwrap();
        let server = GameServer::new(Options {
            public_url: Url::parse(&url).unwrap(),
            verifier: Verifier::new([SECRET]).unwrap(),
            api: ServiceApi::new(nobody, "token".to_owned()).unwrap(),
            journal: journal.clone(),
            rules: Rules::default(),
            max_rooms: 10,
            clock: clock.clone(),
            random: fastrand::Rng::with_seed(7),
        });
        let (stop, stopped) = oneshot::channel();
        let running = server.clone();
        let task = tokio::spawn(async move { running.run(listener, async { stopped.await.unwrap() }).await });
        Self { server, url, client: Client::new(), clock, journal, stop, task, _folder: folder }
    }

    /// Sends a webhook as Playhouse does.
    async fn webhook(&self, id: &str, secret: &str, body: &Value) -> Response {
        let body = body.to_string();
        let (id, secrets) = (id.parse().unwrap(), Secrets::new([secret]).unwrap());
        let headers = webhook::headers(&id, self.clock.now(), body.as_bytes(), Some(&secrets));
        self.client.post(format!("{}/allocate", self.url)).headers(headers).body(body).send().await.unwrap()
    }

    /// Requests a server for the match. Returns the assignment.
    async fn assign(&self) -> Value {
        let ticket =
            |id: &str, user: u128| json!({ "id": id, "user_id": Uuid::from_u128(user), "created_at": 0 });
        self.assign_to(json!([ticket("ticket-a", 10), ticket("ticket-b", 11)])).await
    }

    /// Requests a server for a match of these tickets. Returns the assignment.
    async fn assign_to(&self, tickets: Value) -> Value {
        let body = json!({ "type": "match.assign", "matches": [{
            "match_id": MATCH, "match_profile": "duel", "match_function": "fifo", "tickets": tickets,
        }] });
        let answer = self.webhook("assign_1", SECRET, &body).await;
        assert_eq!(answer.status(), 200);
        answer.json::<Value>().await.unwrap()["assignments"][0].clone()
    }

    async fn events(&self, token: &str) -> Response {
        let url = format!("{}/matches/{MATCH}/events", self.url);
        self.client.get(url).bearer_auth(token).send().await.unwrap()
    }

    async fn act(&self, token: &str, action: Value) -> StatusCode {
        let url = format!("{}/matches/{MATCH}/actions", self.url);
        self.client.post(url).bearer_auth(token).json(&action).send().await.unwrap().status()
    }
}

/// A player's stream.
struct States {
    response: Response,
    text: String,
}

impl States {
    fn new(response: Response) -> Self {
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, text: String::new() }
    }

    /// Returns the next state. None at the end of the stream.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let data = event.lines().find_map(|line| line.strip_prefix("data:"));
                let state = data.map(|data| serde_json::from_str(data).unwrap());
                self.text = rest.to_owned();
                if state.is_some() {
                    return state;
                }
                continue;
            }
            let chunk = tokio::time::timeout(PATIENCE, self.response.chunk()).await.unwrap().unwrap()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// Skips to the first state in a phase.
    async fn until(&mut self, phase: &str) -> Value {
        loop {
            let state = self.next().await.unwrap_or_else(|| panic!("the stream ended before {phase}"));
            if state["phase"] == phase {
                return state;
            }
        }
    }
}

fn token(assignment: &Value, ticket: usize) -> String {
    assignment["tickets"][ticket]["extensions"]["token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn repeated_allocation_gets_the_same_answer() {
    let running = Running::start().await;
    let first = running.assign().await;
    assert_eq!(first["connection"], format!("{}/matches/{MATCH}", running.url));
    assert_ne!(token(&first, 0), token(&first, 1), "no player has the token of another");
    assert_eq!(running.assign().await, first);
}

#[tokio::test]
async fn each_member_of_a_party_gets_a_token_of_their_own() {
    let running = Running::start().await;
    let [ada, grace] = [10, 11].map(Uuid::from_u128);
    let party = json!([{ "id": "party", "user_id": ada, "user_ids": [ada, grace], "created_at": 0 }]);
    let assignment = running.assign_to(party.clone()).await;
    assert_eq!(assignment, running.assign_to(party).await);
    let ticket = &assignment["tickets"][0];
    assert_eq!((&ticket["id"], &ticket["extensions"]), (&json!("party"), &Value::Null));
    for (at, (user, seat)) in [(ada, "first"), (grace, "second")].into_iter().enumerate() {
        let player = &ticket["players"][at];
        assert_eq!(player["user_id"], json!(user));
        let token = player["extensions"]["token"].as_str().unwrap();
        let mut states = States::new(running.events(token).await);
        assert_eq!(states.next().await.unwrap()["you"], seat);
    }
    // Three players are too many for a duel, and one is too few.
    for users in [vec![ada], vec![ada, grace, Uuid::from_u128(12)]] {
        let party = json!([{ "id": "party", "user_id": ada, "user_ids": users, "created_at": 0 }]);
        running.server.rooms().abandon(MATCH);
        assert_eq!(running.assign_to(party).await, Value::Null);
    }
}

#[tokio::test]
async fn unsigned_allocation_opens_no_room() {
    let running = Running::start().await;
    let body = json!({ "type": "match.assign", "matches": [] });
    assert_eq!(running.webhook("assign_1", OTHER_SECRET, &body).await.status(), 401);
    let unsigned = running.client.post(format!("{}/allocate", running.url)).json(&body).send().await.unwrap();
    assert_eq!(unsigned.status(), 401);
    assert_eq!(running.server.rooms().count(), 0);
}

#[tokio::test]
async fn stranger_neither_sees_nor_plays_the_game() {
    let running = Running::start().await;
    running.assign().await;
    for token in ["", "stranger"] {
        assert_eq!(running.events(token).await.status(), 401);
        assert_eq!(running.act(token, json!({ "action": "ready" })).await, 401);
    }
}

#[tokio::test]
async fn two_players_play_and_the_result_waits_in_the_journal_while_playhouse_is_away() {
    let running = Running::start().await;
    let assignment = running.assign().await;
    let (ada, grace) = (token(&assignment, 0), token(&assignment, 1));
    let mut states = States::new(running.events(&ada).await);
    assert_eq!(states.next().await.unwrap()["phase"], "gathering");
    let _other = States::new(running.events(&grace).await);
    for token in [&ada, &grace] {
        assert_eq!(running.act(token, json!({ "action": "ready" })).await, 204);
    }
    for round in 1..=3 {
        states.until("steady").await;
        running.clock.advance(Rules::default().steady.1);
        // The loop waits by the clock of the machine, so the change is made by a request.
        running.act(&grace, json!({ "action": "ready" })).await;
        states.until("green").await;
        assert_eq!(running.act(&ada, json!({ "action": "press", "round": round })).await, 204);
        let scored = states.until("scored").await;
        assert_eq!(
            (&scored["scored"]["winner"], &scored["players"][0]["points"]),
            (&json!("first"), &json!(round))
        );
        running.clock.advance(Rules::default().pause);
        running.act(&grace, json!({ "action": "ready" })).await;
    }
    let over = states.until("over").await;
    assert_eq!(over["result"], json!({ "winner": "first", "ending": "points" }));
    let [result] = running.journal.pending().unwrap().try_into().unwrap();
    assert_eq!((result.match_id, result.players.map(|player| player.points)), (MATCH, [3, 0]));

    // A page that is loaded again sees the result.
    let mut again = States::new(running.events(&ada).await);
    assert_eq!(again.next().await.unwrap()["phase"], "over");
}

#[tokio::test]
async fn abandoned_match_ends_its_streams() {
    let running = Running::start().await;
    let assignment = running.assign().await;
    let ada = token(&assignment, 0);
    let mut states = States::new(running.events(&ada).await);
    states.next().await;
    let body = json!({ "type": "match.abandoned", "timestamp": "2026-11-16T04:55:13.030Z", "data": {
        "match_id": MATCH, "match_profile": "duel", "ticket_ids": ["ticket-a", "ticket-b"], "reason": "refused",
    } });
    for _ in 0..2 {
        assert_eq!(running.webhook("abandon_1", SECRET, &body).await.status(), 204);
    }
    assert_eq!((states.next().await, running.server.rooms().count()), (None, 0));
    assert_eq!(running.events(&ada).await.status(), 404);
}

#[tokio::test]
async fn stop_ends_open_streams() {
    let running = Running::start().await;
    let assignment = running.assign().await;
    let mut states = States::new(running.events(&token(&assignment, 0)).await);
    states.next().await;
    running.stop.send(()).unwrap();
    assert_eq!(states.next().await, None);
    tokio::time::timeout(PATIENCE, running.task).await.unwrap().unwrap().unwrap();
}
