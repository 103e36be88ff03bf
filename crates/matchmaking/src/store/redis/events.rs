//! Matches that are not recorded in SQL, or whose assignments are not copied yet: a stream of batches. Also notifies
//! their watchers.

use std::time::Duration;

use base::error::chain;
use bytes::Bytes;
use futures::future::join_all;

use super::scripts;
use super::{Redis, is_unreachable};
use crate::error::Error;
use crate::store::{AfterNotify, BatchRange, RECOVERY_LEASE, UnrecordedBatch};

impl Redis {
    pub(in crate::store) async fn notify<'a>(
        &self,
        batches: &'a [UnrecordedBatch],
        after: AfterNotify,
    ) -> Result<Vec<&'a UnrecordedBatch>, Error> {
        let copies = join_all(batches.iter().map(|batch| self.copy_assignments(&batch.matches))).await;
        let (mut removed, mut kept) = (Vec::new(), Vec::new());
        let (mut failed, mut cause) = (0, None);
        for (batch, copied) in batches.iter().zip(copies) {
            match (copied, after) {
                (Ok(()), AfterNotify::Remove | AfterNotify::RemoveCopied) => removed.push(batch),
                (Ok(()), AfterNotify::Keep) => kept.push(batch),
                // The watchers are notified once all the same. The recovery copies the assignments when the server is
                // back.
                (Err(error), after) => {
                    if after != AfterNotify::RemoveCopied {
                        kept.push(batch);
                    }
                    failed += 1;
                    cause = Some(error);
                }
            }
        }
        // One log line for all batches: the cause is the same server.
        if let Some(error) = cause {
            self.metrics.copies_failed.inc_by(failed);
            tracing::warn!(
                outage = "assignments_url",
                cause = chain(&error),
                batches = failed,
                "Cannot copy assignments to matchmaking.assignments_url; the recovery copies them later"
            );
        }
        // Removal comes last, so that no later failure hides which batches were removed.
        self.publish_batches(&kept, "0").await?;
        self.publish_batches(&removed, "1").await?;
        Ok(removed)
    }

    /// Notifies the watchers of these batches. Needs no lock, because it cannot disturb any other step.
    async fn publish_batches(&self, batches: &[&UnrecordedBatch], remove: &str) -> Result<(), Error> {
        if batches.is_empty() {
            return Ok(());
        }
        let mut step = scripts::step(&scripts::NOTIFY, &self.keys, [self.keys.events()], "");
        step.arg(self.keys.assigned_channel()).arg(remove);
        batches.iter().for_each(|batch| step.arg(&batch.key).end());
        let mut published = self.servers.run::<()>(&step).await;
        if is_unreachable(&published) {
            published = self.servers.run(&step).await;
        }
        published
    }

    pub(in crate::store) async fn claim_unrecorded(
        &self,
        consumer: &str,
        max: usize,
        older_than: Duration,
        range: BatchRange<'_>,
    ) -> Result<Vec<UnrecordedBatch>, Error> {
        let keys = [self.keys.events(), self.keys.events_lease()];
        let mut step = scripts::step(&scripts::RECOVER, &self.keys, keys, "");
        step.arg(consumer).arg(max);
        step.arg(older_than.as_millis() as u64).arg(RECOVERY_LEASE.as_millis() as u64);
        step.arg(range.after.unwrap_or_default()).arg(range.up_to.unwrap_or_default());
        let batches: Vec<(String, Bytes)> = self.servers.run(&step).await?;
        Ok(batches.into_iter().map(|(key, matches)| UnrecordedBatch { key, matches }).collect())
    }

    pub(in crate::store) async fn unrecorded_size(&self) -> Result<(u64, u64), Error> {
        let mut both = ::redis::pipe();
        both.cmd("XLEN").arg(self.keys.events());
        both.cmd("MEMORY").arg("USAGE").arg(self.keys.events());
        let (batches, bytes): (u64, Option<u64>) = both.query_async(&mut self.servers.primary()).await?;
        Ok((batches, bytes.filter(|_| batches > 0).unwrap_or_default()))
    }
}
