//! The accept loop.
//!
//! Ours rather than axum's, which leaves connections behind when it is aborted and waits for slow clients for ever.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::BoxError;
use config::Network;
use futures::FutureExt;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Served;
use super::admission::{Admission, Seat};
use super::lasting::{Handover, OpenAnswer};
use super::socket::Socket;
use super::{http1, http2};
use runtime::lifecycle::Drain;

/// How long to wait when no connection can be accepted, for example because there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long to wait before looking again whether a client has said more.
const MORE: Duration = Duration::from_millis(10);

/// Limits of a listener.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How long a client may take to send the head of a request, and how long a connection may rest between two.
    pub header_timeout: Duration,
    /// How long a client may leave its answer lying before it is cut off.
    pub write_timeout: Duration,
    /// How large the head of a request may be, in bytes; at least 8 KiB.
    pub max_head: u32,
    /// How many requests one HTTP/2 connection may have open.
    pub max_streams: u32,
    /// The same on listeners for the public.
    pub public_max_streams: u32,
    /// How long connections without a request stay open when the listener stops, for requests that are on their way.
    pub idle_grace: Duration,
    /// How many connections a listener may have.
    pub max_connections: u32,
    /// How many of them may be from one address, or from one /64 of IPv6; 0 for any number.
    pub max_connections_per_address: u32,
    /// Whose connections are not counted by address.
    pub trusted_proxies: Vec<Network>,
}

/// The connection that a request came by; every request carries it as an extension.
#[derive(Clone, Debug)]
pub struct Connection {
    peer: SocketAddr,
    drain: Drain,
    held: Arc<AtomicUsize>,
}

impl Connection {
    /// A connection from `peer`, of a listener that stops with `drain`.
    pub fn new(peer: SocketAddr, drain: Drain) -> Self {
        Self { peer, drain, held: Arc::default() }
    }

    /// The other end: the client, or a proxy in front of it.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Tells when the listener stops, for answers that have no end of their own.
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Counts an answer that stays open; none when the connection has `limit` of them already.
    pub fn hold(&self, limit: usize) -> Option<Held> {
        let held = Held(self.held.clone());
        (held.0.fetch_add(1, Ordering::Relaxed) < limit).then_some(held)
    }
}

/// An answer that stays open, until this is dropped.
#[derive(Debug)]
pub struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves until `drain` is requested, then accepts no more and finishes what is open. When this future is dropped, every
/// connection and every handler on it is dropped too; `tracker` tells when.
pub(crate) async fn serve(
    listener: TcpListener,
    served: Served,
    limits: Limits,
    drain: Drain,
    tracker: TaskTracker,
) {
    let admission = Admission::new(
        limits.max_connections,
        limits.max_connections_per_address,
        limits.trusted_proxies.clone(),
        served.connections().clone(),
    );
    let limits = Arc::new(limits);
    let tasks = Tasks { tracker, stop: CancellationToken::new() };
    let _stop = tasks.stop.clone().drop_guard();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => match admission.admit(peer.ip()) {
                    Ok(seat) => {
                        let arrival = Arrival { stream, connection: Connection::new(peer, drain.clone()), seat };
                        tasks.spawn(connection(arrival, served.clone(), limits.clone(), tasks.clone()));
                    }
                    Err(refusal) => tracing::debug!(%peer, reason = refusal.word(), "connection refused"),
                },
                Err(error) if is_of_the_client(&error) => {}
                Err(error) => {
                    tracing::error!(outage = "accept", cause = %error, "no connection can be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            () = drain.requested() => break,
        }
    }
    // Those that the kernel has accepted already have sent, or are about to send, a request.
    while let Some(Ok((stream, peer))) = listener.accept().now_or_never() {
        if let Ok(seat) = admission.admit(peer.ip()) {
            let arrival = Arrival { stream, connection: Connection::new(peer, drain.clone()), seat };
            tasks.spawn(connection(arrival, served.clone(), limits.clone(), tasks.clone()));
        }
    }
    drop(listener);
    tasks.tracker.close();
    tasks.tracker.wait().await;
}

/// A connection that was let in.
struct Arrival {
    stream: TcpStream,
    connection: Connection,
    seat: Seat,
}

/// Serves a connection. What it takes to read requests is in a box of its own, for where an answer stays open it is given back.
fn connection(
    arrival: Arrival,
    served: Served,
    limits: Arc<Limits>,
    tasks: Tasks,
) -> impl Future<Output = ()> {
    let Arrival { stream, connection, seat } = arrival;
    let answering = Box::pin(answered(stream, connection, served, limits, tasks));
    async move {
        let _seat = seat;
        let ended = match answering.await {
            Ok(Some(open)) => Box::pin(open.write()).await.map_err(Into::into),
            ended => ended.map(drop),
        };
        if let Err(error) = ended {
            tracing::debug!(cause = base::error::chain(error.as_ref()), "connection ended");
        }
    }
}

/// Answers all requests of a connection, or until an answer stays open.
async fn answered(
    stream: TcpStream,
    connection: Connection,
    served: Served,
    limits: Arc<Limits>,
    tasks: Tasks,
) -> Result<Option<OpenAnswer<Socket<TcpStream>>>, BoxError> {
    let drain = connection.drain.clone();
    // An answer is written at once, not when the next one comes.
    let _ = stream.set_nodelay(true);
    let protocol = tokio::select! {
        spoken = timeout(limits.header_timeout, protocol(&stream)) => spoken,
        () = drain.requested_since(limits.idle_grace) => return Ok(None),
    };
    let Ok(Ok(protocol)) = protocol else { return Ok(None) };
    let handover = Handover::default();
    let cut = served.connections().cut.clone();
    let socket = Socket::new(stream, limits.write_timeout, cut, handover.clone());
    let served = served.on(connection);
    match protocol {
        Protocol::Http1 => http1::serve(TokioIo::new(socket), served, handover, &limits, &drain).await,
        Protocol::Http2 => http2::serve(socket, served, limits, drain, tasks).await.map(|()| None),
    }
}

enum Protocol {
    Http1,
    Http2,
}

/// Waits until there is enough to tell HTTP/1 from HTTP/2.
async fn protocol(stream: &TcpStream) -> io::Result<Protocol> {
    const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut start = [0; HTTP2.len()];
    loop {
        match stream.peek(&mut start).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            said if !HTTP2.starts_with(&start[..said]) => return Ok(Protocol::Http1),
            said if said < HTTP2.len() => tokio::time::sleep(MORE).await,
            _ => return Ok(Protocol::Http2),
        }
    }
}

fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Starts tasks that end together. HTTP/2 has a task per request beside the one of the connection.
#[derive(Clone)]
pub(super) struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(self.until_stopped(task));
    }

    fn until_stopped<F: Future<Output = ()>>(&self, task: F) -> impl Future<Output = ()> + use<F> {
        let stop = self.stop.clone();
        async move {
            stop.run_until_cancelled(task).await;
        }
    }
}

#[cfg(test)]
mod tests;
