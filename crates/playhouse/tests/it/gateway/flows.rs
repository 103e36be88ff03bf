//! A fleet with an issuer, and players who sign in there.

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
use sessions::{RefreshClaim, Sealer, Session, SessionId, SessionSecret, SessionStore};
use testkit::{ClientUris, Folder, OidcClients, OidcProvider, free_port};

use super::{KEY, fleet_settings, shop};
use crate::fleet::Fleet;
use crate::*;

pub(super) use self::browser::Browser;

const CONFIG: &str = "[redis]\ntimeout = \"2s\"\n[identity]\nclient_secret = \"secret-of-the-client\"\n";

/// The example of RFC 7636.
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

/// The servers, the issuer and the public port of the gateway.
pub(super) struct Setup {
    pub(super) fleet: Fleet,
    pub(super) provider: OidcProvider,
    folder: Folder,
    port: u16,
}

/// The tokens of the issuer in a session.
pub(super) struct SessionTokens {
    pub(super) refresh: String,
    pub(super) id: String,
}

impl Setup {
    pub(super) async fn start() -> Result<Self, testkit::Error> {
        Self::with_tokens_for(Duration::from_secs(300)).await
    }

    /// Starts an issuer whose access tokens live this long.
    pub(super) async fn with_tokens_for(life: Duration) -> Result<Self, testkit::Error> {
        let (port, folder) = (free_port().unwrap(), Folder::fresh().unwrap());
        let uris = ClientUris::at(&format!("http://127.0.0.1:{port}"));
        let clients = OidcClients { uris, access_token_life: life, ..OidcClients::default() };
        let (fleet, provider) = tokio::try_join!(Fleet::start(), OidcProvider::start(clients))?;
        let setup = Self { fleet, provider, folder, port };
        setup.configure("");
        Ok(setup)
    }

    /// Adds settings for processes that start later.
    pub(super) fn configure(&self, more: &str) {
        std::fs::write(self.config(), format!("{}{CONFIG}{}{more}", fleet_settings(), shop::operators()))
            .unwrap();
    }

    fn config(&self) -> std::path::PathBuf {
        self.folder.path().join("playhouse.toml")
    }

    /// Returns the public address of the gateway, which its first process serves.
    pub(super) fn public(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A process with these roles, not started yet.
    pub(super) fn program(&self, roles: &str) -> Program {
        let config = self.config();
        self.fleet
            .serve(&["--config", config.to_str().unwrap(), "--roles", roles])
            .env("PLAYHOUSE_IDENTITY_ISSUER", self.provider.issuer())
            .env("PLAYHOUSE_GATEWAY_PUBLIC_URL", format!("http://{}", self.public()))
    }

    /// The process at the public address, not started yet.
    pub(super) fn first(&self) -> Program {
        self.program("gateway,service-api")
            .args(["--set".to_owned(), format!("listen.gateway={}", self.public())])
    }

    /// Starts gateways and waits until they are ready. The first has the public address.
    pub(super) async fn start_gateways(&self, count: usize) -> Vec<Gateway> {
        let mut gateways = vec![Gateway::start(&self.first()).await];
        for _ in 1..count {
            gateways.push(Gateway::start(&self.program("gateway,service-api")).await);
        }
        gateways
    }

    /// Signs a player in with a browser.
    pub(super) async fn sign_in(&self, name: &str) -> Player {
        let mut browser = Browser::default();
        browser.sign_in(&format!("http://{}/login?return_to=/openapi.json", self.public()), name).await;
        let secret = browser.cookie("playhouse").expect("no session cookie");
        Player::with("cookie", format!("playhouse={secret}"))
    }

    /// Returns a player with an access token, like a game client.
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

    /// Requests tokens from the issuer, like the gateway.
    pub(super) async fn token(&self, fields: &[(&str, &str)]) -> (u16, Value) {
        let request = Client::new()
            .post(self.provider.url("/token"))
            .basic_auth("playhouse", Some("secret-of-the-client"));
        let response = form(request, fields).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    /// Opens the session store of the processes.
    pub(super) async fn sessions(&self) -> SessionStore {
        let redis = redis_store::Redis::open(&self.fleet.redis.url(), PATIENCE).await.unwrap();
        SessionStore::new(&RedisStore::Redis(redis), "", Duration::from_secs(3600), Clock::system())
    }

    /// Changes the session of a player.
    pub(super) async fn edit(&self, player: &Player, change: impl FnOnce(&mut Session)) {
        let (sessions, id) = (self.sessions().await, player.session());
        let mut found = sessions.read(&id).await.unwrap().unwrap();
        change(&mut found.session);
        let RefreshClaim::Granted(lease) = sessions.claim(&id, found.version, PATIENCE).await.unwrap() else {
            panic!("a process refreshes the session")
        };
        assert!(sessions.replace(&lease, &found.session).await.unwrap());
    }

    /// Makes the session due for a refresh.
    pub(super) async fn make_refresh_due(&self, player: &Player) {
        self.edit(player, |session| session.refresh_after = Some(0)).await;
    }

    /// Returns the sealed tokens of a player's session.
    pub(super) async fn session_tokens(&self, player: &Player) -> SessionTokens {
        let id = player.session();
        let found = self.sessions().await.read(&id).await.unwrap().unwrap();
        let key = Secret::parse(&config::Value::Text(KEY.to_owned())).unwrap();
        let purpose = format!("session:{}", id.as_str());
        let text = Sealer::new(&[key]).unwrap().open(&purpose, &found.session.tokens).unwrap();
        let tokens: Value = serde_json::from_str(&text).unwrap();
        let text = |name: &str| tokens[name].as_str().unwrap().to_owned();
        SessionTokens { refresh: text("refresh"), id: text("id") }
    }
}

/// A gateway process.
pub(super) struct Gateway {
    pub(super) running: RunningProgram,
    pub(super) at: String,
    pub(super) service_api: String,
    pub(super) admin: String,
}

impl Gateway {
    /// Starts a process and waits until it is ready.
    pub(super) async fn start(program: &Program) -> Self {
        let running = program.start().unwrap();
        let addresses = addresses(&running).await;
        let address = |name: &str| addresses[name].clone();
        let (at, service_api, admin) = (address("gateway"), address("service_api"), address("admin"));
        let gateway = Self { running, at, service_api, admin };
        gateway.wait_until_ready().await;
        gateway
    }

    pub(super) async fn wait_until_ready(&self) {
        testkit::eventually("the process is ready", PATIENCE, async || {
            let (status, report) = get(format!("http://{}/readyz", self.admin)).await;
            if status == 200 && report["degraded"] == false { Ok(()) } else { Err(report.to_string()) }
        })
        .await;
    }
}

/// A player with a session or an access token.
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

    /// Returns the same player with separate connections.
    pub(super) fn with_new_connections(&self) -> Self {
        Self::with(self.header, self.value.to_string())
    }

    /// Returns the secret of the session cookie.
    pub(super) fn secret(&self) -> &str {
        self.value.strip_prefix("playhouse=").expect("the player has no session")
    }

    pub(super) fn session(&self) -> SessionId {
        SessionSecret::from_cookie(self.secret()).id()
    }

    pub(super) fn request(&self, method: Method, at: &str, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("http://{at}{path}"));
        request.header(self.header, &*self.value).header("x-playhouse-csrf", "1")
    }

