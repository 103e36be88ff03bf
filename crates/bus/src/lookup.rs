//! Finding out whether an event is stored whose id the stream may have forgotten.
//!
//! The stream drops a repeat within its duplicate window. An event that was first published before that, and is published again, would be stored
//! twice. So its publisher looks for its id in the stream first, among the headers of what was stored since. That is cheap where it is
//! needed: after an outage the stream has stored little since the first attempt.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::consumer::{AckPolicy, Consumer, DeliverPolicy, pull};
use async_nats::jetstream::stream::ClusterInfo;
use base::Timestamp;
use futures::StreamExt;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::publish_state::LookedUp;
use crate::{Bus, Error, Event, EventId, Nats};

/// Beyond this many events since the first attempt nothing is looked up: the ids of as many take up about 50 MB.
const MOST: u64 = 1_000_000;
/// How many headers are read at once.
const AT_ONCE: usize = 5_000;
/// For how long the ids that were read are kept for the next lookup.
const KEPT: Duration = Duration::from_secs(30);

/// Reads headers, and acknowledges nothing.
type Reader = Consumer<pull::Config>;

/// The ids that were read lately, by subject. Cheap to clone; clones share state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lookups(Arc<Mutex<HashMap<String, Index>>>);

/// The ids of all events of a subject that were stored since a time.
#[derive(Debug)]
struct Index {
    since: Timestamp,
    /// The stream's sequence number up to which it is complete, this one excluded; 0 before the first read.
    next: u64,
    ids: HashSet<EventId>,
    used: Instant,
}

impl Bus {
    /// How old an attempt may be for the bus to be sure that it still knows its id. Half of the duplicate window: the other half is
    /// for clocks that differ, and for the time that publishing takes.
    pub fn remembers_for(&self) -> Duration {
        match self {
            // Remembers every event that it keeps.
            Self::Memory(_) => Duration::MAX,
            Self::Nats(nats) => nats.stream.duplicate_window() / 2,
        }
    }

    /// Finds those of the events that the stream has stored since they may have been published first.
    ///
    /// Where the stream has stored more than a million events of a subject since then it does not look, and counts that: such an event
    /// may be stored twice.
    pub async fn find_stored(&self, events: &[(Timestamp, &Event)]) -> Result<HashSet<EventId>, Error> {
        match self {
            Self::Memory(_) => Ok(HashSet::new()),
            Self::Nats(nats) => nats.find_stored(events).await,
        }
    }
}

impl Nats {
    async fn find_stored(&self, events: &[(Timestamp, &Event)]) -> Result<HashSet<EventId>, Error> {
        let mut by_subject: BTreeMap<&str, Vec<(Timestamp, EventId)>> = BTreeMap::new();
        for (since, event) in events {
            by_subject.entry(&event.subject).or_default().push((*since, event.id));
        }
        let mut found = HashSet::new();
        let mut lookups = self.lookups.0.lock().await;
        lookups.retain(|_, index| index.used.elapsed() < KEPT);
        for (subject, events) in by_subject {
            let first = events.iter().map(|(since, _)| *since).min().unwrap_or(Timestamp::from_millis(0));
            let margin = millis(self.stream.duplicate_window() / 2);
            let since = Timestamp::from_millis(first.as_millis().saturating_sub(margin).max(0));
            // Taken out, so that an index that could not be completed is not kept.
            let known = lookups.remove(subject).filter(|index| index.since <= since);
            let mut index = known.unwrap_or_else(|| Index::new(since));
            if !self.read_on(subject, &mut index).await? {
                tracing::warn!(
                    subject,
                    events = events.len(),
                    "too much was stored since to look for repeats"
                );
                self.state.looked_up(LookedUp::Unchecked, events.len());
                continue;
            }
            let stored = events.iter().filter(|(_, id)| index.ids.contains(id)).count();
            self.state.looked_up(LookedUp::Stored, stored);
            self.state.looked_up(LookedUp::Absent, events.len() - stored);
            found.extend(events.iter().map(|(_, id)| *id).filter(|id| index.ids.contains(id)));
            index.used = Instant::now();
            lookups.insert(subject.to_owned(), index);
        }
        Ok(found)
    }

