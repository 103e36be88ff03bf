//! The gateway as used by game clients and web pages.

mod clients;
mod drops;
mod flows;
mod flows_back_channel;
mod flows_matchmaking;
mod flows_outages;
mod flows_parties;
mod flows_redis_rollback;
mod flows_refresh;
mod flows_restart;
mod flows_sign_in;
mod hardening;
mod hostile;
mod limits;
mod openapi;
mod routes;
mod secrets;
mod tokens;

use std::fmt;

use reqwest::header::HeaderMap;
use reqwest::redirect::Policy;
use reqwest::{Method, RequestBuilder};
use serde_json::json;
use service::RouteMethod;
use testkit::Folder;
use testkit::issuer::Issuer;
use url::Url;

use super::shop::{self, Shop};
use super::*;

/// A queue without a profile: its tickets are never matched.
const QUEUE: &str = "[matchmaking.queues.duel]\n";
/// The key that seals the sessions of a fleet.
const KEY: &str = "a-key-for-tests-that-nobody-guesses";
/// A queue with matches of two players.
pub(super) const DUEL: &str = r#"
[matchmaking.queues.duel]
[matchmaking.profiles.duel]
players = 2
assigner = "one_each"
[matchmaking.profiles.duel.pools.all]
filters = ["queue = duel"]
[matchmaking.assigners.one_each]
addresses = ["{match_id}.test:7777"]
"#;
/// Rate limits that tests of other features never reach.
const HIGH_LIMITS: &str = "[gateway.limits]\naddress = \"10000/s burst 10000\"\nread = \"10000/s burst 10000\"\n\
    write = \"10000/s burst 10000\"\nsign_in = \"10000/s burst 10000\"\nstream = \"10000/s burst 10000\"\n";

/// Returns settings for a gateway in a fleet: high rate limits and short intervals.
pub(super) fn fleet_settings() -> String {
    format!(
        "[db]\nmigrate = true\nacquire_timeout = \"2s\"\n\
        [gateway]\nmax_streams = 100\nstream_heartbeat = \"1s\"\n\
        [gateway.session]\nkeys = [\"{KEY}\"]\n\
        {HIGH_LIMITS}timeout = \"1s\"\n"
    )
}

/// A process with embedded stores and a configurable issuer.
struct Gateway {
    running: RunningProgram,
    at: HashMap<String, String>,
    client: reqwest::Client,
    _folder: Folder,
}

impl Gateway {
    /// Starts a process that trusts this issuer. The settings continue the section `[identity]`.
    async fn with_issuer(issuer: &Issuer, settings: &str) -> Self {
        Self::start(&format!("[identity]\nissuer = \"{}\"\n{settings}", issuer.url)).await
    }

    /// Starts a process with the builtin issuer, high rate limits and these settings.
    async fn start(settings: &str) -> Self {
        Self::start_with(&format!("{HIGH_LIMITS}{settings}"), |program| program).await
    }

    /// Starts a process with only these settings, after a change to the program.
    async fn start_with(settings: &str, change: impl FnOnce(Program) -> Program) -> Self {
        let folder = Folder::fresh().unwrap();
        let file = folder.path().join("play.toml");
        std::fs::write(&file, format!("{}{QUEUE}{settings}", shop::services())).unwrap();
        let program = change(shop::embedded(&folder).env("PLAYHOUSE_CONFIG", &file));
        let running = program.start().unwrap();
        let at = addresses(&running).await;
        Self { running, at, client: plain_client(), _folder: folder }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.at["gateway"])
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(self.url(path))
    }

    fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.client.post(self.url(path)).json(body)
    }

    /// Builds a request to a row of the route table, with a valid body where one is needed.
    fn request(&self, row: &service::Row) -> RequestBuilder {
        let examples = [
            ("{ticket_id}", "01a1e4c0256877228"),
            ("{party_id}", "dbt8pcfejq8o287bsa0g"),
            ("{notification_id}", "01a1e4c0-0000-7000-8000-000000000001"),
            ("{file}", "playhouse.css"),
            ("{drop_id}", "01a1e4c0-0000-7000-8000-000000000001"),
            ("{reservation_id}", "01a1e4c0-0000-7000-8000-000000000001"),
            ("{order_id}", "01a1e4c0-0000-7000-8000-000000000001"),
        ];
        let path = examples.iter().fold(row.path.to_owned(), |path, (name, id)| path.replace(name, id));
        let request = self.client.request(row.method.into(), self.url(&path));
        match (row.method, row.path) {
            (RouteMethod::Post, "/v1/notifications/mark") => {
                request.json(&json!({ "mark": "seen", "up_to": 0 }))
            }
            (RouteMethod::Post, "/v1/drops/{drop_id}/reservations") => {
                let body = json!({ "quantity": 1, "admission": "none" });
                request.header("idempotency-key", "one").json(&body)
            }
            (RouteMethod::Post, "/v1/parties/join") => request.json(&json!({ "code": "222222" })),
            (RouteMethod::Post, "/v1/parties/invitations" | "/v1/parties/kick" | "/v1/parties/leader") => {
                request.json(&json!({ "user_id": "01a1e4c0-0000-7000-8000-000000000001" }))
            }
            (RouteMethod::Post, path) if path.starts_with("/v1/parties") && path != "/v1/parties/ticket" => {
                request.json(&json!({}))
            }
            (RouteMethod::Post, _) => request.json(&json!({ "queue": "duel" })),
            _ => request,
        }
    }

    /// Returns an access token of the builtin issuer.
    async fn token(&self, user: &str) -> String {
        self.token_as(user, "player").await
    }

    async fn token_as(&self, user: &str, role: &str) -> String {
        let url = format!("http://{}/issuer/tokens?user={user}&role={role}", self.at["admin"]);
        let response = send(self.client.post(url).bearer_auth(shop::OPERATOR_TOKEN)).await;
        response.json()["token"].as_str().unwrap_or_else(|| panic!("{response:?}")).to_owned()
    }

    fn shop(&self) -> Shop {
        Shop::at(&self.at["service_api"])
    }

    /// Returns the value of a metric, or 0 if it does not exist.
    async fn metric(&self, name: &str) -> f64 {
        let (_, text) = super::get(format!("http://{}/metrics", self.at["admin"])).await;
        let lines = text.as_str().unwrap().lines();
        let value = |line: &str| line.strip_prefix(name)?.trim().parse::<f64>().ok();
        lines.filter_map(value).next().unwrap_or_default()
    }
}

