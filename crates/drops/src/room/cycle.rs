//! The admission cycle: expires admissions and admits the next players of a drop, once per period.

use base::Timestamp;
use base::id::Uuid;
use runtime::fault;

use super::{LINE_TIMEOUT, Room, RoomInner, with_line_timeout};
use crate::DropId;
use crate::error::Error;
use crate::event::{self, AdmissionEventType};
use crate::model::{DropRecord, DropState, EntryState, LineEntry, LineMember, WithoutRedis};
use crate::store::{self, LockedDrop};

/// How many players one cycle admits at most, whatever the controller asks for, and how many admissions it expires at most.
const MAX_PER_CYCLE: u32 = 20_000;
/// How many drops run their cycle concurrently, so that a drop that waits for Redis does not delay the others.
const CONCURRENT_DROPS: usize = 8;
/// How many events share an outbox row.
const EVENTS_PER_ROW: usize = 500;

/// The result of one admission cycle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CycleReport {
    /// The admitted players, in order.
    pub admitted: Vec<LineMember>,
    pub expired: usize,
}

/// The result of one tick over all drops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TickReport {
    /// How many drops had a cycle.
    pub cycles: usize,
    pub admitted: usize,
    pub expired: usize,
}

impl Room {
    /// Runs the admission cycle of every drop whose period is over. Any number of processes may do this at once.
    ///
    /// A failing drop does not delay the others. Its error is logged and counted. The first error is returned at the end.
    pub async fn tick(&self) -> Result<TickReport, Error> {
        let (mut report, mut failed) = (TickReport::default(), None);
        let due = store::due_cycles(&self.inner.drops.db).await?;
        for chunk in due.chunks(CONCURRENT_DROPS) {
            let cycles = chunk.iter().map(|(drop, since_last)| self.cycle_if_due(*drop, *since_last));
            for ((drop, _), cycle) in chunk.iter().zip(futures::future::join_all(cycles).await) {
                match cycle {
                    Ok(Some(CycleReport { admitted, expired })) => {
                        report.cycles += 1;
                        report.admitted += admitted.len();
                        report.expired += expired;
                    }
                    Ok(None) => {}
                    Err(error) => {
                        self.inner.failed("cycle", *drop, &error);
                        failed.get_or_insert(error);
                    }
                }
            }
        }
        failed.map_or(Ok(report), Err)
    }

    /// Runs a drop's cycle if its period is over. Otherwise it leaves the head unlocked, since joins need it.
    async fn cycle_if_due(&self, drop: DropId, since_last: i64) -> Result<Option<CycleReport>, Error> {
        let period = self.cached_drop(drop).await?.drop.terms.admission.period;
        // It is negative if the database's clock was set back.
        if u128::from(since_last.unsigned_abs()) >= period.as_millis() {
            self.cycle(drop).await
        } else {
            Ok(None)
        }
    }

    /// Runs the admission cycle of one drop: expires admissions and admits the first players in line. Returns none if the period is not
    /// over.
    pub async fn cycle(&self, drop: DropId) -> Result<Option<CycleReport>, Error> {
        // Checked before the transaction, which must not wait for Redis.
        let may_admit = self.may_admit(drop).await?;
        let cycle = db::retry_conflicts(Error::is_conflict, || self.inner.cycle(drop, may_admit)).await?;
        let Some((cycle, at)) = cycle else { return Ok(None) };
        self.inner.metrics.cycled(cycle.admitted.len(), cycle.expired);
        let (inner, admitted) = (self.inner.clone(), cycle.admitted.clone());
        // A separate task that may take as long as Redis does: the admissions are committed, whatever happens to the line.
        let sweeping = tokio::spawn(async move { inner.remove_admitted(drop, &admitted, at).await });
        let _in_time = tokio::time::timeout(LINE_TIMEOUT, sweeping).await;
        Ok(Some(cycle))
    }

    /// Returns whether the drop may admit: false if it pauses without Redis and the line is missing or unreachable.
    async fn may_admit(&self, id: DropId) -> Result<bool, Error> {
        match self.cached_drop(id).await?.drop.terms.without_redis {
            WithoutRedis::Continue => Ok(true),
            WithoutRedis::Pause => match with_line_timeout(self.inner.line.epoch(id)).await {
                Ok(epoch) => Ok(epoch.is_some()),
                Err(error) => {
                    self.inner.line_failed("read", id, &error);
                    Ok(false)
                }
            },
        }
    }
}

