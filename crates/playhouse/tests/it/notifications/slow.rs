//! A client that does not read.

use testkit::{eventually, need};
use tokio::net::TcpSocket;

use super::setup::{Process, Setup, news_with};
use super::stream_client::{Received, Stream, numbers};
use crate::*;

const ALL: usize = 4_000;
/// Bytes of each: together more than all buffers between the process and the client hold.
const LENGTH: usize = 4_000;
const SLOW_CLIENTS: usize = 4;
/// How many bytes the process may grow: less than the unread bytes.
const MAX_GROWTH: u64 = 12 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn client_that_does_not_read_is_cut_off_costs_no_memory_and_misses_nothing() {
    let setup = need!(Setup::start().await);
    let program = setup.program("gateway,service-api").args(["--set", "listen.write_timeout=4s"]);
    let api = Process::start(&program).await;
    let _notifier = setup.process("notifier").await;
    let ada = setup.player(&api, "ada").await;

    let mut quick = ada.stream(api.gateway(), Some(0)).await;
    let mut slow = Vec::new();
    for _ in 0..SLOW_CLIENTS {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        slow.push(Stream::open_on(socket, api.gateway(), &ada.token, "last-event-id: 0\r\n").await);
    }
    eventually("all streams are open", PATIENCE, async || {
        api.metric("playhouse_gateway_streams").await == (SLOW_CLIENTS + 1) as f64
    })
    .await;
    let before = api.memory();
    let publisher = setup.publisher().await;
    let publishing = tokio::spawn(async move {
        for from in (0..ALL).step_by(100) {
            let bodies = (from..from + 100).map(|n| news_with(ada.user, n, &"x".repeat(LENGTH)));
            publisher.publish(&bodies.collect::<Vec<_>>()).await;
        }
        ada
    });
    // A client that reads is not delayed.
    let mut received = Received::after(0);
    assert!(received.read_until(&mut quick, ALL).await);
    let ada = publishing.await.unwrap();
    assert_eq!(numbers(&received.notifications).len(), ALL);
    let grown = api.memory().saturating_sub(before);
    assert!(grown < MAX_GROWTH, "{grown} bytes more for {SLOW_CLIENTS} clients that do not read");
    eventually("the slow clients are cut off", PATIENCE, async || {
        let open = api.metric("playhouse_gateway_streams").await;
        if open == 1.0 { Ok(()) } else { Err(format!("{open} are open")) }
    })
    .await;

    // Buffered events still arrive. Then the connection ends, and the next one resumes from there.
    let mut stream = slow.pop().unwrap();
    let mut received = Received::after(0);
    assert!(!received.read_until(&mut stream, ALL).await, "the slow client was not cut off");
    let last = received.last;
    let mut next = ada.stream(api.gateway(), Some(received.last)).await;
    assert!(received.read_until(&mut next, ALL).await);
    assert!(last > 0 && numbers(&received.notifications).len() == ALL, "{last}");
}
