//! A shop that calls the service API, and checks of the events that its purchases caused.

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
/// The token of the service `poor`, which has no rights.
pub(super) const POOR_TOKEN: &str = "ph_for-tests-only-too";

/// The token of the service `clerk`, which may do everything but the work of an operator.
pub(super) const CLERK_TOKEN: &str = "ph_for-tests-only-three";

/// The tokens of the operator `tester` and of the read-only operator `reader`.
pub(super) const OPERATOR_TOKEN: &str = "ph_operator-for-tests-only";
pub(super) const READER_TOKEN: &str = "ph_reader-for-tests-only";

/// Returns settings with the services `shop`, `clerk` and `poor` and the operators.
pub(super) fn services() -> String {
    let service = |name: &str, token: &str, may: &str| {
        let hash = http_server::TokenHash::of(token);
        format!("[services.{name}]\ntoken_hash = \"{hash}\"\nmay = [{may}]\n")
    };
    let most = "\"read\", \"accounts\", \"entitlements\", \"notifications\", \"drops\"";
    let all = format!("{most}, \"operator\"");
    service("shop", TOKEN, &all)
        + &service("clerk", CLERK_TOKEN, most)
        + &service("poor", POOR_TOKEN, "")
        + &operators()
}

/// Returns settings with the operators `tester` and `reader`.
pub(super) fn operators() -> String {
    let operator = |name: &str, token: &str, read_only: bool| {
        let hash = http_server::TokenHash::of(token);
        format!("[operators.{name}]\ntoken_hash = \"{hash}\"\nread_only = {read_only}\n")
    };
    operator("tester", OPERATOR_TOKEN, false) + &operator("reader", READER_TOKEN, true)
}

/// Sends a GET request to the admin API as an operator.
pub(super) async fn admin_get(url: String) -> (u16, Value) {
    let response = reqwest::Client::new().get(url).bearer_auth(OPERATOR_TOKEN).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// Configures a program with these services and operators.
pub(super) fn with_credentials(program: Program) -> Program {
    static FILE: OnceLock<(Folder, PathBuf)> = OnceLock::new();
    let (_, file) = FILE.get_or_init(|| {
        let folder = Folder::fresh().unwrap();
        let file = folder.path().join("play.toml");
        std::fs::write(&file, services()).unwrap();
        (folder, file)
    });
    program.env("PLAYHOUSE_CONFIG", file)
}

/// A process with embedded stores and its data in the folder.
pub(super) fn embedded(folder: &Folder) -> Program {
    let data = format!("db.url=sqlite:{}", folder.path().join("playhouse.db").display());
    let ports = ["gateway", "service_api", "admin", "open_match"];
    let ports = ports.iter().flat_map(|name| ["--set".to_owned(), format!("listen.{name}=127.0.0.1:0")]);
    let program = playhouse(&["serve", "--print-addresses", "--set", "db.migrate=true", "--set", &data]);
    with_credentials(program.args(ports).env("PLAYHOUSE_OUTBOX_LEASE", "1s"))
}

/// A client of the service API. The process it calls may change. Cheap to clone; clones share the address.
#[derive(Clone)]
pub(super) struct Shop {
    client: reqwest::Client,
    address: Arc<Mutex<String>>,
}

/// A user and the account that owns the purchases.
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

    pub(super) fn set_address(&self, address: &str) {
        *self.address.lock().unwrap() = address.to_owned();
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}/internal/v1{path}", self.address.lock().unwrap())
    }

    /// Returns the status and body of the response, or `None` if no process responds.
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

    /// For routes that respond without a body.
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

    /// Retries a purchase until a process responds. Returns the event's id.
    pub(super) async fn buy(&self, customer: &Customer, resource: &str, key: &str) -> String {
        let body = purchase(customer, resource);
        testkit::eventually(&format!("{key} is bought"), PATIENCE * 4, async || {
            match self.try_post("/entitlements/grant", Some(key), &body).await {
                Some((200, response)) => Ok(response["event_id"].as_str().unwrap().to_owned()),
                Some((409 | 503, response)) => Err(response.to_string()),
                Some(other) => panic!("{other:?}"),
                None => Err("no process responds".to_owned()),
            }
        })
        .await
    }
}

/// The body of a purchase of one unit.
pub(super) fn purchase(customer: &Customer, resource: &str) -> Value {
    json!({
        "user_id": customer.user, "account_id": customer.account, "resource": resource, "quantity": 1,
        "occurred_at": "2026-03-01T12:00:00Z",
    })
}

/// Purchases at a steady rate, each retried until it succeeds.
pub(super) struct Load {
    stop: runtime::Drain,
    running: tokio::task::JoinHandle<()>,
    bought: Arc<Mutex<BTreeSet<String>>>,
    offered: Arc<AtomicU64>,
}

