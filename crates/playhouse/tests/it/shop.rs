//! A shop that uses the service API, and what it and the readers of the stream can tell afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use async_nats::jetstream::consumer::{AckPolicy, pull};
use futures::StreamExt;
use serde_json::json;
use testkit::Folder;
use tokio::time::MissedTickBehavior;

use super::*;

/// The token of the service `shop`, which may do everything.
pub(super) const TOKEN: &str = "ph_for-tests-only";
/// The token of a service that may do nothing.
pub(super) const POOR_TOKEN: &str = "ph_for-tests-only-too";

/// The token of the operator `tester`, and of `reader`, who may only read.
pub(super) const OPERATOR_TOKEN: &str = "ph_operator-for-tests-only";
pub(super) const READER_TOKEN: &str = "ph_reader-for-tests-only";

/// Settings that let the shop in, and a service that may do nothing.
pub(super) fn services() -> String {
    let service = |name: &str, token: &str, may: &str| {
        let hash = http_server::TokenHash::of(token);
        format!("[services.{name}]\ntoken_hash = \"{hash}\"\nmay = [{may}]\n")
    };
    let all = "\"read\", \"accounts\", \"entitlements\", \"notifications\", \"drops\", \"operator\"";
    service("shop", TOKEN, all) + &service("poor", POOR_TOKEN, "") + &operators()
}

/// Settings with an operator, and one who may only read.
pub(super) fn operators() -> String {
    let operator = |name: &str, token: &str, read_only: bool| {
        let hash = http_server::TokenHash::of(token);
        format!("[operators.{name}]\ntoken_hash = \"{hash}\"\nread_only = {read_only}\n")
    };
    operator("tester", OPERATOR_TOKEN, false) + &operator("reader", READER_TOKEN, true)
}

