//! A fleet with players, a service that notifies them, and a publisher of events.

use async_nats::jetstream;
use futures::future::join_all;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::json;
use testkit::issuer::{Issuer, Signer};
use testkit::{Database, Folder};
use uuid::Uuid;

use super::stream_client::Stream;
use crate::fleet::Fleet;
use crate::gateway::fleet_settings;
use crate::*;

/// The event kind of the template `news`.
const NEWS: &str = "test.news.v1";
const SUBJECT: &str = "playhouse.test.news";

const CONFIG: &str = r#"
[notification.delivery]
lease = "1s"
poll = "50ms"
[notification.templates.news]
event = "test.news.v1"
fields = ["n"]
[notification.templates.news.texts.en]
title = "News {n}"
[notification.templates.news.texts.ja]
title = "ニュース{n}"
"#;

/// The servers, the issuer and the settings of the processes.
pub(super) struct Setup {
    pub(super) fleet: Fleet,
    issuer: Issuer,
    signer: Signer,
    folder: Folder,
}

impl Setup {
    pub(super) async fn start() -> Result<Self, testkit::Error> {
        let fleet = Fleet::start().await?;
        let signer = Signer::ec("one");
        let issuer = Issuer::start(&[&signer]).await;
        let setup = Self { fleet, issuer, signer, folder: Folder::fresh().unwrap() };
        setup.configure("");
        Ok(setup)
    }

    /// Adds settings for processes that start later.
    pub(super) fn configure(&self, more: &str) {
        std::fs::write(self.config(), format!("{}{CONFIG}{}{more}", fleet_settings(), shop::services()))
            .unwrap();
    }

    fn config(&self) -> std::path::PathBuf {
        self.folder.path().join("playhouse.toml")
    }

    /// A process with these roles, not started yet.
    pub(super) fn program(&self, roles: &str) -> Program {
        let config = self.config();
        self.fleet
            .serve(&["--config", config.to_str().unwrap(), "--roles", roles])
            .env("PLAYHOUSE_IDENTITY_ISSUER", &self.issuer.url)
    }

    pub(super) async fn process(&self, roles: &str) -> Process {
        Process::start(&self.program(roles)).await
    }

    /// Returns a player with an access token, known to this process.
    pub(super) async fn player(&self, process: &Process, name: &str) -> Player {
        self.player_for(process, name, 300).await
    }

    /// Returns a player whose access token expires after a number of seconds.
    pub(super) async fn player_for(&self, process: &Process, name: &str, seconds: u64) -> Player {
        let mut claims = self.issuer.claims(name);
        claims["exp"] = json!(testkit::issuer::now() + seconds);
        let token = self.signer.sign(&claims);
        let client = Client::builder().timeout(PATIENCE).build().unwrap();
        let mut player = Player { user: Uuid::nil(), token, client };
        let (status, me) = player.get(process.gateway(), "/v1/me").await;
        assert_eq!(status, 200, "{me}");
        player.user = me["user_id"].as_str().unwrap().parse().unwrap();
        player
    }

    pub(super) async fn publisher(&self) -> Publisher {
        let client = async_nats::connect(self.fleet.nats.url()).await.unwrap();
        Publisher(jetstream::new(client))
    }

    /// Runs a query that returns one number.
    pub(super) async fn count(&self, query: &'static str) -> i64 {
        count(&self.fleet.database, query).await
    }

    /// Waits until every event is acknowledged, redelivered ones included.
    pub(super) async fn wait_until_acknowledged(&self, publisher: &Publisher) {
        testkit::eventually("all events are acknowledged", PATIENCE * 6, async || {
            let (pending, unacknowledged) = publisher.unacknowledged().await;
            if pending == 0 && unacknowledged == 0 {
                Ok(())
            } else {
                Err(format!("{pending} not delivered, {unacknowledged} not acknowledged"))
            }
        })
        .await;
    }
}

async fn count(database: &Database, query: &'static str) -> i64 {
    use sqlx::Connection;
    let mut connection = sqlx::MySqlConnection::connect(database.url()).await.unwrap();
    let count = sqlx::query_scalar(query).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    count
}

/// A running process.
pub(super) struct Process {
    pub(super) running: RunningProgram,
    at: HashMap<String, String>,
}

impl Process {
    pub(super) async fn start(program: &Program) -> Self {
        let running = program.start().unwrap();
        let at = addresses(&running).await;
        Self { running, at }
    }

    pub(super) fn gateway(&self) -> &str {
        &self.at["gateway"]
    }

    pub(super) fn service_api(&self) -> &str {
        &self.at["service_api"]
    }

    pub(super) fn admin(&self) -> &str {
        &self.at["admin"]
    }

    pub(super) fn service(&self) -> Service {
        Service::at(self.service_api())
    }

    /// Returns the value of a metric, or 0 if it does not exist.
    pub(super) async fn metric(&self, name: &str) -> f64 {
        let (_, text) = get(format!("http://{}/metrics", self.admin())).await;
        let value = |line: &str| line.strip_prefix(name)?.trim().parse::<f64>().ok();
        text.as_str().unwrap().lines().find_map(value).unwrap_or_default()
    }

