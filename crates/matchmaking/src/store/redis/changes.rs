//! Reads changes of tickets and backfills from the stream `ticketChanges`, and scans the keys that list them.

use bytes::Bytes;
use redis_store::Call;

use super::scripts;
use super::{BATCH, Redis};
use crate::error::Error;
use crate::model::{Moment, TicketId};
use crate::store::changes::{
    CHANGES_LIFETIME, CHANGES_PAGE, Change, ChangeKind, Changes, Position, ScanCursor, ScanPage,
};

/// The reply of `changes.lua`.
type ChangesReply = (i64, i64, u64, u64, u64, u8, String, Vec<(String, String)>);

impl Redis {
    pub(in crate::store) async fn changes(&self, since: &Position) -> Result<Changes, Error> {
        let life = CHANGES_LIFETIME.as_millis() as u64;
        let add = |step: &mut Call| step.arg(&since.0).arg(CHANGES_PAGE).arg(life).arg(life).end();
        let own = [self.keys.backfill_acks()];
        let (seconds, micros, tickets, pending, backfills, found, position, entries): ChangesReply =
            self.run_unlocked(&scripts::CHANGES, own, add).await?;
        let timeout = self.rules.pending_timeout.as_secs() as i64;
        Ok(Changes {
            is_continuous: found == 1,
            is_last: entries.len() < CHANGES_PAGE,
            position: Position(position),
            changes: entries.into_iter().filter_map(|(kind, ids)| self.change(&kind, ids)).collect(),
            tickets,
            pending,
            backfills,
            now: Moment::from_micros(seconds * 1_000_000 + micros),
            live_since: (seconds - timeout) * 1000,
        })
    }

    /// Reads a page with `SSCAN` or `ZSCAN`, which block Redis only for that page.
    pub(in crate::store) async fn scan(&self, cursor: ScanCursor) -> Result<ScanPage, Error> {
        let mut connection = self.servers.primary();
        let mut page = ScanPage::default();
        match cursor {
            ScanCursor::Tickets(at) => {
                let mut scan = ::redis::cmd("SSCAN");
                scan.arg(self.keys.all()).arg(at).arg("COUNT").arg(BATCH);
                let (next, ids): (u64, Vec<Bytes>) = scan.query_async(&mut connection).await?;
                page.tickets = ids.iter().map(|id| String::from_utf8_lossy(id).into_owned()).collect();
                page.next = Some(if next == 0 { ScanCursor::Pending(0) } else { ScanCursor::Tickets(next) });
            }
            ScanCursor::Pending(at) => {
                let mut scan = ::redis::cmd("ZSCAN");
                scan.arg(self.keys.pending()).arg(at).arg("COUNT").arg(BATCH);
                let (next, marks): (u64, Vec<(Bytes, f64)>) = scan.query_async(&mut connection).await?;
                let id = |id: &Bytes| String::from_utf8_lossy(id).into_owned();
                page.pending = marks.iter().map(|(name, since)| (id(name), millis(*since))).collect();
                page.next =
                    Some(if next == 0 { ScanCursor::Backfills(0) } else { ScanCursor::Pending(next) });
            }
            ScanCursor::Backfills(at) => {
                let mut scan = ::redis::cmd("ZSCAN");
                scan.arg(self.keys.backfill_acks()).arg(at).arg("COUNT").arg(BATCH);
                let (next, acknowledged): (u64, Vec<(String, f64)>) =
                    scan.query_async(&mut connection).await?;
                let expiry = |(id, millis): (String, f64)| (id, self.backfill_expires(millis as i64));
                page.backfills = acknowledged.into_iter().map(expiry).collect();
                page.next = (next != 0).then_some(ScanCursor::Backfills(next));
            }
        }
        Ok(page)
    }

    /// Reads tickets and repairs nothing.
    pub(in crate::store) async fn peek(&self, ids: &[TicketId]) -> Result<Vec<Option<Bytes>>, Error> {
        self.servers.data(&self.keys, ids).await
    }

    fn change(&self, kind: &str, mut ids: String) -> Option<Change> {
        let kind = match kind {
            "+" => ChangeKind::Created,
            "-" => ChangeKind::Left,
            "r" => ChangeKind::Released,
            "a" => ChangeKind::AllReleased,
            "p" => ChangeKind::Pending(millis(take_time(&mut ids)?)),
            "bk" => ChangeKind::BackfillKept(self.backfill_expires(take_time(&mut ids)? as i64)),
            "bc" => ChangeKind::BackfillChanged,
            "bd" => ChangeKind::BackfillDeleted,
            // The first entry of a stream, and kinds of later versions, which the sizes reveal if they matter.
            _ => return None,
        };
        Some(Change { kind, ids })
    }

    /// Returns when a backfill expires that was last acknowledged at this millisecond.
    fn backfill_expires(&self, acknowledged: i64) -> Moment {
        let expiry = self.rules.backfill_expiry().as_millis() as i64;
        Moment::from_micros(acknowledged.saturating_add(expiry).saturating_mul(1000))
    }
}

/// Takes the time in front of the ids of an entry.
fn take_time(ids: &mut String) -> Option<f64> {
    let (time, rest) = ids.split_once(' ')?;
    let time = time.parse().ok()?;
    *ids = rest.to_owned();
    Some(time)
}

fn millis(seconds: f64) -> i64 {
    // Rounding up could make a claim a second younger.
    (seconds * 1000.0).floor() as i64
}
