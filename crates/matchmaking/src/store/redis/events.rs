//! Matches that are not recorded in SQL or not copied yet: a stream of entries, and the push to their watchers.

use std::time::Duration;

use base::error::chain;
use bytes::Bytes;
use futures::future::join_all;

use super::scripts;
use super::{Redis, is_cut_off};
use crate::error::Error;
use crate::store::{Entry, Part, RECOVERY_LEASE, Then};

impl Redis {
    pub(in crate::store) async fn notify<'a>(
        &self,
        entries: &'a [Entry],
        then: Then,
    ) -> Result<Vec<&'a Entry>, Error> {
        let copies = join_all(entries.iter().map(|entry| self.copy_assignments(&entry.made))).await;
        let (mut removed, mut kept) = (Vec::new(), Vec::new());
        let (mut failed, mut cause) = (0, None);
        for (entry, copied) in entries.iter().zip(copies) {
            match (copied, then) {
                (Ok(()), Then::Remove | Then::RemoveCopied) => removed.push(entry),
                (Ok(()), Then::Keep) => kept.push(entry),
                // The watchers are notified all the same, once. The recovery copies the assignments when the server is back.
                (Err(error), then) => {
                    if then != Then::RemoveCopied {
                        kept.push(entry);
                    }
                    failed += 1;
                    cause = Some(error);
                }
            }
        }
        // One line however many entries there are: the server that is away is the same for all.
        if let Some(error) = cause {
            self.metrics.copies_failed.inc_by(failed);
            tracing::warn!(
                outage = "assignments_url",
                cause = chain(&error),
                entries = failed,
                "assignments are copied later"
            );
        }
        // Removing comes last, so that no failure after it hides what was removed.
        self.push_entries(&kept, "0").await?;
        self.push_entries(&removed, "1").await?;
        Ok(removed)
    }

    /// It needs no lock: no other step can be disturbed by it.
    async fn push_entries(&self, entries: &[&Entry], remove: &str) -> Result<(), Error> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut step = scripts::step(&scripts::NOTIFY, &self.keys, [self.keys.events()], "");
        step.arg(self.keys.assigned_channel()).arg(remove);
        entries.iter().for_each(|entry| step.arg(&entry.key).end());
        let mut pushed = self.servers.run::<()>(&step).await;
        if is_cut_off(&pushed) {
            pushed = self.servers.run(&step).await;
        }
        pushed
    }

    pub(in crate::store) async fn take_unrecorded(
        &self,
        consumer: &str,
        max: usize,
        older_than: Duration,
        part: Part<'_>,
    ) -> Result<Vec<Entry>, Error> {
        let keys = [self.keys.events(), self.keys.events_lease()];
        let mut step = scripts::step(&scripts::RECOVER, &self.keys, keys, "");
        step.arg(consumer).arg(max);
        step.arg(older_than.as_millis() as u64).arg(RECOVERY_LEASE.as_millis() as u64);
        step.arg(part.after.unwrap_or_default()).arg(part.up_to.unwrap_or_default());
        let entries: Vec<(String, Bytes)> = self.servers.run(&step).await?;
        Ok(entries.into_iter().map(|(key, made)| Entry { key, made }).collect())
    }

    pub(in crate::store) async fn unrecorded(&self) -> Result<(u64, u64), Error> {
        let mut both = ::redis::pipe();
        both.cmd("XLEN").arg(self.keys.events());
        both.cmd("MEMORY").arg("USAGE").arg(self.keys.events());
        let (entries, bytes): (u64, Option<u64>) = both.query_async(&mut self.servers.primary()).await?;
        Ok((entries, bytes.filter(|_| entries > 0).unwrap_or_default()))
    }
}
