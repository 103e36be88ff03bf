//! A client that loses its connection many times.

use serde_json::json;
use testkit::{Seed, need};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

use super::setup::{Player, Process, Setup, news_with};
use super::stream_client::{Received, Stream, ids, numbers};
use crate::*;

const ALL: usize = 5_000;
/// How many of them a service sends. The others come from events.
const BY_SERVICE: usize = 500;
const CUTS: usize = 100;

/// Opens the next connection, to the other process.
async fn connect(player: &Player, apis: &[Process], connections: &mut usize, received: &Received) -> Stream {
    *connections += 1;
    player.stream(apis[*connections % apis.len()].gateway(), Some(received.last)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn client_cut_off_a_hundred_times_gets_everything_once_in_order() {
    let setup = need!(Setup::start().await);
    let apis = [setup.process("gateway,service-api").await, setup.process("gateway,service-api").await];
    let _notifier = setup.process("notifier").await;
    let ada = setup.player(&apis[0], "ada").await;

    let mut senders = JoinSet::new();
    let publisher = setup.publisher().await;
    let bodies: Vec<String> = (0..ALL - BY_SERVICE)
        .map(|n| news_with(ada.user, n, &"long ".repeat(if n % 50 == 0 { 500 } else { n % 50 })))
        .collect();
    senders.spawn(async move {
        for some in bodies.chunks(50) {
            publisher.publish(some).await;
        }
    });
    for (at, api) in apis.iter().enumerate() {
        let (service, user) = (api.service(), ada.user);
        senders.spawn(async move {
            for n in (0..BY_SERVICE).filter(|n| n % 2 == at) {
                service.notify(user, &format!("sent {n}")).await;
            }
        });
    }

    let (mut received, mut connections, mut choices) = (Received::after(0), 0, Seed::new().choices(0));
    for cut in 0..CUTS {
        if cut % 10 == 9 {
            // Cut before the response.
            connections += 1;
            let at = apis[connections % 2].gateway();
            drop(Stream::send_request(TcpSocket::new_v4().unwrap(), at, &ada.token, "").await);
            continue;
        }
        let mut stream = connect(&ada, &apis, &mut connections, &received).await;
        // Cut after a random number of notifications, in the middle of one.
        let enough = cut * ALL / CUTS + choices.usize(..ALL / CUTS);
        assert!(received.read_until(&mut stream, enough).await, "the stream ended early");
        let some = choices.usize(1..600);
        stream.read(some).await;
        while let Some(event) = stream.pop() {
            received.add(event);
        }
    }
    let mut stream = connect(&ada, &apis, &mut connections, &received).await;
    received.read_until(&mut stream, ALL).await;
    while let Some(sent) = senders.join_next().await {
        sent.unwrap();
    }

    // No further notification follows.
    apis[0].service().notify(ada.user, "the end").await;
    assert_eq!(stream.expect("notification").await.data["title"], "the end");
    assert_eq!(numbers(&received.notifications).len(), ALL - BY_SERVICE);
    let by_service: Vec<&Value> = received.notifications.iter().filter(|one| one["template"] == "").collect();
    assert_eq!(by_service.len(), BY_SERVICE);
    let mut inbox = ada.inbox(apis[1].gateway()).await;
    assert_eq!(inbox.pop().unwrap()["title"], json!("the end"));
    assert_eq!(ids(&inbox), received.ids());
}
