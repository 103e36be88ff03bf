//! Creating and finding the stream.

use async_nats::HeaderMap;
use async_nats::jetstream::stream::{Config as StreamConfig, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, Context};
use base::error::Coded;
use testkit::{Nats, need};

use super::*;

async fn jetstream(streams: &NatsNamespace) -> Context {
    jetstream::new(streams.connect().await)
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_is_created_according_to_the_settings() {
    let nats = need!(Nats::shared().await);
    let streams = nats.namespace();
    let config = config_on(&streams);
    // Any number of processes may start concurrently.
    let opened = futures::future::join_all((0..5).map(|_| Bus::open(&config))).await;
    assert!(opened.iter().all(Result::is_ok), "{opened:?}");
    let created = jetstream(&streams).await.get_stream(&config.stream).await.unwrap();
    let created = &created.cached_info().config;
    assert_eq!(created.subjects, [format!("{}.>", streams.prefix())]);
    assert_eq!((created.storage, created.retention), (StorageType::File, RetentionPolicy::Limits));
    assert_eq!((created.max_age, created.duplicate_window), (config.max_age, Duration::from_secs(600)));
    assert_eq!(created.num_replicas, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn event_has_its_id_and_trace_as_headers() {
    let nats = need!(Nats::shared().await);
    let streams = nats.namespace();
    let config = config_on(&streams);
    let bus = Bus::open(&config).await.unwrap();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let traced = Event { traceparent: Some(trace.to_owned()), ..event(0) };
    publish_all(&bus, vec![traced.clone()]).await;
    let stream = jetstream(&streams).await.get_stream(&config.stream).await.unwrap();
    let headers: HeaderMap = stream.get_raw_message(1).await.unwrap().headers;
    assert_eq!(headers.get("Nats-Msg-Id").unwrap().as_str(), traced.id.to_string());
    assert_eq!(headers.get("traceparent").unwrap().as_str(), trace);
}

#[tokio::test(flavor = "multi_thread")]
async fn vanished_stream_is_created_again() {
    let nats = need!(Nats::shared().await);
    let streams = nats.namespace();
    let config = Config { timeout: PATIENCE, ..config_on(&streams) };
    let bus = Bus::open(&config).await.unwrap();
    all_ok(bus.publish(&events(3)).await);
    jetstream(&streams).await.delete_stream(&config.stream).await.unwrap();
    // The caller does not notice.
    all_ok(bus.publish(&events(100)).await);
    assert_eq!(numbers(&bus, &config).await, (0..100).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_set_by_an_operator_are_kept() {
    let nats = need!(Nats::shared().await);
    let streams = nats.namespace();
    let config = config_on(&streams);
    Bus::open(&config).await.unwrap();
    let longer = Config { max_age: 2 * config.max_age, ..config.clone() };
    let bus = Bus::open(&longer).await.unwrap();
    publish_all(&bus, events(1)).await;
    let found = jetstream(&streams).await.get_stream(&config.stream).await.unwrap();
    assert_eq!(found.cached_info().config.max_age, config.max_age);
}

#[tokio::test(flavor = "multi_thread")]
async fn unsuitable_stream_is_refused_with_advice() {
    let nats = need!(Nats::shared().await);
    let streams = nats.namespace();
    let config = config_on(&streams);
    let context = jetstream(&streams).await;
    let ours = format!("{}.>", streams.prefix());
    let stream = |subjects: Vec<String>| StreamConfig {
        name: config.stream.clone(),
        subjects,
        ..StreamConfig::default()
    };
    let other = streams.prefix().to_owned() + "_other";
    let wrong = [
        (stream(vec![other.clone()]), "bus.stream to another name"),
        (stream(vec![ours.clone(), other]), "bus.stream to another name"),
        (
            StreamConfig { retention: RetentionPolicy::WorkQueue, ..stream(vec![ours.clone()]) },
            "removes events once they are read",
        ),
        (StreamConfig { no_ack: true, ..stream(vec![ours.clone()]) }, "acknowledges nothing"),
        (
            StreamConfig { name: streams.stream("rival"), ..stream(vec![ours]) },
            "another stream already has the subjects",
        ),
    ];
    for (wrong, said) in wrong {
        let name = wrong.name.clone();
        context.create_stream(wrong).await.unwrap();
        let error = Bus::open(&config).await.unwrap_err();
        assert!(matches!(error, Error::Stream { .. }) && !error.is_transient(), "{error:?}");
        assert!(error.to_string().contains(said), "{error}");
        context.delete_stream(name).await.unwrap();
    }
    Bus::open(&config).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn events_do_not_go_to_another_stream_with_our_subjects() {
    let nats = need!(Nats::shared().await);
    let streams = nats.namespace();
    let config = Config { timeout: PATIENCE, ..config_on(&streams) };
    let bus = Bus::open(&config).await.unwrap();
    let context = jetstream(&streams).await;
    context.delete_stream(&config.stream).await.unwrap();
    let rival = StreamConfig {
        name: streams.stream("rival"),
        subjects: vec![format!("{}.>", streams.prefix())],
        ..StreamConfig::default()
    };
    let mut rival = context.create_stream(rival).await.unwrap();
    let results = bus.publish(&events(3)).await;
    assert!(results.iter().all(|result| matches!(result, Err(Error::Stream { .. }))), "{results:?}");
    assert_eq!(rival.info().await.unwrap().state.messages, 0);
}
