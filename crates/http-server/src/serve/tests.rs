mod events;
mod http2;

use std::net::Ipv4Addr;

use ::http::HeaderMap;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Extension, Router};
use base::{Clock, Code};
use futures::StreamExt;
use futures::stream;
use testkit::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::sync::Notify;

use super::*;
use crate::{BodyTimeout, Problem, Serving, Site, client_address};
use runtime::Metrics;

const PATIENCE: Duration = Duration::from_secs(20);

const LIMITS: Limits = Limits {
    header_timeout: PATIENCE,
    write_timeout: PATIENCE,
    max_head: 16 * 1024,
    max_streams: 100,
    public_max_streams: 100,
    idle_grace: Duration::ZERO,
    max_connections: 100,
    max_connections_per_address: 0,
    trusted_proxies: Vec::new(),
};

/// A listener that serves.
struct World {
    address: SocketAddr,
    metrics: Metrics,
    _stop: tokio_util::task::AbortOnDropHandle<()>,
}

impl World {
    async fn start(limits: Limits, router: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, metrics) = (listener.local_addr().unwrap(), Metrics::new("0"));
        let router = router.route("/", get(async || "hello"));
        let served = Serving::new(Clock::system(), &metrics).wrap("test", Site::new([], &[]), router.into());
        let serving = tokio::spawn(serve(listener, served, limits, Drain::new(), TaskTracker::new()));
        Self { address, metrics, _stop: tokio_util::task::AbortOnDropHandle::new(serving) }
    }

    /// A connection from one of the many addresses of this machine.
    async fn connect(&self, last: u8) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// A connection that has been answered, if it is served at all.
    async fn enter(&self, last: u8) -> Option<TcpStream> {
        let mut client = self.connect(last).await;
        let answer = ask(&mut client, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        answer.contains("hello").then_some(client)
    }

    fn has(&self, metric: &str) -> bool {
        self.metrics.encode().lines().any(|line| line == metric)
    }

    async fn until(&self, metric: &str) {
        eventually(metric, PATIENCE, || async { self.has(metric) }).await;
    }
}

/// Sends this and reads what comes at once; nothing when the connection is closed.
async fn ask(client: &mut TcpStream, request: &str) -> String {
    let mut answer = vec![0; 64 * 1024];
    let _ = client.write_all(request.as_bytes()).await;
    let read = timeout(PATIENCE, client.read(&mut answer)).await.expect("an answer or an end");
    String::from_utf8_lossy(&answer[..read.unwrap_or(0)]).into_owned()
}

/// Reads until the connection is closed.
async fn rest(client: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, client.read_to_end(&mut rest)).await.expect("the connection ends");
    rest
}

#[tokio::test]
async fn an_address_may_have_only_so_many_connections() {
    let world = World::start(Limits { max_connections_per_address: 2, ..LIMITS }, Router::new()).await;
    let first = world.enter(1).await.unwrap();
    let _second = world.enter(1).await.unwrap();
    assert!(world.enter(1).await.is_none());
    let _other = world.enter(2).await.expect("another address has its own");
    assert!(world.has("playhouse_http_connections{listener=\"test\"} 3"));
    assert!(world.has("playhouse_http_connections_refused_total{listener=\"test\",reason=\"address\"} 1"));
    drop(first);
    world.until("playhouse_http_connections{listener=\"test\"} 2").await;
    assert!(world.enter(1).await.is_some(), "there is room again");
}

#[tokio::test]
async fn a_proxy_of_ours_may_have_as_many_as_there_is_room_for() {
    let limits = Limits {
        max_connections: 4,
        max_connections_per_address: 1,
        trusted_proxies: vec!["127.0.0.1".parse().unwrap()],
        ..LIMITS
    };
    let world = World::start(limits, Router::new()).await;
    let mut open = vec![world.enter(2).await.unwrap()];
    assert!(world.enter(2).await.is_none());
    for _ in 0..3 {
        open.push(world.enter(1).await.unwrap());
    }
    assert!(world.enter(1).await.is_none() && world.enter(3).await.is_none(), "there is no room for anybody");
    assert!(world.has("playhouse_http_connections_refused_total{listener=\"test\",reason=\"full\"} 2"));
    open.clear();
    world.until("playhouse_http_connections{listener=\"test\"} 0").await;
    assert!(world.enter(3).await.is_some());
}

