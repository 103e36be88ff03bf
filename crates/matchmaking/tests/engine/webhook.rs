//! The assigner that calls a service.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::hmac;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use base::Clock;
use base::id::Uuid;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use config::{Secret, Setting, Value as Text};
use futures::StreamExt;
use http_server::Connection;
use matchmaking::engine::{EngineConfig, Profile, RuleFunction, Tick, Webhook, WebhookConfig};
use matchmaking::model::TicketId;
use matchmaking::{JoinRequest, Queue};
use runtime::Drain;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use webhook::Secrets;

use crate::plugins::duels;
use crate::world::{World, engine_config};
use crate::{PATIENCE, on_both_stores};

type Asked = Arc<Mutex<Vec<(HeaderMap, Bytes)>>>;
type PluginFuture = Arc<dyn Fn(&Value) -> Response + Send + Sync>;

/// A service that remembers the requests it gets.
pub(crate) struct Service {
    pub(crate) url: String,
    asked: Asked,
}

impl Service {
    pub(crate) async fn start(answer: impl Fn(&Value) -> Response + Send + Sync + 'static) -> Self {
        let asked = Asked::default();
        let answer: PluginFuture = Arc::new(answer);
        let state = (asked.clone(), answer);
        let router = Router::new().route("/assign", post(serve)).with_state(state);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/assign", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, asked }
    }

    pub(crate) fn questions(&self) -> Vec<(HeaderMap, Bytes)> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(
    State((asked, answer)): State<(Asked, PluginFuture)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    asked.lock().unwrap().push((headers, body.clone()));
    answer(&serde_json::from_slice(&body).unwrap())
}

fn secrets(text: &str) -> Secrets {
    Secrets::from_text(&Secret::parse(&Text::Text(text.to_owned())).unwrap()).unwrap()
}

pub(crate) fn profile(url: &str, secret: Option<&str>, clock: &Clock) -> Profile {
    let config = WebhookConfig {
        name: "fleet".into(),
        url: url.parse().unwrap(),
        abandon_url: url.parse().unwrap(),
        secrets: secret.map(secrets),
        timeout: Duration::from_secs(10),
    };
    Profile { assigner: Arc::new(Webhook::new(config, clock.clone()).unwrap()), ..duels() }
}

/// Returns a server for each match of a request.
fn servers(question: &Value) -> Vec<Value> {
    let matches = question["matches"].as_array().unwrap().iter();
    let server = |asked: &Value| {
        let id = asked["match_id"].as_str().unwrap();
        json!({"match_id": id, "connection": format!("{id}.hook:1")})
    };
    matches.map(server).collect()
}

pub(crate) fn all(question: &Value) -> Response {
    axum::Json(json!({ "assignments": servers(question) })).into_response()
}

/// Runs a tick with a service whose response must be ignored.
async fn assert_released(answer: impl Fn(&Value) -> Response + Send + Sync + 'static) {
    let (service, world) = (Service::start(answer).await, World::in_memory());
    let engine = world.engine(vec![profile(&service.url, None, &world.clock)]);
    let tickets: [TicketId; 3] = world.tickets(&[]).await;
    let tick = engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 3, assigned: 0, released: 3, failures: 1 });
    assert_eq!(world.free().await, tickets);
    assert_eq!(world.failures("duels", "assigner"), 1.0);
}

#[tokio::test]
async fn service_gets_the_matches_and_its_assignments_are_written() {
    let (service, world) = (Service::start(all).await, World::in_memory());
    let engine = world.engine(vec![profile(&service.url, None, &world.clock)]);
    let [a, b] = world.tickets(&["eu", "ranked"]).await;
    assert_eq!(engine.tick().await.unwrap().assigned, 2);
    let (headers, body) = service.questions().remove(0);
    let made = &world.made().await[0];
    assert_eq!(world.connection(&a).await, Some(format!("{}.hook:1", made.match_id)));
    let created = world.clock.now().as_millis();
    let ticket = |id: &TicketId| {
        json!({
            "id": id.as_str(),
            "created_at": created,
            "double_args": {},
            "string_args": {},
            "tags": ["eu", "ranked"],
        })
    };
    let expected = json!({"type": "match.assign", "matches": [{
        "match_id": made.match_id,
        "match_profile": "duels",
        "profile_version": 0,
        "match_function": "fifo",
        "tickets": [ticket(&a), ticket(&b)],
    }]});
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), expected);
    assert_eq!(headers["content-type"], "application/json");
    assert!(!headers.contains_key("webhook-signature"), "without a secret nothing is signed");
}

