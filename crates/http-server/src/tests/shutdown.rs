//! Requests while the process stops.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use base::Clock;
use runtime::lifecycle::{Config, Exit, Forced, Signals, Stage};
use runtime::{Drain, Metrics, Process, Readiness};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::{Limits, Middleware, Server, Site};

const CONFIG: Config = Config {
    start_timeout: Duration::from_secs(1),
    drain_delay: Duration::ZERO,
    grace: Duration::from_secs(10),
    restart: base::Backoff::new(Duration::from_millis(100), Duration::from_secs(5)),
};

pub(super) const LIMITS: Limits = Limits {
    header_timeout: Duration::from_secs(30),
    write_timeout: Duration::from_secs(30),
    max_head: 16 * 1024,
    max_streams: 100,
    public_max_streams: 100,
    idle_grace: Duration::ZERO,
    max_connections: 100,
    max_connections_per_address: 0,
    trusted_proxies: Vec::new(),
};

type Started = Result<(), &'static str>;

/// Runs a process that `start` sets up. Returns the sender of its signals, and its exit.
fn run(
    process: Process,
    start: impl AsyncFnOnce(&mut Process) -> Started + 'static,
) -> (UnboundedSender<&'static str>, JoinHandle<Exit<&'static str>>) {
    let (sender, signals) = Signals::channel();
    let local = tokio::task::LocalSet::new();
    let handle = local.spawn_local(process.run(signals, start));
    tokio::task::spawn_local(local);
    (sender, handle)
}

async fn until_ready(readiness: &Readiness) {
    while !readiness.report().is_ready() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn draining_finishes_open_requests_and_refuses_new_ones() {
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let process = Process::new(CONFIG, Metrics::new("0"));
            let readiness = process.readiness().clone();
            let server = Server::new(LIMITS, Clock::system(), process.metrics());
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (release, released) = oneshot::channel::<()>();
            let released = Arc::new(Mutex::new(Some(released)));
            let (entered, has_entered) = oneshot::channel::<()>();
            let entered = Arc::new(Mutex::new(Some(entered)));
            let router = Router::new().route(
                "/slow",
                get(move || {
                    let released = released.lock().unwrap().take().unwrap();
                    entered.lock().unwrap().take().unwrap().send(()).unwrap();
                    async move {
                        released.await.unwrap();
                        "done"
                    }
                }),
            );
            let (signal, exit) = run(process, async move |process| {
                server.serve(process, Stage::Listeners, "gateway", listener, Site::new([], &[]), router);
                Ok(())
            });
            until_ready(&readiness).await;
            let request = tokio::spawn(reqwest::get(format!("http://{address}/slow")));
            has_entered.await.unwrap();
            signal.send("SIGTERM").unwrap();
            // New connections are refused while the open request still waits.
            while TcpStream::connect(address).await.is_ok() {
                tokio::task::yield_now().await;
            }
            assert!(!request.is_finished());
            release.send(()).unwrap();
            let response = request.await.unwrap().unwrap();
            assert_eq!(response.text().await.unwrap(), "done");
            assert!(matches!(exit.await.unwrap(), Exit::Clean));
        })
        .await;
}

/// Returns a router whose handler never responds. The receivers report that the handler was called and that it was dropped.
fn stuck() -> (Router, oneshot::Receiver<()>, oneshot::Receiver<()>) {
    struct Dropped(Option<oneshot::Sender<()>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.take().map(|sender| sender.send(()));
        }
    }
    let (entered, has_entered) = oneshot::channel();
    let (dropped, was_dropped) = oneshot::channel();
    let senders = Arc::new(Mutex::new(Some((entered, Dropped(Some(dropped))))));
    let handler = move || {
        let (entered, dropped) = senders.lock().unwrap().take().unwrap();
        entered.send(()).unwrap();
        async move {
            let _dropped = dropped;
            std::future::pending::<()>().await;
        }
    };
    (Router::new().route("/stuck", get(handler)), has_entered, was_dropped)
}

#[tokio::test]
async fn aborted_handler_is_dropped_before_the_stores_close() {
    for http2 in [false, true] {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async move {
                let config = Config { grace: Duration::from_secs(1), ..CONFIG };
                let process = Process::new(config, Metrics::new("0"));
                let readiness = process.readiness().clone();
                let server = Server::new(LIMITS, Clock::system(), process.metrics());
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = listener.local_addr().unwrap();
                let (router, has_entered, mut was_dropped) = stuck();
                let (closed, was_closed) = oneshot::channel();
                let (signal, exit) = run(process, async move |process| {
                    process.close_at_end("db", async move {
                        closed.send(was_dropped.try_recv().is_ok()).unwrap()
                    });
                    server.serve(process, Stage::Listeners, "gateway", listener, Site::new([], &[]), router);
                    Ok(())
                });
                until_ready(&readiness).await;
                let client = reqwest::Client::builder();
                let client = if http2 { client.http2_prior_knowledge() } else { client }.build().unwrap();
                let request = tokio::spawn(client.get(format!("http://{address}/stuck")).send());
                has_entered.await.unwrap();
                signal.send("SIGTERM").unwrap();
                assert!(was_closed.await.unwrap(), "http2: {http2}");
                let Exit::Forced(Forced::GraceOver(late)) = exit.await.unwrap() else {
                    panic!("expected to be forced")
                };
                assert_eq!(late, ["gateway"]);
                assert!(request.await.unwrap().is_err());
            })
            .await;
    }
}

#[tokio::test]
async fn client_with_half_a_head_or_an_idle_connection_is_disconnected() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits { header_timeout: Duration::from_millis(200), ..LIMITS };
    let drain = Drain::new();
    let routes = Middleware::new(Clock::system(), &Metrics::new("0")).wrap(
        "test",
        Site::new([], &[]),
        Router::new().into(),
    );
    let serving =
        tokio::spawn(crate::serve::serve(listener, routes, limits, drain.clone(), TaskTracker::new()));
    let half = "GET / HTTP/1.1\r\nhost: x\r\n";
    for sent in [half, &format!("{half}\r\n"), "", "PRI * HTTP"] {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(sent.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(5), client.read_to_end(&mut response)).await;
        assert!(ended.is_ok(), "the connection is still open after {sent:?}");
    }
    drain.request();
    tokio::time::timeout(Duration::from_secs(5), serving).await.unwrap().unwrap();
}