#[tokio::test]
async fn a_connection_that_says_nothing_counts_too() {
    let world = World::start(Limits { max_connections: 1, ..LIMITS }, Router::new()).await;
    let _silent = world.connect(1).await;
    world.until("playhouse_http_connections{listener=\"test\"} 1").await;
    assert!(world.enter(1).await.is_none());
}

#[tokio::test]
async fn a_client_that_does_not_take_its_answer_is_cut_off_and_nobody_else() {
    const CHUNKS: usize = 64;
    let chunk = || Ok::<_, io::Error>(Bytes::from(vec![b'x'; 256 * 1024]));
    let wake = Arc::new(Notify::new());
    let woken = wake.clone();
    // An answer that stays open, with long silences.
    let quiet = move || {
        let (first, second) = (Ok(Bytes::from("first")), woken.clone());
        let later = stream::once(async move {
            second.notified().await;
            Ok::<_, io::Error>(Bytes::from("second"))
        });
        Body::from_stream(stream::iter([first]).chain(later))
    };
    let router = Router::new()
        .route("/endless", get(async move || Body::from_stream(stream::repeat_with(chunk))))
        .route("/large", get(async move || Body::from_stream(stream::repeat_with(chunk).take(CHUNKS))))
        .route("/quiet", get(async move || quiet()));
    let write_timeout = Duration::from_secs(1);
    let world = World::start(Limits { write_timeout, ..LIMITS }, router).await;
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");

    let mut idle = world.connect(1).await;
    assert!(ask(&mut idle, &request("/quiet")).await.starts_with("HTTP/1.1 200"));
    let started = std::time::Instant::now();
    let mut stuck = world.connect(1).await;
    stuck.write_all(request("/endless").as_bytes()).await.unwrap();
    let mut slow = world.connect(1).await;
    slow.write_all(request("/large").as_bytes()).await.unwrap();

    // One that takes its time, but takes.
    let (mut taken, mut buffer) = (0, vec![0; 256 * 1024]);
    while let Ok(read @ 1..) = slow.read(&mut buffer).await {
        taken += read;
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    assert!(taken > CHUNKS * 256 * 1024, "{taken}");
    world.until("playhouse_http_connections_cut_total{listener=\"test\"} 1").await;
    assert!(started.elapsed() >= write_timeout);
    rest(&mut stuck).await;
    assert!(world.has("playhouse_http_connections{listener=\"test\"} 1"), "{}", world.metrics.encode());
    wake.notify_one();
    assert!(String::from_utf8(rest(&mut idle).await).unwrap().contains("second"));
    assert!(world.has("playhouse_http_connections_cut_total{listener=\"test\"} 1"));
}

/// The statuses that a head of this size gets by HTTP/1.1 and by HTTP/2.
async fn statuses(max_head: u32, size: usize) -> [u16; 2] {
    let world = World::start(Limits { max_head, ..LIMITS }, Router::new()).await;
    let get = async |client: reqwest::ClientBuilder| {
        let asked = client
            .build()
            .unwrap()
            .get(format!("http://{}/", world.address))
            .header("x-pad", "x".repeat(size));
        asked.send().await.unwrap().status().as_u16()
    };
    [get(reqwest::Client::builder()).await, get(reqwest::Client::builder().http2_prior_knowledge()).await]
}

#[tokio::test]
async fn a_head_may_be_only_so_large() {
    for (max_head, size, expected) in [
        (16 * 1024, 12_000, 200),
        (16 * 1024, 20_000, 431),
        (8 * 1024, 7_000, 200),
        (8 * 1024, 12_000, 431),
        (64 * 1024, 40_000, 200),
    ] {
        assert_eq!(statuses(max_head, size).await, [expected; 2], "{size} of {max_head}");
    }
}

#[tokio::test]
async fn a_head_that_is_no_head_is_refused() {
    let world = World::start(LIMITS, Router::new()).await;
    let head = format!("GET / HTTP/1.1\r\nhost: x\r\nx-pad: {}\r\n\r\n", "x".repeat(2_000_000));
    let status = |answer: String| answer.lines().next().unwrap_or_default().to_owned();
    let many = format!("GET / HTTP/1.1\r\nhost: x\r\n{}\r\n", "a: b\r\n".repeat(200));
    let address = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(20_000));
    for (request, expected) in [
        (head, "HTTP/1.1 431 Request Header Fields Too Large"),
        (many, "HTTP/1.1 431 Request Header Fields Too Large"),
        (address, "HTTP/1.1 431 Request Header Fields Too Large"),
        ("not http at all\r\n\r\n".to_owned(), "HTTP/1.1 400 Bad Request"),
    ] {
        let mut client = world.connect(1).await;
        let (mut reading, mut writing) = client.split();
        let send = async {
            // The other end may have heard enough before all is sent.
            let _ = writing.write_all(request.as_bytes()).await;
            std::future::pending::<()>().await;
        };
        let mut answer = vec![0; 1024];
        let read = tokio::select! {
            read = timeout(PATIENCE, reading.read(&mut answer)) => read.unwrap().unwrap(),
            () = send => 0,
        };
        assert_eq!(status(String::from_utf8_lossy(&answer[..read]).into_owned()), expected);
    }
}

