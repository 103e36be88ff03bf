//! A TCP proxy that misbehaves on demand, to stand between a client and its server.
//!
//! It runs on a thread and a runtime of its own: a test that blocks its runtime does not stall it, and
//! it does not depend on which of several runtimes made it. The thread is single, so an order that has
//! been answered holds for every byte that comes after.

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

/// A TCP proxy that misbehaves on demand. Dropping it closes everything.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    orders: Option<mpsc::UnboundedSender<Order>>,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

/// Bytes that were delivered, by all connections so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
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

/// The mode, and a token that everybody holds on to who still acts according to it.
#[derive(Clone, Debug)]
struct Current {
    mode: Mode,
    _token: mpsc::Sender<()>,
}

#[derive(Debug)]
struct Order {
    mode: Mode,
    done: oneshot::Sender<io::Result<()>>,
}

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicUsize,
    to_server: AtomicU64,
    to_client: AtomicU64,
}

impl Proxy {
    /// A proxy to `target`, on a free port of the loopback interface, that passes everything on.
    ///
    /// # Panics
    /// When it cannot have a port or a thread.
    pub async fn to(target: SocketAddr) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
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
        Self { addr, orders: Some(orders), counts, thread }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The same URL with the proxy as the server.
    ///
    /// # Panics
    /// When it is no URL with a host.
    pub fn url(&self, url: &str) -> String {
        let mut url = Url::parse(url).expect("a URL");
        url.set_host(Some(&self.addr.ip().to_string())).expect("a URL with a host");
        url.set_port(Some(self.addr.port())).expect("a URL with a port");
        url.to_string()
    }

    /// Passes everything on. Connections that have lost bytes to [`half_open`](Self::half_open) are reset:
    /// what they lost cannot be made up for.
    pub async fn pass(&self) {
        self.order(Mode::Pass).await;
    }

    /// Resets all connections and refuses new ones.
    pub async fn cut(&self) {
        self.order(Mode::Cut).await;
    }

    /// Passes everything on, in each direction this much later. Throughput does not suffer.
    pub async fn delay(&self, delay: Duration) {
        self.order(Mode::Delay(delay)).await;
    }

    /// Keeps connections established and accepts new ones, and swallows whatever either side sends, ends
    /// of connections included: what a network does that loses everything.
    pub async fn half_open(&self) {
        self.order(Mode::HalfOpen).await;
    }

    /// Passes on at most so many bytes a second, in each direction of each connection.
    pub async fn bandwidth(&self, bytes_per_second: u64) {
        assert!(bytes_per_second > 0, "no bandwidth at all is half_open()");
        self.order(Mode::Bandwidth(bytes_per_second)).await;
    }

    /// How many connections are established through it now.
    pub fn connections(&self) -> usize {
        self.counts.connections.load(Ordering::Relaxed)
    }

    /// How many bytes have been delivered.
    pub fn bytes(&self) -> Bytes {
        Bytes {
            to_server: self.counts.to_server.load(Ordering::Relaxed),
            to_client: self.counts.to_client.load(Ordering::Relaxed),
        }
    }

    async fn order(&self, mode: Mode) {
        let (done, is_done) = oneshot::channel();
        let orders = self.orders.as_ref().expect("the proxy runs until it is dropped");
        orders.send(Order { mode, done }).expect("the proxy runs");
        is_done.await.expect("the proxy answers").expect("the proxy gets its port again");
    }
}

impl Current {
    /// Nothing is ever sent to the receiver; it ends when the last token is gone.
    fn new(mode: Mode) -> (Self, mpsc::Receiver<()>) {
        let (token, holders) = mpsc::channel(1);
        (Self { mode, _token: token }, holders)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Not on a port that the kernel hands out: while the proxy refuses connections it does not hold it.
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
    mut inbox: mpsc::UnboundedReceiver<Order>,
    counts: Arc<Counts>,
) {
    let (current, mut acting) = Current::new(Mode::Pass);
    let current = watch::Sender::new(current);
    let mut listener = Some(listener);
    let mut live = JoinSet::new();
    loop {
        tokio::select! {
            order = inbox.recv() => {
                let Some(Order { mode: next, done }) = order else { return };
                if next == Mode::Cut {
                    // Refuses from here on, and resets what has not been accepted yet.
                    if let Some(Ok(listener)) = listener.take().map(TcpListener::into_std) {
                        close(listener);
                    }
                }
                let (replacement, acting_now) = Current::new(next);
                drop(current.send_replace(replacement));
                // The answer means that it has been done, not that it will be: no token is held any more.
                while acting.recv().await.is_some() {}
                acting = acting_now;
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

/// The next client; `None`, which `select!` takes for "not this branch", if there is no listener.
async fn accept(listener: Option<&TcpListener>) -> Option<TcpStream> {
    listener?.accept().await.ok().map(|(client, _)| client)
}
