//! NATS: rooms and faults.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::jetstream::{self, Context};
use testkit::{Nats, Streams, eventually, need};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::{DEADLINE, SILENCE};

async fn open_stream(room: &Streams) -> Context {
    let jetstream = jetstream::new(room.connect().await);
    let config = Config {
        name: room.stream("events"),
        subjects: vec![room.subject(">")],
        storage: StorageType::File,
        ..Config::default()
    };
    jetstream.create_stream(config).await.unwrap();
    jetstream
}

async fn publish(room: &Streams, jetstream: &Context, count: usize) {
    for n in 0..count {
        let sent = jetstream.publish(room.subject("a"), n.to_string().into()).await.unwrap();
        sent.await.unwrap();
    }
}

async fn stored(room: &Streams) -> u64 {
    let jetstream = jetstream::new(room.connect().await);
    let stream = jetstream.get_stream(room.stream("events")).await.unwrap();
    stream.get_info().await.unwrap().state.messages
}

#[tokio::test]
async fn rooms_do_not_see_each_other() {
    let nats = need!(Nats::shared().await);
    let (one, two) = (nats.streams(), nats.streams());
    let (in_one, in_two) = (open_stream(&one).await, open_stream(&two).await);
    publish(&one, &in_one, 3).await;
    publish(&two, &in_two, 1).await;
    assert_eq!((stored(&one).await, stored(&two).await), (3, 1));
}

#[tokio::test]
async fn a_kill_keeps_what_was_acknowledged() {
    let mut nats = need!(Nats::private().await);
    let room = nats.streams();
    let jetstream = open_stream(&room).await;
    publish(&room, &jetstream, 200).await;
    let url = nats.url();
    nats.kill().await.unwrap();
    nats.start_again().await.unwrap();
    assert_eq!(nats.url(), url);
    assert_eq!(stored(&room).await, 200);

    publish(&room, &open_stream(&room).await, 5).await;
    nats.stop().await.unwrap();
    nats.start_again().await.unwrap();
    assert_eq!(stored(&room).await, 205);
}

#[tokio::test]
async fn a_paused_one_is_silent_until_it_goes_on() {
    let mut nats = need!(Nats::private().await);
    let client = nats.streams().connect().await;
    client.flush().await.unwrap();
    nats.pause().await.unwrap();
    // A round trip, which `flush` alone is not.
    let asked = || client.request("nobody", "".into());
    assert!(timeout(SILENCE, asked()).await.is_err());
    nats.resume().unwrap();
    let seen = eventually("an answer", DEADLINE, || async {
        timeout(Duration::from_secs(1), asked()).await.map_err(|_| "silence")
    });
    // The server itself says that there is nobody.
    assert!(seen.await.is_err());
}

#[tokio::test]
async fn it_can_be_watched() {
    let nats = need!(Nats::private().await);
    let url = nats.monitor_url().unwrap();
    let mut http = TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap();
    http.write_all(b"GET /jsz HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    http.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.0 200") && answer.contains("\"store_dir\""), "{answer}");
}

#[tokio::test]
async fn messages_may_be_limited() {
    let nats = need!(Nats::builder().max_payload(100).start().await);
    assert_eq!(nats.streams().connect().await.server_info().max_payload, 100);
}

#[tokio::test]
async fn every_message_may_be_synced_to_disk() {
    let nats = need!(Nats::builder().sync_always().start().await);
    let room = nats.streams();
    let jetstream = open_stream(&room).await;
    publish(&room, &jetstream, 10).await;
    assert_eq!(stored(&room).await, 10);
    assert!(nats.folders().iter().any(|folder| folder.starts_with(testkit::target())));
}
