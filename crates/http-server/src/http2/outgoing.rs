//! The body of an answer.

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

/// How much is read ahead for a client that takes nothing. A source of events goes on being asked, so that it notices by itself when
/// it has to end; and no more than this is kept of what it says.
const READ_AHEAD: usize = 16 * 1024;

/// How much a client has to take within the timeout, unless all is less: a byte now and then is no progress.
const PROGRESS: usize = 16 * 1024;

/// How long an answer waits for its client at least, when the listener stops.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);

/// How long an answer waits for its client.
#[derive(Clone, Debug)]
pub(super) struct Patience {
    pub(super) write_timeout: Duration,
    pub(super) drain: Drain,
    /// The same, once the listener stops.
    pub(super) idle_grace: Duration,
}

impl Patience {
    async fn run_out(self) {
        let Self { write_timeout, drain, idle_grace } = self;
        tokio::select! {
            () = sleep(write_timeout) => {}
            () = drain.requested_since(idle_grace.max(LEAST_PATIENCE)) => {}
        }
    }
}

/// Sends the body of an answer as far as the client's window is open. Resets the stream when the client does not take it.
pub(super) struct Outgoing {
    stream: SendStream<Bytes>,
    /// None when it has been read to its end.
    body: Option<Body>,
    trailers: Option<HeaderMap>,
    /// What was read and not sent.
    waiting: VecDeque<Bytes>,
    waiting_bytes: usize,
    patience: Patience,
    /// Runs while the window is shut.
    timer: Option<BoxFuture<'static, ()>>,
    /// Sent since the timer was started.
    sent: usize,
    resets: Counter,
}

/// The client did not take its answer.
#[derive(Debug, thiserror::Error)]
#[error("the client does not take its answer")]
struct NotTaken;

/// The client does not want its answer any more.
#[derive(Debug, thiserror::Error)]
#[error("the client has reset the stream: {0}")]
struct ResetByClient(Reason);

impl Outgoing {
    pub(super) fn new(stream: SendStream<Bytes>, body: Body, patience: Patience, resets: Counter) -> Self {
        Self {
            stream,
            body: Some(body),
            trailers: None,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            patience,
            timer: None,
            sent: 0,
            resets,
        }
    }

    /// Reads ahead, as far as that is allowed and there is anything.
    fn read(&mut self, context: &mut Context<'_>) -> Result<(), BoxError> {
        while self.waiting_bytes < READ_AHEAD
            && let Some(body) = &mut self.body
        {
            let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(context) else { break };
            let is_over = body.is_end_stream();
            match frame.transpose()?.map(|frame| frame.into_data()) {
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => {
                    self.waiting_bytes += data.len();
                    self.waiting.push_back(data);
                }
                Some(Err(other)) => {
                    self.trailers = other.into_trailers().ok();
                    self.body = None;
                }
                None => self.body = None,
            }
            if is_over {
                self.body = None;
            }
        }
        Ok(())
    }

    /// Sends what waits, as far as the window is open. Ready when nothing waits.
    fn send(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        while let Some(next) = self.waiting.front_mut() {
            self.stream.reserve_capacity(self.waiting_bytes.min(super::SEND_BUFFER));
            let mut room = self.stream.capacity();
            if room == 0 {
                let Some(more) = ready!(self.stream.poll_capacity(context)) else {
                    return Poll::Ready(Err("the stream is closed".into()));
                };
                room = more?;
            }
            let piece = next.split_to(room.min(next.len()));
            if next.is_empty() {
                self.waiting.pop_front();
            }
            self.waiting_bytes -= piece.len();
            self.sent += piece.len();
            let is_last = self.waiting.is_empty() && self.body.is_none() && self.trailers.is_none();
            if self.sent >= PROGRESS || self.waiting.is_empty() {
                self.timer = None;
            }
            self.stream.send_data(piece, is_last)?;
            if is_last {
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the stream after everything was sent, unless the last piece did so.
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
            let had_some = !self.waiting.is_empty();
            if self.send(context)?.is_pending() {
                let patience = &self.patience;
                let timer = self.timer.get_or_insert_with(|| {
                    self.sent = 0;
                    patience.clone().run_out().boxed()
                });
                ready!(timer.as_mut().poll(context));
                self.resets.inc();
                self.stream.send_reset(Reason::CANCEL);
                return Poll::Ready(Err(NotTaken.into()));
            }
            if self.body.is_none() {
                let is_ended = had_some && self.trailers.is_none();
                return Poll::Ready(self.finish(is_ended));
            }
            // Nothing was there: the body wakes us. Else there may be room for more now.
            if !had_some {
                return Poll::Pending;
            }
        }
    }
}

impl Future for Outgoing {
    type Output = Result<(), BoxError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_sent(context)
    }
}