    pub(super) async fn get(&self, at: &str, path: &str) -> (u16, Value) {
        send(self.request(Method::GET, at, path)).await
    }

    /// Requests the player's own user.
    pub(super) async fn me(&self, at: &str) -> (u16, Value) {
        self.get(at, "/v1/me").await
    }

    pub(super) async fn join(&self, at: &str, queue: &str) -> (u16, Value) {
        let request = self.request(Method::POST, at, "/v1/matchmaking/tickets");
        send(request.json(&json!({ "queue": queue }))).await
    }

    pub(super) async fn leave(&self, at: &str, ticket: &str) -> u16 {
        let path = format!("/v1/matchmaking/tickets/{ticket}");
        send(self.request(Method::DELETE, at, &path)).await.0
    }

    /// Opens the stream of a ticket.
    pub(super) async fn follow(&self, at: &str, ticket: &str) -> Events {
        Events::new(self.request(Method::GET, at, &stream_of(ticket)).send().await.unwrap())
    }
}

/// Returns the path of a ticket's stream.
pub(super) fn stream_of(ticket: &str) -> String {
    format!("/v1/matchmaking/tickets/{ticket}/stream")
}

async fn send(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// The events of a stream.
pub(super) struct Events {
    response: Response,
    text: String,
    /// The reconnect delay that the stream has sent.
    pub(super) retry: Duration,
}

impl Events {
    pub(super) fn new(response: Response) -> Self {
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()[CONTENT_TYPE], "text/event-stream");
        Self { response, text: String::new(), retry: Duration::ZERO }
    }

    /// Returns the name and the data of the next event, or `None` at the end of the stream.
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
            let chunk = chunk.expect("no event in time").unwrap()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// Waits for the next event, which must be the ticket in this state.
    pub(super) async fn expect(&mut self, state: &str) -> Value {
        let (name, data) = self.next().await.unwrap();
        assert_eq!((name.as_str(), data["state"].as_str()), ("ticket", Some(state)), "{data}");
        data
    }

    /// Waits for the next event, which must be the last.
    pub(super) async fn last(&mut self) -> (String, Value) {
        let (name, data) = self.next().await.unwrap();
        assert_eq!(self.next().await, None, "after {name}: {data}");
        (name, data)
    }

    /// Waits for the next event, which must be `end`. Returns its code.
    pub(super) async fn end_code(&mut self) -> String {
        let (name, data) = self.last().await;
        assert_eq!(name, "end", "{data}");
        data["code"].as_str().unwrap().to_owned()
    }
}