    /// Returns the peak resident memory in bytes.
    pub(super) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.running.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
    }

    /// Stops the process with SIGTERM.
    pub(super) async fn stop(self) {
        self.running.sigterm();
        assert_eq!(self.running.wait(PATIENCE).await.code(), Some(0));
    }

    /// Kills the process with SIGKILL.
    pub(super) async fn kill(self) {
        self.running.kill();
        crashes::assert_killed(&self.running).await;
    }
}

/// A player with a token.
#[derive(Clone)]
pub(super) struct Player {
    pub(super) user: Uuid,
    pub(super) token: String,
    client: Client,
}

impl Player {
    pub(super) fn request(&self, method: Method, at: &str, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{at}{path}")).bearer_auth(&self.token)
    }

    pub(super) async fn get(&self, at: &str, path: &str) -> (u16, Value) {
        send(self.request(Method::GET, at, path)).await
    }

    pub(super) async fn post(&self, at: &str, path: &str, body: &Value) -> (u16, Value) {
        send(self.request(Method::POST, at, path).json(body)).await
    }

    /// Opens the stream, after a position or from now on.
    pub(super) async fn stream(&self, at: &str, last: Option<i64>) -> Stream {
        Stream::open(at, &self.token, last).await
    }

    /// Reads the whole inbox, the oldest notification first.
    pub(super) async fn inbox(&self, at: &str) -> Vec<Value> {
        let (mut all, mut before) = (Vec::new(), String::new());
        loop {
            let (status, page) = self.get(at, &format!("/v1/notifications?limit=200{before}")).await;
            assert_eq!(status, 200, "{page}");
            all.extend(page["notifications"].as_array().unwrap().iter().cloned());
            let Some(next) = page["next"].as_i64() else { break };
            before = format!("&before={next}");
        }
        all.reverse();
        all
    }
}

async fn send(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// The service `shop`, which may notify players.
#[derive(Clone)]
pub(super) struct Service {
    client: Client,
    url: String,
}

impl Service {
    pub(super) fn at(service_api: &str) -> Self {
        let client = Client::builder().timeout(PATIENCE).build().unwrap();
        Self { client, url: format!("http://{service_api}/internal/v1/notifications") }
    }

    pub(super) fn request(&self, token: &str, key: &str, body: &Value) -> RequestBuilder {
        self.client.post(&self.url).bearer_auth(token).header("idempotency-key", key).json(body)
    }

    pub(super) async fn send(&self, key: &str, body: &Value) -> (u16, Value) {
        send(self.request(shop::TOKEN, key, body)).await
    }

    /// Sends a notification to one user.
    pub(super) async fn notify(&self, user: Uuid, title: &str) {
        let body = json!({ "to": { "user_id": user }, "texts": { "en": { "title": title } } });
        let (status, response) = self.send(&Uuid::now_v7().to_string(), &body).await;
        assert_eq!((status, &response["notified"]), (200, &json!(1)), "{response}");
    }

    pub(super) async fn broadcast(&self, id: &str) -> Value {
        let request = self.client.get(format!("{}/broadcasts/{id}", self.url)).bearer_auth(shop::TOKEN);
        let (status, progress) = send(request).await;
        assert_eq!(status, 200, "{progress}");
        progress
    }
}

/// Publishes events directly to the event stream.
#[derive(Clone)]
pub(super) struct Publisher(jetstream::Context);

impl Publisher {
    /// Publishes events in this order and waits for the acknowledgements. Messages have no id, so that the stream keeps duplicates.
    pub(super) async fn publish(&self, bodies: &[String]) {
        for some in bodies.chunks(500) {
            let mut acknowledgements = Vec::with_capacity(some.len());
            for body in some {
                acknowledgements
                    .push(self.0.publish(SUBJECT, body.clone().into()).await.unwrap().into_future());
            }
            for done in join_all(acknowledgements).await {
                done.unwrap();
            }
        }
    }

    /// Returns how many events were not delivered to a notifier, and how many were delivered and not acknowledged.
    async fn unacknowledged(&self) -> (u64, usize) {
        let stream = self.0.get_stream("PLAYHOUSE").await.unwrap();
        let consumer = stream.consumer_info("notifier").await.unwrap();
        (consumer.num_pending, consumer.num_ack_pending)
    }
}

/// Returns a CloudEvent with news number `n` for a user.
pub(super) fn news(user: Uuid, n: usize) -> String {
    news_with(user, n, "")
}

/// Returns a CloudEvent with news number `n` and further data.
pub(super) fn news_with(user: Uuid, n: usize, more: &str) -> String {
    let event = json!({
        "specversion": "1.0", "id": Uuid::now_v7(), "source": "/test", "type": NEWS, "time": "2026-03-01T12:00:00Z",
        "datacontenttype": "application/json", "data": { "user_id": user, "n": n, "more": more },
    });
    event.to_string()
}
