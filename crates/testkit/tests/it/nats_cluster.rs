//! A cluster of NATS servers: failover, quorum and storage limits.

use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::jetstream::{self, Context};
use testkit::{NatsCluster, eventually, need};

use crate::DEADLINE;

const STREAM: &str = "EVENTS";

async fn open_stream(cluster: &NatsCluster) -> Context {
    let jetstream = jetstream::new(async_nats::connect(cluster.urls()).await.unwrap());
    let config = Config {
        name: STREAM.to_owned(),
        subjects: vec!["events".to_owned()],
        storage: StorageType::File,
        num_replicas: 3,
        ..Config::default()
    };
    jetstream.create_stream(config).await.unwrap();
    jetstream
}

async fn publish(jetstream: &Context, payload: usize) -> Result<(), String> {
    let sent = jetstream.publish("events", vec![0; payload].into()).await.map_err(|e| e.to_string())?;
    sent.await.map(drop).map_err(|error| format!("{error}: {:?}", std::error::Error::source(&error)))
}

async fn leader(cluster: &NatsCluster) -> usize {
    eventually("the stream has a leader", DEADLINE, || cluster.leader_of(STREAM)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_survives_the_loss_of_its_leader_but_not_of_two_servers() {
    let mut cluster = need!(NatsCluster::start().await);
    let jetstream = open_stream(&cluster).await;
    publish(&jetstream, 10).await.unwrap();
    let first = leader(&cluster).await;
    cluster.node(first).kill().await.unwrap();
    eventually("another server leads", DEADLINE, async || cluster.leader_of(STREAM).await).await;
    eventually("it accepts messages", DEADLINE, async || publish(&jetstream, 10).await).await;

    let second = leader(&cluster).await;
    assert_ne!(first, second);
    cluster.node(second).pause().await.unwrap();
    let last = (0..3).find(|n| ![first, second].contains(n)).unwrap();
    let alone = jetstream::new(async_nats::connect(cluster.url_of(last)).await.unwrap());
    assert!(publish(&alone, 10).await.is_err(), "there is no quorum");

    cluster.node(second).resume().unwrap();
    cluster.node(first).start_again().await.unwrap();
    cluster.wait_until_healthy().await;
    publish(&jetstream, 10).await.unwrap();
    let state = jetstream.get_stream(STREAM).await.unwrap().cached_info().state.clone();
    assert!(state.messages >= 3, "{state:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn account_at_its_limit_accepts_messages_after_the_limit_is_raised() {
    let mut cluster = need!(NatsCluster::start().await);
    let jetstream = open_stream(&cluster).await;
    cluster.limit_storage(Some(300_000)).await.unwrap();
    let refused =
        eventually("the limit is reached", DEADLINE, async || publish(&jetstream, 50_000).await.err()).await;
    assert!(refused.contains("10002"), "{refused}");
    cluster.limit_storage(None).await.unwrap();
    publish(&jetstream, 50_000).await.unwrap();
}