impl RoomInner {
    /// Runs the cycle in one transaction. Returns its report and its time by the store's clock.
    async fn cycle(&self, id: DropId, may_admit: bool) -> Result<Option<(CycleReport, Timestamp)>, Error> {
        let db = &self.drops.db;
        let mut tx = db.begin().await?;
        let locking = async {
            let locked = store::lock(db, &mut tx, id).await?.ok_or(Error::NoSuchDrop(id))?;
            Ok::<_, Error>((locked, store::now(&mut tx).await?))
        };
        let (LockedDrop { drop, mut head }, now) = db.bounded(locking).await?;
        let period = drop.terms.admission.period;
        let since_last = now.distance(head.cycled_at);
        // The distance in either direction: a clock that was set back must not stop admissions.
        if since_last < period {
            tx.rollback().await?;
            return Ok(None);
        }
        // Cycles are due at multiples of the period: a late cycle does not delay the next one. Missed cycles are skipped.
        let is_on_schedule = since_last < 2 * period && head.cycled_at < now;
        head.cycled_at = if is_on_schedule { head.cycled_at.after(period) } else { now };
        head.cycles += 1;

        let expired = db.bounded(store::first_expired(db, &mut tx, id, now, MAX_PER_CYCLE)).await?;
        if let Some(last) = expired.last() {
            let changed = db.bounded(store::expire(&mut tx, id, last, now)).await?;
            check_row_count(changed, expired.len())?;
        }
        let measuring = async {
            let (from, until) = head.stats.unlearned_range(now, drop.terms.admission.arrive_within);
            let cohort = store::count_cohort(&mut tx, id, from, until).await?;
            Ok::<_, db::Error>((cohort, until, store::count_inside(&mut tx, id).await?))
        };
        let (cohort, until, inside) = db.bounded(measuring).await?;
        head.stats.learn(cohort, until);

        let free = i64::from(drop.terms.admission.capacity).saturating_sub(inside).max(0);
        let is_admitting = drop.state == DropState::Open && !drop.everyone_waits && may_admit;
        let wanted =
            if is_admitting { head.stats.release(drop.terms.admission.batch).min(MAX_PER_CYCLE) } else { 0 };
        let limit = wanted.min(u32::try_from(free).unwrap_or(u32::MAX));
        let expires_at = drop.terms.admission.unused_expiry(now);
        let mut admitted = db.bounded(store::first_waiting(db, &mut tx, id, limit)).await?;
        fault::point("drops.cycle.read");
        if let Some(last) = admitted.last() {
            let changed = db.bounded(store::admit(&mut tx, id, last.line_member(), now, expires_at)).await?;
            check_row_count(changed, admitted.len())?;
        }
        for entry in &mut admitted {
            (entry.state, entry.entered_at, entry.expires_at) =
                (EntryState::Entered, Some(now), Some(expires_at));
        }
        if is_admitting && admitted.len() == limit as usize {
            // With fewer players than the limit the line was empty, and the pace would say nothing.
            head.stats.learn_pace(admitted.len(), since_last.min(4 * period));
        }
        db.bounded(store::save_head(&mut tx, id, &head)).await?;
        self.append(&mut tx, AdmissionEventType::Expired, &drop, &expired).await?;
        self.append(&mut tx, AdmissionEventType::Admitted, &drop, &admitted).await?;
        fault::point("drops.cycle.uncommitted");
        tx.commit().await?;
        fault::point("drops.cycle.committed");
        let admitted = admitted.iter().map(LineEntry::line_member).collect();
        Ok(Some((CycleReport { admitted, expired: expired.len() }, now)))
    }

    /// Appends one event per admission to the outbox.
    pub(super) async fn append(
        &self,
        tx: &mut db::Tx,
        event_type: AdmissionEventType,
        drop: &DropRecord,
        entries: &[LineEntry],
    ) -> Result<(), Error> {
        let now: Timestamp = self.drops.clock.now();
        for entries in entries.chunks(EVENTS_PER_ROW) {
            let events = entries.iter().map(|entry| event::admission_event(event_type, drop, entry, now));
            self.drops.outbox.append_batch(tx, Uuid::now_v7(), &events.collect::<Result<Vec<_>, _>>()?);
            // One write per chunk: servers limit the size of a packet.
            tx.flush().await?;
        }
        Ok(())
    }
}

/// Checks that an UPDATE changed exactly the rows that were read and locked.
pub(super) fn check_row_count(changed: u64, read: usize) -> Result<(), Error> {
    if changed == read as u64 { Ok(()) } else { Err(Error::RowCountMismatch { changed, read }) }
}
