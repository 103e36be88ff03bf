//! A client that loses its connection again and again.

use serde_json::json;
use testkit::{Seed, need};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

use super::stage::{Player, Process, Stage, news_with};
use super::tape::{Stream, Tape, ids, numbers};
use crate::*;

const ALL: usize = 5_000;
/// Of these so many are told by a service, the others by events.
const BY_SERVICE: usize = 500;
const CUTS: usize = 100;

/// The next connection, which is at the other process.
async fn connect(player: &Player, doors: &[Process], connections: &mut usize, tape: &Tape) -> Stream {
    *connections += 1;
    player.stream(doors[*connections % doors.len()].gateway(), Some(tape.last)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_cut_off_a_hundred_times_has_everything_in_order_and_nothing_twice() {
    let stage = need!(Stage::start().await);
    let doors = [stage.process("gateway,service-api").await, stage.process("gateway,service-api").await];
    let _notifier = stage.process("notifier").await;
    let ada = stage.player(&doors[0], "ada").await;

    let mut tellers = JoinSet::new();
    let publisher = stage.publisher().await;
    let bodies: Vec<String> = (0..ALL - BY_SERVICE)
        .map(|n| news_with(ada.user, n, &"long ".repeat(if n % 50 == 0 { 500 } else { n % 50 })))
        .collect();
    tellers.spawn(async move {
        for some in bodies.chunks(50) {
            publisher.publish(some).await;
        }
    });
    for (at, door) in doors.iter().enumerate() {
        let (service, user) = (door.service(), ada.user);
        tellers.spawn(async move {
            for n in (0..BY_SERVICE).filter(|n| n % 2 == at) {
                service.tell(user, &format!("said {n}")).await;
            }
        });
    }

    let (mut tape, mut connections, mut choices) = (Tape::from(0), 0, Seed::new().choices(0));
    for cut in 0..CUTS {
        if cut % 10 == 9 {
            // Before anything was answered.
            connections += 1;
            let at = doors[connections % 2].gateway();
            drop(Stream::begin(TcpSocket::new_v4().unwrap(), at, &ada.token, "").await);
            continue;
        }
        let mut stream = connect(&ada, &doors, &mut connections, &tape).await;
        // Somewhere in the next ones, and in the middle of one of them.
        let enough = cut * ALL / CUTS + choices.usize(..ALL / CUTS);
        assert!(tape.record(&mut stream, enough).await, "over, and nobody had cut it");
        let some = choices.usize(1..600);
        stream.read(some).await;
        while let Some(told) = stream.pop() {
            tape.take(told);
        }
    }
    let mut stream = connect(&ada, &doors, &mut connections, &tape).await;
    tape.record(&mut stream, ALL).await;
    while let Some(told) = tellers.join_next().await {
        told.unwrap();
    }

    // Exactly these: nothing besides comes after them.
    doors[0].service().tell(ada.user, "the end").await;
    assert_eq!(stream.expect("notification").await.data["title"], "the end");
    assert_eq!(numbers(&tape.notifications).len(), ALL - BY_SERVICE);
    let said: Vec<&Value> = tape.notifications.iter().filter(|one| one["template"] == "").collect();
    assert_eq!(said.len(), BY_SERVICE);
    let mut inbox = ada.inbox(doors[1].gateway()).await;
    assert_eq!(inbox.pop().unwrap()["title"], json!("the end"));
    assert_eq!(ids(&inbox), tape.ids());
}
