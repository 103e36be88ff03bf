//! Changes of tickets and backfills in memory.

use std::collections::VecDeque;

use base::Timestamp;
use bytes::Bytes;

use super::{Memory, State};
use crate::error::Error;
use crate::model::{BackfillId, Moment, TicketId};
use crate::store::changes::{
    CHANGES_LIFETIME, CHANGES_PAGE, Change, ChangeKind, Changes, MAX_CHANGES, Position, ScanCursor, ScanPage,
};

/// The changes that readers may not have read yet.
#[derive(Debug)]
pub(super) struct ChangeLog {
    /// The number of the first change.
    first: u64,
    changes: VecDeque<Change>,
    /// When it is dropped if nobody reads it.
    until: Timestamp,
}

impl State {
    /// Records a change of tickets, if somebody reads changes.
    pub(super) fn changed<'a>(&mut self, kind: ChangeKind, ids: impl IntoIterator<Item = &'a TicketId>) {
        self.record(kind, ids.into_iter().map(TicketId::as_str));
    }

    /// Records a change of a backfill, if somebody reads changes.
    pub(super) fn backfill_changed(&mut self, kind: ChangeKind, id: &BackfillId) {
        self.record(kind, [id.as_str()]);
    }

    fn record<'a>(&mut self, kind: ChangeKind, ids: impl IntoIterator<Item = &'a str>) {
        let Some(log) = &mut self.changes else { return };
        let mut names = String::new();
        for id in ids {
            if !names.is_empty() {
                names.push(' ');
            }
            names.push_str(id);
        }
        log.changes.push_back(Change { kind, ids: names });
        self.change_count += 1;
        while log.changes.len() > MAX_CHANGES {
            log.changes.pop_front();
            log.first += 1;
        }
    }

    /// Stops recording changes that nobody reads.
    pub(super) fn expire_changes(&mut self, now: Timestamp) {
        if self.changes.take_if(|log| log.until <= now).is_some() {
            // The position of its last reader is not valid any more.
            self.change_count += 1;
        }
    }
}

impl Memory {
    pub(in crate::store) async fn changes(&self, since: &Position) -> Result<Changes, Error> {
        let (mut state, now) = self.state();
        let (tickets, pending) = (state.queue.len() as u64, state.pending.len() as u64);
        let backfills = state.backfills.len() as u64;
        let end = state.change_count;
        let log = state.changes.get_or_insert_with(|| ChangeLog {
            first: end,
            changes: VecDeque::new(),
            until: now,
        });
        log.until = now.after(CHANGES_LIFETIME);
        let at = since.0.parse::<u64>().ok().filter(|at| (log.first..=end).contains(at));
        let skipped = at.map_or(log.changes.len(), |at| (at - log.first) as usize);
        let changes: Vec<Change> = log.changes.iter().skip(skipped).take(CHANGES_PAGE).cloned().collect();
        Ok(Changes {
            is_continuous: at.is_some(),
            is_last: changes.len() < CHANGES_PAGE,
            position: Position((at.unwrap_or(end) + changes.len() as u64).to_string()),
            changes,
            tickets,
            pending,
            backfills,
            now: Moment::from(now),
            live_since: now.as_millis().saturating_sub(self.rules.pending_timeout.as_millis() as i64),
        })
    }

    pub(in crate::store) async fn scan(&self, _: ScanCursor) -> Result<ScanPage, Error> {
        let (state, _) = self.state();
        Ok(ScanPage {
            tickets: state.queue.iter().map(|(_, id)| id.to_string()).collect(),
            pending: state
                .pending
                .iter()
                .map(|(id, claim)| (id.to_string(), claim.second() * 1000))
                .collect(),
            backfills: {
                let expiry = self.rules.backfill_expiry();
                let expires = state.backfills.iter().map(|(id, backfill)| (id, backfill.expires(expiry)));
                expires.map(|(id, expires)| (id.to_string(), Moment::from(expires))).collect()
            },
            next: None,
        })
    }

    /// Expired tickets are removed before each step.
    pub(in crate::store) async fn remove_expired(&self, _: usize) -> Result<usize, Error> {
        Ok(0)
    }

    pub(in crate::store) async fn peek(&self, ids: &[TicketId]) -> Result<Vec<Option<Bytes>>, Error> {
        self.read(ids).await
    }
}
