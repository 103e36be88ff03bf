//! NATS: namespaces and faults.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::jetstream::{self, Context};
use testkit::{Nats, NatsNamespace, eventually, need};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::{DEADLINE, SILENCE};

async fn open_stream(namespace: &NatsNamespace) -> Context {
    let jetstream = jetstream::new(namespace.connect().await);
    let config = Config {
        name: namespace.stream("events"),
        subjects: vec![namespace.subject(">")],
        storage: StorageType::File,
        ..Config::default()
    };
    jetstream.create_stream(config).await.unwrap();
    jetstream
}

async fn publish(namespace: &NatsNamespace, jetstream: &Context, count: usize) {
    for n in 0..count {
        let sent = jetstream.publish(namespace.subject("a"), n.to_string().into()).await.unwrap();
        sent.await.unwrap();
    }
}

async fn stored(namespace: &NatsNamespace) -> u64 {
    let jetstream = jetstream::new(namespace.connect().await);
    let stream = jetstream.get_stream(namespace.stream("events")).await.unwrap();
    stream.get_info().await.unwrap().state.messages
}

#[tokio::test]
async fn namespaces_do_not_see_each_other() {
    let nats = need!(Nats::shared().await);
    let (one, two) = (nats.namespace(), nats.namespace());
    let (in_one, in_two) = (open_stream(&one).await, open_stream(&two).await);
    publish(&one, &in_one, 3).await;
    publish(&two, &in_two, 1).await;
    assert_eq!((stored(&one).await, stored(&two).await), (3, 1));
}

#[tokio::test]
async fn acknowledged_messages_survive_a_kill() {
    let mut nats = need!(Nats::private().await);
    let namespace = nats.namespace();
    let jetstream = open_stream(&namespace).await;
    publish(&namespace, &jetstream, 200).await;
    let url = nats.url();
    nats.kill().await.unwrap();
    nats.start_again().await.unwrap();
    assert_eq!(nats.url(), url);
    assert_eq!(stored(&namespace).await, 200);

    publish(&namespace, &open_stream(&namespace).await, 5).await;
    nats.stop().await.unwrap();
    nats.start_again().await.unwrap();
    assert_eq!(stored(&namespace).await, 205);
}

#[tokio::test]
async fn paused_server_does_not_answer_until_resumed() {
    let mut nats = need!(Nats::private().await);
    let client = nats.namespace().connect().await;
    client.flush().await.unwrap();
    nats.pause().await.unwrap();
    // A request waits for a response; `flush` does not.
    let request = || client.request("nobody", "".into());
    assert!(timeout(SILENCE, request()).await.is_err());
    nats.resume().unwrap();
    let seen = eventually("an answer", DEADLINE, || async {
        timeout(Duration::from_secs(1), request()).await.map_err(|_| "no answer")
    });
    // The server answers that there are no responders.
    assert!(seen.await.is_err());
}

#[tokio::test]
async fn monitor_answers() {
    let nats = need!(Nats::private().await);
    let url = nats.monitor_url().unwrap();
    let mut http = TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap();
    http.write_all(b"GET /jsz HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    http.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.0 200") && answer.contains("\"store_dir\""), "{answer}");
}

#[tokio::test]
async fn message_size_can_be_limited() {
    let nats = need!(Nats::builder().max_payload(100).start().await);
    assert_eq!(nats.namespace().connect().await.server_info().max_payload, 100);
}

#[tokio::test]
async fn messages_can_be_synced_to_disk() {
    let nats = need!(Nats::builder().sync_always().start().await);
    let namespace = nats.namespace();
    let jetstream = open_stream(&namespace).await;
    publish(&namespace, &jetstream, 10).await;
    assert_eq!(stored(&namespace).await, 10);
    assert!(nats.folders().iter().any(|folder| folder.starts_with(testkit::target_dir())));
}
