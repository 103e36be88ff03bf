//! Finds events that are already stored, although the stream may have forgotten their ids.
//!
//! The stream dedupes only within its duplicate window. An event that was first published earlier would be stored twice. So the
//! publisher first searches the stream for its id, in the headers of everything stored since. That is cheap when it is needed: after an
//! outage the stream has stored little since the first attempt.

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

use crate::event::is_subject;
use crate::publish_state::LookupResult;
use crate::{Bus, Error, Event, EventId, Nats};

/// The most ids to read for a lookup. They take up about 50 MB.
const MAX_IDS: u64 = 1_000_000;
/// How many headers one request reads.
const BATCH: usize = 5_000;
/// How long ids stay cached for the next lookup.
const CACHE_TTL: Duration = Duration::from_secs(30);

/// A consumer that reads headers and acknowledges nothing.
type HeaderReader = Consumer<pull::Config>;

/// The cached ids by subject. Cheap to clone; clones share state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lookups(Arc<Mutex<HashMap<String, Index>>>);

/// The ids of all events of a subject that were stored since a time.
#[derive(Debug)]
struct Index {
    since: Timestamp,
    /// The next sequence number of the stream to read; 0 before the first read.
    next: u64,
    ids: HashSet<EventId>,
    used: Instant,
}

impl Bus {
    /// Returns how long the bus reliably dedupes an id after an attempt to publish it. This is half of the duplicate window; the other
    /// half allows for clock differences and for the time that publishing takes.
    pub fn dedupe_period(&self) -> Duration {
        match self {
            // Knows the id of every event that it stores.
            Self::Memory(_) => Duration::MAX,
            Self::Nats(nats) => nats.stream.duplicate_window() / 2,
        }
    }

    /// Returns the ids of those events that the stream has stored. Each event comes with the time of its first possible publication.
    ///
    /// Skips a subject for which the stream has stored more than a million events since then, and counts that in the metrics. Such an
    /// event may be stored twice.
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
        // An event whose subject is invalid was never stored, and the server would refuse to search for it.
        for (since, event) in events.iter().filter(|(_, event)| is_subject(&event.subject)) {
            by_subject.entry(&event.subject).or_default().push((*since, event.id));
        }
        let mut found = HashSet::new();
        let mut lookups = self.lookups.0.lock().await;
        lookups.retain(|_, index| index.used.elapsed() < CACHE_TTL);
        for (subject, events) in by_subject {
            let first = events.iter().map(|(since, _)| *since).min().unwrap_or(Timestamp::from_millis(0));
            let margin = millis(self.stream.duplicate_window() / 2);
            let since = Timestamp::from_millis(first.as_millis().saturating_sub(margin).max(0));
            // Removed first, so that an incomplete index does not stay cached.
            let cached = lookups.remove(subject).filter(|index| index.since <= since);
            let mut index = cached.unwrap_or_else(|| Index::new(since));
            if !self.extend_index(subject, &mut index).await? {
                tracing::warn!(
                    subject,
                    events = events.len(),
                    "too many events were stored since to search for duplicates"
                );
                self.state.looked_up(LookupResult::Unchecked, events.len());
                continue;
            }
            let stored = events.iter().filter(|(_, id)| index.ids.contains(id)).count();
            self.state.looked_up(LookupResult::Stored, stored);
            self.state.looked_up(LookupResult::Absent, events.len() - stored);
            found.extend(events.iter().map(|(_, id)| *id).filter(|id| index.ids.contains(id)));
            index.used = Instant::now();
            lookups.insert(subject.to_owned(), index);
        }
        Ok(found)
    }

    /// Adds the ids of events stored since the last read. Returns false if there are too many.
    async fn extend_index(&self, subject: &str, index: &mut Index) -> Result<bool, Error> {
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
            inactive_threshold: CACHE_TTL,
            ..pull::Config::default()
        };
        let created = self.jetstream.create_consumer_on_stream(reader, &self.stream.name);
        let consumer =
            timeout(self.timeout, created).await.map_err(Error::unreachable)?.map_err(Error::unreachable)?;
        let pending = self.pending(&consumer).await?;
        let is_readable = index.ids.len() as u64 + pending <= MAX_IDS;
        if is_readable {
            self.read_ids(&consumer, pending, index).await?;
        }
        // Otherwise the server would remove it only after its inactive threshold.
        let name = &consumer.cached_info().name;
        let removed = self.jetstream.delete_consumer_from_stream(name, &self.stream.name);
        let _ = timeout(self.timeout, removed).await;
        Ok(is_readable)
    }

    /// Returns how many headers there are to read. In a cluster one server's replica serves the reader. Fails if that replica lags, because
    /// its missing events would count as absent.
    async fn pending(&self, reader: &HeaderReader) -> Result<u64, Error> {
        let info = reader.cached_info();
        let Some(server) = info.cluster.as_ref().and_then(|cluster| cluster.leader.as_deref()) else {
            return Ok(info.num_pending);
        };
        let stream = self.find_stream().await?.and_then(|stream| stream.cluster);
        if !stream.is_some_and(|stream| is_current(&stream, server)) {
            return Err(Error::unreachable(io::Error::other(format!("the replica on {server} lags"))));
        }
        // The replica may have lagged when the reader was created.
        let info = timeout(self.timeout, reader.get_info()).await.map_err(Error::unreachable)?;
        Ok(info.map_err(Error::unreachable)?.num_pending)
    }

    async fn read_ids(&self, consumer: &HeaderReader, pending: u64, index: &mut Index) -> Result<(), Error> {
        let mut read = 0;
        while read < pending {
            let read_before = read;
            let batch = usize::try_from(pending - read).unwrap_or(BATCH).min(BATCH);
            let request = consumer.batch().max_messages(batch).expires(self.timeout).messages();
            let response = timeout(self.timeout, request).await.map_err(Error::unreachable)?;
            let mut messages = response.map_err(Error::unreachable)?;
            loop {
                let message = timeout(self.timeout, messages.next()).await.map_err(Error::unreachable)?;
                let Some(message) = message else { break };
                let message = message.map_err(|error| Error::unreachable(io::Error::other(error)))?;
                let info = message.info().map_err(|error| Error::unreachable(io::Error::other(error)))?;
                read += 1;
                // Without acknowledgements a lost message is not delivered again.
                if info.consumer_sequence != read {
                    return Err(Error::unreachable(io::Error::other("headers were lost in transit")));
                }
                index.next = info.stream_sequence + 1;
                let id = message.headers.as_ref().and_then(|headers| headers.get(NATS_MESSAGE_ID));
                index.ids.extend(id.and_then(|id| id.as_str().parse::<EventId>().ok()));
                // There may be fewer than expected: the stream has removed expired events.
                if info.pending == 0 {
                    return Ok(());
                }
            }
            if read == read_before {
                return Err(Error::unreachable(io::Error::other("the server sent no headers")));
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

/// Returns whether a server's replica has everything that the stream has stored, according to the stream's leader.
fn is_current(stream: &ClusterInfo, server: &str) -> bool {
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
    fn lagging_replica_is_not_current() {
        // From NATS, shortened.
        let cluster = r#"{"name":"c","leader":"a","replicas":[
            {"name":"b","current":true,"active":1000},
            {"name":"c","current":false,"active":1000,"lag":7},
            {"name":"d","current":true,"active":1000,"offline":true}]}"#;
        let cluster: ClusterInfo = serde_json::from_str(cluster).unwrap();
        let current: Vec<&str> =
            ["a", "b", "c", "d", "e"].into_iter().filter(|server| is_current(&cluster, server)).collect();
        assert_eq!(current, ["a", "b"]);
    }
}