on_both_stores! {
    service_gets_the_players_and_returns_data_per_ticket,
    service_gets_teams_regions_and_the_versions_of_the_rules,
}

/// A match of two teams, one of which has room for more.
async fn service_gets_teams_regions_and_the_versions_of_the_rules(world: World) {
    const RULES: &str = "name = \"ranked\"\nversion = \"summer\"\n[teams.red]\nmin = 1\nmax = 2\n[teams.blue]\nmax = 1\n\
        [rules.region]\ntype = \"latency\"\nmax = 60\n";
    let service = Service::start(all).await;
    let rules = Arc::new(rules::RuleSet::parse(RULES).unwrap());
    let function = RuleFunction::new("duels".into(), rules, world.metrics.clone());
    let function = Arc::new(function.with_definition("ranked-rules", 7));
    let profile = Profile { function, version: 3, ..profile(&service.url, None, &world.clock) };
    let engine = world.engine_with(
        vec![profile],
        EngineConfig { assigner_timeout: PATIENCE, function_timeout: PATIENCE, ..engine_config() },
    );
    let tickets = [world.ticket_with("latency.eu", 30.0).await, world.ticket_with("latency.eu", 50.0).await];
    assert_eq!(engine.tick().await.unwrap().assigned, 2);
    let asked: Value = serde_json::from_slice(&service.questions()[0].1).unwrap();
    let asked = &asked["matches"][0];
    for (name, expected) in [
        ("profile_version", json!(3)),
        ("match_function", json!("rules")),
        ("rule_set", json!("ranked")),
        ("rule_set_version", json!("summer")),
        ("definition", json!("ranked-rules")),
        ("definition_version", json!(7)),
        ("regions", json!([{ "name": "eu", "latency_ms": 40.0 }])),
    ] {
        assert_eq!(asked[name], expected, "{name} in {asked}");
    }
    let teams = asked["teams"].as_array().unwrap();
    let room: Vec<_> = teams.iter().map(|team| (team["name"].as_str().unwrap(), &team["open"])).collect();
    assert_eq!(room, [("red", &json!(1)), ("blue", &json!(0))]);
    let mut placed: Vec<&str> = teams
        .iter()
        .flat_map(|team| team["ticket_ids"].as_array().unwrap())
        .filter_map(Value::as_str)
        .collect();
    placed.sort_unstable();
    let mut expected: Vec<&str> = tickets.iter().map(TicketId::as_str).collect();
    expected.sort_unstable();
    assert_eq!(placed, expected);
    let made = &world.made().await[0];
    assert_eq!((&*made.definition, made.definition_version), ("ranked-rules", 7));
    assert_eq!(made.profile_version, Some(3));
}

/// The data reaches the ticket of its player and the streams that watch it, and no other player.
async fn service_gets_the_players_and_returns_data_per_ticket(world: World) {
    let answer = |question: &Value| {
        let mut items = servers(question);
        let tickets = question["matches"][0]["tickets"].as_array().unwrap();
        let admit = |ticket: &Value| {
            let token = format!("for {}", ticket["user_id"].as_str().unwrap());
            json!({ "id": ticket["id"], "extensions": { "token": token } })
        };
        items[0]["extensions"] = json!({ "map": "dust" });
        items[0]["tickets"] = tickets.iter().map(admit).collect();
        axum::Json(json!({ "assignments": items })).into_response()
    };
    let service = Service::start(answer).await;
    let engine = world.engine_with(
        vec![profile(&service.url, None, &world.clock)],
        EngineConfig { assigner_timeout: PATIENCE, ..engine_config() },
    );
    let queue = |name: &str| (name.to_owned(), Queue::default());
    let players = world.players([queue("duel")]);
    let users = [1, 2].map(Uuid::from_u128);
    let connection = Connection::new(([127, 0, 0, 1], 1).into(), Drain::new());
    let (drain, frontend) = (Drain::new(), world.frontend.clone());
    let listening = tokio::spawn({
        let drain = drain.clone();
        async move { frontend.run(drain).await.unwrap() }
    });
    let mut watching = Vec::new();
    for user in users {
        let join = JoinRequest { queue: "duel".to_owned(), ..JoinRequest::default() };
        let id = players.join(user, join).await.unwrap().ticket.id;
        let stream = players.watch(user, id.as_str(), &connection).await.unwrap();
        watching.push((user, id, Box::pin(stream)));
    }
    assert_eq!(engine.tick().await.unwrap().assigned, 2);
    let text =
        |text: String| json!({ "@type": "type.googleapis.com/google.protobuf.StringValue", "value": text });
    for (user, id, mut stream) in watching {
        let expected = json!({ "map": text("dust".to_owned()), "token": text(format!("for {user}")) });
        let of_assigner = |mut extensions: serde_json::Map<String, Value>| {
            assert!(extensions.remove("match").is_some());
            Value::Object(extensions)
        };
        let ticket = players.ticket(user, id.as_str()).await.unwrap();
        assert_eq!(of_assigner(ticket.assignment.unwrap().extensions), expected, "by REST");
        let seen = async {
            loop {
                if let Some(assignment) = stream.next().await.unwrap().unwrap().assignment {
                    return assignment;
                }
            }
        };
        let seen = tokio::time::timeout(PATIENCE, seen).await.unwrap();
        assert_eq!(of_assigner(seen.extensions), expected, "by stream");
        let wire = world.assignment(&id).await;
        assert_eq!(wire.extensions.len(), 3, "by gRPC");
    }
    let made = &world.made().await[0];
    let mut shared: Vec<&String> = made.assignment.extensions.keys().collect();
    shared.sort();
    assert_eq!(shared, ["map", "match"], "what is one player's is not the match's");
    drain.request();
    listening.await.unwrap();
}

