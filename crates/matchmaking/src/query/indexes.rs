//! The indexes of tickets and of backfills, which belong to the same moment of the store.

use bytes::Bytes;

use super::QueryKind;
use super::index::{Document, Index};
use crate::model::{BackfillId, TicketId};
use crate::store::BackfillData;
use crate::store::changes::{Change, ChangeKind, Changes, ScanPage};

#[derive(Debug, Default)]
pub(super) struct Indexes {
    tickets: Index,
    backfills: Index,
}

/// Tickets and backfills whose data must be read.
#[derive(Debug, Default)]
pub(super) struct Unread {
    pub(super) tickets: Vec<TicketId>,
    pub(super) backfills: Vec<BackfillId>,
}

impl Indexes {
    pub(super) const fn of(&self, kind: QueryKind) -> &Index {
        match kind {
            QueryKind::Tickets | QueryKind::Ids => &self.tickets,
            QueryKind::Backfills => &self.backfills,
        }
    }

    /// Returns the approximate size of both.
    pub(super) fn bytes(&self) -> usize {
        self.tickets.bytes() + self.backfills.bytes()
    }

    /// Drops everything. Selections made before are outdated.
    pub(super) fn clear(&mut self) {
        self.tickets.clear();
        self.backfills.clear();
    }

    /// Applies a change that the store recorded.
    pub(super) fn apply(&mut self, change: &Change) {
        match change.kind {
            ChangeKind::BackfillKept(_) | ChangeKind::BackfillChanged | ChangeKind::BackfillDeleted => {
                self.backfills.apply(change);
            }
            _ => self.tickets.apply(change),
        }
    }

    /// Returns whether both have as many entries as the store.
    pub(super) fn is_complete(&mut self, changes: &Changes) -> bool {
        if changes.backfills == 0 && self.backfills.count() > 0 {
            // All of them have expired long ago, and Redis dropped their key.
            self.backfills.clear();
        }
        let known = (self.tickets.count(), self.tickets.pending(), self.backfills.count());
        known == (changes.tickets, changes.pending, changes.backfills)
    }

    /// Starts to compare both with a scan of the store.
    pub(super) fn begin_scan(&mut self) {
        self.tickets.begin_scan();
        self.backfills.begin_scan();
    }

    pub(super) fn apply_page(&mut self, page: &ScanPage) {
        for id in &page.tickets {
            self.tickets.add(id);
        }
        for (id, since) in &page.pending {
            self.tickets.mark(id, *since);
        }
        for (id, until) in &page.backfills {
            self.backfills.keep(id, *until);
        }
    }

    /// Removes what the scan did not find.
    pub(super) fn end_scan(&mut self) {
        self.tickets.end_scan();
        self.backfills.end_scan();
    }

    /// Returns up to `max` tickets and as many backfills whose data must be read next.
    pub(super) fn take_unread(&mut self, max: usize) -> Unread {
        Unread {
            tickets: self.tickets.take_unread(max, TicketId::parse),
            backfills: self.backfills.take_unread(max, BackfillId::parse),
        }
    }

    /// Indexes what was read. What has no readable data is in no pool.
    pub(super) fn read(
        &mut self,
        unread: &Unread,
        tickets: &[Option<Bytes>],
        backfills: &[Option<BackfillData>],
    ) {
        for (id, data) in unread.tickets.iter().zip(tickets) {
            let document = data.as_ref().and_then(|data| Document::of_ticket(id, data));
            self.tickets.read(id.as_str(), document);
        }
        for (id, data) in unread.backfills.iter().zip(backfills) {
            self.backfills.read(id.as_str(), data.as_ref().and_then(Document::of_backfill));
        }
    }

    /// Has all of it read again, because its data could not be had.
    pub(super) fn read_again(&mut self, unread: &Unread) {
        unread.tickets.iter().for_each(|id| self.tickets.read_again(id.as_str()));
        unread.backfills.iter().for_each(|id| self.backfills.read_again(id.as_str()));
    }
}

impl Unread {
    pub(super) fn is_empty(&self) -> bool {
        self.tickets.is_empty() && self.backfills.is_empty()
    }
}
