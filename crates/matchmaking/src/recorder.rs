//! Records matches in SQL before their players are notified (docs/adr/0010).
//!
//! An engine hands every batch of matches to its [`Recorder`], which appends it to the outbox. The outbox's relay
//! publishes it from there. A batch that was not recorded in time, because SQL was unreachable or the engine died,
//! stays in the store of tickets. The recovery of any engine process records it later.

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
use runtime::fault;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout_at};

use crate::metrics::Metrics;
use crate::model::MatchId;
use crate::store::{AfterNotify, Store, UnrecordedBatch};
use crate::{allocation, event, wire};

use self::recovery::Progress;

pub use self::recovery::RecoveryReport;

/// How long players wait for SQL before they are notified of a match that is not recorded.
const RECORD_TIMEOUT: Duration = Duration::from_secs(1);
/// The delay between attempts within that time.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// The age at which the recovery claims a batch: much longer than its engine needs.
const RECOVER_AFTER: Duration = Duration::from_secs(5);
/// How many batches share a transaction at most.
const MAX_BATCHES: usize = 64;
/// The approximate number of bytes of events in one row, and in one packet to the server.
const MAX_ROW_BYTES: usize = 1 << 20;

/// Records matches.
pub trait MatchRecorder: Debug + Send + Sync {
    /// Records the matches of a batch. Returns false if that did not succeed in time: the batch is then kept.
    fn record<'a>(&'a self, batch: &'a UnrecordedBatch) -> BoxFuture<'a, bool>;
}

/// Records a batch and notifies its players. On failure the recovery does both; the matches stay assigned.
pub(crate) async fn record_and_notify(
    store: &Store,
    recorder: Option<&dyn MatchRecorder>,
    batch: &UnrecordedBatch,
) {
    let is_recorded = match recorder {
        Some(recorder) => recorder.record(batch).await,
        None => true,
    };
    fault::point("matchmaking.recorded");
    let after = if is_recorded { AfterNotify::Remove } else { AfterNotify::Keep };
    if let Err(error) = store.notify(std::slice::from_ref(batch), after).await {
        tracing::warn!(
            outage = "tickets",
            cause = chain(&error),
            "Cannot notify players; the recovery notifies them later"
        );
    }
    fault::point("matchmaking.notified");
}

/// Records matches in the outbox, and recovers unrecorded ones. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Recorder {
    store: Store,
    writer: OutboxWriter,
    name: Arc<str>,
    /// Batches that wait at the same time share a transaction.
    recording: Batcher<PendingBatch, bool>,
    recover_after: Duration,
    progress: Arc<Mutex<Progress>>,
}

/// A batch, and until when its engine waits for it.
#[derive(Debug)]
struct PendingBatch {
    batch: UnrecordedBatch,
    until: Instant,
}

/// Why batches were not written.
#[derive(Debug)]
enum WriteError {
    /// SQL is unreachable.
    Unavailable(String),
    Refused(Error),
}

/// Writes batches as rows of the outbox.
#[derive(Clone, Debug)]
struct OutboxWriter {
    db: Db,
    outbox: Outbox,
    metrics: Metrics,
}

impl Recorder {
    pub fn new(id: ProcessId, store: Store, db: Db, outbox: Outbox, metrics: Metrics) -> Self {
        let writer = OutboxWriter { db, outbox, metrics };
        let batch_writer = writer.clone();
        let recording = Batcher::new(1, MAX_BATCHES, move |pending: Vec<PendingBatch>| {
            let writer = batch_writer.clone();
            async move { writer.record_pending(pending).await }
        });
        let (name, progress) = (id.to_string().into(), Arc::default());
        Self { store, writer, name, recording, recover_after: RECOVER_AFTER, progress }
    }

    /// Sets the age at which the recovery claims batches.
    #[must_use]
    pub fn with_recover_after(self, recover_after: Duration) -> Self {
        Self { recover_after, ..self }
    }
}

impl MatchRecorder for Recorder {
    fn record<'a>(&'a self, batch: &'a UnrecordedBatch) -> BoxFuture<'a, bool> {
        async move {
            let until = Instant::now() + RECORD_TIMEOUT;
            let pending = PendingBatch { batch: batch.clone(), until };
            let recorded = timeout_at(until, self.recording.run(pending)).await;
            let is_recorded = recorded.ok().flatten().unwrap_or_default();
            if !is_recorded {
                self.writer.metrics.notified_unrecorded.inc();
                tracing::warn!(
                    outage = "sql",
                    batch = batch.key,
                    "Notifying players of matches that are not recorded yet; the recovery records them later"
                );
            }
            is_recorded
        }
        .boxed()
    }
}

impl OutboxWriter {
    /// Records batches whose engine still waits. The recovery records the others.
    async fn record_pending(&self, pending: Vec<PendingBatch>) -> Vec<bool> {
        let now = Instant::now();
        let until = pending.iter().map(|pending| pending.until).max().unwrap_or(now);
        let live: Vec<UnrecordedBatch> = pending
            .iter()
            .filter(|pending| pending.until > now)
            .map(|pending| pending.batch.clone())
            .collect();
        let mut recorded = self.record(&live, until).await.into_iter();
        let mut outcome = |pending: &PendingBatch| pending.until > now && recorded.next().unwrap_or_default();
        pending.iter().map(&mut outcome).collect()
    }

