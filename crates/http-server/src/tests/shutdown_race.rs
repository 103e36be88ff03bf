//! Requests that are in flight when a listener stops.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::{get, post};
use base::Clock;
use runtime::{Drain, Metrics};
use testkit::raw_http2::{Frame, FrameKind, RawHttp2};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::shutdown::LIMITS;
use crate::{Limits, Middleware};

const PATIENCE: Duration = Duration::from_secs(20);
const IDLE_GRACE: Duration = Duration::from_secs(1);
const POST: &[u8] = b"POST /buy HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\none";

struct TestListener {
    address: SocketAddr,
    drain: Drain,
    serving: JoinHandle<()>,
}

impl TestListener {
    async fn start(limits: Limits) -> Self {
        let router = Router::new()
            .route("/", get(async || "hello"))
            .route("/buy", post(async |body: String| format!("bought {body}")));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, drain) = (listener.local_addr().unwrap(), Drain::new());
        let routes = Middleware::new(Clock::system(), &Metrics::new("0")).wrap(
            "test",
            crate::Site::new([], &[]),
            router.into(),
        );
        let serving = crate::serve::serve(listener, routes, limits, drain.clone(), TaskTracker::new());
        Self { address, drain, serving: tokio::spawn(serving) }
    }

    async fn until_stopped(self) {
        timeout(PATIENCE, self.serving).await.expect("the listener stops").unwrap();
    }
}

async fn read_response(client: &mut TcpStream) -> String {
    let mut response = vec![0; 4096];
    let read = timeout(PATIENCE, client.read(&mut response)).await.expect("a response or the end").unwrap();
    String::from_utf8_lossy(&response[..read]).into_owned()
}

#[tokio::test]
async fn request_sent_while_the_listener_stops_is_answered() {
    let listener = TestListener::start(Limits { idle_grace: IDLE_GRACE, ..LIMITS }).await;
    let mut clients = Vec::new();
    for number in 0..40 {
        let mut client = TcpStream::connect(listener.address).await.unwrap();
        // Every other connection has routes a request before. The others are about to send their first.
        if number % 2 == 0 {
            client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            let hello = read_response(&mut client).await;
            assert!(hello.contains("hello") && !hello.contains("connection: close"), "{hello}");
        }
        clients.push(client);
    }
    listener.drain.request();
    let race = clients.into_iter().enumerate().map(async |(number, mut client)| {
        tokio::time::sleep(IDLE_GRACE / 2 / 40 * number as u32).await;
        client.write_all(POST).await.unwrap();
        let bought = read_response(&mut client).await;
        assert!(bought.starts_with("HTTP/1.1 200") && bought.ends_with("bought one"), "{number}: {bought:?}");
        assert!(bought.contains("\r\nconnection: close\r\n"), "{number}: {bought}");
        assert_eq!(read_response(&mut client).await, "", "the connection closes after the response");
    });
    futures::future::join_all(race).await;
    listener.until_stopped().await;
}

#[tokio::test]
async fn idle_connections_are_closed_after_the_grace_period() {
    let listener = TestListener::start(Limits { idle_grace: IDLE_GRACE, ..LIMITS }).await;
    let mut idle = TcpStream::connect(listener.address).await.unwrap();
    idle.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    read_response(&mut idle).await;
    let _silent = TcpStream::connect(listener.address).await.unwrap();
    // A client that does not even read_response the ping that follows GOAWAY.
    let mut unresponsive = RawHttp2::connect(listener.address, 0).await.unwrap();
    unresponsive.until(|frame| frame.kind == FrameKind::Settings).await.unwrap().unwrap();
    let started = Instant::now();
    listener.drain.request();
    assert_eq!(read_response(&mut idle).await, "");
    assert!(started.elapsed() >= IDLE_GRACE, "{:?}", started.elapsed());
    listener.until_stopped().await;
}

#[tokio::test]
async fn http2_client_gets_goaway_before_its_connection_closes() {
    let listener = TestListener::start(Limits { idle_grace: IDLE_GRACE, ..LIMITS }).await;
    let mut client = RawHttp2::connect(listener.address, 1 << 20).await.unwrap();
    client.send(Frame::get(1, "/", &[])).await.unwrap();
    client.until(Frame::is_last).await.unwrap().unwrap();
    listener.drain.request();
    client.send(Frame::get(3, "/", &[])).await.unwrap();
    let (mut has_goaway, mut is_answered) = (false, false);
    while let Some(frame) = timeout(PATIENCE, client.next()).await.expect("a frame or the end").unwrap() {
        has_goaway |= frame.kind == FrameKind::GoAway && frame.code() == Some(0);
        is_answered |= frame.stream == 3 && frame.is_ok();
    }
    assert!(has_goaway && is_answered, "GOAWAY: {has_goaway}, answered: {is_answered}");
    listener.until_stopped().await;
}

#[tokio::test]
async fn client_that_does_not_read_does_not_delay_the_stop() {
    let limits = Limits { idle_grace: IDLE_GRACE / 2, write_timeout: 100 * PATIENCE, ..LIMITS };
    let listener = TestListener::start(limits).await;
    let mut client = RawHttp2::connect(listener.address, 0).await.unwrap();
    client.send(Frame::get(1, "/", &[])).await.unwrap();
    client.until(Frame::is_ok).await.unwrap().unwrap();
    listener.drain.request();
    listener.until_stopped().await;
}
