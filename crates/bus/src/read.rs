//! Reading the stream by position, past any consumer.
//!
//! For a reader that keeps its own position in the stream's order. A durable consumer hands out events as its readers ask, so one of
//! them may have later events while another still works on earlier ones.

use async_nats::jetstream::stream::RawMessageErrorKind;
use bytes::Bytes;
use tokio::time::timeout;

use crate::memory::Memory;
use crate::{Bus, Error, Nats};

/// An event as the stream keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Where it stands in the stream.
    pub position: u64,
    /// Without the prefix of all subjects.
    pub subject: String,
    /// A CloudEvent in JSON.
    pub body: Bytes,
}

impl Bus {
    /// Reads the events between two positions, both excluded, oldest first, at most `max` of them. Events that the stream no longer
    /// keeps are left out. On NATS it costs a round trip per event.
    pub async fn read_between(&self, after: u64, before: u64, max: usize) -> Result<Vec<Kept>, Error> {
        match self {
            Self::Memory(memory) => Ok(memory.read_between(after, before, max)),
            Self::Nats(nats) => nats.read_between(after, before, max).await,
        }
    }
}

impl Memory {
    fn read_between(&self, after: u64, before: u64, max: usize) -> Vec<Kept> {
        let events = self.read_after(after, max).into_iter().take_while(|event| event.position < before);
        let kept = events.map(|event| Kept {
            position: event.position,
            subject: below(&event.subject, self.prefix()).to_owned(),
            body: event.body,
        });
        kept.collect()
    }
}

impl Nats {
    async fn read_between(&self, after: u64, before: u64, max: usize) -> Result<Vec<Kept>, Error> {
        let mut kept = Vec::new();
        let mut next = after + 1;
        while next < before && kept.len() < max {
            match self.read_from(next).await? {
                Some(event) if event.position < before => {
                    next = event.position + 1;
                    kept.push(event);
                }
                _ => break,
            }
        }
        Ok(kept)
    }

    /// Reads the first event at this position or behind it.
    async fn read_from(&self, position: u64) -> Result<Option<Kept>, Error> {
        let stream = self.jetstream.get_stream_no_info(&self.stream.name);
        let stream = timeout(self.timeout, stream).await.map_err(Error::unreachable)?;
        let stream = stream.map_err(Error::unreachable)?;
        let request = stream.raw_message_builder().sequence(position).next_by_subject(self.stream.subjects());
        match timeout(self.timeout, request.send()).await.map_err(Error::unreachable)? {
            Ok(message) => Ok(Some(Kept {
                position: message.sequence,
                subject: below(&message.subject, &self.stream.prefix).to_owned(),
                body: message.payload,
            })),
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(Error::unreachable(error)),
        }
    }
}

/// The subject without the prefix of all subjects.
pub(crate) fn below<'a>(subject: &'a str, prefix: &str) -> &'a str {
    subject.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.')).unwrap_or(subject)
}