/// Asks the admin API as an operator.
pub(super) async fn admin_get(url: String) -> (u16, Value) {
    let response = reqwest::Client::new().get(url).bearer_auth(OPERATOR_TOKEN).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// Lets these services in.
pub(super) fn let_in(program: Program) -> Program {
    static FILE: OnceLock<(Folder, PathBuf)> = OnceLock::new();
    let (_, file) = FILE.get_or_init(|| {
        let folder = Folder::fresh().unwrap();
        let file = folder.path().join("play.toml");
        std::fs::write(&file, services()).unwrap();
        (folder, file)
    });
    program.env("PLAYHOUSE_CONFIG", file)
}

/// A process with embedded stores, whose data is in the folder.
pub(super) fn embedded(folder: &Folder) -> Program {
    let data = format!("db.url=sqlite:{}", folder.path().join("playhouse.db").display());
    let ports = ["gateway", "internal", "admin", "open_match"];
    let ports = ports.iter().flat_map(|name| ["--set".to_owned(), format!("listen.{name}=127.0.0.1:0")]);
    let program = playhouse(&["serve", "--print-addresses", "--set", "db.migrate=true", "--set", &data]);
    let_in(program.args(ports).env("PLAYHOUSE_OUTBOX_LEASE", "1s"))
}

/// One that sends requests to a process, which may change.
#[derive(Clone)]
pub(super) struct Shop {
    client: reqwest::Client,
    address: Arc<Mutex<String>>,
}

/// Whose things are bought.
#[derive(Clone, Debug)]
pub(super) struct Customer {
    pub(super) user: String,
    pub(super) account: String,
}

impl Shop {
    pub(super) fn at(address: &str) -> Self {
        Self::with_client(reqwest::Client::builder(), address)
    }

    pub(super) fn with_client(client: reqwest::ClientBuilder, address: &str) -> Self {
        let client = client.timeout(Duration::from_secs(15)).build().unwrap();
        Self { client, address: Arc::new(Mutex::new(address.to_owned())) }
    }

    pub(super) fn moves_to(&self, address: &str) {
        *self.address.lock().unwrap() = address.to_owned();
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}/internal/v1{path}", self.address.lock().unwrap())
    }

    /// What was answered; nothing if nobody answers.
    pub(super) async fn try_post(&self, path: &str, key: Option<&str>, body: &Value) -> Option<(u16, Value)> {
        let mut request = self.client.post(self.url(path)).bearer_auth(TOKEN).json(body);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        Some((status, response.json().await.ok()?))
    }

    pub(super) async fn post(&self, path: &str, key: Option<&str>, body: &Value) -> (u16, Value) {
        self.try_post(path, key, body).await.unwrap()
    }

    /// For what is answered without a body.
    pub(super) async fn status_of_post(&self, path: &str, body: &Value) -> u16 {
        let request = self.client.post(self.url(path)).bearer_auth(TOKEN).json(body);
        request.send().await.unwrap().status().as_u16()
    }

    pub(super) async fn get(&self, path: &str) -> (u16, Value) {
        let response = self.client.get(self.url(path)).bearer_auth(TOKEN).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    pub(super) async fn customer(&self, name: &str) -> Customer {
        let (status, signed_in) =
            self.post("/sign-ins", None, &json!({ "issuer": "test", "subject": name })).await;
        assert_eq!(status, 200, "{signed_in}");
        let user = signed_in["user"]["user_id"].as_str().unwrap().to_owned();
        let (_, accounts) = self.get(&format!("/users/{user}/accounts")).await;
        let account = accounts["accounts"][0]["account_id"].as_str().unwrap().to_owned();
        Customer { user, account }
    }

    /// Sends a purchase until it is answered, by whichever process is there then. Returns the event's id.
    pub(super) async fn buy(&self, customer: &Customer, resource: &str, key: &str) -> String {
        let body = purchase(customer, resource);
        testkit::eventually(&format!("{key} is bought"), PATIENCE * 4, async || {
            match self.try_post("/entitlements/grant", Some(key), &body).await {
                Some((200, answer)) => Ok(answer["event_id"].as_str().unwrap().to_owned()),
                Some((409 | 503, answer)) => Err(answer.to_string()),
                Some(other) => panic!("{other:?}"),
                None => Err("nobody answers".to_owned()),
            }
        })
        .await
    }
}

/// One more of something.
pub(super) fn purchase(customer: &Customer, resource: &str) -> Value {
    json!({
        "user_id": customer.user, "account_id": customer.account, "resource": resource, "quantity": 1,
        "occurred_at": "2026-03-01T12:00:00Z",
    })
}

/// Purchases at a steady rate, each sent until it is answered.
pub(super) struct Load {
    stop: runtime::Drain,
    running: tokio::task::JoinHandle<()>,
    bought: Arc<Mutex<BTreeSet<String>>>,
    offered: Arc<AtomicU64>,
}

impl Load {
    /// A beat that was missed is not made up for: that would look like more than there is.
    pub(super) fn start(shop: &Shop, customers: Vec<Customer>, per_second: u32) -> Self {
        Self::with_beat(shop, customers, per_second, MissedTickBehavior::Skip)
    }

    pub(super) fn with_beat(
        shop: &Shop,
        customers: Vec<Customer>,
        per_second: u32,
        missed: MissedTickBehavior,
    ) -> Self {
        let stop = runtime::Drain::new();
        let bought: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let offered: Arc<AtomicU64> = Arc::default();
        let running = tokio::spawn({
            let (shop, stop) = (shop.clone(), stop.clone());
            let (bought, offered) = (bought.clone(), offered.clone());
            async move {
                let mut beat = tokio::time::interval(Duration::from_secs(1) / per_second);
                beat.set_missed_tick_behavior(missed);
                for n in 0_usize.. {
                    beat.tick().await;
                    if stop.is_requested() {
                        return;
                    }
                    let (shop, customer) = (shop.clone(), customers[n % customers.len()].clone());
                    let bought = bought.clone();
                    offered.fetch_add(1, Ordering::SeqCst);
                    tokio::spawn(async move {
                        let event =
                            shop.buy(&customer, &format!("gems-{}", n % 7), &format!("order-{n}")).await;
                        bought.lock().unwrap().insert(event);
                    });
                }
            }
        });
        Self { stop, running, bought, offered }
    }

    /// How many purchases were begun.
    pub(super) fn offered(&self) -> u64 {
        self.offered.load(Ordering::SeqCst)
    }

    /// How many were answered.
    pub(super) fn count(&self) -> usize {
        self.bought.lock().unwrap().len()
    }

    /// Buys nothing more, and waits until everything is answered. Returns the ids of the events.
    pub(super) async fn finish(&self) -> BTreeSet<String> {
        self.stop.request();
        testkit::eventually("no more purchases are begun", PATIENCE, async || self.running.is_finished())
            .await;
        testkit::eventually("all purchases are answered", PATIENCE * 4, async || {
            self.offered() == self.count() as u64
        })
        .await;
        self.bought.lock().unwrap().clone()
    }
}

/// An event as a reader of the stream sees it.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) id: String,
    pub(super) key: String,
    pub(super) version: Option<i64>,
}

