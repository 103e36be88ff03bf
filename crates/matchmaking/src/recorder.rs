//! From the store of tickets to SQL: a match is recorded before its players are notified (docs/adr/0010).
//!
//! An engine hands every entry to its [`Recorder`], which appends it to the outbox; the outbox's relay publishes it from there. An
//! entry that was not recorded in time, because SQL was away or the engine died, stays in the store of tickets. The recovery of any
//! engine process records it later.

mod recovery;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use base::error::{Coded, chain};
use base::id::{ProcessId, Uuid};
use buffa::Message;
use bus::Event;
use db::{Db, Error, Tx};
use futures::FutureExt;
use futures::future::BoxFuture;
use outbox::Outbox;
use proto::playhouse::{MatchMade, MatchesMade};
use runtime::batch::Batcher;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout_at};

use crate::metrics::Metrics;
use crate::model::MatchId;
use crate::store::{Entry, Store};
use crate::{allocation, event, wire};

use self::recovery::Progress;

pub use self::recovery::Recovered;

/// How long players wait for SQL before they are notified of a match that is not recorded.
const RECORDED_WITHIN: Duration = Duration::from_secs(1);
/// Between attempts within that time.
const AGAIN: Duration = Duration::from_millis(50);
/// How old an entry is before the recovery takes it: much longer than its engine needs.
const RECOVER_AFTER: Duration = Duration::from_secs(5);
/// How many entries share a transaction at most.
const RECORDED_AT_ONCE: usize = 64;
/// About how many bytes of events one row holds, and one message to the server.
const ROW: usize = 1 << 20;

/// Records matches.
pub trait Record: Debug + Send + Sync {
    /// Records the matches of an entry. False if that did not succeed in time: then the entry is kept.
    fn record<'a>(&'a self, entry: &'a Entry) -> BoxFuture<'a, bool>;
}

/// Records matches in the outbox, and recovers those that were not. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Recorder {
    store: Store,
    rows: Rows,
    name: Arc<str>,
    /// Entries of settle steps that wait at the same moment share a transaction.
    recording: Batcher<Waiting, bool>,
    recover_after: Duration,
    progress: Arc<Mutex<Progress>>,
}

/// An entry, and until when its engine waits for it.
#[derive(Debug)]
struct Waiting {
    entry: Entry,
    until: Instant,
}

/// Why entries were not written.
#[derive(Debug)]
enum NotWritten {
    /// SQL is away.
    Away(String),
    Refused(Error),
}

/// Writes entries as rows of the outbox.
#[derive(Clone, Debug)]
struct Rows {
    db: Db,
    outbox: Outbox,
    metrics: Metrics,
}

impl Recorder {
    pub fn new(id: ProcessId, store: Store, db: Db, outbox: Outbox, metrics: Metrics) -> Self {
        let rows = Rows { db, outbox, metrics };
        let writing = rows.clone();
        let recording = Batcher::new(1, RECORDED_AT_ONCE, move |waiting: Vec<Waiting>| {
            let rows = writing.clone();
            async move { rows.record_waiting(waiting).await }
        });
        let (name, progress) = (id.to_string().into(), Arc::default());
        Self { store, rows, name, recording, recover_after: RECOVER_AFTER, progress }
    }

    /// The same recorder, whose recovery takes entries that are older than this.
    #[must_use]
    pub fn recovering_after(self, recover_after: Duration) -> Self {
        Self { recover_after, ..self }
    }
}

impl Record for Recorder {
    fn record<'a>(&'a self, entry: &'a Entry) -> BoxFuture<'a, bool> {
        async move {
            let until = Instant::now() + RECORDED_WITHIN;
            let waiting = Waiting { entry: entry.clone(), until };
            let recorded = timeout_at(until, self.recording.run(waiting)).await;
            let is_recorded = recorded.ok().flatten().unwrap_or_default();
            if !is_recorded {
                self.rows.metrics.notified_unrecorded.inc();
                tracing::warn!(
                    outage = "sql",
                    entry = entry.key,
                    "players are notified of matches that are recorded later"
                );
            }
            is_recorded
        }
        .boxed()
    }
}

impl Rows {
    /// Entries whose engine has given up are left to the recovery.
    async fn record_waiting(&self, waiting: Vec<Waiting>) -> Vec<bool> {
        let now = Instant::now();
        let until = waiting.iter().map(|waiting| waiting.until).max().unwrap_or(now);
        let live: Vec<Entry> = waiting
            .iter()
            .filter(|waiting| waiting.until > now)
            .map(|waiting| waiting.entry.clone())
            .collect();
        let mut recorded = self.record(&live, until).await.into_iter();
        let mut outcome = |waiting: &Waiting| waiting.until > now && recorded.next().unwrap_or_default();
        waiting.iter().map(&mut outcome).collect()
    }

