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

/// Between looks for a stream or a consumer that is not there.
pub(crate) const LOOK_AGAIN: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(200));

/// What became of each event of a batch.
struct Results(Vec<Outcome>);

#[derive(Clone)]
enum Outcome {
    /// Not known yet.
    Open,
    /// Nobody took it: the stream is not there.
    Untaken,
    Done(Result<(), Error>),
}

impl Nats {
    pub(crate) async fn publish(&self, events: &[Event]) -> Vec<Result<(), Error>> {
        let results = self.try_publish(events).await;
        self.state.note(&results);
        results
    }

    async fn try_publish(&self, events: &[Event]) -> Vec<Result<(), Error>> {
        // The client would keep the events and send them once it is connected, long after we have said that they failed.
        if self.client.connection_state() == State::Disconnected {
            return vec![Err(Error::unreachable(io::Error::from(ErrorKind::NotConnected))); events.len()];
        }
        let deadline = Instant::now() + self.timeout;
        let mut results = Results(vec![Outcome::Open; events.len()]);
        // What is not known by then stays open.
        let _ = timeout_at(deadline, self.publish_all(events, &mut results)).await;
        results.0.into_iter().map(Outcome::into_result).collect()
    }

    /// Publishes until every event was taken or refused, making the stream anew where it has vanished.
    async fn publish_all(&self, events: &[Event], results: &mut Results) {
        for failures in 1.. {
            self.send(events, results).await;
            if !results.0.iter().any(|outcome| matches!(outcome, Outcome::Untaken)) {
                return;
            }
            match self.ensure_stream().await {
                Ok(()) if failures == 1 => {}
                // It is there and takes nothing: it is still being recovered.
                Ok(()) | Err(Error::Unreachable(_)) => sleep(LOOK_AGAIN.after(failures)).await,
                Err(error) => {
                    for outcome in results.0.iter_mut().filter(|outcome| matches!(outcome, Outcome::Untaken))
                    {
                        *outcome = Outcome::Done(Err(error.clone()));
                    }
                    return;
                }
            }
        }
    }

    /// Sends one event after the other and takes the acknowledgements as they come. How many may be under way at once is
    /// known to the context, which lets the next one wait.
    async fn send(&self, events: &[Event], results: &mut Results) {
        let mut acks = FuturesUnordered::new();
        for (at, event) in events.iter().enumerate() {
            if matches!(results.0[at], Outcome::Done(_)) {
                continue;
            }
            let (subject, message) = match self.message(event) {
                Ok(message) => message,
                Err(error) => {
                    results.0[at] = Outcome::Done(Err(error));
                    continue;
                }
            };
            let mut sending = std::pin::pin!(self.jetstream.send_publish(subject, message));
            let sent = loop {
                tokio::select! {
                    biased;
                    Some((at, acknowledged)) = acks.next() => results.0[at] = outcome(acknowledged),
                    sent = &mut sending => break sent,
                }
            };
            match sent {
                Ok(ack) => acks.push(async move { (at, ack.await) }),
                Err(error) => results.0[at] = outcome(Err(error)),
            }
        }
        while let Some((at, acknowledged)) = acks.next().await {
            results.0[at] = outcome(acknowledged);
        }
    }

    fn message(&self, event: &Event) -> Result<(String, PublishMessage), Error> {
        let subject = event.full_subject(&self.stream.prefix)?;
        let mut message = PublishMessage::build()
            .payload(event.encode()?)
            .message_id(event.id.to_string())
            // Where our stream is gone another may take our subjects.
            .expected_stream(&self.stream.name);
        if let Some(trace) = event.trace() {
            message = message.header("traceparent", trace);
        }
        Ok((subject, message))
    }
}

impl Outcome {
    fn into_result(self) -> Result<(), Error> {
        match self {
            Self::Done(result) => result,
            Self::Open => Err(Error::unreachable(io::Error::from(ErrorKind::TimedOut))),
            Self::Untaken => Err(Error::unreachable(io::Error::other("the stream takes nothing"))),
        }
    }
}

/// An acknowledgement of something that was stored before is as good as any.
fn outcome(acknowledged: Result<PublishAck, PublishError>) -> Outcome {
    match acknowledged.map_err(Failure::of) {
        Ok(_) => Outcome::Done(Ok(())),
        Err(Failure::Untaken) => Outcome::Untaken,
        Err(Failure::Failed(error)) => Outcome::Done(Err(error)),
    }
}
