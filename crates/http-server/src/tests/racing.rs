//! Requests that are on their way when a listener stops.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::{get, post};
use base::Clock;
use runtime::{Drain, Metrics};
use testkit::raw_http2::{Frame, Kind, RawHttp2};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::stopping::LIMITS;
use crate::{Limits, Serving};

const PATIENCE: Duration = Duration::from_secs(20);
const IDLE_GRACE: Duration = Duration::from_secs(1);
const POST: &[u8] = b"POST /buy HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\none";

struct Stopping {
    address: SocketAddr,
    drain: Drain,
    serving: JoinHandle<()>,
}

impl Stopping {
    async fn start(limits: Limits) -> Self {
        let router = Router::new()
            .route("/", get(async || "hello"))
            .route("/buy", post(async |body: String| format!("bought {body}")));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, drain) = (listener.local_addr().unwrap(), Drain::new());
        let served = Serving::new(Clock::system(), &Metrics::new("0")).wrap(
            "test",
            crate::Site::new([], &[]),
            router.into(),
        );
        let serving = crate::serve::serve(listener, served, limits, drain.clone(), TaskTracker::new());
        Self { address, drain, serving: tokio::spawn(serving) }
    }

    async fn has_stopped(self) {
        timeout(PATIENCE, self.serving).await.expect("it stops").unwrap();
    }
}

async fn answer(client: &mut TcpStream) -> String {
    let mut answer = vec![0; 4096];
    let read = timeout(PATIENCE, client.read(&mut answer)).await.expect("an answer or an end").unwrap();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

#[tokio::test]
async fn a_post_that_meets_the_end_of_its_listener_is_answered() {
    let stopping = Stopping::start(Limits { idle_grace: IDLE_GRACE, ..LIMITS }).await;
    let mut clients = Vec::new();
    for number in 0..40 {
        let mut client = TcpStream::connect(stopping.address).await.unwrap();
        // Every other one has been used before. The first request of the rest is on its way.
        if number % 2 == 0 {
            client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            let hello = answer(&mut client).await;
            assert!(hello.contains("hello") && !hello.contains("connection: close"), "{hello}");
        }
        clients.push(client);
    }
    stopping.drain.request();
    let race = clients.into_iter().enumerate().map(async |(number, mut client)| {
        tokio::time::sleep(IDLE_GRACE / 2 / 40 * number as u32).await;
        client.write_all(POST).await.unwrap();
        let bought = answer(&mut client).await;
        assert!(bought.starts_with("HTTP/1.1 200") && bought.ends_with("bought one"), "{number}: {bought:?}");
        assert!(bought.contains("\r\nconnection: close\r\n"), "{number}: {bought}");
        assert_eq!(answer(&mut client).await, "", "the connection ends after it");
    });
    futures::future::join_all(race).await;
    stopping.has_stopped().await;
}

#[tokio::test]
async fn connections_that_rest_are_closed_after_the_grace() {
    let stopping = Stopping::start(Limits { idle_grace: IDLE_GRACE, ..LIMITS }).await;
    let mut resting = TcpStream::connect(stopping.address).await.unwrap();
    resting.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    answer(&mut resting).await;
    let _silent = TcpStream::connect(stopping.address).await.unwrap();
    // One that does not even answer the ping that comes with the announcement.
    let mut deaf = RawHttp2::connect(stopping.address, 0).await.unwrap();
    deaf.until(|frame| frame.kind == Kind::Settings).await.unwrap().unwrap();
    let asked = Instant::now();
    stopping.drain.request();
    assert_eq!(answer(&mut resting).await, "");
    assert!(asked.elapsed() >= IDLE_GRACE, "{:?}", asked.elapsed());
    stopping.has_stopped().await;
}

#[tokio::test]
async fn an_http2_client_is_told_before_its_connection_closes() {
    let stopping = Stopping::start(Limits { idle_grace: IDLE_GRACE, ..LIMITS }).await;
    let mut client = RawHttp2::connect(stopping.address, 1 << 20).await.unwrap();
    client.send(Frame::get(1, "/", &[])).await.unwrap();
    client.until(Frame::is_last).await.unwrap().unwrap();
    stopping.drain.request();
    client.send(Frame::get(3, "/", &[])).await.unwrap();
    let (mut is_told, mut is_answered) = (false, false);
    while let Some(frame) = timeout(PATIENCE, client.next()).await.expect("a frame or the end").unwrap() {
        is_told |= frame.kind == Kind::GoAway && frame.code() == Some(0);
        is_answered |= frame.stream == 3 && frame.is_ok();
    }
    assert!(is_told && is_answered, "told: {is_told}, answered: {is_answered}");
    stopping.has_stopped().await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_does_not_hold_up_the_end() {
    let limits = Limits { idle_grace: IDLE_GRACE / 2, write_timeout: 100 * PATIENCE, ..LIMITS };
    let stopping = Stopping::start(limits).await;
    let mut client = RawHttp2::connect(stopping.address, 0).await.unwrap();
    client.send(Frame::get(1, "/", &[])).await.unwrap();
    client.until(Frame::is_ok).await.unwrap().unwrap();
    stopping.drain.request();
    stopping.has_stopped().await;
}
