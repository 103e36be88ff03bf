//! A fleet with an issuer, and people who sign in there.

mod browser;

use std::collections::HashMap;
use std::sync::Arc;

use base::Clock;
use config::{Secret, Setting};
use redis_store::RedisStore;
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::json;
use sessions::{Claim, Sealer, Session, SessionId, SessionSecret, SessionStore};
use testkit::{Clients, Folder, OidcProvider, Uris, free_port};

use self::browser::form;
use super::{KEY, shop, soon};
use crate::fleet::Fleet;
use crate::*;

pub(super) use self::browser::Browser;

const CONFIG: &str = "[hot]\ntimeout = \"2s\"\n[identity]\nclient_secret = \"secret-of-the-client\"\n";

/// The example of RFC 7636.
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

/// The servers, the issuer, and where players find the gateway.
pub(super) struct Scene {
    pub(super) fleet: Fleet,
    pub(super) provider: OidcProvider,
    folder: Folder,
    port: u16,
}

/// The tokens that a session holds.
pub(super) struct Held {
    pub(super) refresh: String,
    pub(super) id: String,
}

impl Scene {
    pub(super) async fn start() -> Result<Self, testkit::Error> {
        Self::with_tokens_for(Duration::from_secs(300)).await
    }

    /// With access tokens that live for so long.
    pub(super) async fn with_tokens_for(life: Duration) -> Result<Self, testkit::Error> {
        let (port, folder) = (free_port().unwrap(), Folder::fresh().unwrap());
        let uris = Uris::at(&format!("http://127.0.0.1:{port}"));
        let clients = Clients { uris, access_token_life: life, ..Clients::default() };
        let (fleet, provider) = tokio::try_join!(Fleet::start(), OidcProvider::start(clients))?;
        let scene = Self { fleet, provider, folder, port };
        scene.configure("");
        Ok(scene)
    }

    /// Settings beside the usual ones, for processes that are started from now on.
    pub(super) fn configure(&self, more: &str) {
        std::fs::write(self.config(), format!("{}{CONFIG}{}{more}", soon(), shop::operators())).unwrap();
    }

    fn config(&self) -> std::path::PathBuf {
        self.folder.path().join("playhouse.toml")
    }