    /// Reads the ids of what was stored since the last read. False if there are too many.
    async fn read_on(&self, subject: &str, index: &mut Index) -> Result<bool, Error> {
        let deliver_policy = match index.next {
            0 => DeliverPolicy::ByStartTime {
                start_time: async_nats::datetime::from_nanos(i128::from(index.since.as_millis()) * 1_000_000)
                    .map_err(|error| Error::unreachable(io::Error::other(error)))?,
            },
            start_sequence => DeliverPolicy::ByStartSequence { start_sequence },
        };
        let reader = pull::Config {
            deliver_policy,
            ack_policy: AckPolicy::None,
            filter_subject: format!("{}.{subject}", self.stream.prefix),
            headers_only: true,
            memory_storage: true,
            num_replicas: 1,
            inactive_threshold: KEPT,
            ..pull::Config::default()
        };
        let created = self.jetstream.create_consumer_on_stream(reader, &self.stream.name);
        let consumer =
            timeout(self.timeout, created).await.map_err(Error::unreachable)?.map_err(Error::unreachable)?;
        let pending = self.pending(&consumer).await?;
        let is_readable = index.ids.len() as u64 + pending <= MOST;
        if is_readable {
            self.read_ids(&consumer, pending, index).await?;
        }
        // It would go by itself, a little later.
        let name = &consumer.cached_info().name;
        let removed = self.jetstream.delete_consumer_from_stream(name, &self.stream.name);
        let _ = timeout(self.timeout, removed).await;
        Ok(is_readable)
    }

    /// How many headers there are to read. In a cluster the reader is served from the copy of one server, which may be behind: then what
    /// it lacks would be taken for absent.
    async fn pending(&self, reader: &Reader) -> Result<u64, Error> {
        let info = reader.cached_info();
        let Some(server) = info.cluster.as_ref().and_then(|cluster| cluster.leader.as_deref()) else {
            return Ok(info.num_pending);
        };
        let stream = self.find_stream().await?.and_then(|stream| stream.cluster);
        if !stream.is_some_and(|stream| has_all(&stream, server)) {
            return Err(Error::unreachable(io::Error::other(format!("the copy of {server} is behind"))));
        }
        // It may have been behind when the reader was made.
        let info = timeout(self.timeout, reader.get_info()).await.map_err(Error::unreachable)?;
        Ok(info.map_err(Error::unreachable)?.num_pending)
    }

    async fn read_ids(&self, consumer: &Reader, pending: u64, index: &mut Index) -> Result<(), Error> {
        let mut read = 0;
        while read < pending {
            let read_before = read;
            let batch = usize::try_from(pending - read).unwrap_or(AT_ONCE).min(AT_ONCE);
            let asked = consumer.batch().max_messages(batch).expires(self.timeout).messages();
            let asked = timeout(self.timeout, asked).await.map_err(Error::unreachable)?;
            let mut messages = asked.map_err(Error::unreachable)?;
            loop {
                let message = timeout(self.timeout, messages.next()).await.map_err(Error::unreachable)?;
                let Some(message) = message else { break };
                let message = message.map_err(|error| Error::unreachable(io::Error::other(error)))?;
                let info = message.info().map_err(|error| Error::unreachable(io::Error::other(error)))?;
                read += 1;
                // Nothing is acknowledged, so nothing that was lost on the way comes again.
                if info.consumer_sequence != read {
                    return Err(Error::unreachable(io::Error::other("headers were lost on the way")));
                }
                index.next = info.stream_sequence + 1;
                let id = message.headers.as_ref().and_then(|headers| headers.get(NATS_MESSAGE_ID));
                index.ids.extend(id.and_then(|id| id.as_str().parse::<EventId>().ok()));
                // Fewer than there were: the stream has removed what is too old.
                if info.pending == 0 {
                    return Ok(());
                }
            }
            if read == read_before {
                return Err(Error::unreachable(io::Error::other("no headers came")));
            }
        }
        Ok(())
    }
}

impl Index {
    fn new(since: Timestamp) -> Self {
        Self { since, next: 0, ids: HashSet::new(), used: Instant::now() }
    }
}

/// Whether a server has everything that the stream has stored, as the stream's leader sees it.
fn has_all(stream: &ClusterInfo, server: &str) -> bool {
    stream.leader.as_deref() == Some(server)
        || stream.replicas.iter().any(|peer| peer.name == server && peer.current && !peer.offline)
}

fn millis(duration: Duration) -> i64 {
    duration.as_millis().try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_behind_does_not_say_what_is_absent() {
        // As NATS writes it, shortened.
        let cluster = r#"{"name":"c","leader":"a","replicas":[
            {"name":"b","current":true,"active":1000},
            {"name":"c","current":false,"active":1000,"lag":7},
            {"name":"d","current":true,"active":1000,"offline":true}]}"#;
        let cluster: ClusterInfo = serde_json::from_str(cluster).unwrap();
        let have: Vec<&str> =
            ["a", "b", "c", "d", "e"].into_iter().filter(|server| has_all(&cluster, server)).collect();
        assert_eq!(have, ["a", "b"]);
    }
}
