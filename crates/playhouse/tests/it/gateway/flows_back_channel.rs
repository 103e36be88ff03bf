//! Back-channel logout: the issuer ends a session at every process, with its streams.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use reqwest::Client;
use reqwest::header::CONTENT_TYPE;
use serde_json::json;
use testkit::{ClientUris, eventually, need};
use tokio::net::TcpListener;

use super::flows::{Gateway, Setup};
use crate::*;

const FORM: &str = "application/x-www-form-urlencoded";
/// How soon a session has to end everywhere.
const END_WITHIN: Duration = Duration::from_secs(1);

/// A proxy between the issuer and the gateway that records logout requests.
#[derive(Clone)]
pub(super) struct LogoutProxy {
    recorded: Arc<Mutex<Vec<String>>>,
    gateway: String,
}

impl LogoutProxy {
    /// Makes the issuer send its logout requests through a new proxy.
    pub(super) async fn install(setup: &Setup, gateway: &str) -> Self {
        let this = Self { recorded: Default::default(), gateway: gateway.to_owned() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new().route("/", post(Self::pass)).with_state(this.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let uris = ClientUris::at(&format!("http://{}", setup.public()));
        let here = Some(format!("http://{address}/"));
        setup.provider.set_uris(&ClientUris { backchannel_logout_uri: here, ..uris }).await;
        this
    }

    async fn pass(State(this): State<Self>, body: String) -> StatusCode {
        this.recorded.lock().unwrap().push(body.clone());
        send_logout(&this.gateway, &body).await.0
    }

    pub(super) fn recorded(&self) -> Vec<String> {
        self.recorded.lock().unwrap().clone()
    }
}

/// Sends a logout request to a gateway, like the issuer.
pub(super) async fn send_logout(at: &str, body: &str) -> (StatusCode, Value) {
    let url = format!("http://{at}/logout/backchannel");
    let request = Client::new().post(url).header(CONTENT_TYPE, FORM).body(body.to_owned());
    let response = request.send().await.unwrap();
    let status = response.status();
    (status, serde_json::from_str(&response.text().await.unwrap()).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn session_ended_by_the_issuer_ends_everywhere_within_a_second() {
    let setup = need!(Setup::start().await);
    setup.configure("[matchmaking.queues.duel]\n");
    // Heartbeats would end the streams, too.
    let quiet = |program: Program| program.env("PLAYHOUSE_GATEWAY_STREAM_HEARTBEAT", "1h");
    let mut gateways = Vec::new();
    for program in
        [setup.first(), setup.program("gateway,service-api"), setup.program("gateway,service-api")].map(quiet)
    {
        gateways.push(Gateway::start(&program).await);
    }
    let proxy = LogoutProxy::install(&setup, &gateways[1].at).await;
    let (ada, other, bob) =
        (setup.sign_in("ada").await, setup.sign_in("ada").await, setup.sign_in("bob").await);
    let (status, ticket) = ada.join(&gateways[0].at, "duel").await;
    assert_eq!(status, 201, "{ticket}");
    let ticket = ticket["ticket_id"].as_str().unwrap();
    let mut streams = Vec::new();
    for gateway in &gateways {
        let mut stream = ada.with_new_connections().follow(&gateway.at, ticket).await;
        stream.expect("WAITING").await;
        streams.push(stream);
    }
    let game = setup.player("ada").await;
    let mut game_stream = game.follow(&gateways[2].at, ticket).await;
    game_stream.expect("WAITING").await;

    // Two browsers and the game client have a session at the issuer. The game client has none at the gateway.
    assert_eq!(setup.provider.end_sessions_of("ada").await, 3);
    let ended = Instant::now();
    for gateway in &gateways {
        let (status, problem) = ada.me(&gateway.at).await;
        assert_eq!(status, 401, "{problem}");
        assert_eq!(other.me(&gateway.at).await.0, 401);
        assert_eq!(bob.me(&gateway.at).await.0, 200);
    }
    for stream in &mut streams {
        assert_eq!(stream.end_code().await, "signed_out");
    }
    assert!(ended.elapsed() < END_WITHIN, "{:?}", ended.elapsed());

    // A logout token cannot be used again, at any process.
    let recorded = proxy.recorded();
    assert_eq!(recorded.len(), 3);
    for (gateway, body) in gateways.iter().zip(&recorded) {
        let (status, response) = send_logout(&gateway.at, body).await;
        assert_eq!((status.as_u16(), &response["error"]), (400, &json!("invalid_request")));
    }
    // A client with its own access token is unaffected.
    assert_eq!(game.me(&gateways[0].at).await.0, 200);
    let again = setup.sign_in("ada").await;
    assert_eq!(again.me(&gateways[2].at).await.0, 200);
    for body in &recorded {
        send_logout(&gateways[0].at, body).await;
    }
    assert_eq!(again.me(&gateways[2].at).await.0, 200, "a used logout token ended a later session");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_issuer_can_end_sessions() {
    let setup = need!(Setup::start().await);
    let gateways = setup.start_gateways(1).await;
    let at = &gateways[0].at;
    let proxy = LogoutProxy::install(&setup, at).await;
    let (ada, bob) = (setup.sign_in("ada").await, setup.sign_in("bob").await);
    setup.provider.end_sessions_of("bob").await;
    assert_eq!(bob.me(at).await.0, 401);
    let recorded = proxy.recorded().remove(0);
    let good = recorded.strip_prefix("logout_token=").unwrap();
    let [head, claims, signature] = <[&str; 3]>::try_from(good.split('.').collect::<Vec<_>>()).unwrap();

    let tokens = setup.session_tokens(&ada).await;
    let reversed: String = signature.chars().rev().collect();
    let no_signature = "eyJhbGciOiJub25lIn0";
    let forged = [
        String::new(),
        "logout_token=".to_owned(),
        "logout_token=no.such.token".to_owned(),
        format!("logout_token={head}.{claims}.{reversed}"),
        format!("logout_token={head}.{claims}."),
        format!("logout_token={no_signature}.{claims}."),
        // The player's ID token is not a logout token.
        format!("logout_token={}", tokens.id),
        format!("token={good}"),
    ];
    for body in &forged {
        let (status, response) = send_logout(at, body).await;
        assert_eq!((status.as_u16(), &response["error"]), (400, &json!("invalid_request")), "{body}");
    }
    assert_eq!(ada.me(at).await.0, 200);
    let log = gateways[0].running.lines();
    assert!(log.iter().all(|line| !line.text.contains(claims)), "a token is in the log");
}

/// The live message is lost, so the stream notices by itself.
#[tokio::test(flavor = "multi_thread")]
async fn stream_of_an_ended_session_ends_at_the_next_heartbeat() {
    let setup = need!(Setup::start().await);
    setup.configure("[matchmaking.queues.duel]\n");
    let gateways = setup.start_gateways(1).await;
    let ada = setup.sign_in("ada").await;
    let (_, ticket) = ada.join(&gateways[0].at, "duel").await;
    let mut stream = ada.follow(&gateways[0].at, ticket["ticket_id"].as_str().unwrap()).await;
    stream.expect("WAITING").await;
    let mut redis = setup.fleet.redis.namespace().connect().await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("session:*").query_async(&mut redis).await.unwrap();
    redis::cmd("DEL").arg(&keys).exec_async(&mut redis).await.unwrap();
    assert_eq!(stream.end_code().await, "signed_out");
    eventually("no stream is open", PATIENCE, async || {
        let (_, metrics) = get(format!("http://{}/metrics", gateways[0].admin)).await;
        metrics.as_str().is_some_and(|text| text.contains("playhouse_gateway_streams 0"))
    })
    .await;
}