impl Load {
    /// Skips missed ticks: making up for them would look like a higher rate.
    pub(super) fn start(shop: &Shop, customers: Vec<Customer>, per_second: u32) -> Self {
        Self::with_missed_ticks(shop, customers, per_second, MissedTickBehavior::Skip)
    }

    pub(super) fn with_missed_ticks(
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
                let mut interval = tokio::time::interval(Duration::from_secs(1) / per_second);
                interval.set_missed_tick_behavior(missed);
                for n in 0_usize.. {
                    interval.tick().await;
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

    /// Returns how many purchases were started.
    pub(super) fn offered(&self) -> u64 {
        self.offered.load(Ordering::SeqCst)
    }

    /// Returns how many purchases succeeded.
    pub(super) fn count(&self) -> usize {
        self.bought.lock().unwrap().len()
    }

    /// Stops buying and waits for the open purchases. Returns the ids of their events.
    pub(super) async fn finish(&self) -> BTreeSet<String> {
        self.stop.request();
        testkit::eventually("no purchase is started", PATIENCE, async || self.running.is_finished()).await;
        testkit::eventually("all purchases have succeeded", PATIENCE * 4, async || {
            self.offered() == self.count() as u64
        })
        .await;
        self.bought.lock().unwrap().clone()
    }
}

/// An event read from the event stream.
#[derive(Clone, Debug)]
pub(super) struct StreamedEvent {
    pub(super) id: String,
    pub(super) key: String,
    pub(super) version: Option<i64>,
}

/// The event stream of the processes.
pub(super) const STREAM: &str = "PLAYHOUSE";

/// Reads an event from its body.
pub(super) fn streamed_event(body: &Value) -> StreamedEvent {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    StreamedEvent {
        id: text(&body["id"]),
        key: text(&body["partitionkey"]),
        version: body["data"]["version"].as_i64(),
    }
}

/// Reads all events of the event stream, the oldest first.
pub(super) async fn stream_events(url: &str) -> Vec<StreamedEvent> {
    let client = async_nats::connect(url).await.unwrap();
    let stream = async_nats::jetstream::new(client).get_stream(STREAM).await.unwrap();
    let count = stream.cached_info().state.messages.try_into().unwrap();
    let reader = pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() };
    let messages = stream.create_consumer(reader).await.unwrap().messages().await.unwrap();
    let all = messages.take(count).map(|message| {
        let body: Value = serde_json::from_slice(&message.unwrap().payload).unwrap();
        streamed_event(&body)
    });
    all.collect().await
}

/// Counts the events in the event stream.
pub(super) async fn stream_length(url: &str) -> u64 {
    let client = async_nats::connect(url).await.unwrap();
    let stream = async_nats::jetstream::new(client).get_stream(STREAM).await.unwrap();
    stream.cached_info().state.messages
}

/// Waits until the event stream holds the promised events. Asserts that each is there once, with no other, in the order of the
/// versions of its entitlement.
pub(super) async fn assert_all_published(url: &str, promised: &BTreeSet<String>) {
    let events = testkit::eventually("all promised events are in the stream", PATIENCE * 4, async || {
        let events = stream_events(url).await;
        let events: Vec<StreamedEvent> = events.into_iter().filter(|event| event.version.is_some()).collect();
        if events.len() >= promised.len() {
            Ok(events)
        } else {
            Err(format!("{} of {}", events.len(), promised.len()))
        }
    })
    .await;
    assert_once_and_in_order(&events, promised);
}

/// Asserts that each promised event is there once, with no other, in the order of the versions of its entitlement.
pub(super) fn assert_once_and_in_order(events: &[StreamedEvent], promised: &BTreeSet<String>) {
    let ids: BTreeSet<&String> = events.iter().map(|event| &event.id).collect();
    assert_eq!(ids.len(), events.len(), "an event is in the stream twice");
    let lost: Vec<&String> = promised.iter().filter(|id| !ids.contains(id)).collect();
    assert!(lost.is_empty(), "{} of {} events are lost: {lost:?}", lost.len(), promised.len());
    let unexpected: Vec<&&String> = ids.iter().filter(|id| !promised.contains(**id)).collect();
    assert!(unexpected.is_empty(), "events that were not promised: {unexpected:?}");
    let mut versions: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for event in events {
        versions.entry(&event.key).or_default().push(event.version.unwrap());
    }
    for (key, versions) in versions {
        let expected: Vec<i64> = (1..=versions.len() as i64).collect();
        assert_eq!(versions, expected, "{key}");
    }
}

/// Returns the events of a process's outbox in this state.
pub(super) async fn in_outbox(admin: &str, state: &str) -> Vec<Value> {
    let (status, found) = admin_get(format!("http://{admin}/outbox?state={state}&limit=10000")).await;
    assert_eq!(status, 200, "{found}");
    found["events"].as_array().unwrap().clone()
}