#[tokio::test]
async fn a_body_that_never_ends_is_not_waited_for() {
    async fn read(_: crate::Body<serde_json::Value>) -> &'static str {
        "read"
    }
    async fn deadline(request: Request, next: Next) -> axum::response::Response {
        let answered = timeout(Duration::from_millis(200), next.run(request)).await;
        answered.unwrap_or_else(|_| Problem::new(Code::Timeout).into_response())
    }
    let router = Router::new()
        .route("/body", post(read).layer(Extension(BodyTimeout(Duration::from_millis(200)))))
        .route("/deadline", post(read).layer(middleware::from_fn(deadline)));
    let world = World::start(LIMITS, router).await;
    for (path, expected) in [("/body", "request-timeout"), ("/deadline", "problem:timeout")] {
        let mut client = world.connect(1).await;
        let head = "host: x\r\ncontent-type: application/json\r\ncontent-length: 100";
        client
            .write_all(format!("POST {path} HTTP/1.1\r\n{head}\r\n\r\n{{\"half\":").as_bytes())
            .await
            .unwrap();
        let answer = String::from_utf8(rest(&mut client).await).unwrap();
        assert!(answer.contains(expected), "{answer}");
    }
    assert!(world.has("playhouse_http_connections{listener=\"test\"} 0"));
}

#[tokio::test]
async fn a_request_knows_where_it_came_from() {
    let trusted: Vec<Network> = vec!["127.0.0.1".parse().unwrap()];
    let who = async move |Extension(connection): Extension<Connection>, headers: HeaderMap| {
        let peer = connection.peer();
        format!("{peer} for {}.", client_address(&headers, peer.ip(), &trusted))
    };
    let world = World::start(LIMITS, Router::new().route("/who", get(who))).await;
    for (last, client_is) in [(1, "192.0.2.7"), (2, "127.0.0.2")] {
        let mut client = world.connect(last).await;
        let answer =
            ask(&mut client, "GET /who HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 192.0.2.7\r\n\r\n").await;
        let expected = format!("{} for {client_is}.", client.local_addr().unwrap());
        assert!(answer.ends_with(&expected), "{answer}");
    }
}

#[tokio::test]
async fn a_listener_that_stops_does_not_wait_for_connections_that_rest() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let router = Router::new().route("/", get(async || "hello"));
    let served =
        Serving::new(Clock::system(), &Metrics::new("0")).wrap("test", Site::new([], &[]), router.into());
    let limits = Limits { header_timeout: 100 * PATIENCE, ..LIMITS };
    let drain = Drain::new();
    let serving = tokio::spawn(serve(listener, served, limits, drain.clone(), TaskTracker::new()));
    let clients = [reqwest::Client::builder(), reqwest::Client::builder().http2_prior_knowledge()];
    let clients = clients.map(|client| client.build().unwrap());
    for client in &clients {
        assert_eq!(client.get(&url).send().await.unwrap().text().await.unwrap(), "hello");
    }
    drain.request();
    timeout(PATIENCE, serving).await.expect("it stops").unwrap();
}
