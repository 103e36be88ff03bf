//! A client that does not read.

use testkit::{eventually, need};
use tokio::net::TcpSocket;

use super::stage::{Process, Stage, news_with};
use super::tape::{Stream, Tape, numbers};
use crate::*;

const ALL: usize = 4_000;
/// Together more than all buffers between the process and the client hold.
const LONG: usize = 4_000;
const SLOW: usize = 4;
/// Less than what they do not read.
const ROOM: u64 = 12 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn whoever_does_not_read_is_cut_off_costs_no_memory_and_misses_nothing() {
    let stage = need!(Stage::start().await);
    let program = stage.program("gateway,service-api").args(["--set", "listen.write_timeout=4s"]);
    let door = Process::start(&program).await;
    let _notifier = stage.process("notifier").await;
    let ada = stage.player(&door, "ada").await;

    let mut quick = ada.stream(door.gateway(), Some(0)).await;
    let mut slow = Vec::new();
    for _ in 0..SLOW {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        slow.push(Stream::ask(socket, door.gateway(), &ada.token, "last-event-id: 0\r\n").await);
    }
    eventually("all streams are open", PATIENCE, async || {
        door.metric("playhouse_gateway_streams").await == (SLOW + 1) as f64
    })
    .await;
    let before = door.memory();
    let publisher = stage.publisher().await;
    let publishing = tokio::spawn(async move {
        for from in (0..ALL).step_by(100) {
            let bodies = (from..from + 100).map(|n| news_with(ada.user, n, &"x".repeat(LONG)));
            publisher.publish(&bodies.collect::<Vec<_>>()).await;
        }
        ada
    });
    // Whoever reads is not held up.
    let mut tape = Tape::from(0);
    assert!(tape.record(&mut quick, ALL).await);
    let ada = publishing.await.unwrap();
    assert_eq!(numbers(&tape.notifications).len(), ALL);
    let grown = door.memory().saturating_sub(before);
    assert!(grown < ROOM, "{grown} bytes more for {SLOW} clients that do not read");
    eventually("those who do not read are cut off", PATIENCE, async || {
        let open = door.metric("playhouse_gateway_streams").await;
        if open == 1.0 { Ok(()) } else { Err(format!("{open} are open")) }
    })
    .await;

    // What was on its way arrives; then the connection is over, and the next one goes on from there.
    let mut stream = slow.pop().unwrap();
    let mut tape = Tape::from(0);
    assert!(!tape.record(&mut stream, ALL).await, "it was not cut off");
    let had = tape.last;
    let mut next = ada.stream(door.gateway(), Some(tape.last)).await;
    assert!(tape.record(&mut next, ALL).await);
    assert!(had > 0 && numbers(&tape.notifications).len() == ALL, "{had}");
}
