//! HTTP/2 connections, served with h2 directly.
//!
//! Hyper is not used: as soon as the client's window has room for one byte, hyper hands a whole chunk to h2. A client that never
//! opens its window further holds that memory without a limit. Here a response goes to h2 only as far as the window is open, so
//! the data that waits for a client is bounded and subject to a timeout.

mod body_sender;
mod request_body;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::http::header::{CONNECTION, CONTENT_LENGTH, DATE, TE, TRANSFER_ENCODING, UPGRADE};
use ::http::{HeaderMap, HeaderName, HeaderValue, Request};
use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Ping, PingPong, Reason, RecvStream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep, timeout};

use self::body_sender::{BodySender, SendTimeout};
use self::request_body::RequestBody;
use super::serve::Tasks;
use super::{Limits, ListenerRoutes};
use runtime::lifecycle::Drain;

/// The receive window, per request and per connection: the most unread bytes of request bodies.
const RECEIVE_WINDOW: u32 = 1024 * 1024;

/// The most bytes of one response that h2 buffers for a busy socket.
const SEND_BUFFER: usize = 64 * 1024;

/// The most requests that a client may reset before they are accepted, and the most that may be refused for protocol errors. Beyond
/// that the connection is closed, because each costs the client almost nothing. The same as h2's defaults.
const MAX_RESETS: usize = 20;
const MAX_MISTAKES: usize = 1024;

/// The most requests that a client may cancel before they are answered. Beyond that, at most half of its requests may be cancelled.
const MAX_CANCELLED: usize = 100;

/// How long a client may take to answer a ping.
const PONG_TIMEOUT: Duration = Duration::from_secs(20);

/// How often a stopping connection checks whether its requests are finished.
const STOP_CHECK: Duration = Duration::from_millis(100);

/// How long a stopping connection waits for its last responses to be sent, once all requests are finished.
const LAST_BYTES: Duration = Duration::from_secs(3);

