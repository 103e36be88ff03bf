//! The gateway as game clients and web pages meet it.

mod clients;
mod drops;
mod flows;
mod flows_back_channel;
mod flows_matchmaking;
mod flows_outages;
mod flows_refresh;
mod flows_restart;
mod flows_rolled_back;
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

/// A queue, so that there is something to ask for. Nobody makes matches of it.
const QUEUE: &str = "[matchmaking.queues.duel]\n";
/// What the sessions of a fleet are sealed with.
const KEY: &str = "a-key-for-tests-that-nobody-guesses";
/// A queue of which matches of two are made.
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
/// Limits that no test reaches that is about something else.
const WIDE: &str = "[gateway.limits]\naddress = \"10000/s burst 10000\"\nread = \"10000/s burst 10000\"\n\
    write = \"10000/s burst 10000\"\nsign_in = \"10000/s burst 10000\"\nstream = \"10000/s burst 10000\"\n";

/// For a gateway in a fleet: no limit is met by accident, and everything happens soon.
pub(super) fn soon() -> String {
    format!(
        "[db]\nmigrate = true\nacquire_timeout = \"2s\"\n\
        [gateway]\nmax_streams = 100\nstream_heartbeat = \"1s\"\n\
        [gateway.session]\nkeys = [\"{KEY}\"]\n\
        {WIDE}timeout = \"1s\"\n"
    )
}

/// A process with embedded stores and whatever issuer it is told of.
struct Door {
    running: Running,
    at: HashMap<String, String>,
    client: reqwest::Client,
    _folder: Folder,
}

impl Door {
    /// One that believes this issuer, with these settings of `[identity]` and all sections after it.
    async fn of(issuer: &Issuer, settings: &str) -> Self {
        Self::open(&format!("[identity]\nissuer = \"{}\"\n{settings}", issuer.url)).await
    }

    /// With the builtin issuer, limits that are not in the way, and these settings as they stand in a file.
    async fn open(settings: &str) -> Self {
        Self::with(&format!("{WIDE}{settings}"), |program| program).await
    }

    /// With nothing but these settings, started as the test wants it.
    async fn with(settings: &str, change: impl FnOnce(Program) -> Program) -> Self {
        let folder = Folder::fresh().unwrap();
        let file = folder.path().join("play.toml");
        std::fs::write(&file, format!("{}{QUEUE}{settings}", shop::services())).unwrap();
        let program = change(shop::embedded(&folder).env("PLAYHOUSE_CONFIG", &file));
        let running = program.start().unwrap();
        let at = addresses(&running).await;
        Self { running, at, client: browserless(), _folder: folder }
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

    /// A request to a row of the table; where one is needed, with a body that would do.
    fn ask(&self, row: &service::Row) -> RequestBuilder {
        let examples = [
            ("{ticket_id}", "01a1e4c0256877228"),
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
            (RouteMethod::Post, _) => request.json(&json!({ "queue": "duel" })),
            _ => request,
        }
    }

    /// An access token of the builtin issuer.
    async fn token(&self, user: &str) -> String {
        self.token_as(user, "player").await
    }

    async fn token_as(&self, user: &str, role: &str) -> String {
        let url = format!("http://{}/issuer/tokens?user={user}&role={role}", self.at["admin"]);
        let answer = sent(self.client.post(url).bearer_auth(shop::OPERATOR_TOKEN)).await;
        answer.json()["token"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
    }

    fn shop(&self) -> Shop {
        Shop::at(&self.at["internal"])
    }

    /// The value of a metric; 0 if there is none.
    async fn metric(&self, name: &str) -> f64 {
        let (_, text) = super::get(format!("http://{}/metrics", self.at["admin"])).await;
        let lines = text.as_str().unwrap().lines();
        let value = |line: &str| line.strip_prefix(name)?.trim().parse::<f64>().ok();
        lines.filter_map(value).next().unwrap_or_default()
    }
}

/// A client that follows no redirects and keeps no cookies: tests see everything.
fn browserless() -> reqwest::Client {
    reqwest::Client::builder().redirect(Policy::none()).timeout(PATIENCE).build().unwrap()
}

/// What was answered.
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    /// A header; empty if there is none.
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The one cookie that the answer sets whose name begins like this, as it is sent back.
    fn cookie(&self, start: &str) -> Option<String> {
        let lines = self.headers.get_all("set-cookie").iter().map(|line| line.to_str().unwrap());
        let pairs = lines.filter_map(|line| line.split(';').next());
        pairs.map(ToOwned::to_owned).find(|pair| pair.starts_with(start))
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.status, self.headers, self.body)
    }
}

