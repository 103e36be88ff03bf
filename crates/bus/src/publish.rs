//! Publishing to JetStream.

use std::io::{self, ErrorKind};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::PublishError;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use base::Backoff;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep, timeout_at};

use crate::refusal::Failure;
use crate::{Error, Event, Nats};

/// The backoff between checks for a missing stream or consumer.
pub(crate) const RECHECK: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(200));

/// The outcome of each event of a batch.
struct Outcomes(Vec<PublishOutcome>);

#[derive(Clone)]
enum PublishOutcome {
    /// Not acknowledged yet.
    Open,
    /// No stream received it: the stream does not exist.
    NoStream,
    Done(Result<(), Error>),
}

impl Nats {
    pub(crate) async fn publish(&self, events: &[Event]) -> Vec<Result<(), Error>> {
        let results = self.try_publish(events).await;
        self.state.record(&results);
        results
    }

    async fn try_publish(&self, events: &[Event]) -> Vec<Result<(), Error>> {
        // The client would buffer the events and send them after it reconnects, long after they were reported as failed.
        if self.client.connection_state() == State::Disconnected {
            return vec![Err(Error::unreachable(io::Error::from(ErrorKind::NotConnected))); events.len()];
        }
        let deadline = Instant::now() + self.timeout;
        let mut outcomes = Outcomes(vec![PublishOutcome::Open; events.len()]);
        // Events without an acknowledgement by then stay open.
        let _ = timeout_at(deadline, self.publish_all(events, &mut outcomes)).await;
        outcomes.0.into_iter().map(PublishOutcome::into_result).collect()
    }

    /// Publishes until every event is stored or refused. Creates the stream again if it has vanished.
    async fn publish_all(&self, events: &[Event], outcomes: &mut Outcomes) {
        for failures in 1.. {
            self.send(events, outcomes).await;
            if !outcomes.0.iter().any(|outcome| matches!(outcome, PublishOutcome::NoStream)) {
                return;
            }
            match self.ensure_stream().await {
                Ok(()) if failures == 1 => {}
                // The stream exists but accepts nothing: it is still recovering.
                Ok(()) | Err(Error::Unreachable(_)) => sleep(RECHECK.after(failures)).await,
                Err(error) => {
                    for outcome in
                        outcomes.0.iter_mut().filter(|outcome| matches!(outcome, PublishOutcome::NoStream))
                    {
                        *outcome = PublishOutcome::Done(Err(error.clone()));
                    }
                    return;
                }
            }
        }
    }

    /// Sends the events in order and collects the acknowledgements as they arrive. The JetStream context limits how many are in flight.
    async fn send(&self, events: &[Event], outcomes: &mut Outcomes) {
        let mut acks = FuturesUnordered::new();
        for (at, event) in events.iter().enumerate() {
            if matches!(outcomes.0[at], PublishOutcome::Done(_)) {
                continue;
            }
            let (subject, message) = match self.message(event) {
                Ok(message) => message,
                Err(error) => {
                    outcomes.0[at] = PublishOutcome::Done(Err(error));
                    continue;
                }
            };
            let mut sending = std::pin::pin!(self.jetstream.send_publish(subject, message));
            let sent = loop {
                tokio::select! {
                    biased;
                    Some((at, acknowledged)) = acks.next() => outcomes.0[at] = publish_outcome(acknowledged),
                    sent = &mut sending => break sent,
                }
            };
            match sent {
                Ok(ack) => acks.push(async move { (at, ack.await) }),
                Err(error) => outcomes.0[at] = publish_outcome(Err(error)),
            }
        }
        while let Some((at, acknowledged)) = acks.next().await {
            outcomes.0[at] = publish_outcome(acknowledged);
        }
    }

    fn message(&self, event: &Event) -> Result<(String, PublishMessage), Error> {
        let subject = event.full_subject(&self.stream.prefix)?;
        let mut message = PublishMessage::build()
            .payload(event.encode()?)
            .message_id(event.id.to_string())
            // If our stream is gone, another stream may accept our subjects.
            .expected_stream(&self.stream.name);
        if let Some(trace) = event.trace() {
            message = message.header("traceparent", trace);
        }
        Ok((subject, message))
    }
}

impl PublishOutcome {
    fn into_result(self) -> Result<(), Error> {
        match self {
            Self::Done(result) => result,
            Self::Open => Err(Error::unreachable(io::Error::from(ErrorKind::TimedOut))),
            Self::NoStream => Err(Error::unreachable(io::Error::other("no stream accepts the event"))),
        }
    }
}

/// Treats the acknowledgement of a duplicate as success.
fn publish_outcome(acknowledged: Result<PublishAck, PublishError>) -> PublishOutcome {
    match acknowledged.map_err(Failure::from_error) {
        Ok(_) => PublishOutcome::Done(Ok(())),
        Err(Failure::NoStream) => PublishOutcome::NoStream,
        Err(Failure::Failed(error)) => PublishOutcome::Done(Err(error)),
    }
}
