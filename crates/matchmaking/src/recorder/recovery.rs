//! The recovery: records batches that their engine left behind, copies their assignments, and removes them.
//!
//! It walks through the batches from the oldest to the newest. A batch stays if SQL refuses it, or if the server at
//! `assignments_url` is unreachable. It does not block the batches behind it. Batches that stay are retried, a few in
//! each step.

use std::collections::HashSet;
use std::time::Duration;

use runtime::lifecycle::LoopError;
use runtime::{Drain, fault};
use tokio::time::Instant;

use super::{RECORD_TIMEOUT, Recorder};
use crate::store::{AfterNotify, BatchRange, UnrecordedBatch};

/// The interval between two steps.
const POLL: Duration = Duration::from_secs(1);
/// How many batches one step claims. A batch holds up to a few hundred matches.
const MAX_CLAIM: usize = 32;

/// The result of one step of the recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Batches that were recorded and removed.
    pub batches: usize,
    /// Batches that stay: they could not be recorded, or their assignments could not be copied.
    pub failed: usize,
    /// Whether to run the next step at once: there may be batches that were never tried, or all retries succeeded.
    pub has_more: bool,
}

/// The position of the recovery.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The key of the last batch that was tried. `None` if no batch stays.
    tried: Option<String>,
    /// The key of the last batch that was retried. `None` at the start of a pass over the batches that stay.
    retried: Option<String>,
    /// The keys of batches that are recorded and notified, but whose assignments are not copied yet. They are neither
    /// recorded nor notified again while the copy fails.
    uncopied: HashSet<String>,
}

impl Recorder {
    /// Runs one step of the recovery: records batches left behind, notifies their players and removes them.
    pub async fn tick(&self) -> Result<RecoveryReport, LoopError> {
        self.recover(self.recover_after).await
    }

    async fn recover(&self, older_than: Duration) -> Result<RecoveryReport, LoopError> {
        let mut progress = self.progress.lock().await;
        let tried_before = progress.tried.clone();
        let mut recovered = self.try_new(older_than, &mut progress).await?;
        if let Some(last) = tried_before.filter(|_| !recovered.has_more) {
            let again = self.retry(older_than, &last, &mut progress).await?;
            if again == RecoveryReport::default() && recovered.failed == 0 {
                *progress = Progress::default();
            }
            recovered.batches += again.batches;
            recovered.failed += again.failed;
            recovered.has_more = again.has_more;
        }
        let metrics = &self.writer.metrics;
        metrics.recovered.inc_by(recovered.batches as u64);
        let (batches, bytes) = self.store.unrecorded_size().await?;
        metrics.unrecorded_entries.set(batches.try_into().unwrap_or(i64::MAX));
        metrics.unrecorded_bytes.set(bytes.try_into().unwrap_or(i64::MAX));
        Ok(recovered)
    }

    /// Tries the batches after the last one tried.
    async fn try_new(
        &self,
        older_than: Duration,
        progress: &mut Progress,
    ) -> Result<RecoveryReport, LoopError> {
        let range = BatchRange { after: progress.tried.as_deref(), up_to: None };
        let batches = self.store.claim_unrecorded(&self.name, MAX_CLAIM, older_than, range).await?;
        let mut recovered = self.settle(&batches, progress).await?;
        recovered.has_more = batches.len() >= MAX_CLAIM;
        if let Some(last) = batches.last()
            && (recovered.failed > 0 || progress.tried.is_some())
        {
            progress.tried = Some(last.key.clone());
        }
        Ok(recovered)
    }

    /// Retries some of the batches that stayed, up to the batch `last`. Continues after the last one retried, and
    /// starts over at the end.
    async fn retry(
        &self,
        older_than: Duration,
        last: &str,
        progress: &mut Progress,
    ) -> Result<RecoveryReport, LoopError> {
        let take = async |after: Option<&str>| {
            let range = BatchRange { after, up_to: Some(last) };
            self.store.claim_unrecorded(&self.name, MAX_CLAIM, older_than, range).await
        };
        let mut batches = take(progress.retried.as_deref()).await?;
        if batches.is_empty() && progress.retried.take().is_some() {
            batches = take(None).await?;
        }
        let mut recovered = self.settle(&batches, progress).await?;
        recovered.has_more = !batches.is_empty() && recovered.failed == 0;
        progress.retried = batches.last().map(|batch| batch.key.clone());
        Ok(recovered)
    }

    /// Records batches, notifies their players and removes the batches that are complete.
    async fn settle(
        &self,
        batches: &[UnrecordedBatch],
        progress: &mut Progress,
    ) -> Result<RecoveryReport, LoopError> {
        if batches.is_empty() {
            return Ok(RecoveryReport::default());
        }
        let is_uncopied = |batch: &&UnrecordedBatch| progress.uncopied.contains(&batch.key);
        let (uncopied, unrecorded): (Vec<&UnrecordedBatch>, Vec<&UnrecordedBatch>) =
            batches.iter().partition(is_uncopied);
        let [uncopied, unrecorded] =
            [uncopied, unrecorded].map(|some| some.into_iter().cloned().collect::<Vec<UnrecordedBatch>>());

        let is_recorded = self.writer.record(&unrecorded, Instant::now() + RECORD_TIMEOUT).await;
        let recorded = unrecorded.into_iter().zip(is_recorded);
        let recorded: Vec<UnrecordedBatch> =
            recorded.filter_map(|(batch, is_recorded)| is_recorded.then_some(batch)).collect();
        fault::point("matchmaking.recovered");
        let removed = self.store.notify(&recorded, AfterNotify::Remove).await?;
        let mut gone = removed.len();
        progress.uncopied.extend(recorded.iter().map(|batch| batch.key.clone()));
        for batch in removed {
            progress.uncopied.remove(&batch.key);
        }
        let removed = self.store.notify(&uncopied, AfterNotify::RemoveCopied).await?;
        gone += removed.len();
        for batch in removed {
            progress.uncopied.remove(&batch.key);
        }
        Ok(RecoveryReport { batches: gone, failed: batches.len() - gone, has_more: false })
    }

    /// Recovers until `drain` is requested. Pauses after a step that reached the newest batch and left batches behind.
    /// If the tickets end with the process, nothing is left behind at the end.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        while !drain.is_requested() {
            let recovered = self.tick().await?;
            if !recovered.has_more {
                drain.sleep(POLL).await;
            }
        }
        while self.store.is_embedded() {
            let recovered = self.recover(Duration::ZERO).await?;
            // Stop at a step without progress: with SQL unreachable, each step would delay the shutdown by a second.
            if !recovered.has_more || recovered.batches == 0 {
                break;
            }
        }
        Ok(())
    }
}
