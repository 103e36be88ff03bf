//! The recovery: records entries that their engine left, copies their assignments, and removes them.
//!
//! It walks through the entries from the oldest to the newest. An entry may have to stay: SQL refuses it, or the server at
//! `assignments_url` is away. It then holds up no entry behind it. Entries that stay are tried again, some in each step.

use std::collections::HashSet;
use std::time::Duration;

use runtime::lifecycle::LoopError;
use runtime::{Drain, fault};
use tokio::time::Instant;

use super::{RECORDED_WITHIN, Recorder};
use crate::store::{Entry, Part, Then};

/// Between two looks of the recovery.
const POLL: Duration = Duration::from_secs(1);
/// How many entries the recovery takes at once. One holds up to some hundred matches.
const AT_ONCE: usize = 32;

/// What one step of the recovery did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Entries that were recorded and removed.
    pub entries: usize,
    /// Entries that stay: they could not be recorded, or their assignments could not be copied.
    pub failed: usize,
    /// Whether the next step is worth doing at once: there may be entries that no step has tried yet, or all that were tried again
    /// succeeded.
    pub more: bool,
}

/// How far the recovery has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The key of the last entry that was tried. None if no entry stays.
    tried: Option<String>,
    /// The key of the last entry that was tried again. None at the start of a round over those that stay.
    retried: Option<String>,
    /// The keys of entries that are recorded, whose players are notified, and whose assignments are not copied yet. SQL is not asked
    /// about them again, and nobody is notified again while the copy fails.
    uncopied: HashSet<String>,
}

impl Recorder {
    /// Records entries that were left, notifies their players and removes them. One step of the recovery.
    pub async fn tick(&self) -> Result<Recovered, LoopError> {
        self.recover(self.recover_after).await
    }

    async fn recover(&self, older_than: Duration) -> Result<Recovered, LoopError> {
        let mut progress = self.progress.lock().await;
        let tried_before = progress.tried.clone();
        let mut recovered = self.try_new(older_than, &mut progress).await?;
        if let Some(last) = tried_before.filter(|_| !recovered.more) {
            let again = self.try_again(older_than, &last, &mut progress).await?;
            if again == Recovered::default() && recovered.failed == 0 {
                *progress = Progress::default();
            }
            recovered.entries += again.entries;
            recovered.failed += again.failed;
            recovered.more = again.more;
        }
        let metrics = &self.rows.metrics;
        metrics.recovered.inc_by(recovered.entries as u64);
        let (entries, bytes) = self.store.unrecorded().await?;
        metrics.unrecorded_entries.set(entries.try_into().unwrap_or(i64::MAX));
        metrics.unrecorded_bytes.set(bytes.try_into().unwrap_or(i64::MAX));
        Ok(recovered)
    }

    /// Tries the entries behind the last one that was tried.
    async fn try_new(&self, older_than: Duration, progress: &mut Progress) -> Result<Recovered, LoopError> {
        let part = Part { after: progress.tried.as_deref(), up_to: None };
        let entries = self.store.take_unrecorded(&self.name, AT_ONCE, older_than, part).await?;
        let mut recovered = self.settle(&entries, progress).await?;
        recovered.more = entries.len() >= AT_ONCE;
        if let Some(last) = entries.last()
            && (recovered.failed > 0 || progress.tried.is_some())
        {
            progress.tried = Some(last.key.clone());
        }
        Ok(recovered)
    }

    /// Tries some of the entries that stayed again, up to the entry `last`. Goes on behind those that it tried before, and begins anew
    /// at the end.
    async fn try_again(
        &self,
        older_than: Duration,
        last: &str,
        progress: &mut Progress,
    ) -> Result<Recovered, LoopError> {
        let take = async |after: Option<&str>| {
            let part = Part { after, up_to: Some(last) };
            self.store.take_unrecorded(&self.name, AT_ONCE, older_than, part).await
        };
        let mut entries = take(progress.retried.as_deref()).await?;
        if entries.is_empty() && progress.retried.take().is_some() {
            entries = take(None).await?;
        }
        let mut recovered = self.settle(&entries, progress).await?;
        recovered.more = !entries.is_empty() && recovered.failed == 0;
        progress.retried = entries.last().map(|entry| entry.key.clone());
        Ok(recovered)
    }

    /// Records entries, notifies their players and removes those that nothing is missing of.
    async fn settle(&self, entries: &[Entry], progress: &mut Progress) -> Result<Recovered, LoopError> {
        if entries.is_empty() {
            return Ok(Recovered::default());
        }
        let is_uncopied = |entry: &&Entry| progress.uncopied.contains(&entry.key);
        let (uncopied, unrecorded): (Vec<&Entry>, Vec<&Entry>) = entries.iter().partition(is_uncopied);
        let [uncopied, unrecorded] =
            [uncopied, unrecorded].map(|some| some.into_iter().cloned().collect::<Vec<Entry>>());

        let is_recorded = self.rows.record(&unrecorded, Instant::now() + RECORDED_WITHIN).await;
        let recorded = unrecorded.into_iter().zip(is_recorded);
        let recorded: Vec<Entry> =
            recorded.filter_map(|(entry, is_recorded)| is_recorded.then_some(entry)).collect();
        fault::point("matchmaking.recovered");
        let removed = self.store.notify(&recorded, Then::Remove).await?;
        let mut gone = removed.len();
        progress.uncopied.extend(recorded.iter().map(|entry| entry.key.clone()));
        for entry in removed {
            progress.uncopied.remove(&entry.key);
        }
        let removed = self.store.notify(&uncopied, Then::RemoveCopied).await?;
        gone += removed.len();
        for entry in removed {
            progress.uncopied.remove(&entry.key);
        }
        Ok(Recovered { entries: gone, failed: entries.len() - gone, more: false })
    }

    /// Recovers until `drain` is requested. Waits after a step that reached the newest entry and leaves entries behind.
    /// Where the tickets end with the process, nothing is left behind at the end.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        while !drain.is_requested() {
            let recovered = self.tick().await?;
            if !recovered.more {
                drain.sleep(POLL).await;
            }
        }
        while self.store.is_embedded() {
            let recovered = self.recover(Duration::ZERO).await?;
            // A step that achieves nothing is the last: with SQL away, each would take up a second of the stop.
            if !recovered.more || recovered.entries == 0 {
                break;
            }
        }
        Ok(())
    }
}
