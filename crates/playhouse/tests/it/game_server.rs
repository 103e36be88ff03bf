//! The example game server against the service API: a result is applied once, whatever is lost in between.

use std::net::SocketAddr;

use example_game_server::ServiceApi;
use example_game_server::duel::{Ending, Seat};
use example_game_server::results::{GameResult, Journal, PlayerResult, ReportedResults, Reporter};
use reqwest::{Client, Method, StatusCode};
use testkit::{FaultProxy, Folder, eventually};
use uuid::Uuid;

use super::*;

/// How long a byte takes through the slow network: long enough to cut it between a commit and its response.
const SLOW: Duration = Duration::from_secs(2);

/// A running Playhouse as a service and as its players see it.
struct Playhouse {
    _running: RunningProgram,
    at: HashMap<String, String>,
    client: Client,
}

impl Playhouse {
    async fn start() -> Self {
        let running = dev(&["--ephemeral"]).start().unwrap();
        let at = addresses(&running).await;
        Self { _running: running, at, client: Client::new() }
    }

    /// Sends a request. Returns the body of a success.
    async fn call(&self, method: Method, url: String, token: &str, body: Value) -> Value {
        let request = self.client.request(method, &url).bearer_auth(token);
        let request = if body.is_null() { request } else { request.json(&body) };
        let response = request.send().await.unwrap();
        let status = response.status();
        let body: Value = response.json().await.unwrap_or_default();
        assert!(status.is_success(), "{url}: {status} {body}");
        body
    }

    /// Signs a player in. Returns the user's id and an access token.
    async fn sign_in(&self, name: &str) -> (Uuid, String) {
        let url = format!("http://{}/issuer/tokens?user={name}", self.at["admin"]);
        let issued = self.call(Method::POST, url, shop::OPERATOR_TOKEN, Value::Null).await;
        let token = issued["token"].as_str().unwrap().to_owned();
        let me = self.player(&token, "/v1/me").await;
        (me["user_id"].as_str().unwrap().parse().unwrap(), token)
    }

    async fn player(&self, token: &str, path: &str) -> Value {
        self.call(Method::GET, format!("http://{}{path}", self.at["gateway"]), token, Value::Null).await
    }

    /// Returns how many trophies a player has.
    async fn trophies(&self, token: &str) -> i64 {
        let owned = self.player(token, "/v1/entitlements").await;
        let trophy =
            owned["entitlements"].as_array().unwrap().iter().find(|one| one["resource"] == "trophy").cloned();
        trophy.map_or(0, |trophy| trophy["quantity"].as_i64().unwrap())
    }

    /// Returns the titles in a player's inbox, sorted.
    async fn titles(&self, token: &str) -> Vec<String> {
        let page = self.player(token, "/v1/notifications").await;
        let titles = page["notifications"].as_array().unwrap().iter();
        let mut titles: Vec<String> = titles.map(|one| one["title"].as_str().unwrap().to_owned()).collect();
        titles.sort();
        titles
    }

    /// Returns a reporter of this journal that reaches the service API at an address.
    fn reporter(&self, journal: &Journal, service_api: SocketAddr) -> Reporter {
        let url = Url::parse(&format!("http://{service_api}")).unwrap();
        let api = ServiceApi::new(url, self.at["service_token"].clone()).unwrap();
        Reporter::new(journal.clone(), api)
    }
}

