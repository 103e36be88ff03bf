//! A connection by HTTP/2, on h2 itself.
//!
//! Not through hyper: as soon as the client's window has room for one byte, hyper gives h2 a whole chunk and forgets it. A client that
//! opens no more of the window then holds that memory for as long as it likes. Here an answer goes to h2 only as far as the window
//! is open, so what waits for a client is known, limited and timed.

mod incoming;
mod outgoing;

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

use self::incoming::Incoming;
use self::outgoing::Outgoing;
use super::serve::Tasks;
use super::{Limits, Served};
use runtime::lifecycle::Drain;

/// How much of request bodies a client may send before they are read: of one request, and of all of a connection.
const RECEIVE_WINDOW: u32 = 1024 * 1024;

/// How much of the answer to one request h2 keeps for a socket that is busy.
const SEND_BUFFER: usize = 64 * 1024;

/// How many requests a client may take back before they were looked at, and how many may be refused for mistakes, before the
/// connection is closed: each costs the client next to nothing. What h2 has by default, to be sure of it.
const MAX_RESETS: usize = 20;
const MAX_MISTAKES: usize = 1024;

/// How many requests a client may take back before they were answered. Beyond that, it may be half of its requests at the most.
const MAX_CANCELLED: usize = 100;

/// How long a client may take to answer a ping.
const PONG_TIMEOUT: Duration = Duration::from_secs(20);

/// How often a connection that is to close looks whether its requests are done.
const STOP_CHECK: Duration = Duration::from_millis(100);

/// How long a connection that is to close waits for its last answers to leave, once nothing is added to them.
const LAST_BYTES: Duration = Duration::from_secs(3);

