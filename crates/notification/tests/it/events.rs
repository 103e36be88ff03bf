//! Publishes events as other services would.

use async_nats::jetstream;
use bus::{Event, EventId, Json};
use serde_json::{Value, json};
use testkit::{Nats, NatsNamespace};

use super::*;

/// A stream for one test, into which it can publish arbitrary bytes.
pub(crate) struct Source {
    pub(crate) bus: Bus,
    streams: NatsNamespace,
    jetstream: jetstream::Context,
}

impl Source {
    pub(crate) async fn open(nats: &Nats) -> Self {
        let streams = nats.namespace();
        let bus = Bus::open(&bus_config(streams.url(), &streams)).await.unwrap();
        let jetstream = jetstream::new(streams.connect().await);
        Self { bus, streams, jetstream }
    }

    /// Publishes bytes to the stream, without deduplication.
    pub(crate) async fn put(&self, subject: &str, body: impl Into<Vec<u8>>) {
        let stored = self.jetstream.publish(self.streams.subject(subject), body.into().into()).await.unwrap();
        stored.await.unwrap();
    }

    /// Returns how many events are delivered and not acknowledged.
    pub(crate) async fn unacknowledged(&self) -> usize {
        let stream = self.jetstream.get_stream(self.streams.stream("events")).await.unwrap();
        stream.consumer_info("notifier").await.unwrap().num_ack_pending
    }
}

fn bus_config(url: &str, streams: &NatsNamespace) -> bus::Config {
    bus::Config {
        url: bus::BusUrl::parse(&Configured::Text(url.to_owned())).unwrap(),
        timeout: Duration::from_secs(5),
        stream: streams.stream("events"),
        subjects: streams.prefix().to_owned(),
        max_age: Duration::from_secs(3600),
        replicas: 1,
        max_in_flight: 1_000,
        memory_events: 100_000,
        credentials: None,
        monitor_url: None,
    }
}

/// Opens an embedded bus.
pub(crate) async fn memory() -> Bus {
    let config = bus::Config {
        url: bus::BusUrl::parse(&Configured::Text("memory:".to_owned())).unwrap(),
        timeout: Duration::from_secs(5),
        stream: "events".to_owned(),
        subjects: "test".to_owned(),
        max_age: Duration::from_secs(3600),
        replicas: 1,
        max_in_flight: 1_000,
        memory_events: 100_000,
        credentials: None,
        monitor_url: None,
    };
    Bus::open(&config).await.unwrap()
}

/// Encodes a CloudEvent.
pub(crate) fn cloud_event(id: Uuid, kind: &str, data: &Value) -> Vec<u8> {
    let event = json!({
        "specversion": "1.0", "id": id, "source": "/shop", "type": kind, "time": "2026-03-01T12:00:00Z",
        "datacontenttype": "application/json", "data": data,
    });
    event.to_string().into_bytes()
}

/// Encodes a [`SOLD`] event for these users.
pub(crate) fn sold(id: Uuid, users: &[Uuid], thing: &str) -> Vec<u8> {
    cloud_event(id, SOLD, &json!({ "user_ids": users, "thing": thing }))
}

/// Builds a [`SOLD`] event for the embedded bus.
pub(crate) fn sold_event(users: &[Uuid], thing: &str) -> Event {
    Event {
        id: EventId::generate(),
        subject: "sold".to_owned(),
        kind: SOLD.to_owned(),
        source: "/shop".to_owned(),
        time: base::Timestamp::from_millis(1_772_366_400_000),
        key: None,
        traceparent: None,
        data: Json::from_value(&json!({ "user_ids": users, "thing": thing })).unwrap(),
    }
}

/// Publishes a [`SOLD`] event per thing to a user, and takes the events in.
pub(crate) async fn sell(process: &Process, user: Uuid, things: &[&str]) {
    let bus = memory().await;
    let events: Vec<Event> = things.iter().map(|thing| sold_event(&[user], thing)).collect();
    for published in bus.publish(&events).await {
        published.unwrap();
    }
    let intake = process.intake(&bus);
    let consumer = intake.subscribe().await.unwrap();
    let mut taken = 0;
    while taken < things.len() {
        taken += intake.tick(&consumer, PATIENCE).await.unwrap().events;
    }
}
