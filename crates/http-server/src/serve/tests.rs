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
use crate::{BodyTimeout, Middleware, Problem, Site, client_address};
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

/// A running listener.
struct TestListener {
    address: SocketAddr,
    metrics: Metrics,
    _stop: tokio_util::task::AbortOnDropHandle<()>,
}

impl TestListener {
    async fn start(limits: Limits, router: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, metrics) = (listener.local_addr().unwrap(), Metrics::new("0"));
        let router = router.route("/", get(async || "hello"));
        let routes =
            Middleware::new(Clock::system(), &metrics).wrap("test", Site::new([], &[]), router.into());
        let serving = tokio::spawn(serve(listener, routes, limits, Drain::new(), TaskTracker::new()));
        Self { address, metrics, _stop: tokio_util::task::AbortOnDropHandle::new(serving) }
    }

    /// Connects from the address 127.0.0.`last`.
    async fn connect(&self, last: u8) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// Connects and sends a request. Returns none if the connection is refused.
    async fn connect_and_get(&self, last: u8) -> Option<TcpStream> {
        let mut client = self.connect(last).await;
        let response = exchange(&mut client, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        response.contains("hello").then_some(client)
    }

    fn has_metric(&self, metric: &str) -> bool {
        self.metrics.encode().lines().any(|line| line == metric)
    }

    async fn until_metric(&self, metric: &str) {
        eventually(metric, PATIENCE, || async { self.has_metric(metric) }).await;
    }
}

/// Sends `request` and returns the first data that arrives; empty if the connection is closed.
async fn exchange(client: &mut TcpStream, request: &str) -> String {
    let mut response = vec![0; 64 * 1024];
    let _ = client.write_all(request.as_bytes()).await;
    let read = timeout(PATIENCE, client.read(&mut response)).await.expect("a response or the end");
    String::from_utf8_lossy(&response[..read.unwrap_or(0)]).into_owned()
}

/// Reads until_metric the connection is closed.
async fn read_to_end(client: &mut TcpStream) -> Vec<u8> {
    let mut read_to_end = Vec::new();
    let _ = timeout(PATIENCE, client.read_to_end(&mut read_to_end)).await.expect("the connection ends");
    read_to_end
}

#[tokio::test]
async fn connections_per_address_are_limited() {
    let listener =
        TestListener::start(Limits { max_connections_per_address: 2, ..LIMITS }, Router::new()).await;
    let first = listener.connect_and_get(1).await.unwrap();
    let _second = listener.connect_and_get(1).await.unwrap();
    assert!(listener.connect_and_get(1).await.is_none());
    let _other = listener.connect_and_get(2).await.expect("another address has its own limit");
    assert!(listener.has_metric("playhouse_http_connections{listener=\"test\"} 3"));
    assert!(
        listener
            .has_metric("playhouse_http_connections_refused_total{listener=\"test\",reason=\"address\"} 1")
    );
    drop(first);
    listener.until_metric("playhouse_http_connections{listener=\"test\"} 2").await;
    assert!(listener.connect_and_get(1).await.is_some(), "a closed connection makes room");
}

#[tokio::test]
async fn trusted_proxy_is_exempt_from_the_limit_per_address() {
    let limits = Limits {
        max_connections: 4,
        max_connections_per_address: 1,
        trusted_proxies: vec!["127.0.0.1".parse().unwrap()],
        ..LIMITS
    };
    let listener = TestListener::start(limits, Router::new()).await;
    let mut open = vec![listener.connect_and_get(2).await.unwrap()];
    assert!(listener.connect_and_get(2).await.is_none());
    for _ in 0..3 {
        open.push(listener.connect_and_get(1).await.unwrap());
    }
    assert!(
        listener.connect_and_get(1).await.is_none() && listener.connect_and_get(3).await.is_none(),
        "the total limit applies to every address"
    );
    assert!(
        listener.has_metric("playhouse_http_connections_refused_total{listener=\"test\",reason=\"full\"} 2")
    );
    open.clear();
    listener.until_metric("playhouse_http_connections{listener=\"test\"} 0").await;
    assert!(listener.connect_and_get(3).await.is_some());
}

#[tokio::test]
async fn silent_connection_counts() {
    let listener = TestListener::start(Limits { max_connections: 1, ..LIMITS }, Router::new()).await;
    let _silent = listener.connect(1).await;
    listener.until_metric("playhouse_http_connections{listener=\"test\"} 1").await;
    assert!(listener.connect_and_get(1).await.is_none());
}