async fn sent(request: RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Answer { status, headers, body: response.text().await.unwrap() }
}

/// Checks that an answer is a problem document: with a request id, and without anything that is inside.
#[track_caller]
fn assert_problem(answer: &Answer, status: u16) -> Value {
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (status, "application/problem+json"),
        "{answer:?}"
    );
    let problem = answer.json();
    assert_eq!(problem["status"], status, "{problem}");
    assert!(problem["type"].as_str().unwrap().starts_with("urn:playhouse:problem:"), "{problem}");
    assert!(problem["title"].is_string(), "{problem}");
    assert_eq!(problem["request_id"], answer.header("x-request-id"), "{problem}");
    assert!(!answer.header("x-request-id").is_empty());
    for inside in ["sqlx", "sqlite", "redis", "reqwest", "hyper", "axum", "panic", "::", ".rs", "/tmp/"] {
        assert!(!answer.body.contains(inside), "{inside}: {problem}");
    }
    problem
}

/// A sign-in, with everything that went through the browser on the way.
struct SignedIn {
    /// The session, as the browser sends it: `playhouse=…`.
    session: String,
    /// What remembered the attempt, likewise.
    attempt: String,
    /// Where the issuer sent the browser.
    back: Url,
}

impl SignedIn {
    /// What the issuer sent the browser back with.
    fn answer(&self, name: &str) -> String {
        self.back.query_pairs().find(|(known, _)| known == name).unwrap().1.into_owned()
    }
}

/// Signs a browser in at a builtin issuer, and returns the cookie of the session as the browser sends it.
async fn signed_in(gateway: &str, user: &str) -> String {
    sign_in(gateway, user).await.session
}

/// The whole way: to the issuer, through its page, and back.
async fn sign_in(gateway: &str, user: &str) -> SignedIn {
    let (attempt, back) = picked(gateway, user).await;
    let ended = sent(browserless().get(back.clone()).header("cookie", &attempt)).await;
    assert_eq!((ended.status, ended.header("location")), (303, "/"), "{ended:?}");
    SignedIn { session: ended.cookie("playhouse=").unwrap(), attempt, back }
}

/// To the issuer and through its page: the cookie that remembers the attempt, and where the issuer sends the browser.
async fn picked(gateway: &str, user: &str) -> (String, Url) {
    picked_from(browserless().get(format!("http://{gateway}/login")), user).await
}

/// The same, begun by this request.
async fn picked_from(begin: RequestBuilder, user: &str) -> (String, Url) {
    let client = browserless();
    let begun = sent(begin).await;
    assert_eq!(begun.status, 303, "{begun:?}");
    let page_url = Url::parse(begun.header("location")).unwrap();
    let page = sent(client.get(page_url.clone())).await;
    let (_, form) = page.body.split_once("action=\"").unwrap_or_else(|| panic!("{page:?}"));
    let action = form.split('"').next().unwrap().replace("&amp;", "&").replace("&#39;", "'");
    let pick = client.post(page_url.join(&action).unwrap());
    let pick = pick.header("content-type", "application/x-www-form-urlencoded");
    let picked = sent(pick.body(format!("user={user}&role=player"))).await;
    assert_eq!(picked.status, 303, "{picked:?}");
    (begun.cookie("playhouse-sign-in-").unwrap(), Url::parse(picked.header("location")).unwrap())
}
