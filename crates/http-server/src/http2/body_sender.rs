//! Sends the body of an HTTP/2 response.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::http::HeaderMap;
use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use futures::FutureExt;
use futures::future::BoxFuture;
use h2::{Reason, SendStream};
use prometheus_client::metrics::counter::Counter;
use runtime::lifecycle::Drain;
use tokio::time::sleep;

/// The most bytes read ahead for a client that reads nothing. A stream of events is still polled, so that it notices by itself when
/// it must end; only this much of it is buffered.
const READ_AHEAD: usize = 16 * 1024;

/// How many bytes a client must accept within the timeout, unless fewer remain. Less does not count as progress.
const MIN_PROGRESS: usize = 16 * 1024;

/// The shortest timeout when the listener stops.
const MIN_STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a response waits for its client to read.
#[derive(Clone, Debug)]
pub(super) struct SendTimeout {
    pub(super) write_timeout: Duration,
    pub(super) drain: Drain,
    /// The timeout once the listener stops.
    pub(super) idle_grace: Duration,
}

impl SendTimeout {
    async fn expire(self) {
        let Self { write_timeout, drain, idle_grace } = self;
        tokio::select! {
            () = sleep(write_timeout) => {}
            () = drain.requested_since(idle_grace.max(MIN_STOP_TIMEOUT)) => {}
        }
    }
}

/// Sends the body of a response as far as the client's window is open. Resets the stream if the client does not read it.
pub(super) struct BodySender {
    stream: SendStream<Bytes>,
    /// None once it is read to its end.
    body: Option<Body>,
    trailers: Option<HeaderMap>,
    /// Chunks that were read but not sent.
    unsent: VecDeque<Bytes>,
    unsent_bytes: usize,
    timeout: SendTimeout,
    /// Runs while the window is closed.
    timer: Option<BoxFuture<'static, ()>>,
    /// Bytes sent since the timer was started.
    sent: usize,
    resets: Counter,
}

/// The client did not read its response in time.
#[derive(Debug, thiserror::Error)]
#[error("the client does not read its response")]
struct ClientStalled;

/// The client cancelled the request.
#[derive(Debug, thiserror::Error)]
#[error("the client has reset the stream: {0}")]
struct ResetByClient(Reason);

impl BodySender {
    pub(super) fn new(stream: SendStream<Bytes>, body: Body, timeout: SendTimeout, resets: Counter) -> Self {
        Self {
            stream,
            body: Some(body),
            trailers: None,
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            timeout,
            timer: None,
            sent: 0,
            resets,
        }
    }

    /// Reads available data ahead, up to the limit.
    fn read(&mut self, context: &mut Context<'_>) -> Result<(), BoxError> {
        while self.unsent_bytes < READ_AHEAD
            && let Some(body) = &mut self.body
        {
            let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(context) else { break };
            let is_end = body.is_end_stream();
            match frame.transpose()?.map(|frame| frame.into_data()) {
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => {
                    self.unsent_bytes += data.len();
                    self.unsent.push_back(data);
                }
                Some(Err(other)) => {
                    self.trailers = other.into_trailers().ok();
                    self.body = None;
                }
                None => self.body = None,
            }
            if is_end {
                self.body = None;
            }
        }
        Ok(())
    }

    /// Sends buffered data as far as the window is open. Ready when nothing is left.
    fn send(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        while let Some(next) = self.unsent.front_mut() {
            self.stream.reserve_capacity(self.unsent_bytes.min(super::SEND_BUFFER));
            let mut room = self.stream.capacity();
            if room == 0 {
                let Some(more) = ready!(self.stream.poll_capacity(context)) else {
                    return Poll::Ready(Err("the stream is closed".into()));
                };
                room = more?;
            }
            let chunk = next.split_to(room.min(next.len()));
            if next.is_empty() {
                self.unsent.pop_front();
            }
            self.unsent_bytes -= chunk.len();
            self.sent += chunk.len();
            let is_last = self.unsent.is_empty() && self.body.is_none() && self.trailers.is_none();
            if self.sent >= MIN_PROGRESS || self.unsent.is_empty() {
                self.timer = None;
            }
            self.stream.send_data(chunk, is_last)?;
            if is_last {
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the stream after all data was sent, unless the last chunk ended it.
    fn finish(&mut self, is_ended: bool) -> Result<(), BoxError> {
        match self.trailers.take() {
            Some(trailers) => self.stream.send_trailers(trailers)?,
            None if is_ended => {}
            None => self.stream.send_data(Bytes::new(), true)?,
        }
        Ok(())
    }

    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        loop {
            if let Poll::Ready(reason) = self.stream.poll_reset(context)? {
                return Poll::Ready(Err(ResetByClient(reason).into()));
            }
            if let Err(error) = self.read(context) {
                self.stream.send_reset(Reason::INTERNAL_ERROR);
                return Poll::Ready(Err(error));
            }
            let had_unsent = !self.unsent.is_empty();
            if self.send(context)?.is_pending() {
                let timeout = &self.timeout;
                let timer = self.timer.get_or_insert_with(|| {
                    self.sent = 0;
                    timeout.clone().expire().boxed()
                });
                ready!(timer.as_mut().poll(context));
                self.resets.inc();
                self.stream.send_reset(Reason::CANCEL);
                return Poll::Ready(Err(ClientStalled.into()));
            }
            if self.body.is_none() {
                let is_ended = had_unsent && self.trailers.is_none();
                return Poll::Ready(self.finish(is_ended));
            }
            // Without unsent data the body wakes this task. Otherwise there may be room to read more.
            if !had_unsent {
                return Poll::Pending;
            }
        }
    }
}

impl Future for BodySender {
    type Output = Result<(), BoxError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_sent(context)
    }
}