#[tokio::test]
async fn only_the_client_that_does_not_read_is_disconnected() {
    const CHUNKS: usize = 64;
    let chunk = || Ok::<_, io::Error>(Bytes::from(vec![b'x'; 256 * 1024]));
    let wake = Arc::new(Notify::new());
    let woken = wake.clone();
    // A response that stays open and is idle for long.
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
    let listener = TestListener::start(Limits { write_timeout, ..LIMITS }, router).await;
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");

    let mut idle = listener.connect(1).await;
    assert!(exchange(&mut idle, &request("/quiet")).await.starts_with("HTTP/1.1 200"));
    let started = std::time::Instant::now();
    let mut stuck = listener.connect(1).await;
    stuck.write_all(request("/endless").as_bytes()).await.unwrap();
    let mut slow = listener.connect(1).await;
    slow.write_all(request("/large").as_bytes()).await.unwrap();

    // A client that reads slowly, but reads.
    let (mut received, mut buffer) = (0, vec![0; 256 * 1024]);
    while let Ok(read @ 1..) = slow.read(&mut buffer).await {
        received += read;
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    assert!(received > CHUNKS * 256 * 1024, "{received}");
    listener.until_metric("playhouse_http_connections_cut_total{listener=\"test\"} 1").await;
    assert!(started.elapsed() >= write_timeout);
    read_to_end(&mut stuck).await;
    assert!(
        listener.has_metric("playhouse_http_connections{listener=\"test\"} 1"),
        "{}",
        listener.metrics.encode()
    );
    wake.notify_one();
    assert!(String::from_utf8(read_to_end(&mut idle).await).unwrap().contains("second"));
    assert!(listener.has_metric("playhouse_http_connections_cut_total{listener=\"test\"} 1"));
}

/// Returns the statuses of a request with a head of this size, over HTTP/1.1 and over HTTP/2.
async fn statuses(max_head: u32, size: usize) -> [u16; 2] {
    let listener = TestListener::start(Limits { max_head, ..LIMITS }, Router::new()).await;
    let get = async |client: reqwest::ClientBuilder| {
        let request = client
            .build()
            .unwrap()
            .get(format!("http://{}/", listener.address))
            .header("x-pad", "x".repeat(size));
        request.send().await.unwrap().status().as_u16()
    };
    [get(reqwest::Client::builder()).await, get(reqwest::Client::builder().http2_prior_knowledge()).await]
}

#[tokio::test]
async fn head_size_is_limited() {
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
async fn oversized_or_malformed_head_is_refused() {
    let listener = TestListener::start(LIMITS, Router::new()).await;
    let long_header = format!("GET / HTTP/1.1\r\nhost: x\r\nx-pad: {}\r\n\r\n", "x".repeat(2_000_000));
    let status = |response: String| response.lines().next().unwrap_or_default().to_owned();
    let many_headers = format!("GET / HTTP/1.1\r\nhost: x\r\n{}\r\n", "a: b\r\n".repeat(200));
    let long_path = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(20_000));
    for (request, expected) in [
        (long_header, "HTTP/1.1 431 Request Header Fields Too Large"),
        (many_headers, "HTTP/1.1 431 Request Header Fields Too Large"),
        (long_path, "HTTP/1.1 431 Request Header Fields Too Large"),
        ("not http at all\r\n\r\n".to_owned(), "HTTP/1.1 400 Bad Request"),
    ] {
        let mut client = listener.connect(1).await;
        let (mut reading, mut writing) = client.split();
        let send = async {
            // The server may respond before it has_metric read everything.
            let _ = writing.write_all(request.as_bytes()).await;
            std::future::pending::<()>().await;
        };
        let mut response = vec![0; 1024];
        let read = tokio::select! {
            read = timeout(PATIENCE, reading.read(&mut response)) => read.unwrap().unwrap(),
            () = send => 0,
        };
        assert_eq!(status(String::from_utf8_lossy(&response[..read]).into_owned()), expected);
    }
}

#[tokio::test]
async fn unfinished_body_times_out() {
    async fn read(_: crate::JsonBody<serde_json::Value>) -> &'static str {
        "read"
    }
    async fn deadline(request: Request, next: Next) -> axum::response::Response {
        let answered = timeout(Duration::from_millis(200), next.run(request)).await;
        answered.unwrap_or_else(|_| Problem::new(Code::Timeout).into_response())
    }
    let router = Router::new()
        .route("/body", post(read).layer(Extension(BodyTimeout(Duration::from_millis(200)))))
        .route("/deadline", post(read).layer(middleware::from_fn(deadline)));
    let listener = TestListener::start(LIMITS, router).await;
    for (path, expected) in [("/body", "request-timeout"), ("/deadline", "problem:timeout")] {
        let mut client = listener.connect(1).await;
        let head = "host: x\r\ncontent-type: application/json\r\ncontent-length: 100";
        client
            .write_all(format!("POST {path} HTTP/1.1\r\n{head}\r\n\r\n{{\"half\":").as_bytes())
            .await
            .unwrap();
        let response = String::from_utf8(read_to_end(&mut client).await).unwrap();
        assert!(response.contains(expected), "{response}");
    }
    assert!(listener.has_metric("playhouse_http_connections{listener=\"test\"} 0"));
}

#[tokio::test]
async fn request_has_the_address_of_its_client() {
    let trusted: Vec<Network> = vec!["127.0.0.1".parse().unwrap()];
    let who = async move |Extension(connection): Extension<Connection>, headers: HeaderMap| {
        let peer = connection.peer();
        format!("{peer} for {}.", client_address(&headers, peer.ip(), &trusted))
    };
    let listener = TestListener::start(LIMITS, Router::new().route("/who", get(who))).await;
    for (last, client_address) in [(1, "192.0.2.7"), (2, "127.0.0.2")] {
        let mut client = listener.connect(last).await;
        let response =
            exchange(&mut client, "GET /who HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 192.0.2.7\r\n\r\n").await;
        let expected = format!("{} for {client_address}.", client.local_addr().unwrap());
        assert!(response.ends_with(&expected), "{response}");
    }
}

#[tokio::test]
async fn stopping_listener_does_not_wait_for_idle_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let router = Router::new().route("/", get(async || "hello"));
    let routes =
        Middleware::new(Clock::system(), &Metrics::new("0")).wrap("test", Site::new([], &[]), router.into());
    let limits = Limits { header_timeout: 100 * PATIENCE, ..LIMITS };
    let drain = Drain::new();
    let serving = tokio::spawn(serve(listener, routes, limits, drain.clone(), TaskTracker::new()));
    let clients = [reqwest::Client::builder(), reqwest::Client::builder().http2_prior_knowledge()];
    let clients = clients.map(|client| client.build().unwrap());
    for client in &clients {
        assert_eq!(client.get(&url).send().await.unwrap().text().await.unwrap(), "hello");
    }
    drain.request();
    timeout(PATIENCE, serving).await.expect("the listener stops").unwrap();
}
