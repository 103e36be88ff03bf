//! The admission cycle.

use base::Timestamp;
use base::id::Uuid;
use runtime::fault;

use super::{LINE_WITHIN, Room, Rows, within};
use crate::DropId;
use crate::error::Error;
use crate::event::{self, AdmissionEvent};
use crate::model::{DropRecord, DropState, Entry, EntryState, Spot, WithoutRedis};
use crate::store::{self, Locked};

/// How many players one cycle admits at most, whatever the controller asks for, and how many admissions it ends at most.
const MOST: u32 = 20_000;
/// How many drops have their cycle at once: a drop that waits for Redis does not hold up the others.
const DROPS_AT_ONCE: usize = 8;
/// How many events share a row of the outbox.
const EVENTS: usize = 500;

/// What one cycle has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cycle {
    /// In their order.
    pub admitted: Vec<Spot>,
    pub expired: usize,
}

/// What a step over all drops has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ticked {
    /// How many drops had a cycle.
    pub cycles: usize,
    pub admitted: usize,
    pub expired: usize,
}

impl Room {
    /// Runs the admission cycle of every drop whose period is over. Any number of processes may do this at once.
    ///
    /// A drop that fails does not hold up the others. Its error is logged and counted, and the first one is returned at the end.
    pub async fn tick(&self) -> Result<Ticked, Error> {
        let (mut ticked, mut failed) = (Ticked::default(), None);
        let due = store::due_cycles(&self.rows.drops.db).await?;
        for some in due.chunks(DROPS_AT_ONCE) {
            let cycles = some.iter().map(|(drop, since_last)| self.cycle_if_due(*drop, *since_last));
            for ((drop, _), cycle) in some.iter().zip(futures::future::join_all(cycles).await) {
                match cycle {
                    Ok(Some(Cycle { admitted, expired })) => {
                        ticked.cycles += 1;
                        ticked.admitted += admitted.len();
                        ticked.expired += expired;
                    }
                    Ok(None) => {}
                    Err(error) => {
                        self.rows.failed("cycle", *drop, &error);
                        failed.get_or_insert(error);
                    }
                }
            }
        }
        failed.map_or(Ok(ticked), Err)
    }

    /// Does not lock the head of a drop whose period is not over: joins need it.
    async fn cycle_if_due(&self, drop: DropId, since_last: i64) -> Result<Option<Cycle>, Error> {
        let period = self.known(drop).await?.drop.terms.admission.period;
        // Negative beyond a period: the database's clock was set back.
        if u128::from(since_last.unsigned_abs()) >= period.as_millis() {
            self.cycle(drop).await
        } else {
            Ok(None)
        }
    }

    /// Runs the admission cycle of one drop: ends admissions, and admits the first who wait. Returns none if the period is not over.
    pub async fn cycle(&self, drop: DropId) -> Result<Option<Cycle>, Error> {
        // Before the transaction, which must not wait for Redis.
        let may_admit = self.line_lets_admit(drop).await?;
        let cycle = db::retrying(Error::is_conflict, || self.rows.cycle(drop, may_admit)).await?;
        let Some((cycle, at)) = cycle else { return Ok(None) };
        self.rows.metrics.cycled(cycle.admitted.len(), cycle.expired);
        let (rows, admitted) = (self.rows.clone(), cycle.admitted.clone());
        // A task of its own, which goes on for as long as Redis takes: the admissions are committed, whatever becomes of the line.
        let sweeping = tokio::spawn(async move { rows.remove_admitted(drop, &admitted, at).await });
        let _in_time = tokio::time::timeout(LINE_WITHIN, sweeping).await;
        Ok(Some(cycle))
    }

    /// Returns whether the line is there, where the drop is to pause without it.
    async fn line_lets_admit(&self, id: DropId) -> Result<bool, Error> {
        match self.known(id).await?.drop.terms.without_redis {
            WithoutRedis::Continue => Ok(true),
            WithoutRedis::Pause => match within(self.rows.line.epoch(id)).await {
                Ok(epoch) => Ok(epoch.is_some()),
                Err(error) => {
                    self.rows.line_failed("read", id, &error);
                    Ok(false)
                }
            },
        }
    }
}

