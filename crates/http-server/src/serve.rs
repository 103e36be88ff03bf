//! The accept loop.
//!
//! Axum's own loop leaks connections when it is aborted, and waits for slow clients without a limit.

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

use super::ListenerRoutes;
use super::connection_limit::{ConnectionLimiter, ConnectionPermit};
use super::open_response::{Handover, OpenResponse};
use super::socket::Socket;
use super::{http1, http2};
use runtime::lifecycle::Drain;

/// The pause after a failed accept, for example because there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The pause between two looks at the first bytes of a connection.
const PEEK_PAUSE: Duration = Duration::from_millis(10);

/// Limits of a listener.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How long a client may take to send the head of a request, and how long a connection may be idle between two requests.
    pub header_timeout: Duration,
    /// How long a write may wait for the client before the connection is closed.
    pub write_timeout: Duration,
    /// The largest head of a request, in bytes; at least 8 KiB.
    pub max_head: u32,
    /// The most open requests on one HTTP/2 connection.
    pub max_streams: u32,
    /// The same on listeners for the public.
    pub public_max_streams: u32,
    /// How long idle connections stay open when the listener stops, for requests that are in flight.
    pub idle_grace: Duration,
    /// The most connections of a listener.
    pub max_connections: u32,
    /// The most connections from one IPv4 address or one IPv6 /64; 0 for no limit.
    pub max_connections_per_address: u32,
    /// Networks that are exempt from the limit per address.
    pub trusted_proxies: Vec<Network>,
}

/// The connection of a request. Every request has it as an extension.
#[derive(Clone, Debug)]
pub struct Connection {
    peer: SocketAddr,
    drain: Drain,
    streams: Arc<AtomicUsize>,
}

impl Connection {
    /// Creates a connection from `peer`, of a listener that stops with `drain`.
    pub fn new(peer: SocketAddr, drain: Drain) -> Self {
        Self { peer, drain, streams: Arc::default() }
    }

    /// Returns the address of the client, or of the proxy in front of it.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the drain of the listener. Streams end when it starts.
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Counts a stream on this connection. Returns none if there are `limit` already.
    pub fn acquire_stream(&self, limit: usize) -> Option<StreamPermit> {
        let permit = StreamPermit(self.streams.clone());
        (permit.0.fetch_add(1, Ordering::Relaxed) < limit).then_some(permit)
    }
}

/// Counts a stream on its connection until it is dropped.
#[derive(Debug)]
pub struct StreamPermit(Arc<AtomicUsize>);

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves until `drain` starts. Then it accepts no more connections and finishes open requests. Dropping this future drops every
/// connection and its handlers; `tracker` waits for that.
pub(crate) async fn serve(
    listener: TcpListener,
    routes: ListenerRoutes,
    limits: Limits,
    drain: Drain,
    tracker: TaskTracker,
) {
    let limiter = ConnectionLimiter::new(
        limits.max_connections,
        limits.max_connections_per_address,
        limits.trusted_proxies.clone(),
        routes.connections().clone(),
    );
    let limits = Arc::new(limits);
    let tasks = Tasks { tracker, stop: CancellationToken::new() };
    let _stop = tasks.stop.clone().drop_guard();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => match limiter.admit(peer.ip()) {
                    Ok(permit) => {
                        let accepted = AcceptedConnection { stream, connection: Connection::new(peer, drain.clone()), permit };
                        tasks.spawn(connection(accepted, routes.clone(), limits.clone(), tasks.clone()));
                    }
                    Err(refusal) => tracing::debug!(%peer, reason = refusal.word(), "refused a connection"),
                },
                Err(error) if is_client_error(&error) => {}
                Err(error) => {
                    tracing::error!(outage = "accept", cause = %error, "cannot accept connections");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            () = drain.requested() => break,
        }
    }
    // Connections that the kernel has already accepted have sent, or are about to send, a request.
    while let Some(Ok((stream, peer))) = listener.accept().now_or_never() {
        if let Ok(permit) = limiter.admit(peer.ip()) {
            let accepted =
                AcceptedConnection { stream, connection: Connection::new(peer, drain.clone()), permit };
            tasks.spawn(connection(accepted, routes.clone(), limits.clone(), tasks.clone()));
        }
    }
    drop(listener);
    tasks.tracker.close();
    tasks.tracker.wait().await;
}

/// An accepted connection, within the limits.
struct AcceptedConnection {
    stream: TcpStream,
    connection: Connection,
    permit: ConnectionPermit,
}

/// Serves a connection. The state for reading requests is boxed, so that it is freed when a response stays open.
fn connection(
    accepted: AcceptedConnection,
    routes: ListenerRoutes,
    limits: Arc<Limits>,
    tasks: Tasks,
) -> impl Future<Output = ()> {
    let AcceptedConnection { stream, connection, permit } = accepted;
    let requests = Box::pin(serve_requests(stream, connection, routes, limits, tasks));
    async move {
        let _permit = permit;
        let ended = match requests.await {
            Ok(Some(open)) => Box::pin(open.write()).await.map_err(Into::into),
            ended => ended.map(drop),
        };
        if let Err(error) = ended {
            tracing::debug!(cause = base::error::chain(error.as_ref()), "connection ended");
        }
    }
}

/// Answers the requests of a connection. Returns early with a response that stays open.
async fn serve_requests(
    stream: TcpStream,
    connection: Connection,
    routes: ListenerRoutes,
    limits: Arc<Limits>,
    tasks: Tasks,
) -> Result<Option<OpenResponse<Socket<TcpStream>>>, BoxError> {
    let drain = connection.drain.clone();
    // Sends a response at once instead of waiting for more data.
    let _ = stream.set_nodelay(true);
    let protocol = tokio::select! {
        detected = timeout(limits.header_timeout, protocol(&stream)) => detected,
        () = drain.requested_since(limits.idle_grace) => return Ok(None),
    };
    let Ok(Ok(protocol)) = protocol else { return Ok(None) };
    let handover = Handover::default();
    let cut = routes.connections().cut.clone();
    let socket = Socket::new(stream, limits.write_timeout, cut, handover.clone());
    let routes = routes.on(connection);
    match protocol {
        Protocol::Http1 => http1::serve(TokioIo::new(socket), routes, handover, &limits, &drain).await,
        Protocol::Http2 => http2::serve(socket, routes, limits, drain, tasks).await.map(|()| None),
    }
}

enum Protocol {
    Http1,
    Http2,
}

/// Waits for enough bytes to distinguish HTTP/1 from HTTP/2.
async fn protocol(stream: &TcpStream) -> io::Result<Protocol> {
    const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut start = [0; HTTP2.len()];
    loop {
        match stream.peek(&mut start).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read if !HTTP2.starts_with(&start[..read]) => return Ok(Protocol::Http1),
            read if read < HTTP2.len() => tokio::time::sleep(PEEK_PAUSE).await,
            _ => return Ok(Protocol::Http2),
        }
    }
}

/// Returns whether the client caused a failed accept.
fn is_client_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Spawns tasks that end together. HTTP/2 has a task per connection and one per request.
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