/// A client that follows no redirects and keeps no cookies, so that tests see both.
fn plain_client() -> reqwest::Client {
    reqwest::Client::builder().redirect(Policy::none()).timeout(PATIENCE).build().unwrap()
}

/// A response that was read to its end.
struct TestResponse {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl TestResponse {
    /// Returns a header, or an empty text if it is missing.
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the cookie whose pair starts like this, as a browser sends it back.
    fn cookie(&self, start: &str) -> Option<String> {
        let lines = self.headers.get_all("set-cookie").iter().map(|line| line.to_str().unwrap());
        let pairs = lines.filter_map(|line| line.split(';').next());
        pairs.map(ToOwned::to_owned).find(|pair| pair.starts_with(start))
    }
}

impl fmt::Debug for TestResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.status, self.headers, self.body)
    }
}

async fn send(request: RequestBuilder) -> TestResponse {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    TestResponse { status, headers, body: response.text().await.unwrap() }
}

/// Asserts that a response is a problem document with a request id and without internal details. Returns the problem.
#[track_caller]
fn assert_problem(response: &TestResponse, status: u16) -> Value {
    assert_eq!(
        (response.status, response.header("content-type")),
        (status, "application/problem+json"),
        "{response:?}"
    );
    let problem = response.json();
    assert_eq!(problem["status"], status, "{problem}");
    assert!(problem["type"].as_str().unwrap().starts_with("urn:playhouse:problem:"), "{problem}");
    assert!(problem["title"].is_string(), "{problem}");
    assert_eq!(problem["request_id"], response.header("x-request-id"), "{problem}");
    assert!(!response.header("x-request-id").is_empty());
    for detail in ["sqlx", "sqlite", "redis", "reqwest", "hyper", "axum", "panic", "::", ".rs", "/tmp/"] {
        assert!(!response.body.contains(detail), "{detail}: {problem}");
    }
    problem
}

/// A completed sign-in with the values that passed through the browser.
struct SignIn {
    /// The session cookie as the browser sends it: `playhouse=…`.
    session: String,
    /// The cookie of the sign-in attempt, likewise.
    attempt: String,
    /// The callback URL to which the issuer redirected the browser.
    callback: Url,
}

impl SignIn {
    /// Returns a parameter of the callback.
    fn parameter(&self, name: &str) -> String {
        self.callback.query_pairs().find(|(known, _)| known == name).unwrap().1.into_owned()
    }
}

/// Signs a browser in at the builtin issuer. Returns the session cookie as the browser sends it.
async fn session_cookie(gateway: &str, user: &str) -> String {
    sign_in(gateway, user).await.session
}

/// Signs a browser in at the builtin issuer: to the issuer, through its page, and back.
async fn sign_in(gateway: &str, user: &str) -> SignIn {
    let (attempt, callback) = choose_user(gateway, user).await;
    let ended = send(plain_client().get(callback.clone()).header("cookie", &attempt)).await;
    assert_eq!((ended.status, ended.header("location")), (303, "/"), "{ended:?}");
    SignIn { session: ended.cookie("playhouse=").unwrap(), attempt, callback }
}

/// Starts a sign-in and chooses the user on the issuer's page. Returns the cookie of the attempt and the callback URL.
async fn choose_user(gateway: &str, user: &str) -> (String, Url) {
    choose_user_from(plain_client().get(format!("http://{gateway}/login")), user).await
}

/// Like `choose_user`, with this request as the start.
async fn choose_user_from(login: RequestBuilder, user: &str) -> (String, Url) {
    let client = plain_client();
    let started = send(login).await;
    assert_eq!(started.status, 303, "{started:?}");
    let page_url = Url::parse(started.header("location")).unwrap();
    let page = send(client.get(page_url.clone())).await;
    let (_, form) = page.body.split_once("action=\"").unwrap_or_else(|| panic!("{page:?}"));
    let action = form.split('"').next().unwrap().replace("&amp;", "&").replace("&#39;", "'");
    let choice = client.post(page_url.join(&action).unwrap());
    let choice = choice.header("content-type", "application/x-www-form-urlencoded");
    let chosen = send(choice.body(format!("user={user}&role=player"))).await;
    assert_eq!(chosen.status, 303, "{chosen:?}");
    (started.cookie("playhouse-sign-in-").unwrap(), Url::parse(chosen.header("location")).unwrap())
}
