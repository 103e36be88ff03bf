//! A TCP proxy between a client and its server that injects faults on demand.
//!
//! It has its own thread and runtime: a test that blocks its runtime does not stall it, and it does not depend on the runtime that
//! created it. Because there is only one thread, an acknowledged change applies to every byte that arrives later.

mod connection;
mod pipe;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use url::Url;

use crate::port::{close, free_port};

/// A TCP proxy that injects faults on demand. Dropping it closes its port and all connections.
#[derive(Debug)]
pub struct FaultProxy {
    addr: SocketAddr,
    changes: Option<mpsc::UnboundedSender<ModeChange>>,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

/// The numbers of bytes delivered by all connections so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteCounts {
    /// From clients to the server.
    pub to_server: u64,
    /// From the server to clients.
    pub to_client: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Pass,
    Delay(Duration),
    Bandwidth(u64),
    HalfOpen,
    Cut,
}

/// The mode, with a token that each pipe holds while it applies the mode.
#[derive(Clone, Debug)]
struct ActiveMode {
    mode: Mode,
    _token: mpsc::Sender<()>,
}

#[derive(Debug)]
struct ModeChange {
    mode: Mode,
    done: oneshot::Sender<io::Result<()>>,
}

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicUsize,
    to_server: AtomicU64,
    to_client: AtomicU64,
}

impl FaultProxy {
    /// Starts a proxy to `target` on a free loopback port. It forwards everything at first.
    ///
    /// # Panics
    /// If there is no free port or no thread can be started.
    pub async fn to(target: SocketAddr) -> Self {
        let (changes, inbox) = mpsc::unbounded_channel();
        let (ready, is_ready) = oneshot::channel();
        let counts = Arc::new(Counts::default());
        let counting = Arc::clone(&counts);
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be built").block_on(async move {
                let listener = listen().await.expect("a free port can be bound");
                let addr = listener.local_addr().expect("a listener has an address");
                let _ = ready.send(addr);
                serve(addr, listener, target, inbox, counting).await;
            });
        };
        let thread = std::thread::Builder::new().name("fault-proxy".to_owned()).spawn(work);
        let thread = Some(thread.expect("a thread can be started"));
        let addr = is_ready.await.expect("the proxy starts");
        Self { addr, changes: Some(changes), counts, thread }
    }

    /// Returns the address of the listener.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the URL with host and port replaced by the proxy's.
    ///
    /// # Panics
    /// If `url` is not a URL with a host.
    pub fn url(&self, url: &str) -> String {
        let mut url = Url::parse(url).expect("a URL");
        url.set_host(Some(&self.addr.ip().to_string())).expect("a URL with a host");
        url.set_port(Some(self.addr.port())).expect("a URL with a port");
        url.to_string()
    }

    /// Forwards everything. Resets connections that lost bytes while [`half_open`](Self::half_open), because the lost bytes cannot
    /// be restored.
    pub async fn pass(&self) {
        self.set_mode(Mode::Pass).await;
    }

    /// Resets all connections and refuses new ones.
    pub async fn cut(&self) {
        self.set_mode(Mode::Cut).await;
    }

    /// Forwards everything with this delay in each direction. Throughput stays the same.
    pub async fn delay(&self, delay: Duration) {
        self.set_mode(Mode::Delay(delay)).await;
    }

    /// Drops everything that either side sends, including the ends of connections. Connections stay established and new ones are
    /// accepted, as in a network that loses all packets.
    pub async fn half_open(&self) {
        self.set_mode(Mode::HalfOpen).await;
    }

    /// Limits each direction of each connection to this rate.
    pub async fn bandwidth(&self, bytes_per_second: u64) {
        assert!(bytes_per_second > 0, "the rate must be positive; use half_open() to block all traffic");
        self.set_mode(Mode::Bandwidth(bytes_per_second)).await;
    }

    /// Returns the number of established connections.
    pub fn connections(&self) -> usize {
        self.counts.connections.load(Ordering::Relaxed)
    }

    /// Returns the numbers of delivered bytes.
    pub fn bytes(&self) -> ByteCounts {
        ByteCounts {
            to_server: self.counts.to_server.load(Ordering::Relaxed),
            to_client: self.counts.to_client.load(Ordering::Relaxed),
        }
    }

    async fn set_mode(&self, mode: Mode) {
        let (done, is_done) = oneshot::channel();
        let changes = self.changes.as_ref().expect("the proxy runs until it is dropped");
        changes.send(ModeChange { mode, done }).expect("the proxy runs");
        is_done.await.expect("the proxy answers").expect("the proxy can bind its port again");
    }
}

impl ActiveMode {
    /// Returns the mode and a receiver that ends when the last token is dropped. Nothing is sent over the channel.
    fn new(mode: Mode) -> (Self, mpsc::Receiver<()>) {
        let (token, holders) = mpsc::channel(1);
        (Self { mode, _token: token }, holders)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.changes = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Binds a port outside the ephemeral range, because the port is released while the proxy refuses connections.
async fn listen() -> io::Result<TcpListener> {
    loop {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, free_port()?)).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound,
        }
    }
}

async fn serve(
    addr: SocketAddr,
    listener: TcpListener,
    target: SocketAddr,
    mut inbox: mpsc::UnboundedReceiver<ModeChange>,
    counts: Arc<Counts>,
) {
    let (current, mut active) = ActiveMode::new(Mode::Pass);
    let current = watch::Sender::new(current);
    let mut listener = Some(listener);
    let mut live = JoinSet::new();
    loop {
        tokio::select! {
            change = inbox.recv() => {
                let Some(ModeChange { mode: next, done }) = change else { return };
                if next == Mode::Cut {
                    // Refuses new connections and resets those that are not accepted yet.
                    if let Some(Ok(listener)) = listener.take().map(TcpListener::into_std) {
                        close(listener);
                    }
                }
                let (replacement, acting_now) = ActiveMode::new(next);
                drop(current.send_replace(replacement));
                // Waits until no pipe applies the old mode, so that the change is in effect when it is acknowledged.
                while active.recv().await.is_some() {}
                active = acting_now;
                while next == Mode::Cut && live.join_next().await.is_some() {}
                let mut bound = Ok(());
                if next != Mode::Cut && listener.is_none() {
                    bound = TcpListener::bind(addr).await.map(|again| listener = Some(again));
                }
                let _ = done.send(bound);
            }
            Some(client) = accept(listener.as_ref()) => {
                live.spawn(connection::run(client, target, current.subscribe(), Arc::clone(&counts)));
            }
            Some(_) = live.join_next() => {}
        }
    }
}

/// Accepts the next client. Returns `None` without a listener, which disables the branch of `select!`.
async fn accept(listener: Option<&TcpListener>) -> Option<TcpStream> {
    listener?.accept().await.ok().map(|(client, _)| client)
}
