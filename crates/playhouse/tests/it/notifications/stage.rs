//! A fleet with players, a service that tells them things, and somebody who publishes events.

use async_nats::jetstream;
use futures::future::join_all;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::json;
use testkit::issuer::{Issuer, Signer};
use testkit::{Database, Folder};
use uuid::Uuid;

use super::tape::Stream;
use crate::fleet::Fleet;
use crate::gateway::soon;
use crate::*;

/// The kind of event that the template `news` is for.
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

/// The servers, the issuer, and the settings of the processes.
pub(super) struct Stage {
    pub(super) fleet: Fleet,
    issuer: Issuer,
    signer: Signer,
    folder: Folder,
}

impl Stage {
    pub(super) async fn start() -> Result<Self, testkit::Error> {
        let fleet = Fleet::start().await?;
        let signer = Signer::ec("one");
        let issuer = Issuer::start(&[&signer]).await;
        let stage = Self { fleet, issuer, signer, folder: Folder::fresh().unwrap() };
        stage.configure("");
        Ok(stage)
    }

    /// Settings beside the usual ones, for processes that are started from now on.
    pub(super) fn configure(&self, more: &str) {
        std::fs::write(self.config(), format!("{}{CONFIG}{}{more}", soon(), shop::services())).unwrap();
    }

    fn config(&self) -> std::path::PathBuf {
        self.folder.path().join("playhouse.toml")
    }

    /// A process that is about to be started.
    pub(super) fn program(&self, roles: &str) -> Program {
        let config = self.config();
        self.fleet
            .serve(&["--config", config.to_str().unwrap(), "--roles", roles])
            .env("PLAYHOUSE_IDENTITY_ISSUER", &self.issuer.url)
    }

    pub(super) async fn process(&self, roles: &str) -> Process {
        Process::start(&self.program(roles)).await
    }

    /// Somebody with an access token, who has signed in at this process.
    pub(super) async fn player(&self, process: &Process, name: &str) -> Player {
        let token = self.signer.sign(&self.issuer.claims(name));
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

    /// A number that the database tells.
    pub(super) async fn count(&self, query: &'static str) -> i64 {
        count(&self.fleet.database, query).await
    }

    /// Waits until every event was acknowledged, however late some of them are given out again.
    pub(super) async fn all_taken_in(&self, publisher: &Publisher) {
        testkit::eventually("all events are acknowledged", PATIENCE * 6, async || {
            let (pending, unacknowledged) = publisher.left().await;
            if pending == 0 && unacknowledged == 0 {
                Ok(())
            } else {
                Err(format!("{pending} to come, {unacknowledged} given out"))
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

/// A process that serves.
pub(super) struct Process {
    pub(super) running: Running,
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

    pub(super) fn internal(&self) -> &str {
        &self.at["internal"]
    }

    pub(super) fn admin(&self) -> &str {
        &self.at["admin"]
    }

    pub(super) fn service(&self) -> Service {
        Service::at(self.internal())
    }

    /// The value of a metric; 0 if there is none.
    pub(super) async fn metric(&self, name: &str) -> f64 {
        let (_, text) = get(format!("http://{}/metrics", self.admin())).await;
        let value = |line: &str| line.strip_prefix(name)?.trim().parse::<f64>().ok();
        text.as_str().unwrap().lines().find_map(value).unwrap_or_default()
    }

    /// How many bytes of memory it had at the most.
    pub(super) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.running.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
    }

    /// Stops it as an operator does.
    pub(super) async fn stop(self) {
        self.running.sigterm();
        assert_eq!(self.running.wait(PATIENCE).await.code(), Some(0));
    }

    /// Kills it, as `kill -9` does.
    pub(super) async fn kill(self) {
        self.running.kill();
        crashes::was_killed(&self.running).await;
    }
}

/// A player with a token. Clones are the same.
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
        answered(self.request(Method::GET, at, path)).await
    }

    pub(super) async fn post(&self, at: &str, path: &str, body: &Value) -> (u16, Value) {
        answered(self.request(Method::POST, at, path).json(body)).await
    }

    /// Opens the stream, from behind a position or from now on.
    pub(super) async fn stream(&self, at: &str, last: Option<i64>) -> Stream {
        Stream::open(at, &self.token, last).await
    }

    /// The whole inbox, the oldest first.
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

async fn answered(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// The service `shop`, which may tell players things. Clones are the same.
#[derive(Clone)]
pub(super) struct Service {
    client: Client,
    url: String,
}

impl Service {
    pub(super) fn at(internal: &str) -> Self {
        let client = Client::builder().timeout(PATIENCE).build().unwrap();
        Self { client, url: format!("http://{internal}/internal/v1/notifications") }
    }

    pub(super) fn request(&self, token: &str, key: &str, body: &Value) -> RequestBuilder {
        self.client.post(&self.url).bearer_auth(token).header("idempotency-key", key).json(body)
    }

    pub(super) async fn send(&self, key: &str, body: &Value) -> (u16, Value) {
        answered(self.request(shop::TOKEN, key, body)).await
    }

    /// Tells one user something.
    pub(super) async fn tell(&self, user: Uuid, title: &str) {
        let body = json!({ "to": { "user_id": user }, "texts": { "en": { "title": title } } });
        let (status, answer) = self.send(&Uuid::now_v7().to_string(), &body).await;
        assert_eq!((status, &answer["told"]), (200, &json!(1)), "{answer}");
    }

    pub(super) async fn broadcast(&self, id: &str) -> Value {
        let request = self.client.get(format!("{}/broadcasts/{id}", self.url)).bearer_auth(shop::TOKEN);
        let (status, progress) = answered(request).await;
        assert_eq!(status, 200, "{progress}");
        progress
    }
}

/// Whoever publishes events, straight to the stream. Clones are the same.
#[derive(Clone)]
pub(super) struct Publisher(jetstream::Context);

impl Publisher {
    /// Publishes all of these, in this order, and waits until the stream has them. Without an id of the message, so that the stream
    /// keeps each as often as it is published.
    pub(super) async fn publish(&self, bodies: &[String]) {
        for some in bodies.chunks(500) {
            let mut acknowledged = Vec::with_capacity(some.len());
            for body in some {
                acknowledged.push(self.0.publish(SUBJECT, body.clone().into()).await.unwrap().into_future());
            }
            for done in join_all(acknowledged).await {
                done.unwrap();
            }
        }
    }

    /// How many events are yet to be given to a notifier, and how many were given and not acknowledged.
    async fn left(&self) -> (u64, usize) {
        let stream = self.0.get_stream("PLAYHOUSE").await.unwrap();
        let consumer = stream.consumer_info("notifier").await.unwrap();
        (consumer.num_pending, consumer.num_ack_pending)
    }
}

/// News for a user, as a CloudEvent of its own.
pub(super) fn news(user: Uuid, n: usize) -> String {
    news_with(user, n, "")
}

/// The same, and something long.
pub(super) fn news_with(user: Uuid, n: usize, more: &str) -> String {
    let event = json!({
        "specversion": "1.0", "id": Uuid::now_v7(), "source": "/test", "type": NEWS, "time": "2026-03-01T12:00:00Z",
        "datacontenttype": "application/json", "data": { "user_id": user, "n": n, "more": more },
    });
    event.to_string()
}