impl Rows {
    /// Returns what was done, and when by the store's clock.
    async fn cycle(&self, id: DropId, may_admit: bool) -> Result<Option<(Cycle, Timestamp)>, Error> {
        let db = &self.drops.db;
        let mut tx = db.begin().await?;
        let locking = async {
            let locked = store::lock(db, &mut tx, id).await?.ok_or(Error::NoSuchDrop(id))?;
            Ok::<_, Error>((locked, store::now(&mut tx).await?))
        };
        let (Locked { drop, mut head }, now) = db.bounded(locking).await?;
        let period = drop.terms.admission.period;
        let since_last = now.distance(head.cycled_at);
        // In either direction: a clock that was set back must not stop admissions.
        if since_last < period {
            tx.rollback().await?;
            return Ok(None);
        }
        // One cycle per period, counted from the first: a cycle that is late does not delay the next one, and those that were missed
        // are not made up for.
        let is_in_step = since_last < 2 * period && head.cycled_at < now;
        head.cycled_at = if is_in_step { head.cycled_at.after(period) } else { now };
        head.cycles += 1;

        let expired = db.bounded(store::first_expired(db, &mut tx, id, now, MOST)).await?;
        if let Some(last) = expired.last() {
            let changed = db.bounded(store::expire(&mut tx, id, last, now)).await?;
            all_changed(changed, expired.len())?;
        }
        let measuring = async {
            let (from, until) = head.measured.unknown_until(now, drop.terms.admission.arrive_within);
            let cohort = store::cohort(&mut tx, id, from, until).await?;
            Ok::<_, db::Error>((cohort, until, store::inside(&mut tx, id).await?))
        };
        let (cohort, until, inside) = db.bounded(measuring).await?;
        head.measured.learn(cohort, until);

        let room = i64::from(drop.terms.admission.capacity).saturating_sub(inside).max(0);
        let is_moving = drop.state == DropState::Open && !drop.everyone_waits && may_admit;
        let wanted = if is_moving { head.measured.release(drop.terms.admission.batch).min(MOST) } else { 0 };
        let limit = wanted.min(u32::try_from(room).unwrap_or(u32::MAX));
        let expires_at = drop.terms.admission.ends_unused(now);
        let mut admitted = db.bounded(store::first_waiting(db, &mut tx, id, limit)).await?;
        fault::point("drops.cycle.read");
        if let Some(last) = admitted.last() {
            let changed = db.bounded(store::admit(&mut tx, id, last.spot(), now, expires_at)).await?;
            all_changed(changed, admitted.len())?;
        }
        for entry in &mut admitted {
            (entry.state, entry.entered_at, entry.expires_at) =
                (EntryState::Entered, Some(now), Some(expires_at));
        }
        if is_moving && admitted.len() == limit as usize {
            // Nobody waits else, and the pace says nothing.
            head.measured.learn_pace(admitted.len(), since_last.min(4 * period));
        }
        db.bounded(store::save_head(&mut tx, id, &head)).await?;
        self.append(&mut tx, AdmissionEvent::Expired, &drop, &expired).await?;
        self.append(&mut tx, AdmissionEvent::Admitted, &drop, &admitted).await?;
        fault::point("drops.cycle.uncommitted");
        tx.commit().await?;
        fault::point("drops.cycle.committed");
        let admitted = admitted.iter().map(Entry::spot).collect();
        Ok(Some((Cycle { admitted, expired: expired.len() }, now)))
    }

    /// Appends the event of each of these admissions.
    pub(super) async fn append(
        &self,
        tx: &mut db::Tx,
        happened: AdmissionEvent,
        drop: &DropRecord,
        entries: &[Entry],
    ) -> Result<(), Error> {
        let now: Timestamp = self.drops.clock.now();
        for entries in entries.chunks(EVENTS) {
            let events = entries.iter().map(|entry| event::of_admission(happened, drop, entry, now));
            self.drops.outbox.append_batch(tx, Uuid::now_v7(), &events.collect::<Result<Vec<_>, _>>()?);
            // A server takes messages up to some size only.
            tx.write().await?;
        }
        Ok(())
    }
}

/// Checks that a range of rows is the one that was read and locked.
pub(super) fn all_changed(changed: u64, read: usize) -> Result<(), Error> {
    if changed == read as u64 { Ok(()) } else { Err(Error::Uneven { changed, read }) }
}
