//! Measures what two shortcuts of our HTTP server save, compared with axum's server with the same handlers and the same allocator.
//!
//! - Memory of an idle stream of server-sent events (axum's `Sse`): in `axum::serve`, in our listener while hyper keeps the
//!   connection, and in our listener after hyper is dropped (ADR 13).
//! - CPU time and rate of a request: routed by `axum::serve`, routed by our listener, and on a direct route (ADR 16).
//!
//! Each server runs in its own process (this program again), so that memory and CPU time are the server's alone. The kinds of
//! requests take turns, so that other load on the machine affects all alike. Linux only: it reads `/proc`.

#![expect(clippy::unwrap_used, reason = "a failure ends the benchmark")]

use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::future::join_all;
use futures::{Stream, StreamExt, stream};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use http_server::{Limits, Routes, Server, Site};
use runtime::lifecycle::{Config, Signals, Stage};
use runtime::{Metrics, Process};
use testkit::bench::Report;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The allocator of the product.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Streams that are open before memory is read the first time.
const WARM_STREAMS: usize = 100;
/// The most streams to measure, if the limit of open files allows it. With only a few hundred, the allocator's reserve dominates.
const MAX_STREAMS: usize = 8_000;
/// Open files that are not streams.
const OTHER_FILES: usize = 100;
/// How long to wait until the allocator has returned the memory that opening the streams used.
const SETTLE: Duration = Duration::from_secs(1);
/// Connections that send requests.
const CONNECTIONS: usize = 8;
/// How long one kind of request is measured at a time.
const TURN: Duration = Duration::from_millis(1_000);
const TURNS: usize = 7;
/// The unit of the CPU times in `/proc/PID/stat`.
const TICK: Duration = Duration::from_millis(10);
const BODY: &str = r#"{"ticket":{"search_fields":{"tags":["duel"]}}}"#;

const LIMITS: Limits = Limits {
    header_timeout: Duration::from_secs(30),
    write_timeout: Duration::from_secs(30),
    max_head: 16 * 1024,
    max_streams: 100,
    public_max_streams: 100,
    idle_grace: Duration::ZERO,
    max_connections: 10_000,
    max_connections_per_address: 0,
    trusted_proxies: Vec::new(),
};

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.iter().position(|arg| arg == "serve").and_then(|at| args.get(at + 1)).map(String::as_str) {
        Some("axum") => serve_with_axum().await,
        Some("ours") => serve_with_ours().await,
        _ => measure().await,
    }
}

async fn measure() {
    let mut report = Report::new("http").columns(["subject", "per stream", "CPU per request", "requests/s"]);
    let count = MAX_STREAMS.min(max_files().saturating_sub(WARM_STREAMS + OTHER_FILES));
    let mut bytes = Vec::new();
    for (name, server, path) in [
        ("stream: axum", "axum", "/events"),
        ("stream: our listener, hyper keeps it", "ours", "/events-by-hyper"),
        ("stream: our listener, without hyper", "ours", "/events"),
    ] {
        // A new process each time: freed memory is not always returned to the system.
        let each = bytes_per_stream(&Subject::start(server), path, count).await;
        report.row([name.to_owned(), format!("{each:.0} bytes")]);
        bytes.push(each);
    }
    let (axum, ours) = (Subject::start("axum"), Subject::start("ours"));
    let kinds = [(&axum, "/routed"), (&ours, "/routed"), (&ours, "/direct")];
    let mut costs = [Cost::default(); 3];
    for _ in 0..TURNS {
        for (cost, (subject, path)) in costs.iter_mut().zip(kinds) {
            cost.add(load(subject, path).await);
        }
    }
    let names = ["request: axum", "request: our listener, routed", "request: our listener, direct"];
    for (name, cost) in names.into_iter().zip(&costs) {
        let cells = ["".to_owned(), format!("{:.1} us", cost.cpu_micros()), format!("{:.0}", cost.rate())];
        report.row([name.to_owned()].into_iter().chain(cells));
    }
    let [by_axum, routed, direct] = costs.map(|cost| cost.cpu_micros());
    for (key, value) in [
        ("streams", count as f64),
        ("stream_bytes_axum", bytes[0]),
        ("stream_bytes_by_hyper", bytes[1]),
        ("stream_bytes", bytes[2]),
        ("streams_ratio", bytes[0] / bytes[2]),
        ("cpu_us_axum", by_axum),
        ("cpu_us_routed", routed),
        ("cpu_us_direct", direct),
        ("direct_to_routed", routed / direct),
    ] {
        report.measure(key, value);
    }
    report.finish(by_axum / direct).unwrap();
}

/// Opens `count` idle streams. Returns the server's memory per stream.
async fn bytes_per_stream(subject: &Subject, path: &str, count: usize) -> f64 {
    let warm = open_streams(subject, path, WARM_STREAMS).await;
    tokio::time::sleep(SETTLE).await;
    let before = subject.memory();
    let streams = open_streams(subject, path, count).await;
    tokio::time::sleep(SETTLE).await;
    let after = subject.memory();
    drop((warm, streams));
    after.saturating_sub(before) as f64 / count as f64
}