    /// Records entries: together, or one by one where that fails because of one of them. Says for each whether it is recorded.
    async fn record(&self, entries: &[Entry], until: Instant) -> Vec<bool> {
        match self.write_until(entries, until).await {
            Ok(()) => return vec![true; entries.len()],
            Err(NotWritten::Away(cause)) => {
                tracing::warn!(outage = "sql", cause, entries = entries.len(), "matches cannot be recorded");
                return vec![false; entries.len()];
            }
            Err(NotWritten::Refused(_)) => {}
        }
        let mut recorded = Vec::with_capacity(entries.len());
        let mut refused = Vec::new();
        for entry in entries {
            recorded.push(match self.write_until(std::slice::from_ref(entry), until).await {
                Ok(()) => true,
                Err(NotWritten::Refused(Error::Duplicate(_))) => self.is_there(entry).await,
                Err(NotWritten::Refused(error)) => {
                    refused.push((&entry.key, error));
                    false
                }
                Err(NotWritten::Away(_)) => false,
            });
        }
        // One line however many entries there are: they are tried again and again.
        if let Some((entry, error)) = refused.first() {
            let entries = refused.len();
            tracing::error!(
                outage = "sql",
                cause = chain(error),
                entry,
                entries,
                "matches cannot be recorded"
            );
        }
        recorded
    }

    /// Whether an earlier attempt succeeded, whose answer was lost.
    async fn is_there(&self, entry: &Entry) -> bool {
        let found = self.outbox.queue().find(row_id(&entry.made, 0)).await;
        matches!(found, Ok(Some(_)))
    }

    /// Tries until it succeeds, is refused, or the time is over.
    async fn write_until(&self, entries: &[Entry], until: Instant) -> Result<(), NotWritten> {
        loop {
            let error = match timeout_at(until, self.write(entries)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => return Err(NotWritten::Away("the database did not answer in time".to_owned())),
            };
            if !error.is_passing() {
                return Err(NotWritten::Refused(error));
            }
            if Instant::now() + AGAIN >= until {
                return Err(NotWritten::Away(chain(&error)));
            }
            sleep(AGAIN).await;
        }
    }

    /// Records entries in one transaction.
    async fn write(&self, entries: &[Entry]) -> Result<(), Error> {
        let mut tx = self.db.begin().await?;
        let (mut matches, mut size) = (0, 0);
        for entry in entries {
            size += entry.made.len();
            if size > ROW {
                tx.write().await?;
                size = entry.made.len();
            }
            matches += self.append(&mut tx, entry);
        }
        tx.commit().await?;
        self.metrics.recorded.inc_by(matches as u64);
        Ok(())
    }

    /// Appends the matches of an entry to the outbox, and what cannot be read as it is. Returns how many matches there are.
    fn append(&self, tx: &mut Tx, entry: &Entry) -> usize {
        let matches = wire::matches_made(&entry.made).filter(|matches| !matches.is_empty());
        let Some(matches) = matches else {
            tracing::error!(
                entry = entry.key,
                "an entry of matches cannot be read: see `playhouse outbox list`"
            );
            self.outbox.append_unreadable(tx, row_id(&entry.made, 0), &entry.made);
            return 0;
        };
        // The servers of these matches are used: nobody has to give them back.
        let allocated = matches.iter().filter(|made| made.is_allocated);
        let allocated: Vec<MatchId> = allocated.filter_map(|made| made.match_id.parse().ok()).collect();
        allocation::forget_in(tx, &allocated);
        let (mut events, mut size, mut row) = (Vec::with_capacity(matches.len()), 0, 0);
        let mut append = |tx: &mut Tx, events: &mut Vec<Event>| {
            self.outbox.append_batch(tx, row_id(&entry.made, row), events);
            row += 1;
            events.clear();
        };
        let mut unreadable = Vec::new();
        for made in &matches {
            match event::event(made) {
                Some(event) => {
                    size += event.data.as_bytes().len();
                    events.push(event);
                }
                None => unreadable.push(made.clone()),
            }
            if size > ROW {
                append(tx, &mut events);
                size = 0;
            }
        }
        if !events.is_empty() {
            append(tx, &mut events);
        }
        self.append_unreadable(tx, unreadable);
        matches.len()
    }

    fn append_unreadable(&self, tx: &mut Tx, matches: Vec<MatchMade>) {
        if matches.is_empty() {
            return;
        }
        tracing::error!(matches = matches.len(), "matches have no id: see `playhouse outbox list`");
        let bytes = MatchesMade { matches, ..Default::default() }.encode_to_vec();
        self.outbox.append_unreadable(tx, row_id(&bytes, 0), &bytes);
    }
}

/// The id of an entry's row: the same however often and by whomever it is recorded. The ids of matches are in the bytes, so no two
/// entries share one.
fn row_id(made: &[u8], row: u32) -> Uuid {
    let digest: [u8; 32] = Sha256::new().chain_update(made).chain_update(row.to_be_bytes()).finalize().into();
    let (id, _) = digest.split_at(16);
    Uuid::from_slice(id).unwrap_or_default()
}
