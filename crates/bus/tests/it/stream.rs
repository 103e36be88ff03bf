//! The stream that the bus makes and finds.

use async_nats::HeaderMap;
use async_nats::jetstream::stream::{Config as StreamConfig, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, Context};
use base::error::Coded;
use testkit::{Nats, need};

use super::*;

async fn jetstream(streams: &Streams) -> Context {
    jetstream::new(streams.connect().await)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stream_is_made_as_the_settings_say() {
    let nats = need!(Nats::shared().await);
    let streams = nats.streams();
    let config = of(&streams);
    // Any number of processes may start at once.
    let opened = futures::future::join_all((0..5).map(|_| Bus::open(&config))).await;
    assert!(opened.iter().all(Result::is_ok), "{opened:?}");
    let made = jetstream(&streams).await.get_stream(&config.stream).await.unwrap();
    let made = &made.cached_info().config;
    assert_eq!(made.subjects, [format!("{}.>", streams.prefix())]);
    assert_eq!((made.storage, made.retention), (StorageType::File, RetentionPolicy::Limits));
    assert_eq!((made.max_age, made.duplicate_window), (config.max_age, Duration::from_secs(600)));
    assert_eq!(made.num_replicas, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_carries_its_id_and_its_trace_as_headers() {
    let nats = need!(Nats::shared().await);
    let streams = nats.streams();
    let config = of(&streams);
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
async fn a_stream_that_vanished_is_made_again() {
    let nats = need!(Nats::shared().await);
    let streams = nats.streams();
    let config = Config { timeout: PATIENCE, ..of(&streams) };
    let bus = Bus::open(&config).await.unwrap();
    all_ok(bus.publish(&events(3)).await);
    jetstream(&streams).await.delete_stream(&config.stream).await.unwrap();
    // Not even the caller notices.
    all_ok(bus.publish(&events(100)).await);
    assert_eq!(numbers(&bus, &config).await, (0..100).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_that_an_operator_gave_the_stream_stay() {
    let nats = need!(Nats::shared().await);
    let streams = nats.streams();
    let config = of(&streams);
    Bus::open(&config).await.unwrap();
    let longer = Config { max_age: 2 * config.max_age, ..config.clone() };
    let bus = Bus::open(&longer).await.unwrap();
    publish_all(&bus, events(1)).await;
    let found = jetstream(&streams).await.get_stream(&config.stream).await.unwrap();
    assert_eq!(found.cached_info().config.max_age, config.max_age);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_other_subjects_is_refused_with_what_to_do() {
    let nats = need!(Nats::shared().await);
    let streams = nats.streams();
    let config = of(&streams);
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
            "forgets events once they are read",
        ),
        (StreamConfig { no_ack: true, ..stream(vec![ours.clone()]) }, "acknowledges nothing"),
        (
            StreamConfig { name: streams.stream("rival"), ..stream(vec![ours]) },
            "another stream takes the subjects",
        ),
    ];
    for (wrong, said) in wrong {
        let name = wrong.name.clone();
        context.create_stream(wrong).await.unwrap();
        let error = Bus::open(&config).await.unwrap_err();
        assert!(matches!(error, Error::Stream { .. }) && !error.is_passing(), "{error:?}");
        assert!(error.to_string().contains(said), "{error}");
        context.delete_stream(name).await.unwrap();
    }
    Bus::open(&config).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn events_do_not_go_to_a_stream_that_took_our_subjects() {
    let nats = need!(Nats::shared().await);
    let streams = nats.streams();
    let config = Config { timeout: PATIENCE, ..of(&streams) };
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
