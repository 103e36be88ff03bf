//! The reconciler: compares lines in Redis with SQL and repairs them.

use std::collections::{HashMap, HashSet};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use account::UserId;
use base::error::Coded;
use base::{Code, Timestamp};
use runtime::fault;

use super::{Room, RoomInner};
use crate::DropId;
use crate::error::Error;
use crate::line::{CHUNK, FillLeaseLost};
use crate::model::{LineMember, Place};
use crate::store;

/// How many rows are read from SQL per page.
const PAGE: u32 = 5_000;
/// How long a process may go without progress before another one may take over the fill.
const LEASE: Duration = Duration::from_secs(10);
/// How far back a process looks, at its first cycle of a drop, for players that other processes have admitted but left in the line. The
/// reconciler finds older ones.
const FIRST_SWEEP_MS: i64 = 60_000;

/// The differences that a reconciliation found and repaired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReconcileReport {
    /// Players who wait and were not in the line.
    pub missing: u64,
    /// Players in the line who do not wait.
    pub stale: u64,
    /// Players who had a wrong place in the line.
    pub moved: u64,
    /// Lines that were filled from SQL.
    pub rebuilt: u64,
}

impl Room {
    /// Compares the lines of all drops with SQL and repairs them. Rebuilds lines without an epoch and removes those of drops that have
    /// ended. Any number of processes may do this at once.
    ///
    /// A failing drop does not delay the others. Its error is logged and counted. The first error is returned at the end.
    pub async fn reconcile(&self) -> Result<ReconcileReport, Error> {
        let db = &self.inner.drops.db;
        let (mut all, mut failed) = (ReconcileReport::default(), None);
        for drop in store::drops_with_lines(db).await? {
            match self.reconcile_drop(drop).await {
                Ok(one) => {
                    all.missing += one.missing;
                    all.stale += one.stale;
                    all.moved += one.moved;
                    all.rebuilt += one.rebuilt;
                }
                // A store is unreachable: the other drops would fail, too.
                Err(error) if error.code() == Code::Unavailable => return Err(error),
                Err(error) => {
                    self.inner.failed("reconcile", drop, &error);
                    failed.get_or_insert(error);
                }
            }
        }
        self.inner.remove_lines().await?;
        store::prune_erased(db).await?;
        failed.map_or(Ok(all), Err)
    }

    /// Compares the line of one drop with SQL and repairs it, or rebuilds it if it has no epoch.
    pub async fn reconcile_drop(&self, drop: DropId) -> Result<ReconcileReport, Error> {
        let report = if self.inner.line.epoch(drop).await?.is_none() {
            let rebuilt = self.inner.rebuild(drop).await?.is_some();
            ReconcileReport { rebuilt: rebuilt.into(), ..ReconcileReport::default() }
        } else {
            self.inner.compare(drop).await?
        };
        self.inner.metrics.repaired(&report);
        Ok(report)
    }

    /// Fills the line of a drop from SQL, in order. Returns how many players wait, or none while another process fills the line. The line
    /// of a drop that has ended is removed instead.
    pub async fn rebuild(&self, drop: DropId) -> Result<Option<u64>, Error> {
        if self.inner.drops.get(drop).await?.state.is_final() {
            self.inner.line.clear(drop).await?;
            return Ok(Some(0));
        }
        let filled = self.inner.rebuild(drop).await?;
        self.inner
            .metrics
            .repaired(&ReconcileReport { rebuilt: filled.is_some().into(), ..ReconcileReport::default() });
        Ok(filled)
    }
}

impl RoomInner {
    pub(super) async fn rebuild(&self, drop: DropId) -> Result<Option<u64>, Error> {
        let Some(fill_token) = self.line.begin_filling(drop, LEASE).await? else { return Ok(None) };
        fault::point("drops.rebuild.begun");
        // Joins and leaves continue meanwhile. A join that commits after its page was read is copied to the line by its own process, which
        // happens after the line was emptied.
        let (mut after, mut filled) = (None, 0);
        loop {
            let page = self.page(drop, after).await?;
            if let Err(FillLeaseLost) = self.line.fill(drop, fill_token, &page, LEASE).await? {
                return Ok(None);
            }
            fault::point("drops.rebuild.filled");
            filled += page.len() as u64;
            after = page.last().copied();
            if page.len() < PAGE as usize {
                break;
            }
        }
        Ok(self.line.finish_filling(drop, fill_token).await?.ok().map(|_| filled))
    }