    /// Where the gateway is found: the first of its processes.
    pub(super) fn public(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A process that is about to be started.
    pub(super) fn program(&self, roles: &str) -> Program {
        let config = self.config();
        self.fleet
            .serve(&["--config", config.to_str().unwrap(), "--roles", roles])
            .env("PLAYHOUSE_IDENTITY_ISSUER", self.provider.issuer())
            .env("PLAYHOUSE_GATEWAY_PUBLIC_URL", format!("http://{}", self.public()))
    }

    /// The process that players find.
    pub(super) fn first(&self) -> Program {
        self.program("gateway,service-api")
            .args(["--set".to_owned(), format!("listen.gateway={}", self.public())])
    }

    /// Processes of the gateway, ready to serve; the first is the one that players find.
    pub(super) async fn gateways(&self, count: usize) -> Vec<Door> {
        let mut doors = vec![Door::open(&self.first()).await];
        for _ in 1..count {
            doors.push(Door::open(&self.program("gateway,service-api")).await);
        }
        doors
    }

    /// Signs somebody in, as a browser does.
    pub(super) async fn sign_in(&self, name: &str) -> Player {
        let mut browser = Browser::default();
        browser.sign_in(&format!("http://{}/login?return_to=/openapi.json", self.public()), name).await;
        let secret = browser.cookie("playhouse").expect("a session");
        Player::with("cookie", format!("playhouse={secret}"))
    }

    /// Somebody with an access token, as a game client has it.
    pub(super) async fn player(&self, name: &str) -> Player {
        let callback = format!("http://{}/login/callback", self.public());
        let mut url = self.provider.url("/auth");
        url.query_pairs_mut()
            .append_pair("client_id", "playhouse")
            .append_pair("response_type", "code")
            .append_pair("scope", "openid profile")
            .append_pair("redirect_uri", &callback)
            .append_pair("code_challenge", CHALLENGE)
            .append_pair("code_challenge_method", "S256");
        let mut browser = Browser::stopping_at(&callback);
        let back = browser.sign_in(url.as_str(), name).await;
        let back: HashMap<String, String> = back.query_pairs().into_owned().collect();
        let (status, tokens) = self
            .token(&[
                ("grant_type", "authorization_code"),
                ("code", &back["code"]),
                ("redirect_uri", &callback),
                ("code_verifier", VERIFIER),
            ])
            .await;
        assert_eq!(status, 200, "{tokens}");
        Player::with("authorization", format!("Bearer {}", tokens["access_token"].as_str().unwrap()))
    }

    /// Asks the issuer for tokens, as the gateway does.
    pub(super) async fn token(&self, fields: &[(&str, &str)]) -> (u16, Value) {
        let request = Client::new()
            .post(self.provider.url("/token"))
            .basic_auth("playhouse", Some("secret-of-the-client"));
        let answer = form(request, fields).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    /// The sessions, as the processes see them.
    pub(super) async fn sessions(&self) -> SessionStore {
        let redis = redis_store::Redis::open(&self.fleet.redis.url(), PATIENCE).await.unwrap();
        SessionStore::new(&RedisStore::Redis(redis), "", Duration::from_secs(3600), Clock::system())
    }

    /// Changes the session of a player.
    pub(super) async fn edit(&self, player: &Player, change: impl FnOnce(&mut Session)) {
        let (sessions, id) = (self.sessions().await, player.session());
        let mut found = sessions.read(&id).await.unwrap().unwrap();
        change(&mut found.session);
        let Claim::Yours(lease) = sessions.claim(&id, found.version, PATIENCE).await.unwrap() else {
            panic!("somebody refreshes it")
        };
        assert!(sessions.replace(&lease, &found.session).await.unwrap());
    }

    /// Has the session look as if its access token were about to expire.
    pub(super) async fn is_due(&self, player: &Player) {
        self.edit(player, |session| session.refresh_after = Some(0)).await;
    }

    /// What is sealed in the session of a player.
    pub(super) async fn held(&self, player: &Player) -> Held {
        let id = player.session();
        let found = self.sessions().await.read(&id).await.unwrap().unwrap();
        let key = Secret::parse(&config::Value::Text(KEY.to_owned())).unwrap();
        let purpose = format!("session:{}", id.as_str());
        let text = Sealer::new(&[key]).unwrap().open(&purpose, &found.session.tokens).unwrap();
        let tokens: Value = serde_json::from_str(&text).unwrap();
        let text = |name: &str| tokens[name].as_str().unwrap().to_owned();
        Held { refresh: text("refresh"), id: text("id") }
    }
}

/// A process of the gateway.
pub(super) struct Door {
    pub(super) running: Running,
    pub(super) at: String,
    pub(super) internal: String,
    pub(super) admin: String,
}

impl Door {
    /// Starts it and waits until it is ready.
    pub(super) async fn open(program: &Program) -> Self {
        let running = program.start().unwrap();
        let addresses = addresses(&running).await;
        let address = |name: &str| addresses[name].clone();
        let (at, internal, admin) = (address("gateway"), address("internal"), address("admin"));
        let door = Self { running, at, internal, admin };
        door.is_ready().await;
        door
    }

    pub(super) async fn is_ready(&self) {
        testkit::eventually("the process is ready", PATIENCE, async || {
            let (status, report) = get(format!("http://{}/readyz", self.admin)).await;
            if status == 200 && report["degraded"] == false { Ok(()) } else { Err(report.to_string()) }
        })
        .await;
    }
}

/// Somebody who has proved who they are, with a session or with a token. Clones are the same.
#[derive(Clone)]
pub(super) struct Player {
    client: Client,
    header: &'static str,
    value: Arc<str>,
}

impl Player {
    pub(super) fn with(header: &'static str, value: String) -> Self {
        let client = Client::builder().redirect(Policy::none()).build().unwrap();
        Self { client, header, value: value.into() }
    }

    /// The same person, whose requests share no connection with those of this one.
    pub(super) fn elsewhere(&self) -> Self {
        Self::with(self.header, self.value.to_string())
    }

    /// The secret of the session.
    pub(super) fn secret(&self) -> &str {
        self.value.strip_prefix("playhouse=").expect("somebody with a session")
    }

    pub(super) fn session(&self) -> SessionId {
        SessionSecret::of_cookie(self.secret()).id()
    }

    pub(super) fn request(&self, method: Method, at: &str, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("http://{at}{path}"));
        request.header(self.header, &*self.value).header("x-playhouse-csrf", "1")
    }

    pub(super) async fn get(&self, at: &str, path: &str) -> (u16, Value) {
        answered(self.request(Method::GET, at, path)).await
    }

    /// Who the gateway says this is.
    pub(super) async fn me(&self, at: &str) -> (u16, Value) {
        self.get(at, "/v1/me").await
    }

    pub(super) async fn join(&self, at: &str, queue: &str) -> (u16, Value) {
        let request = self.request(Method::POST, at, "/v1/matchmaking/tickets");
        answered(request.json(&json!({ "queue": queue }))).await
    }

    pub(super) async fn leave(&self, at: &str, ticket: &str) -> u16 {
        let path = format!("/v1/matchmaking/tickets/{ticket}");
        answered(self.request(Method::DELETE, at, &path)).await.0
    }

    /// Follows a ticket.
    pub(super) async fn follow(&self, at: &str, ticket: &str) -> Events {
        Events::of(self.request(Method::GET, at, &stream_of(ticket)).send().await.unwrap())
    }
}

/// Where a ticket is followed.
pub(super) fn stream_of(ticket: &str) -> String {
    format!("/v1/matchmaking/tickets/{ticket}/stream")
}

async fn answered(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// The events of a stream.
pub(super) struct Events {
    response: Response,
    text: String,
    /// How soon to connect again, as the stream says.
    pub(super) retry: Duration,
}

impl Events {
    pub(super) fn of(response: Response) -> Self {
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()[CONTENT_TYPE], "text/event-stream");
        Self { response, text: String::new(), retry: Duration::ZERO }
    }

    /// The name and the data of the next event; nothing when the stream is over.
    pub(super) async fn next(&mut self) -> Option<(String, Value)> {
        let deadline = tokio::time::Instant::now() + PATIENCE * 2;
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| {
                    block.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
                };
                if let Some(retry) = field("retry:") {
                    self.retry = Duration::from_millis(retry.parse().unwrap());
                }
                if let (Some(name), Some(data)) = (field("event:"), field("data:")) {
                    return Some((name, serde_json::from_str(&data).unwrap()));
                }
            }
            let chunk = tokio::time::timeout_at(deadline, self.response.chunk()).await;
            let chunk = chunk.expect("an event in time").unwrap()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The next event, which is the ticket in this state.
    pub(super) async fn expect(&mut self, state: &str) -> Value {
        let (name, data) = self.next().await.unwrap();
        assert_eq!((name.as_str(), data["state"].as_str()), ("ticket", Some(state)), "{data}");
        data
    }

    /// The next event, which is the last.
    pub(super) async fn last(&mut self) -> String {
        let (name, data) = self.next().await.unwrap();
        assert_eq!(self.next().await, None, "after {name}: {data}");
        name
    }
}
