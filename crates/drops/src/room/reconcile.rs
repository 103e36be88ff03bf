//! Bringing the line back to what SQL says.

use std::collections::{HashMap, HashSet};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use account::UserId;
use base::error::Coded;
use base::{Code, Timestamp};
use runtime::fault;

use super::{Room, Rows};
use crate::DropId;
use crate::error::Error;
use crate::line::{AT_ONCE, FillingLost};
use crate::model::{Place, Spot};
use crate::store;

/// How many rows a page of SQL has.
const PAGE: u32 = 5_000;
/// How long nothing may be heard of somebody who fills a line before another one may.
const LEASE: Duration = Duration::from_secs(10);
/// How far back a process looks, at its first cycle of a drop, for players that other processes have admitted and left in the line. The reconciler finds
/// those from before.
const FIRST_SWEEP_MS: i64 = 60_000;

/// What was found to be different in the line, and mended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Players who wait and were not in the line.
    pub missing: u64,
    /// Players in the line who do not wait.
    pub stale: u64,
    /// Players who had another place in the line.
    pub moved: u64,
    /// Lines that were filled from SQL.
    pub rebuilt: u64,
}

impl Room {
    /// Compares the lines of all drops with SQL and mends them. A line without an epoch is rebuilt, and that of a drop that is over is
    /// removed. Any number of processes may do this at once.
    ///
    /// A drop that fails does not hold up the others. Its error is logged and counted, and the first one is returned at the end.
    pub async fn reconcile(&self) -> Result<Reconciled, Error> {
        let db = &self.rows.drops.db;
        let (mut all, mut failed) = (Reconciled::default(), None);
        for drop in store::with_lines(db).await? {
            match self.reconcile_drop(drop).await {
                Ok(one) => {
                    all.missing += one.missing;
                    all.stale += one.stale;
                    all.moved += one.moved;
                    all.rebuilt += one.rebuilt;
                }
                // A store is away: it is for the other drops, too.
                Err(error) if error.code() == Code::Unavailable => return Err(error),
                Err(error) => {
                    self.rows.failed("reconcile", drop, &error);
                    failed.get_or_insert(error);
                }
            }
        }
        self.rows.remove_lines().await?;
        store::forget(db).await?;
        failed.map_or(Ok(all), Err)
    }

    /// Compares the line of one drop with SQL and mends it, or rebuilds it if it has no epoch.
    pub async fn reconcile_drop(&self, drop: DropId) -> Result<Reconciled, Error> {
        let reconciled = if self.rows.line.epoch(drop).await?.is_none() {
            let rebuilt = self.rows.rebuild(drop).await?.is_some();
            Reconciled { rebuilt: rebuilt.into(), ..Reconciled::default() }
        } else {
            self.rows.compare(drop).await?
        };
        self.rows.metrics.mended(&reconciled);
        Ok(reconciled)
    }

    /// Fills the line of a drop from SQL, in order. Returns how many wait, or none while another process fills it. A drop that is over has no
    /// line.
    pub async fn rebuild(&self, drop: DropId) -> Result<Option<u64>, Error> {
        if self.rows.drops.get(drop).await?.state.is_final() {
            self.rows.line.clear(drop).await?;
            return Ok(Some(0));
        }
        let filled = self.rows.rebuild(drop).await?;
        self.rows.metrics.mended(&Reconciled { rebuilt: filled.is_some().into(), ..Reconciled::default() });
        Ok(filled)
    }
}

impl Rows {
    pub(super) async fn rebuild(&self, drop: DropId) -> Result<Option<u64>, Error> {
        let Some(filling) = self.line.begin_filling(drop, LEASE).await? else { return Ok(None) };
        fault::point("drops.rebuild.begun");
        // Joins and leaves go on meanwhile. A join that is committed after its page was read adds itself after the line was emptied.
        let (mut after, mut filled) = (None, 0);
        loop {
            let page = self.page(drop, after).await?;
            if let Err(FillingLost) = self.line.fill(drop, filling, &page, LEASE).await? {
                return Ok(None);
            }
            fault::point("drops.rebuild.filled");
            filled += page.len() as u64;
            after = page.last().copied();
            if page.len() < PAGE as usize {
                break;
            }
        }
        Ok(self.line.finish_filling(drop, filling).await?.ok().map(|_| filled))
    }

    /// Compares page by page: the rows of a page with the part of the line up to its last row.
    async fn compare(&self, drop: DropId) -> Result<Reconciled, Error> {
        let mut reconciled = Reconciled::default();
        let mut after: Option<Spot> = None;
        loop {
            let page = self.page(drop, after).await?;
            let end = page.last().copied().filter(|_| page.len() == PAGE as usize);
            let in_line = self.in_line(drop, after, end).await?;
            let (rows, copy): (HashSet<Spot>, HashSet<Spot>) =
                (page.into_iter().collect(), in_line.into_iter().collect());
            self.mend(drop, rows.symmetric_difference(&copy).copied(), &copy, &mut reconciled).await?;
            if end.is_none() {
                return Ok(reconciled);
            }
            after = end;
        }
    }