    /// Compares page by page: the rows of a page with the section of the line up to the page's last row.
    async fn compare(&self, drop: DropId) -> Result<ReconcileReport, Error> {
        let mut report = ReconcileReport::default();
        let mut after: Option<LineMember> = None;
        loop {
            let page = self.page(drop, after).await?;
            let end = page.last().copied().filter(|_| page.len() == PAGE as usize);
            let line_section = self.line_section(drop, after, end).await?;
            let (rows, copy): (HashSet<LineMember>, HashSet<LineMember>) =
                (page.into_iter().collect(), line_section.into_iter().collect());
            self.repair(drop, rows.symmetric_difference(&copy).copied(), &copy, &mut report).await?;
            if end.is_none() {
                return Ok(report);
            }
            after = end;
        }
    }

    async fn page(&self, drop: DropId, after: Option<LineMember>) -> Result<Vec<LineMember>, Error> {
        let db = &self.drops.db;
        let reading =
            async { store::waiting_after(db, &mut db.connection().await?, drop, after, PAGE).await };
        Ok(db.bounded(reading).await?)
    }

    /// Reads the part of the line behind `after` and up to `end`.
    async fn line_section(
        &self,
        drop: DropId,
        after: Option<LineMember>,
        end: Option<LineMember>,
    ) -> Result<Vec<LineMember>, Error> {
        let (mut section, mut after) = (Vec::new(), after);
        loop {
            let next = self.line.after(drop, after, CHUNK).await?;
            let is_last = next.len() < CHUNK;
            let within = next.iter().copied().filter(|member| end.is_none_or(|end| *member <= end));
            section.extend(within);
            after = next.last().copied();
            if is_last || after > end && end.is_some() {
                return Ok(section);
            }
        }
    }

    /// Repairs the line where it differs from the rows. Reads the rows of these players again first, since either may have just changed.
    async fn repair(
        &self,
        drop: DropId,
        different: impl Iterator<Item = LineMember>,
        copy: &HashSet<LineMember>,
        report: &mut ReconcileReport,
    ) -> Result<(), Error> {
        let mut users: Vec<UserId> = different.map(|member| member.user).collect();
        if users.is_empty() {
            return Ok(());
        }
        users.sort_unstable();
        users.dedup();
        let db = &self.drops.db;
        let reading = async { store::waiting_among(db, &mut db.connection().await?, drop, &users).await };
        let waiting: HashMap<UserId, Place> =
            db.bounded(reading).await?.into_iter().map(|member| (member.user, member.place)).collect();
        let copied: HashMap<UserId, Place> = copy.iter().map(|member| (member.user, member.place)).collect();
        let (mut add, mut remove) = (Vec::new(), Vec::new());
        for user in users {
            match (waiting.get(&user), copied.get(&user)) {
                (Some(place), Some(copied)) if place == copied => {}
                (Some(place), copied) => {
                    add.push(LineMember { place: *place, user });
                    *(if copied.is_some() { &mut report.moved } else { &mut report.missing }) += 1;
                }
                (None, Some(copied)) => remove.push(LineMember { place: *copied, user }),
                (None, None) => {}
            }
        }
        if !remove.is_empty() {
            report.stale += self.line.remove(drop, &remove).await?;
        }
        if !add.is_empty() {
            self.line.add(drop, &add).await?;
        }
        Ok(())
    }

    /// Removes from the line the players that a cycle at `at` admitted, and those that other processes have admitted since the last call. A
    /// process that dies between its commit and the line leaves such players behind.
    pub(super) async fn remove_admitted(&self, drop: DropId, admitted: &[LineMember], at: Timestamp) {
        let removing = async {
            self.line.remove(drop, admitted).await?;
            let since = self.swept_until().get(&drop).copied();
            let since = since.unwrap_or_else(|| Timestamp::from_millis(at.as_millis() - FIRST_SWEEP_MS));
            let db = &self.drops.db;
            let reading = async { store::entered_since(db, &mut db.connection().await?, drop, since).await };
            let ours: HashSet<&LineMember> = admitted.iter().collect();
            let others: Vec<LineMember> =
                db.bounded(reading).await?.into_iter().filter(|member| !ours.contains(member)).collect();
            let stale = self.line.remove(drop, &others).await?;
            self.metrics.repaired(&ReconcileReport { stale, ..ReconcileReport::default() });
            self.swept_until().insert(drop, at);
            Ok::<_, Error>(())
        };
        if let Err(error) = removing.await {
            // `swept_until` is unchanged, so the next cycle covers the same players again.
            self.line_failed("remove", drop, &error);
        }
    }

    fn swept_until(&self) -> MutexGuard<'_, HashMap<DropId, Timestamp>> {
        self.swept_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the lines of drops that have ended. A line is marked as removed once its drop ended a minute ago: nothing is added to it any
    /// more.
    async fn remove_lines(&self) -> Result<(), Error> {
        let db = &self.drops.db;
        for (drop, is_old) in store::ended_with_lines(db).await? {
            self.line.clear(drop).await?;
            self.swept_until().remove(&drop);
            if is_old {
                store::mark_line_removed(db, drop).await?;
            }
        }
        Ok(())
    }
}