/// What HTTP/2 has no place for.
const OF_HTTP1: [HeaderName; 6] = [
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
    served: Served,
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
    let mut stopping = Stopping::new(&drain, limits.idle_grace);
    let requests = Arc::new(Requests::default());
    let mut is_closing = false;
    std::future::poll_fn(|context| {
        match stopping.poll(&requests, connection.has_streams(), context) {
            Poll::Ready(Stop::Announce) => connection.graceful_shutdown(),
            Poll::Ready(Stop::Close) => return Poll::Ready(Ok(())),
            Poll::Pending => {}
        }
        while let Poll::Ready(accepted) = connection.poll_accept(context) {
            let Some(accepted) = accepted else { return Poll::Ready(Ok(())) };
            let (request, respond) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => return Poll::Ready(Err(error.into())),
            };
            if requests.are_taken_back() && !is_closing {
                is_closing = true;
                served.connections().cut.inc();
                connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            }
            let answering = Answering {
                served: served.clone(),
                limits: limits.clone(),
                drain: drain.clone(),
                open: Open::new(&requests),
            };
            tasks.spawn(answering.run(request, respond));
        }
        // After everything that has arrived was read: a busy machine does not take a client for gone.
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

/// The requests of a connection, counted.
#[derive(Debug, Default)]
struct Requests {
    open: AtomicUsize,
    all: AtomicUsize,
    /// Taken back before they were answered.
    cancelled: AtomicUsize,
}

impl Requests {
    /// Whether the client asks for work only to take it back.
    fn are_taken_back(&self) -> bool {
        let [all, cancelled] = [&self.all, &self.cancelled].map(|count| count.load(Ordering::Relaxed));
        cancelled > MAX_CANCELLED && cancelled > all / 2
    }
}

/// A request that is being answered, until this is dropped.
#[derive(Debug)]
struct Open(Arc<Requests>);

impl Open {
    fn new(requests: &Arc<Requests>) -> Self {
        requests.all.fetch_add(1, Ordering::Relaxed);
        requests.open.fetch_add(1, Ordering::Relaxed);
        Self(requests.clone())
    }

    fn cancelled(&self) {
        self.0.cancelled.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers one request.
struct Answering {
    served: Served,
    limits: Arc<Limits>,
    drain: Drain,
    open: Open,
}

impl Answering {
    async fn run(self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
        let mut answering = self.served.answer(request.map(|stream| Body::new(Incoming::new(stream))));
        let answered = std::future::poll_fn(|context| match answering.as_mut().poll(context) {
            Poll::Ready(response) => Poll::Ready(Some(response)),
            // The client has taken it back, or is gone.
            Poll::Pending => respond.poll_reset(context).map(|_| None),
        });
        let Some(response) = answered.await else {
            self.open.cancelled();
            return;
        };
        drop(answering);
        if let Err(error) = self.send(response, respond).await {
            tracing::debug!(cause = base::error::chain(error.as_ref()), "an answer was not sent");
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
        let patience = outgoing::Patience {
            write_timeout: self.limits.write_timeout,
            drain: self.drain.clone(),
            idle_grace: self.limits.idle_grace,
        };
        Outgoing::new(stream, body, patience, self.served.connections().streams_reset.clone()).await
    }

    /// Adds what every answer has, and takes out what HTTP/2 has no place for.
    fn complete(&self, headers: &mut HeaderMap, body: &Body) {
        OF_HTTP1.iter().for_each(|name| drop(headers.remove(name)));
        headers.entry(DATE).or_insert_with(|| self.served.date());
        if let Some(length) = body.size_hint().exact().filter(|length| *length > 0) {
            headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
        }
    }
}

/// Finds out whether a client is still there: asks it now and then.
struct KeepAlive {
    pings: Option<PingPong>,
    every: Duration,
    /// Until the next ping, or until the answer to the last one is late.
    timer: Pin<Box<Sleep>>,
    is_asked: bool,
}

impl KeepAlive {
    fn new(pings: Option<PingPong>, every: Duration) -> Self {
        Self { pings, every, timer: Box::pin(sleep(every)), is_asked: false }
    }

    /// Ends when the client is gone.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(pings) = &mut self.pings else { return Poll::Pending };
        loop {
            if self.is_asked && pings.poll_pong(context).is_ready() {
                self.is_asked = false;
                self.timer.as_mut().reset(Instant::now() + self.every);
            }
            ready!(self.timer.as_mut().poll(context));
            if self.is_asked {
                return Poll::Ready(());
            }
            // It fails only where the connection ends anyway.
            if pings.send_ping(Ping::opaque()).is_err() {
                return Poll::Pending;
            }
            self.is_asked = true;
            self.timer.as_mut().reset(Instant::now() + PONG_TIMEOUT);
        }
    }
}

/// What a connection does next when its listener stops.
enum Stop {
    /// Tells the client to send no more requests. Those that are on their way are answered.
    Announce,
    /// Closes: the client has said nothing to the announcement, and nothing of it is open.
    Close,
}

/// Stops with the listener.
struct Stopping<'a> {
    requested: Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>,
    idle_grace: Duration,
    /// Since the announcement: until a client that says nothing to it is given up.
    timer: Option<Pin<Box<Sleep>>>,
    /// Since when nothing is added to its answers.
    done_since: Option<Instant>,
}

impl<'a> Stopping<'a> {
    fn new(drain: &'a Drain, idle_grace: Duration) -> Self {
        Self { requested: Some(Box::pin(drain.requested())), idle_grace, timer: None, done_since: None }
    }

    fn poll(&mut self, requests: &Requests, has_streams: bool, context: &mut Context<'_>) -> Poll<Stop> {
        if let Some(requested) = &mut self.requested {
            ready!(requested.as_mut().poll(context));
            self.requested = None;
            self.timer = Some(Box::pin(sleep(self.idle_grace)));
            // The timer is looked at by the next poll, which has to come.
            context.waker().wake_by_ref();
            return Poll::Ready(Stop::Announce);
        }
        let Some(timer) = &mut self.timer else { return Poll::Pending };
        loop {
            ready!(timer.as_mut().poll(context));
            if requests.open.load(Ordering::Relaxed) > 0 {
                self.done_since = None;
            } else {
                let done_since = *self.done_since.get_or_insert_with(Instant::now);
                if !has_streams || done_since.elapsed() >= LAST_BYTES {
                    return Poll::Ready(Stop::Close);
                }
            }
            timer.as_mut().reset(Instant::now() + STOP_CHECK);
        }
    }
}