/// Returns how many files this process and its children may open.
fn max_files() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    soft.split_whitespace().next().unwrap().parse().unwrap_or(usize::MAX)
}

async fn open_streams(subject: &Subject, path: &str, count: usize) -> Vec<TcpStream> {
    let mut streams = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = TcpStream::connect(&subject.address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
        read_until(&mut stream, b"hello\n\n").await;
        streams.push(stream);
    }
    streams
}

/// Sends requests over a few connections for one turn.
async fn load(subject: &Subject, path: &str) -> Cost {
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    let (cpu, started) = (subject.cpu(), Instant::now());
    let requests = join_all((0..CONNECTIONS).map(|_| {
        let (request, address) = (request.clone(), subject.address.clone());
        async move {
            let mut connection = TcpStream::connect(address).await.unwrap();
            connection.set_nodelay(true).unwrap();
            let mut count = 0;
            while started.elapsed() < TURN {
                connection.write_all(request.as_bytes()).await.unwrap();
                read_until(&mut connection, BODY.as_bytes()).await;
                count += 1;
            }
            count
        }
    }))
    .await
    .into_iter()
    .sum();
    Cost { requests, cpu: subject.cpu() - cpu, took: started.elapsed() }
}

/// Reads until the data ends with `end`.
async fn read_until(stream: &mut TcpStream, end: &[u8]) {
    let mut read = Vec::with_capacity(1024);
    // A line break ends the chunk that contains the event.
    while !read.ends_with(end) && !read.strip_suffix(b"\r\n").is_some_and(|read| read.ends_with(end)) {
        assert!(stream.read_buf(&mut read).await.unwrap() > 0, "{}", String::from_utf8_lossy(&read));
    }
    assert!(read.is_empty() || read.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&read));
}

#[derive(Clone, Copy, Default)]
struct Cost {
    requests: u64,
    cpu: Duration,
    took: Duration,
}

impl Cost {
    fn add(&mut self, more: Self) {
        self.requests += more.requests;
        self.cpu += more.cpu;
        self.took += more.took;
    }

    fn cpu_micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.requests as f64
    }

    fn rate(&self) -> f64 {
        self.requests as f64 / self.took.as_secs_f64()
    }
}

/// A server in its own process, which is killed on drop.
struct Subject {
    process: Child,
    address: String,
}

impl Subject {
    fn start(server: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["serve", server])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { process, address: address.trim().to_owned() }
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.process.id())).unwrap()
    }

    /// Returns the resident memory in bytes.
    fn memory(&self) -> u64 {
        let status = self.file("status");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        resident.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    }

    fn cpu(&self) -> Duration {
        let stat = self.file("stat");
        // The program name in parentheses may contain anything. The state and the numbers follow it.
        let (_, numbers) = stat.rsplit_once(')').unwrap();
        let ticks = numbers.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u32>().unwrap());
        TICK * ticks.sum::<u32>()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn serve_with_axum() {
    let listener = listen().await;
    axum::serve(listener, router()).await.unwrap();
}

async fn serve_with_ours() {
    // As in the product: spans are created, and nothing below INFO is written.
    tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_writer(std::io::sink).init();
    let config = Config {
        start_timeout: Duration::from_secs(10),
        drain_delay: Duration::ZERO,
        grace: Duration::from_secs(10),
        restart: base::Backoff::new(Duration::from_millis(100), Duration::from_secs(5)),
    };
    let process = Process::new(config, Metrics::new("0"));
    let server = Server::new(LIMITS, base::Clock::system(), process.metrics());
    let routes = Routes::new(router()).direct("/direct", |request| Box::pin(echo(request)));
    let listener = listen().await;
    let start = async move |process: &mut Process| {
        server.serve(process, Stage::Listeners, "bench", listener, Site::new([], &[]), routes);
        Ok::<(), Infallible>(())
    };
    process.run(Signals::listen().unwrap(), start).await;
}

#[expect(clippy::print_stdout, reason = "the parent process reads it")]
async fn listen() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    listener
}

fn router() -> Router {
    // About as many routes as a listener of the product has.
    let others = (0..30).fold(Router::new(), |router, at| {
        router.route(&format!("/v1/things-{at}/{{id}}"), get(async || "never called"))
    });
    others
        .route("/routed", post(echo))
        .route("/events", get(events))
        .route("/events-by-hyper", get(events_by_hyper))
}

async fn echo(request: Request) -> Response {
    let body = to_bytes(request.into_body(), 1024).await.unwrap();
    Body::from(body).into_response()
}

async fn events() -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let hello = stream::iter([Ok(Event::default().data("hello"))]);
    Sse::new(hello.chain(stream::pending())).keep_alive(KeepAlive::default())
}

/// Responds like [`events`], but with a spelling of the content type that our listener does not recognize, so hyper is kept.
async fn events_by_hyper() -> Response {
    let mut response = events().await.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("Text/Event-Stream"));
    response
}
