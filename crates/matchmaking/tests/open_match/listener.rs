//! A listener that serves Open Match in this process.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use base::Clock;
use http_server::{Limits, Server, Site};
use matchmaking::{Frontend, OpenMatch};
use runtime::Process;
use runtime::lifecycle::{Config, Signals, Stage};
use tokio::net::TcpListener;

const CONFIG: Config = Config {
    start_timeout: Duration::from_secs(10),
    drain_delay: Duration::ZERO,
    grace: Duration::from_secs(10),
    restart: base::Backoff::new(Duration::from_millis(100), Duration::from_secs(5)),
};

const LIMITS: Limits = Limits {
    header_timeout: Duration::from_secs(30),
    write_timeout: Duration::from_secs(30),
    max_head: 16 * 1024,
    max_streams: 1000,
    public_max_streams: 1000,
    idle_grace: Duration::ZERO,
    max_connections: 1000,
    max_connections_per_address: 0,
    trusted_proxies: Vec::new(),
};

/// Serves until it is dropped.
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    stop: tokio::sync::mpsc::UnboundedSender<&'static str>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Listening {
    /// Serves `open_match`, and delivers assignments to the watchers of `frontend`. Pages of these origins may call.
    pub(crate) fn start(open_match: OpenMatch, frontend: Frontend, origins: &[String]) -> Self {
        let origins = origins.to_vec();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, signals) = Signals::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let process = Process::new(CONFIG, runtime::Metrics::new("0"));
            let server = Server::new(LIMITS, Clock::system(), process.metrics());
            let start = async move |process: &mut Process| {
                let listener = TcpListener::from_std(listener).unwrap();
                let (site, routes) = (Site::new([], &origins), open_match.routes());
                server.serve(process, Stage::Listeners, "open_match", listener, site, routes);
                process.supervise("matchmaking-pushes", move |drain| {
                    let frontend = frontend.clone();
                    async move { frontend.run(drain).await }
                });
                Ok::<(), Infallible>(())
            };
            tokio::task::LocalSet::new().block_on(&runtime, process.run(signals, start));
        });
        Self { address, stop, thread: Some(thread) }
    }

    /// Begins to stop.
    pub(crate) fn stop(&self) {
        let _ = self.stop.send("SIGTERM");
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the server panicked");
        }
    }
}