#[tokio::test]
async fn result_of_a_game_is_applied_once_although_the_server_is_killed_and_repeats_it() {
    let playhouse = Playhouse::start().await;
    let ((ada, ada_token), (grace, grace_token)) =
        (playhouse.sign_in("ada").await, playhouse.sign_in("grace").await);
    let player = |user_id, name: &str, points| PlayerResult {
        user_id: Some(user_id),
        name: Some(name.to_owned()),
        points,
    };
    let result = GameResult {
        match_id: Uuid::now_v7(),
        ended_at: "2026-03-01T12:00:00.000Z".to_owned(),
        winner: Some(Seat::First),
        ending: Ending::Points,
        players: [player(ada, "Ada", 3), player(grace, "Grace", 1)],
    };
    let folder = Folder::fresh().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    journal.record(&result).unwrap();

    // The response to the grant is lost after its commit, and the server dies.
    let service_api: SocketAddr = playhouse.at["service_api"].parse().unwrap();
    let network = FaultProxy::to(service_api).await;
    let reporter = playhouse.reporter(&journal, network.addr());
    network.delay(SLOW).await;
    let dying = tokio::spawn(async move { reporter.tick().await });
    eventually("the trophy is granted", PATIENCE, async || playhouse.trophies(&ada_token).await == 1).await;
    network.cut().await;
    dying.abort();
    drop(dying.await);

    // The next start finds the result and reports all of it, again.
    let journal = Journal::open(folder.path()).unwrap();
    assert_eq!(journal.pending().unwrap(), std::slice::from_ref(&result));
    let done = ReportedResults { reported: 1, failed: 0 };
    let reporter = playhouse.reporter(&journal, service_api);
    assert_eq!(reporter.tick().await.unwrap(), done);
    assert_eq!(journal.pending().unwrap(), []);
    // A server that dies before it has removed the result reports it once more.
    journal.record(&result).unwrap();
    assert_eq!(reporter.tick().await.unwrap(), done);

    let expected = ["You received trophy", "You won against Grace", "You lost against Ada"];
    eventually("both players know", PATIENCE, async || {
        let titles = [playhouse.titles(&ada_token).await, playhouse.titles(&grace_token).await].concat();
        if titles == expected { Ok(()) } else { Err(format!("{titles:?}")) }
    })
    .await;
    assert_eq!((playhouse.trophies(&ada_token).await, playhouse.trophies(&grace_token).await), (1, 0));
}

#[tokio::test]
async fn result_waits_while_playhouse_is_away_or_the_token_is_wrong() {
    let playhouse = Playhouse::start().await;
    let folder = Folder::fresh().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let stranger = PlayerResult { user_id: Some(Uuid::now_v7()), name: None, points: 0 };
    let result = GameResult {
        match_id: Uuid::now_v7(),
        ended_at: "2026-03-01T12:00:00.000Z".to_owned(),
        winner: Some(Seat::First),
        ending: Ending::Forfeit,
        players: [stranger.clone(), PlayerResult { user_id: None, ..stranger }],
    };
    journal.record(&result).unwrap();
    let network = FaultProxy::to(playhouse.at["service_api"].parse().unwrap()).await;
    network.cut().await;
    let failed = ReportedResults { reported: 0, failed: 1 };
    assert_eq!(playhouse.reporter(&journal, network.addr()).tick().await.unwrap(), failed);

    let url = Url::parse(&format!("http://{}", playhouse.at["service_api"])).unwrap();
    let wrong = Reporter::new(journal.clone(), ServiceApi::new(url, "wrong".to_owned()).unwrap());
    assert_eq!(wrong.tick().await.unwrap(), failed);
    assert_eq!(journal.pending().unwrap(), [result]);
    // The winner does not exist: a repetition would be refused too, so a person must look.
    let reporter = playhouse.reporter(&journal, playhouse.at["service_api"].parse().unwrap());
    assert_eq!(reporter.tick().await.unwrap(), ReportedResults::default());
    assert_eq!(journal.pending().unwrap(), []);
}

#[tokio::test]
async fn lobby_exists_only_where_it_is_enabled() {
    let playhouse = Playhouse::start().await;
    let page = reqwest::get(format!("http://{}/play", playhouse.at["gateway"])).await.unwrap();
    let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert_eq!(page.status(), StatusCode::OK);
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
    let connect = policy.split("connect-src ").nth(1).unwrap();
    assert!(
        connect.starts_with("'self' http://127.0.0.1:"),
        "only the gateway and the game server: {connect}"
    );

    let running = dev(&["--ephemeral", "--set", "gateway.lobby.enabled=false"]).start().unwrap();
    let gateway = addresses(&running).await["gateway"].clone();
    for path in ["/play", "/play/lobby.js"] {
        assert_eq!(get(format!("http://{gateway}{path}")).await.0, 404, "{path}");
    }
}