#[tokio::test]
async fn requests_are_signed_with_the_secret() {
    let key = b"this is not really a secret";
    let whsec = format!("whsec_{}", BASE64.encode(key));
    for secret in [whsec.as_str(), "this is not really a secret"] {
        let (service, world) = (Service::start(all).await, World::in_memory());
        let engine = world.engine(vec![profile(&service.url, Some(secret), &world.clock)]);
        let mut ids = Vec::new();
        for _ in 0..2 {
            let [_, _] = world.tickets(&[]).await;
            engine.tick().await.unwrap();
        }
        for (headers, body) in service.questions() {
            let header = |name: &str| headers[name].to_str().unwrap().to_owned();
            let (id, time) = (header("webhook-id"), header("webhook-timestamp"));
            assert_eq!(time, (world.clock.now().as_millis() / 1000).to_string());
            let signature = BASE64.decode(header("webhook-signature").strip_prefix("v1,").unwrap()).unwrap();
            let signed = [format!("{id}.{time}.").as_bytes(), &body].concat();
            hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, key), &signed, &signature).unwrap();
            ids.push(id);
        }
        assert_ne!(ids[0], ids[1], "each request has its own id");
    }
}

#[tokio::test]
async fn matches_missing_from_the_response_are_released() {
    let answer = |question: &Value| {
        let mut servers = servers(question);
        servers.remove(0);
        servers.push(json!({"match_id": "0198c0de-0000-7000-8000-000000000001", "connection": "x"}));
        axum::Json(json!({ "assignments": servers })).into_response()
    };
    let (service, world) = (Service::start(answer).await, World::in_memory());
    let engine = world.engine(vec![profile(&service.url, None, &world.clock)]);
    let [a, b, c, d] = world.tickets(&[]).await;
    let tick = engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 4, assigned: 2, released: 2, failures: 0 });
    assert!(world.is_assigned(&c).await && world.is_assigned(&d).await);
    assert_eq!(world.free().await, [a, b]);
}

/// Unreadable items. An item without a match id may have been for any missing match.
#[tokio::test]
async fn unreadable_item_affects_only_its_own_match() {
    let first = |question: &Value| question["matches"][0]["match_id"].clone();
    let bad_items: [fn(Value) -> Value; 8] = [
        |_| json!({"match_id": "no id", "connection": "x:1"}),
        |id| json!({"match_id": id, "connection": ""}),
        |id| json!({"match_id": id, "connection": 7}),
        |id| json!({"match_id": id}),
        |_| json!({"connection": "x:1"}),
        |_| json!("x:1"),
        |_| json!(null),
        |_| json!({"match_id": "0198c0de-0000-7000-8000-000000000001", "connection": "x:1"}),
    ];
    for bad in bad_items {
        let answer = move |question: &Value| {
            let mut items = servers(question);
            items[0] = bad(first(question));
            axum::Json(json!({ "assignments": items })).into_response()
        };
        let (service, world) = (Service::start(answer).await, World::in_memory());
        let config = EngineConfig { assigner_timeout: PATIENCE, ..engine_config() };
        let engine = world.engine_with(vec![profile(&service.url, None, &world.clock)], config);
        let [a, b, c, d] = world.tickets(&[]).await;
        let tick = engine.tick().await.unwrap();
        assert_eq!(tick, Tick { fetched: 4, assigned: 2, released: 2, failures: 0 }, "{}", bad(json!("ID")));
        assert!(world.is_assigned(&c).await && world.is_assigned(&d).await);
        assert_eq!(world.free().await, [a, b]);
        assert_eq!(
            world.metric("playhouse_matchmaking_assignments_unreadable_total{assigner=\"fleet\"}"),
            1.0
        );
    }
}