/// The stream that the processes publish to.
pub(super) const STREAM: &str = "PLAYHOUSE";

/// An event by its body.
pub(super) fn told(body: &Value) -> Told {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Told {
        id: text(&body["id"]),
        key: text(&body["partitionkey"]),
        version: body["data"]["version"].as_i64(),
    }
}

/// All events in the stream, oldest first.
pub(super) async fn stream(url: &str) -> Vec<Told> {
    let client = async_nats::connect(url).await.unwrap();
    let stream = async_nats::jetstream::new(client).get_stream(STREAM).await.unwrap();
    let count = stream.cached_info().state.messages.try_into().unwrap();
    let reader = pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() };
    let messages = stream.create_consumer(reader).await.unwrap().messages().await.unwrap();
    let all = messages.take(count).map(|message| {
        let body: Value = serde_json::from_slice(&message.unwrap().payload).unwrap();
        told(&body)
    });
    all.collect().await
}

/// How many events the stream has.
pub(super) async fn stream_length(url: &str) -> u64 {
    let client = async_nats::connect(url).await.unwrap();
    let stream = async_nats::jetstream::new(client).get_stream(STREAM).await.unwrap();
    stream.cached_info().state.messages
}

/// Every event that was promised is in the stream once, none besides, and those of each entitlement in the order of their versions.
pub(super) async fn everything_arrived(url: &str, promised: &BTreeSet<String>) {
    let told = testkit::eventually("everything is in the stream", PATIENCE * 4, async || {
        let told: Vec<Told> = stream(url).await.into_iter().filter(|told| told.version.is_some()).collect();
        if told.len() >= promised.len() {
            Ok(told)
        } else {
            Err(format!("{} of {}", told.len(), promised.len()))
        }
    })
    .await;
    once_and_in_order(&told, promised);
}

/// Every event that was promised is there once, none besides, and those of each entitlement in the order of their versions.
pub(super) fn once_and_in_order(told: &[Told], promised: &BTreeSet<String>) {
    let ids: BTreeSet<&String> = told.iter().map(|told| &told.id).collect();
    assert_eq!(ids.len(), told.len(), "an event is in the stream twice");
    let lost: Vec<&String> = promised.iter().filter(|id| !ids.contains(id)).collect();
    assert!(lost.is_empty(), "{} of {} events are lost: {lost:?}", lost.len(), promised.len());
    let strange: Vec<&&String> = ids.iter().filter(|id| !promised.contains(**id)).collect();
    assert!(strange.is_empty(), "nobody was promised {strange:?}");
    let mut versions: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for told in told {
        versions.entry(&told.key).or_default().push(told.version.unwrap());
    }
    for (key, versions) in versions {
        let expected: Vec<i64> = (1..=versions.len() as i64).collect();
        assert_eq!(versions, expected, "{key}");
    }
}

/// The events in a process's outbox that are in one of these states.
pub(super) async fn in_outbox(admin: &str, state: &str) -> Vec<Value> {
    let (status, found) = admin_get(format!("http://{admin}/outbox?state={state}&limit=10000")).await;
    assert_eq!(status, 200, "{found}");
    found["events"].as_array().unwrap().clone()
}