    async fn page(&self, drop: DropId, after: Option<Spot>) -> Result<Vec<Spot>, Error> {
        let db = &self.drops.db;
        let reading =
            async { store::waiting_after(db, &mut db.connection().await?, drop, after, PAGE).await };
        Ok(db.bounded(reading).await?)
    }

    /// Reads everybody in the line behind one spot and up to another.
    async fn in_line(
        &self,
        drop: DropId,
        after: Option<Spot>,
        end: Option<Spot>,
    ) -> Result<Vec<Spot>, Error> {
        let (mut found, mut after) = (Vec::new(), after);
        loop {
            let next = self.line.after(drop, after, AT_ONCE).await?;
            let is_last = next.len() < AT_ONCE;
            let within = next.iter().copied().filter(|spot| end.is_none_or(|end| *spot <= end));
            found.extend(within);
            after = next.last().copied();
            if is_last || after > end && end.is_some() {
                return Ok(found);
            }
        }
    }

    /// Reads the rows of players again where line and rows differ, since one of the two may just have changed. Then mends the line.
    async fn mend(
        &self,
        drop: DropId,
        different: impl Iterator<Item = Spot>,
        copy: &HashSet<Spot>,
        reconciled: &mut Reconciled,
    ) -> Result<(), Error> {
        let mut users: Vec<UserId> = different.map(|spot| spot.user).collect();
        if users.is_empty() {
            return Ok(());
        }
        users.sort_unstable();
        users.dedup();
        let db = &self.drops.db;
        let reading = async { store::waiting_among(db, &mut db.connection().await?, drop, &users).await };
        let waiting: HashMap<UserId, Place> =
            db.bounded(reading).await?.into_iter().map(|spot| (spot.user, spot.place)).collect();
        let copied: HashMap<UserId, Place> = copy.iter().map(|spot| (spot.user, spot.place)).collect();
        let (mut add, mut remove) = (Vec::new(), Vec::new());
        for user in users {
            match (waiting.get(&user), copied.get(&user)) {
                (Some(place), Some(copied)) if place == copied => {}
                (Some(place), copied) => {
                    add.push(Spot { place: *place, user });
                    *(if copied.is_some() { &mut reconciled.moved } else { &mut reconciled.missing }) += 1;
                }
                (None, Some(copied)) => remove.push(Spot { place: *copied, user }),
                (None, None) => {}
            }
        }
        if !remove.is_empty() {
            reconciled.stale += self.line.remove(drop, &remove).await?;
        }
        if !add.is_empty() {
            self.line.add(drop, &add).await?;
        }
        Ok(())
    }

    /// Removes the players from the line that a cycle at this time has admitted, and those that other processes have admitted since this process
    /// last removed any. A process that died between its commit and the line has left them there.
    pub(super) async fn remove_admitted(&self, drop: DropId, admitted: &[Spot], at: Timestamp) {
        let removing = async {
            self.line.remove(drop, admitted).await?;
            let since = self.swept().get(&drop).copied();
            let since = since.unwrap_or_else(|| Timestamp::from_millis(at.as_millis() - FIRST_SWEEP_MS));
            let db = &self.drops.db;
            let reading = async { store::entered_since(db, &mut db.connection().await?, drop, since).await };
            let ours: HashSet<&Spot> = admitted.iter().collect();
            let others: Vec<Spot> =
                db.bounded(reading).await?.into_iter().filter(|spot| !ours.contains(spot)).collect();
            let stale = self.line.remove(drop, &others).await?;
            self.metrics.mended(&Reconciled { stale, ..Reconciled::default() });
            self.swept().insert(drop, at);
            Ok::<_, Error>(())
        };
        if let Err(error) = removing.await {
            // The next cycle begins where this one began, so nobody is forgotten.
            self.line_failed("remove", drop, &error);
        }
    }

    fn swept(&self) -> MutexGuard<'_, HashMap<DropId, Timestamp>> {
        self.swept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the lines of drops that are over. One that ended a minute ago is noted as removed: nothing is added to it any more.
    async fn remove_lines(&self) -> Result<(), Error> {
        let db = &self.drops.db;
        for (drop, is_old) in store::with_removable_lines(db).await? {
            self.line.clear(drop).await?;
            self.swept().remove(&drop);
            if is_old {
                store::mark_line_removed(db, drop).await?;
            }
        }
        Ok(())
    }
}