    /// Records batches together, or one by one if one of them is refused. Returns for each whether it is recorded.
    async fn record(&self, batches: &[UnrecordedBatch], until: Instant) -> Vec<bool> {
        match self.write_until(batches, until).await {
            Ok(()) => return vec![true; batches.len()],
            Err(WriteError::Unavailable(cause)) => {
                tracing::warn!(
                    outage = "sql",
                    cause,
                    batches = batches.len(),
                    "Cannot record matches; retrying later"
                );
                return vec![false; batches.len()];
            }
            Err(WriteError::Refused(_)) => {}
        }
        let mut recorded = Vec::with_capacity(batches.len());
        let mut refused = Vec::new();
        for batch in batches {
            recorded.push(match self.write_until(std::slice::from_ref(batch), until).await {
                Ok(()) => true,
                Err(WriteError::Refused(Error::Duplicate(_))) => self.is_already_recorded(batch).await,
                Err(WriteError::Refused(error)) => {
                    refused.push((&batch.key, error));
                    false
                }
                Err(WriteError::Unavailable(_)) => false,
            });
        }
        // One log line for all batches: they are retried again and again.
        if let Some((batch, error)) = refused.first() {
            let batches = refused.len();
            tracing::error!(
                outage = "sql",
                cause = chain(error),
                batch,
                batches,
                "Cannot record matches; retrying later"
            );
        }
        recorded
    }

    /// Returns whether an earlier attempt succeeded whose reply was lost.
    async fn is_already_recorded(&self, batch: &UnrecordedBatch) -> bool {
        let found = self.outbox.queue().find(row_id(&batch.matches, 0)).await;
        matches!(found, Ok(Some(_)))
    }

    /// Retries until the write succeeds or is refused, or until the deadline.
    async fn write_until(&self, batches: &[UnrecordedBatch], until: Instant) -> Result<(), WriteError> {
        loop {
            let error = match timeout_at(until, self.write(batches)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => {
                    return Err(WriteError::Unavailable("the database did not answer in time".to_owned()));
                }
            };
            if !error.is_transient() {
                return Err(WriteError::Refused(error));
            }
            if Instant::now() + RETRY_DELAY >= until {
                return Err(WriteError::Unavailable(chain(&error)));
            }
            sleep(RETRY_DELAY).await;
        }
    }

    /// Records batches in one transaction.
    async fn write(&self, batches: &[UnrecordedBatch]) -> Result<(), Error> {
        let mut tx = self.db.begin().await?;
        let (mut matches, mut size) = (0, 0);
        for batch in batches {
            size += batch.matches.len();
            if size > MAX_ROW_BYTES {
                tx.flush().await?;
                size = batch.matches.len();
            }
            matches += self.append(&mut tx, batch);
        }
        tx.commit().await?;
        self.metrics.recorded.inc_by(matches as u64);
        Ok(())
    }

    /// Appends the matches of a batch to the outbox, and unreadable data as it is. Returns how many matches there are.
    fn append(&self, tx: &mut Tx, batch: &UnrecordedBatch) -> usize {
        let matches = wire::decode_matches(&batch.matches).filter(|matches| !matches.is_empty());
        let Some(matches) = matches else {
            tracing::error!(batch = batch.key, "Cannot read a batch of matches; see `playhouse outbox list`");
            self.outbox.append_unreadable(tx, row_id(&batch.matches, 0), &batch.matches);
            return 0;
        };
        // The servers of these matches are in use, so nothing has to give them back.
        let allocated = matches.iter().filter(|match_| match_.is_allocated);
        let allocated: Vec<MatchId> = allocated.filter_map(|match_| match_.match_id.parse().ok()).collect();
        allocation::delete_rows(tx, &allocated);
        let (mut events, mut size, mut row) = (Vec::with_capacity(matches.len()), 0, 0);
        let mut append = |tx: &mut Tx, events: &mut Vec<Event>| {
            self.outbox.append_batch(tx, row_id(&batch.matches, row), events);
            row += 1;
            events.clear();
        };
        let mut unreadable = Vec::new();
        for match_ in &matches {
            match event::event(match_) {
                Some(event) => {
                    size += event.data.as_bytes().len();
                    events.push(event);
                    if fault::is_planted("matchmaking.double_match") {
                        let again = MatchMade { match_id: MatchId::generate().to_string(), ..match_.clone() };
                        events.extend(event::event(&again));
                    }
                }
                None => unreadable.push(match_.clone()),
            }
            if size > MAX_ROW_BYTES {
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
        tracing::error!(matches = matches.len(), "Some matches have no id; see `playhouse outbox list`");
        let bytes = MatchesMade { matches, ..Default::default() }.encode_to_vec();
        self.outbox.append_unreadable(tx, row_id(&bytes, 0), &bytes);
    }
}

/// Returns the id of a batch's row. It is the same for every attempt and every process. The bytes contain the ids of
/// the matches, so no two batches share one.
fn row_id(matches: &[u8], row: u32) -> Uuid {
    let digest: [u8; 32] =
        Sha256::new().chain_update(matches).chain_update(row.to_be_bytes()).finalize().into();
    let (id, _) = digest.split_at(16);
    Uuid::from_slice(id).unwrap_or_default()
}
