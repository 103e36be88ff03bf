//! The event bus: the guarantees of both implementations, and outages of NATS.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

/// Runs each test on the embedded bus, and on the oldest and the current version of NATS.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod in_process {
            use super::*;
            $(#[tokio::test]
            async fn $name() {
                let config = config("memory:");
                super::$name(&Bus::open(&config).await.unwrap(), &config).await;
            })*
        }

        mod on_nats {
            use testkit::{Nats, need};

            use super::*;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let nats = need!(Nats::shared().await);
                let streams = nats.namespace();
                // Generous: these tests do not measure time, and the machine may be busy.
                let config = Config { timeout: PATIENCE, ..config_on(&streams) };
                super::$name(&Bus::open(&config).await.unwrap(), &config).await;
            })*
        }

        mod on_current_nats {
            use testkit::{Nats, need};

            use super::*;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let nats = need!(Nats::shared_current().await);
                let streams = nats.namespace();
                let config = Config { timeout: PATIENCE, ..config_on(&streams) };
                super::$name(&Bus::open(&config).await.unwrap(), &config).await;
            })*
        }
    };
}

mod cluster;
mod connection;
mod consumer_outages;
mod consumers;
mod embedded_consumers;
mod guarantees;
mod outages;
mod reading;
mod stream;

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use base::Timestamp;
use bus::{Bus, BusUrl, Config, Error, Event, EventId, Json, Memory};
use bytes::Bytes;
use config::{Setting, Value};
use futures::StreamExt;
use serde_json::json;
use testkit::NatsNamespace;

const PATIENCE: Duration = Duration::from_secs(20);

/// The default settings with a short timeout.
fn config(url: &str) -> Config {
    Config {
        url: BusUrl::parse(&Value::Text(url.to_owned())).unwrap(),
        timeout: Duration::from_millis(500),
        stream: "PLAYHOUSE".to_owned(),
        subjects: "playhouse".to_owned(),
        max_age: Duration::from_secs(7 * 86_400),
        replicas: 1,
        max_in_flight: 1000,
        memory_events: 100_000,
        credentials: None,
        monitor_url: None,
    }
}

/// Settings for a stream of its own on a shared server.
fn config_on(streams: &NatsNamespace) -> Config {
    Config {
        stream: streams.stream("events"),
        subjects: streams.prefix().to_owned(),
        ..config(streams.url())
    }
}

/// Event number `n` of a test.
fn event(n: usize) -> Event {
    Event {
        id: EventId::generate(),
        subject: format!("test.{}", n % 3),
        kind: "playhouse.test.happened.v1".to_owned(),
        source: "/playhouse/test".to_owned(),
        time: Timestamp::from_millis(1_772_366_400_000),
        key: None,
        traceparent: None,
        data: Json::from_value(&json!({ "n": n })).unwrap(),
    }
}

fn events(count: usize) -> Vec<Event> {
    (0..count).map(event).collect()
}

/// Publishes until all events are acknowledged. Returns how many attempts failed.
async fn publish_all(bus: &Bus, events: Vec<Event>) -> usize {
    let left = tokio::sync::Mutex::new(events);
    let failed = std::sync::atomic::AtomicUsize::new(0);
    testkit::eventually("everything is acknowledged", PATIENCE, async || {
        let mut left = left.lock().await;
        let results = bus.publish(&left).await;
        let mut results = results.into_iter();
        left.retain(|_| results.next().unwrap().is_err());
        failed.fetch_add(left.len(), std::sync::atomic::Ordering::Relaxed);
        if left.is_empty() { Ok(()) } else { Err(format!("{} are left", left.len())) }
    })
    .await;
    failed.into_inner()
}

fn all_ok(results: Vec<Result<(), Error>>) {
    let failed: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
    assert!(failed.is_empty(), "{} failed, the first with {:?}", failed.len(), failed.first());
}

/// Returns subject and body of the stored events, oldest first.
async fn stored(bus: &Bus, config: &Config) -> Vec<(String, Bytes)> {
    match bus {
        Bus::Memory(memory) => {
            memory.read_after(0, usize::MAX).into_iter().map(|event| (event.subject, event.body)).collect()
        }
        Bus::Nats(_) => stored_in_nats(config).await,
    }
}

async fn stored_in_nats(config: &Config) -> Vec<(String, Bytes)> {
    let client = async_nats::connect(config.url.server().unwrap().as_str()).await.unwrap();
    let stream = async_nats::jetstream::new(client).get_stream(&config.stream).await.unwrap();
    let count = stream.cached_info().state.messages.try_into().unwrap();
    let reader = pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() };
    let messages = stream.create_consumer(reader).await.unwrap().messages().await.unwrap();
    let read = messages.take(count).map(|message| {
        let message = message.unwrap();
        (message.subject.to_string(), message.payload.clone())
    });
    read.collect().await
}

/// Returns the numbers of the stored events, in their order.
async fn numbers(bus: &Bus, config: &Config) -> Vec<usize> {
    let parse = |(_, body): &(String, Bytes)| {
        let body: serde_json::Value = serde_json::from_slice(body).unwrap();
        body["data"]["n"].as_u64().unwrap().try_into().unwrap()
    };
    stored(bus, config).await.iter().map(parse).collect()
}

fn memory(bus: &Bus) -> &Memory {
    match bus {
        Bus::Memory(memory) => memory,
        Bus::Nats(_) => panic!("not embedded"),
    }
}