#[tokio::test]
async fn transient_failure_is_retried_with_the_same_ids() {
    for status in [StatusCode::INTERNAL_SERVER_ERROR, StatusCode::TOO_MANY_REQUESTS] {
        let asked = AtomicU32::new(0);
        let answer = move |question: &Value| match asked.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => status.into_response(),
            _ => all(question),
        };
        let (service, world) = (Service::start(answer).await, World::in_memory());
        let config = EngineConfig { assigner_timeout: PATIENCE, ..engine_config() };
        let engine = world.engine_with(vec![profile(&service.url, None, &world.clock)], config);
        let [_, _] = world.tickets(&[]).await;
        assert_eq!(engine.tick().await.unwrap().assigned, 2);
        let questions = service.questions();
        assert_eq!(questions.len(), 3);
        for (headers, body) in &questions {
            assert_eq!(headers["webhook-id"], questions[0].0["webhook-id"]);
            assert_eq!(*body, questions[0].1);
        }
    }
}

#[tokio::test]
async fn response_with_an_error_status_is_ignored() {
    for status in [StatusCode::INTERNAL_SERVER_ERROR, StatusCode::FORBIDDEN, StatusCode::TOO_MANY_REQUESTS] {
        assert_released(move |question| (status, all(question)).into_response()).await;
    }
}

#[tokio::test]
async fn redirect_is_not_followed() {
    let elsewhere = Arc::new(Service::start(all).await);
    for status in [StatusCode::FOUND, StatusCode::TEMPORARY_REDIRECT, StatusCode::PERMANENT_REDIRECT] {
        let url = elsewhere.url.clone();
        assert_released(move |question| (status, [("location", url.clone())], all(question)).into_response())
            .await;
    }
    assert!(elsewhere.questions().is_empty());
}

#[tokio::test]
async fn unreadable_response_is_ignored() {
    for text in ["", "no", "[]", "{}", "{\"assignments\": 7}"] {
        assert_released(move |_| text.into_response()).await;
    }
}

#[tokio::test]
async fn oversized_response_is_not_read() {
    // Its content would be valid.
    let large = |question: &Value| {
        let (space, answer) = (vec![b' '; 1 << 20], json!({ "assignments": servers(question) }).to_string());
        let chunks = std::iter::repeat_n(Bytes::from(space), 17).chain([Bytes::from(answer)]);
        Body::from_stream(futures::stream::iter(chunks.map(Ok::<_, std::io::Error>))).into_response()
    };
    let (service, world) = (Service::start(large).await, World::in_memory());
    let config = EngineConfig { assigner_timeout: PATIENCE, ..engine_config() };
    let engine = world.engine_with(vec![profile(&service.url, None, &world.clock)], config);
    let tickets: [TicketId; 2] = world.tickets(&[]).await;
    let tick = engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 2, assigned: 0, released: 2, failures: 1 });
    assert_eq!(world.free().await, tickets);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_service_times_out() {
    // The engine's deadline.
    let silent = |_: &Value| {
        Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>()).into_response()
    };
    assert_released(silent).await;
    // The request's own timeout.
    let (service, world) = (Service::start(silent).await, World::in_memory());
    let config = WebhookConfig {
        name: "fleet".into(),
        url: service.url.parse().unwrap(),
        abandon_url: service.url.parse().unwrap(),
        secrets: None,
        timeout: Duration::from_millis(50),
    };
    let assigner = Arc::new(Webhook::new(config, world.clock.clone()).unwrap());
    let config = EngineConfig { assigner_timeout: PATIENCE, ..engine_config() };
    let engine = world.engine_with(vec![Profile { assigner, ..duels() }], config);
    let tickets: [TicketId; 2] = world.tickets(&[]).await;
    assert_eq!(engine.tick().await.unwrap().failures, 1);
    assert_eq!(world.free().await, tickets);
}

#[tokio::test]
async fn unreachable_service_costs_no_ticket() {
    let world = World::in_memory();
    let engine = world.engine(vec![profile("http://127.0.0.1:1/assign", None, &world.clock)]);
    let tickets: [TicketId; 2] = world.tickets(&[]).await;
    let tick = engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 2, assigned: 0, released: 2, failures: 1 });
    assert_eq!(world.free().await, tickets);
}
