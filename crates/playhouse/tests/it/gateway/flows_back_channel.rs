//! The issuer ends a session: it is over at every process, and so are its streams.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use reqwest::Client;
use reqwest::header::CONTENT_TYPE;
use serde_json::json;
use testkit::{Uris, eventually, need};
use tokio::net::TcpListener;

use super::flows::{Door, Scene};
use crate::*;

const FORM: &str = "application/x-www-form-urlencoded";
/// How soon a session is over everywhere.
const SOON: Duration = Duration::from_secs(1);

/// Somebody between the issuer and the gateway who listens.
#[derive(Clone)]
pub(super) struct Listener {
    heard: Arc<Mutex<Vec<String>>>,
    gateway: String,
}

impl Listener {
    /// Has the issuer tell the gateway through here.
    pub(super) async fn before(scene: &Scene, gateway: &str) -> Self {
        let this = Self { heard: Default::default(), gateway: gateway.to_owned() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new().route("/", post(Self::pass)).with_state(this.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let uris = Uris::at(&format!("http://{}", scene.public()));
        let here = Some(format!("http://{address}/"));
        scene.provider.set_uris(&Uris { backchannel_logout_uri: here, ..uris }).await;
        this
    }

    async fn pass(State(this): State<Self>, body: String) -> StatusCode {
        this.heard.lock().unwrap().push(body.clone());
        tell(&this.gateway, &body).await.0
    }

    pub(super) fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

/// Tells a gateway what the issuer would tell it.
pub(super) async fn tell(at: &str, body: &str) -> (StatusCode, Value) {
    let url = format!("http://{at}/logout/backchannel");
    let request = Client::new().post(url).header(CONTENT_TYPE, FORM).body(body.to_owned());
    let response = request.send().await.unwrap();
    let status = response.status();
    (status, serde_json::from_str(&response.text().await.unwrap()).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_the_issuer_ends_is_over_everywhere_within_a_second() {
    let scene = need!(Scene::start().await);
    scene.configure("[matchmaking.queues.duel]\n");
    // So that no stream finds out by looking.
    let quiet = |program: Program| program.env("PLAYHOUSE_GATEWAY_STREAM_HEARTBEAT", "1h");
    let mut doors = Vec::new();
    for program in
        [scene.first(), scene.program("gateway,service-api"), scene.program("gateway,service-api")].map(quiet)
    {
        doors.push(Door::open(&program).await);
    }
    let listener = Listener::before(&scene, &doors[1].at).await;
    let (ada, other, bob) =
        (scene.sign_in("ada").await, scene.sign_in("ada").await, scene.sign_in("bob").await);
    let (status, ticket) = ada.join(&doors[0].at, "duel").await;
    assert_eq!(status, 201, "{ticket}");
    let ticket = ticket["ticket_id"].as_str().unwrap();
    let mut streams = Vec::new();
    for door in &doors {
        let mut stream = ada.elsewhere().follow(&door.at, ticket).await;
        stream.expect("WAITING").await;
        streams.push(stream);
    }
    let game = scene.player("ada").await;
    let mut of_game = game.follow(&doors[2].at, ticket).await;
    of_game.expect("WAITING").await;

    // Both browsers, each with a session at the issuer; the game client has no session here.
    assert_eq!(scene.provider.end_sessions_of("ada").await, 3);
    let ended = Instant::now();
    for door in &doors {
        let (status, problem) = ada.me(&door.at).await;
        assert_eq!(status, 401, "{problem}");
        assert_eq!(other.me(&door.at).await.0, 401);
        assert_eq!(bob.me(&door.at).await.0, 200);
    }
    for stream in &mut streams {
        assert_eq!(stream.last().await, "end");
    }
    assert!(ended.elapsed() < SOON, "{:?}", ended.elapsed());

    // A token that was heard on the way is worth nothing, at any process.
    let heard = listener.heard();
    assert_eq!(heard.len(), 3);
    for (door, body) in doors.iter().zip(&heard) {
        let (status, answer) = tell(&door.at, body).await;
        assert_eq!((status.as_u16(), &answer["error"]), (400, &json!("invalid_request")));
    }
    // And a client that has a token of its own goes on with it.
    assert_eq!(game.me(&doors[0].at).await.0, 200);
    let again = scene.sign_in("ada").await;
    assert_eq!(again.me(&doors[2].at).await.0, 200);
    for body in &heard {
        tell(&doors[0].at, body).await;
    }
    assert_eq!(again.me(&doors[2].at).await.0, 200, "nor does it end what began later");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_but_the_issuer_ends_sessions() {
    let scene = need!(Scene::start().await);
    let doors = scene.gateways(1).await;
    let at = &doors[0].at;
    let listener = Listener::before(&scene, at).await;
    let (ada, bob) = (scene.sign_in("ada").await, scene.sign_in("bob").await);
    scene.provider.end_sessions_of("bob").await;
    assert_eq!(bob.me(at).await.0, 401);
    let heard = listener.heard().remove(0);
    let good = heard.strip_prefix("logout_token=").unwrap();
    let [head, claims, signature] = <[&str; 3]>::try_from(good.split('.').collect::<Vec<_>>()).unwrap();

    let held = scene.held(&ada).await;
    let turned: String = signature.chars().rev().collect();
    let no_signature = "eyJhbGciOiJub25lIn0";
    let forged = [
        String::new(),
        "logout_token=".to_owned(),
        "logout_token=no.such.token".to_owned(),
        format!("logout_token={head}.{claims}.{turned}"),
        format!("logout_token={head}.{claims}."),
        format!("logout_token={no_signature}.{claims}."),
        // What the player has from the issuer is no order to sign out.
        format!("logout_token={}", held.id),
        format!("token={good}"),
    ];
    for body in &forged {
        let (status, answer) = tell(at, body).await;
        assert_eq!((status.as_u16(), &answer["error"]), (400, &json!("invalid_request")), "{body}");
    }
    assert_eq!(ada.me(at).await.0, 200);
    let log = doors[0].running.lines();
    assert!(log.iter().all(|line| !line.text.contains(claims)), "a token is in the log");
}

/// The word gets lost: a stream looks by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_session_ended_unheard_ends_with_the_next_heartbeat() {
    let scene = need!(Scene::start().await);
    scene.configure("[matchmaking.queues.duel]\n");
    let doors = scene.gateways(1).await;
    let ada = scene.sign_in("ada").await;
    let (_, ticket) = ada.join(&doors[0].at, "duel").await;
    let mut stream = ada.follow(&doors[0].at, ticket["ticket_id"].as_str().unwrap()).await;
    stream.expect("WAITING").await;
    let mut redis = scene.fleet.redis.keyspace().connect().await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("session:*").query_async(&mut redis).await.unwrap();
    redis::cmd("DEL").arg(&keys).exec_async(&mut redis).await.unwrap();
    assert_eq!(stream.last().await, "end");
    eventually("no stream is counted", PATIENCE, async || {
        let (_, metrics) = get(format!("http://{}/metrics", doors[0].admin)).await;
        metrics.as_str().is_some_and(|text| text.contains("playhouse_gateway_streams 0"))
    })
    .await;
}