/// Headers that HTTP/2 forbids.
const HTTP1_ONLY: [HeaderName; 6] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Answers all requests of a connection.
pub(super) async fn serve<S>(
    socket: S,
    routes: ListenerRoutes,
    limits: Arc<Limits>,
    drain: Drain,
    tasks: Tasks,
) -> Result<(), BoxError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let handshake = timeout(limits.header_timeout, builder(&limits).handshake(socket));
    let mut connection: Connection<S, Bytes> = handshake.await??;
    let mut keep_alive = KeepAlive::new(connection.ping_pong(), limits.header_timeout);
    let mut shutdown = Shutdown::new(&drain, limits.idle_grace);
    let requests = Arc::new(RequestCounts::default());
    let mut is_closing = false;
    std::future::poll_fn(|context| {
        match shutdown.poll(&requests, connection.has_streams(), context) {
            Poll::Ready(ShutdownStep::Announce) => connection.graceful_shutdown(),
            Poll::Ready(ShutdownStep::Close) => return Poll::Ready(Ok(())),
            Poll::Pending => {}
        }
        while let Poll::Ready(accepted) = connection.poll_accept(context) {
            let Some(accepted) = accepted else { return Poll::Ready(Ok(())) };
            let (request, respond) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => return Poll::Ready(Err(error.into())),
            };
            if requests.are_mostly_cancelled() && !is_closing {
                is_closing = true;
                routes.connections().cut.inc();
                connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            }
            let task = RequestTask {
                routes: routes.clone(),
                limits: limits.clone(),
                drain: drain.clone(),
                open: OpenRequest::new(&requests),
            };
            tasks.spawn(task.run(request, respond));
        }
        // After all received data was read, so that a busy machine does not mistake a client for dead.
        if !is_closing && keep_alive.poll(context).is_ready() {
            is_closing = true;
            connection.abrupt_shutdown(Reason::NO_ERROR);
            context.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

fn builder(limits: &Limits) -> Builder {
    let mut builder = Builder::new();
    builder
        .initial_window_size(RECEIVE_WINDOW)
        .initial_connection_window_size(RECEIVE_WINDOW)
        .max_concurrent_streams(limits.max_streams)
        .max_header_list_size(limits.max_head)
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(Some(MAX_MISTAKES));
    builder
}

/// Counts the requests of a connection.
#[derive(Debug, Default)]
struct RequestCounts {
    open: AtomicUsize,
    total: AtomicUsize,
    /// Reset by the client before they were answered.
    cancelled: AtomicUsize,
}

impl RequestCounts {
    /// Returns whether the client cancels most of its requests, as in a rapid-reset attack.
    fn are_mostly_cancelled(&self) -> bool {
        let [total, cancelled] = [&self.total, &self.cancelled].map(|count| count.load(Ordering::Relaxed));
        cancelled > MAX_CANCELLED && cancelled > total / 2
    }
}

/// Counts an open request until it is dropped.
#[derive(Debug)]
struct OpenRequest(Arc<RequestCounts>);

impl OpenRequest {
    fn new(requests: &Arc<RequestCounts>) -> Self {
        requests.total.fetch_add(1, Ordering::Relaxed);
        requests.open.fetch_add(1, Ordering::Relaxed);
        Self(requests.clone())
    }

    fn cancelled(&self) {
        self.0.cancelled.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers one request.
struct RequestTask {
    routes: ListenerRoutes,
    limits: Arc<Limits>,
    drain: Drain,
    open: OpenRequest,
}

impl RequestTask {
    async fn run(self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
        let mut pending = self.routes.answer(request.map(|stream| Body::new(RequestBody::new(stream))));
        let response = std::future::poll_fn(|context| match pending.as_mut().poll(context) {
            Poll::Ready(response) => Poll::Ready(Some(response)),
            // The client has reset the stream or disconnected.
            Poll::Pending => respond.poll_reset(context).map(|_| None),
        });
        let Some(response) = response.await else {
            self.open.cancelled();
            return;
        };
        drop(pending);
        if let Err(error) = self.send(response, respond).await {
            tracing::debug!(cause = base::error::chain(error.as_ref()), "a response was not sent");
        }
    }

    async fn send(&self, response: Response, mut respond: SendResponse<Bytes>) -> Result<(), BoxError> {
        let (mut head, body) = response.into_parts();
        self.complete(&mut head.headers, &body);
        let is_empty = body.is_end_stream();
        let sending = respond.send_response(::http::Response::from_parts(head, ()), is_empty);
        let stream = sending.inspect_err(|_| respond.send_reset(Reason::INTERNAL_ERROR))?;
        if is_empty {
            return Ok(());
        }
        drop(respond);
        let timeout = SendTimeout {
            write_timeout: self.limits.write_timeout,
            drain: self.drain.clone(),
            idle_grace: self.limits.idle_grace,
        };
        BodySender::new(stream, body, timeout, self.routes.connections().streams_reset.clone()).await
    }

    /// Adds the headers of every response, and removes those that HTTP/2 forbids.
    fn complete(&self, headers: &mut HeaderMap, body: &Body) {
        HTTP1_ONLY.iter().for_each(|name| drop(headers.remove(name)));
        headers.entry(DATE).or_insert_with(|| self.routes.date());
        if let Some(length) = body.size_hint().exact().filter(|length| *length > 0) {
            headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
        }
    }
}

/// Pings a client regularly to detect a dead connection.
struct KeepAlive {
    pings: Option<PingPong>,
    every: Duration,
    /// Runs until the next ping is due, or until the pong is late.
    timer: Pin<Box<Sleep>>,
    is_pinged: bool,
}

impl KeepAlive {
    fn new(pings: Option<PingPong>, every: Duration) -> Self {
        Self { pings, every, timer: Box::pin(sleep(every)), is_pinged: false }
    }

    /// Becomes ready when a pong is late.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(pings) = &mut self.pings else { return Poll::Pending };
        loop {
            if self.is_pinged && pings.poll_pong(context).is_ready() {
                self.is_pinged = false;
                self.timer.as_mut().reset(Instant::now() + self.every);
            }
            ready!(self.timer.as_mut().poll(context));
            if self.is_pinged {
                return Poll::Ready(());
            }
            // Fails only if the connection is closing.
            if pings.send_ping(Ping::opaque()).is_err() {
                return Poll::Pending;
            }
            self.is_pinged = true;
            self.timer.as_mut().reset(Instant::now() + PONG_TIMEOUT);
        }
    }
}

/// The next step of a connection when its listener stops.
enum ShutdownStep {
    /// Send GOAWAY, so that the client sends no more requests. Requests in flight are answered.
    Announce,
    /// Close: the client did not react to GOAWAY, and no request is open.
    Close,
}

/// Shuts a connection down when its listener stops.
struct Shutdown<'a> {
    requested: Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>,
    idle_grace: Duration,
    /// Runs from GOAWAY until an idle client is closed.
    timer: Option<Pin<Box<Sleep>>>,
    /// When the last request finished.
    done_since: Option<Instant>,
}

impl<'a> Shutdown<'a> {
    fn new(drain: &'a Drain, idle_grace: Duration) -> Self {
        Self { requested: Some(Box::pin(drain.requested())), idle_grace, timer: None, done_since: None }
    }

    fn poll(
        &mut self,
        requests: &RequestCounts,
        has_streams: bool,
        context: &mut Context<'_>,
    ) -> Poll<ShutdownStep> {
        if let Some(requested) = &mut self.requested {
            ready!(requested.as_mut().poll(context));
            self.requested = None;
            self.timer = Some(Box::pin(sleep(self.idle_grace)));
            // The next poll registers the timer, so it must happen.
            context.waker().wake_by_ref();
            return Poll::Ready(ShutdownStep::Announce);
        }
        let Some(timer) = &mut self.timer else { return Poll::Pending };
        loop {
            ready!(timer.as_mut().poll(context));
            if requests.open.load(Ordering::Relaxed) > 0 {
                self.done_since = None;
            } else {
                let done_since = *self.done_since.get_or_insert_with(Instant::now);
                if !has_streams || done_since.elapsed() >= LAST_BYTES {
                    return Poll::Ready(ShutdownStep::Close);
                }
            }
            timer.as_mut().reset(Instant::now() + STOP_CHECK);
        }
    }
}
