//! The actions of the screen "Try it": they work under `playhouse dev`, and nowhere else.

use reqwest::{Client, Method};
use serde_json::{Value, json};
use testkit::{Folder, RunningProgram, eventually};

use super::shop::{self, OPERATOR_TOKEN, READER_TOKEN};
use super::*;

/// The routes that exist for development only, each with a valid body.
fn routes() -> [(&'static str, Value); 4] {
    [
        ("/try-it/players/ada/sign-in", Value::Null),
        ("/try-it/players/ada/notify", json!({ "title": "Hello" })),
        ("/try-it/players/ada/join", json!({ "queue": "duel" })),
        ("/try-it/failed-event", Value::Null),
    ]
}

/// A process, and an operator who calls its admin API.
struct TestProcess {
    _running: RunningProgram,
    at: HashMap<String, String>,
    client: Client,
}

impl TestProcess {
    async fn start(program: Program) -> Self {
        let running = program.start().unwrap();
        let at = addresses(&running).await;
        Self { _running: running, at, client: Client::new() }
    }

    /// Calls the admin API with a token.
    async fn call_as(&self, token: &str, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let request =
            self.client.request(method, format!("http://{}{path}", self.at["admin"])).bearer_auth(token);
        let request = request.header("idempotency-key", path);
        let request = if body.is_null() { request } else { request.json(body) };
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        (status, serde_json::from_str(&response.text().await.unwrap()).unwrap())
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.call_as(OPERATOR_TOKEN, Method::POST, path, &body).await
    }

    /// Makes a change that must succeed.
    async fn change(&self, path: &str, body: Value) -> Value {
        let (status, found) = self.post(path, body).await;
        assert!((200..300).contains(&status), "{path}: {status} {found}");
        found
    }

    async fn get(&self, path: &str) -> Value {
        let (status, found) = shop::admin_get(format!("http://{}{path}", self.at["admin"])).await;
        assert_eq!(status, 200, "{path}: {found}");
        found
    }

    /// Reads from the gateway, as the player.
    async fn as_player(&self, user: &str, path: &str) -> Value {
        let created = self.change(&format!("/issuer/tokens?user={user}"), Value::Null).await;
        let url = format!("http://{}{path}", self.at["gateway"]);
        let response =
            self.client.get(url).bearer_auth(created["token"].as_str().unwrap()).send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        serde_json::from_str(&response.text().await.unwrap()).unwrap()
    }

    /// Returns the actions in the audit log, each with its outcome, the oldest first.
    async fn audited(&self) -> Vec<(String, String)> {
        let found = self.get("/audit?limit=1000&after=0").await;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let entries = found["entries"].as_array().unwrap().iter();
        entries.map(|entry| (text(&entry["action"]), text(&entry["outcome"]))).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_player_is_the_one_who_signs_in_at_the_gateway() {
    let process = TestProcess::start(dev(&["--ephemeral"])).await;
    let first = process.change("/try-it/players/ada/sign-in", Value::Null).await;
    assert_eq!((&first["created"], &first["name"]), (&json!(true), &json!("Ada Lovelace")), "{first}");
    let again = process.change("/try-it/players/ada/sign-in", Value::Null).await;
    assert_eq!((&again["created"], &again["user_id"]), (&json!(false), &first["user_id"]), "{again}");
    let me = process.as_player("ada", "/v1/me").await;
    assert_eq!(me["user_id"], first["user_id"], "{me}");
    assert_eq!(me["accounts"][0]["account_id"], first["account_id"], "{me}");
    assert!(first.get("token").is_none(), "no token reaches the browser: {first}");

    let user = first["user_id"].as_str().unwrap();
    process.change(&format!("/users/{user}/ban"), json!({ "reason": "cheats" })).await;
    for (path, body) in routes().into_iter().take(3) {
        let (status, problem) = process.post(path, body).await;
        assert!(
            matches!(status, 403 | 409) && problem["detail"].to_string().contains("banned"),
            "{path}: {problem}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn actions_act_for_the_player_and_are_recorded() {
    let process = TestProcess::start(dev(&["--ephemeral"])).await;
    let ada = process.change("/try-it/players/ada/sign-in", Value::Null).await;
    process.change("/try-it/players/grace/sign-in", Value::Null).await;

    let grant = json!({ "account_id": ada["account_id"], "resource": "skin:gold", "reason": "try-it" });
    process.change("/entitlements/grant", grant).await;
    let owned = process.as_player("ada", "/v1/entitlements").await;
    assert!(owned.to_string().contains("skin:gold"), "{owned}");

    process.change("/try-it/players/ada/notify", json!({ "title": "Hello, Ada", "body": "Come in." })).await;
    let inbox = process.as_player("ada", "/v1/notifications").await;
    let messages = inbox["notifications"].as_array().unwrap();
    let is_sent = |message: &Value| message["title"] == "Hello, Ada" && message["body"] == "Come in.";
    assert!(messages.iter().any(is_sent), "{inbox}");

    let ticket = process.change("/try-it/players/ada/join", json!({ "queue": "duel" })).await;
    assert_eq!((&ticket["queue"], &ticket["created"]), (&json!("duel"), &json!(true)), "{ticket}");
    process.change("/try-it/players/grace/join", json!({ "queue": "duel" })).await;
    eventually("the two players are matched", PATIENCE, async || {
        let tickets = process.as_player("ada", "/v1/matchmaking/tickets").await;
        let ticket = &tickets["tickets"][0];
        (ticket["state"] == "ASSIGNED").then_some(()).ok_or(tickets)
    })
    .await;

    let next = process.change("/try-it/players/ada/join", json!({ "queue": "duel" })).await;
    assert_ne!(next["ticket_id"], ticket["ticket_id"], "she can play again at once: {next}");

    let (status, problem) = process.post("/try-it/players/ada/join", json!({ "queue": "chess" })).await;
    assert!(status == 400 && problem["detail"].to_string().contains("duel"), "{problem}");
    let (status, problem) = process.post("/try-it/players/nobody/notify", json!({ "title": "Hello" })).await;
    assert!(status == 404 && problem["detail"].to_string().contains("sign-in nobody"), "{problem}");
    let (status, problem) = process.post("/try-it/players/a%20b/sign-in", Value::Null).await;
    assert!(status == 400 && problem["detail"].to_string().contains("user name"), "{problem}");

    let audited = process.audited().await;
    let count = |action: &str, outcome: &str| {
        audited.iter().filter(|entry| **entry == (action.to_owned(), outcome.to_owned())).count()
    };
    for (action, done, refused) in [("sign-in", 2, 1), ("notify", 1, 1), ("join", 3, 1)] {
        let action = format!("POST /try-it/players/{{user}}/{action}");
        assert_eq!(
            (count(&action, "done"), count(&action, "refused")),
            (done, refused),
            "{action}: {audited:?}"
        );
    }
}

/// The values are those that the screen fills in.
#[tokio::test(flavor = "multi_thread")]
async fn demo_drop_is_created_and_opened() {
    let process = TestProcess::start(dev(&["--ephemeral"])).await;
    let terms = json!({
        "price": { "amount": 499, "currency": "EUR" }, "per_player": 2, "reservation_ms": 300_000,
        "admission": {
            "batch": 2, "period_ms": 3_000, "capacity": 20, "lifetime_ms": 600_000, "arrive_within_ms": 120_000,
        },
    });
    let drop = json!({ "name": "Demo drop", "resource": "golden-hat", "stock": 10, "terms": terms });
    let created = process.change("/drops", drop).await;
    assert_eq!(created["state"], "DRAFT", "{created}");
    let opened =
        process.change(&format!("/drops/{}/open", created["drop_id"].as_str().unwrap()), json!({})).await;
    assert_eq!(opened["state"], "OPEN", "{opened}");
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_event_fails_and_its_key_continues_once_it_is_skipped() {
    let process = TestProcess::start(dev(&["--ephemeral"])).await;
    let planted = process.change("/try-it/failed-event", Value::Null).await;
    let (failed, blocked) =
        (planted["event_id"].as_str().unwrap(), planted["blocked_event_id"].as_str().unwrap());
    let state = async |event: &str| process.get(&format!("/outbox/{event}")).await["state"].clone();
    eventually("it has failed", PATIENCE, async || {
        let state = state(failed).await;
        (state == "FAILED").then_some(()).ok_or(state)
    })
    .await;
    let waiting = process.get(&format!("/outbox/{blocked}")).await;
    assert_ne!(waiting["state"], "PUBLISHED");
    assert_eq!(waiting["waits_behind"], failed, "{waiting}");
    process.change(&format!("/outbox/{failed}/skip"), Value::Null).await;
    eventually("the event behind it is published", PATIENCE, async || {
        let state = state(blocked).await;
        (state == "PUBLISHED").then_some(()).ok_or(state)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_do_the_same_as_the_screen() {
    let process = TestProcess::start(dev(&["--ephemeral"])).await;
    let command = async |args: &[&str]| {
        let (code, output, errors) =
            run(playhouse(&["try-it", "--admin", &process.at["admin"]]).args(args.iter().copied())).await;
        assert_eq!(code, 0, "{args:?}: {errors}");
        output
    };
    let output = command(&["sign-in", "ada"]).await;
    assert!(output.contains("Ada Lovelace is signed in, a new player"), "{output}");
    let output = command(&["notify", "ada", "--title", "Hello", "--body", "Come in."]).await;
    assert!(output.contains("has the notification in the inbox"), "{output}");
    let output = command(&["join", "ada", "--queue", "duel"]).await;
    assert!(output.contains("in duel is WAITING"), "{output}");
    let output = command(&["failed-event"]).await;
    assert!(output.contains("playhouse outbox skip"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn actions_are_refused_outside_of_dev() {
    let folder = Folder::fresh().unwrap();
    let process = TestProcess::start(shop::embedded(&folder)).await;
    for (path, body) in routes() {
        let (status, problem) = process.post(path, body.clone()).await;
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert_eq!((status, detail.contains("`console.try_it` is off")), (409, true), "{path}: {problem}");
        assert_eq!(process.call_as(READER_TOKEN, Method::POST, path, &body).await.0, 403, "{path}");
    }
    let users = process.get("/users?find=ada").await;
    assert_eq!(users["users"], json!([]), "{users}");
    let events = process.get("/outbox").await;
    assert_eq!(events["events"], json!([]), "{events}");
    let audited = process.audited().await;
    assert_eq!(audited.len(), 2 * routes().len(), "{audited:?}");
    assert!(audited.iter().all(|(_, outcome)| outcome == "refused"), "{audited:?}");
}
