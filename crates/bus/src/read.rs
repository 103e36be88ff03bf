//! Reading the stream by position, without a consumer.
//!
//! For a reader that tracks its own position in the stream. A durable consumer distributes events among its readers, so one reader may
//! have later events while another still handles earlier ones.

use async_nats::jetstream::stream::RawMessageErrorKind;
use bytes::Bytes;
use tokio::time::timeout;

use crate::memory::Memory;
use crate::{Bus, Error, Nats};

/// An event in the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEvent {
    /// Its position in the stream.
    pub position: u64,
    /// Without the prefix `bus.subjects`.
    pub subject: String,
    /// A CloudEvent in JSON.
    pub body: Bytes,
}

impl Bus {
    /// Reads up to `max` events between two exclusive positions, oldest first. Leaves out events that the stream no longer stores. On
    /// NATS it costs a round trip per event.
    pub async fn read_between(&self, after: u64, before: u64, max: usize) -> Result<Vec<StreamEvent>, Error> {
        match self {
            Self::Memory(memory) => Ok(memory.read_between(after, before, max)),
            Self::Nats(nats) => nats.read_between(after, before, max).await,
        }
    }
}

impl Memory {
    fn read_between(&self, after: u64, before: u64, max: usize) -> Vec<StreamEvent> {
        let events = self.read_after(after, max).into_iter().take_while(|event| event.position < before);
        let events = events.map(|event| StreamEvent {
            position: event.position,
            subject: strip_prefix(&event.subject, self.prefix()).to_owned(),
            body: event.body,
        });
        events.collect()
    }
}

impl Nats {
    async fn read_between(&self, after: u64, before: u64, max: usize) -> Result<Vec<StreamEvent>, Error> {
        let mut events = Vec::new();
        let mut next = after + 1;
        while next < before && events.len() < max {
            match self.read_from(next).await? {
                Some(event) if event.position < before => {
                    next = event.position + 1;
                    events.push(event);
                }
                _ => break,
            }
        }
        Ok(events)
    }

    /// Reads the first event at or after this position.
    async fn read_from(&self, position: u64) -> Result<Option<StreamEvent>, Error> {
        let stream = self.jetstream.get_stream_no_info(&self.stream.name);
        let stream = timeout(self.timeout, stream).await.map_err(Error::unreachable)?;
        let stream = stream.map_err(Error::unreachable)?;
        let request = stream.raw_message_builder().sequence(position).next_by_subject(self.stream.subjects());
        match timeout(self.timeout, request.send()).await.map_err(Error::unreachable)? {
            Ok(message) => Ok(Some(StreamEvent {
                position: message.sequence,
                subject: strip_prefix(&message.subject, &self.stream.prefix).to_owned(),
                body: message.payload,
            })),
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(Error::unreachable(error)),
        }
    }
}

/// Returns the subject without the prefix `bus.subjects`.
pub(crate) fn strip_prefix<'a>(subject: &'a str, prefix: &str) -> &'a str {
    subject.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.')).unwrap_or(subject)
}
