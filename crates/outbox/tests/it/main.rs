//! The outbox and its relay on both pairs of stores: embedded (SQLite and the in-process bus) and servers (MariaDB and NATS).

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod console;
mod publishing;
mod restore;

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use base::id::{ProcessId, Uuid};
use base::{Backoff, Clock, Timestamp};
use bus::{Bus, BusUrl, Event, EventId, Json};
use config::{Setting, Value as Configured};
use db::{Db, DbUrl};
use futures::StreamExt;
use outbox::{Outbox, Relay};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use testkit::{Nats, SqlServer, TestDatabase};
use work_queue::{Filter, State};

const PATIENCE: Duration = Duration::from_secs(20);

/// Runs each test on both pairs of stores.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(&$crate::Pair::embedded().await).await;
            })*
        }

        mod on_servers {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(&testkit::need!($crate::Pair::on_servers().await)).await;
            })*
        }
    };
}
pub(crate) use on_both;

/// A database and a bus for one test.
struct Pair {
    place: TestDatabase,
    db: Db,
    bus: Bus,
    bus_config: bus::Config,
}

impl Pair {
    async fn embedded() -> Self {
        Self::open(TestDatabase::sqlite().unwrap(), bus_config("memory:", "playhouse")).await
    }

    async fn on_servers() -> Result<Self, testkit::Error> {
        let place = TestDatabase::Server(SqlServer::shared().await?.database().await);
        let streams = Nats::shared().await?.namespace();
        Ok(Self::open(place, bus_config(streams.url(), streams.prefix())).await)
    }

    async fn open(place: TestDatabase, bus_config: bus::Config) -> Self {
        let url = DbUrl::parse(&Configured::Text(place.url())).unwrap();
        let config =
            db::Config { url, max_connections: 8, acquire_timeout: Duration::from_secs(10), migrate: true };
        let db = Db::open(&config).await.unwrap();
        db.migrate(&[outbox::MIGRATIONS]).await.unwrap();
        let bus = Bus::open(&bus_config).await.unwrap();
        Self { place, db, bus, bus_config }
    }

    fn outbox(&self) -> Outbox {
        let config = outbox::Config {
            workers: 1,
            batch: 100,
            poll: Duration::from_millis(20),
            lease: Duration::from_secs(60),
            max_attempts: 3,
            retry: Backoff::new(Duration::from_millis(20), Duration::from_millis(50)),
            retention: Duration::from_secs(3600),
        };
        let metrics = outbox::Metrics::new(&mut Registry::default(), "outbox");
        Outbox::new(self.db.clone(), config, metrics, Clock::system())
    }

    fn relay(&self, outbox: &Outbox) -> Relay {
        Relay::new(ProcessId::generate(), outbox.clone(), self.bus.clone())
    }

    async fn append(&self, outbox: &Outbox, events: &[Event]) {
        let mut tx = self.db.begin().await.unwrap();
        let events: Vec<_> = events.iter().map(|event| (Uuid::nil(), event.clone())).collect();
        outbox.append(&mut tx, &events);
        tx.commit().await.unwrap();
    }

    /// Returns the events on the bus, oldest first. On NATS it also checks their headers.
    async fn published(&self) -> Vec<Value> {
        if let Bus::Memory(memory) = &self.bus {
            let stored = memory.read_after(0, usize::MAX);
            return stored.iter().map(|event| serde_json::from_slice(&event.body).unwrap()).collect();
        }
        let client = async_nats::connect(self.bus_config.url.server().unwrap().as_str()).await.unwrap();
        let stream = async_nats::jetstream::new(client).get_stream(&self.bus_config.stream).await.unwrap();
        let count = stream.cached_info().state.messages.try_into().unwrap();
        let reader = pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() };
        let messages = stream.create_consumer(reader).await.unwrap().messages().await.unwrap();
        let read = messages.take(count).map(|message| {
            let message = message.unwrap();
            let body: Value = serde_json::from_slice(&message.payload).unwrap();
            let headers = message.headers.as_ref().unwrap();
            assert_eq!(headers.get("Nats-Msg-Id").map(|id| id.as_str()), body["id"].as_str());
            assert_eq!(headers.get("traceparent").map(|trace| trace.as_str()), body["traceparent"].as_str());
            body
        });
        read.collect().await
    }
}

fn bus_config(url: &str, prefix: &str) -> bus::Config {
    bus::Config {
        url: BusUrl::parse(&Configured::Text(url.to_owned())).unwrap(),
        timeout: Duration::from_secs(5),
        stream: prefix.to_uppercase(),
        subjects: prefix.to_owned(),
        max_age: Duration::from_secs(3600),
        replicas: 1,
        max_in_flight: 100,
        memory_events: 1_000,
        credentials: None,
        monitor_url: None,
    }
}

fn event(key: &str, n: usize) -> Event {
    Event {
        id: EventId::generate(),
        subject: "test.happened.v1".to_owned(),
        kind: "playhouse.test.happened.v1".to_owned(),
        source: "/playhouse/test".to_owned(),
        time: Timestamp::from_millis(1_772_366_400_000),
        key: Some(key.to_owned()),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        data: Json::from_value(&json!({ "n": n })).unwrap(),
    }
}

fn numbers(published: &[Value]) -> Vec<u64> {
    published.iter().map(|event| event["data"]["n"].as_u64().unwrap()).collect()
}

async fn states(outbox: &Outbox) -> Vec<State> {
    let mut rows = outbox.queue().list(Filter::All, 1_000).await.unwrap();
    rows.reverse();
    rows.iter().map(|row| row.state).collect()
}
