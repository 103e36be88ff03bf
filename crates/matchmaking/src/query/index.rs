//! The tickets of matchmaking, or the backfills, indexed by their search fields.
//!
//! A ticket takes a *slot*, whose number stands for it everywhere else. Its encoded data is kept as it is sent:
//! as field 1 of a `QueryTicketsResponse`. Sorted sets of slots by each double argument and by creation time, and a
//! posting list of slots for each string value and tag, find the tickets of a pool ([`search`](Index::search)).
//!
//! Backfills have an index of their own. Each is what a ticket is here, without pending marks.

mod document;
mod fields;
mod search;

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use crate::model::Moment;
use crate::store::changes::{Change, ChangeKind};

pub(super) use self::document::Document;
use self::document::{field_1, id_of_frame};
use self::fields::Fields;
pub(super) use self::search::At;

/// The estimated memory of a slot without the data of its ticket: the slot itself and its places in the tables.
/// `cargo xtask bench open-match` measures the real one.
const SLOT_BYTES: usize = 64 + 16 + 24 + 32;

/// No pending mark.
const NOT_PENDING: i64 = i64::MIN;

#[derive(Debug, Default)]
pub(super) struct Index {
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_id: HashTable<u32>,
    hasher: RandomState,
    fields: Fields,
    /// The slots of readable tickets by creation time in nanoseconds.
    created: BTreeSet<(i64, u32)>,
    /// Slots of tickets whose data must be read.
    unread: Vec<u32>,
    /// Pending marks without a ticket, each with whether the current scan found it.
    strays: HashMap<String, (i64, bool)>,
    /// How many slots have a pending mark.
    marks: u64,
    /// What the current scan found, by slot.
    scanned: Option<Vec<Found>>,
    /// The number of the last ticket that was read.
    reads: u64,
    /// Changes when everything is dropped.
    generation: u64,
    bytes: usize,
}

/// A ticket, or nothing if the body is empty.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// Field 1 of a response, or the id of a ticket that was not read.
    body: Box<[u8]>,
    /// The search fields, packed.
    fields: Box<[u32]>,
    created: i64,
    /// When its data, or the backfill, expires, in nanoseconds.
    expires: i64,
    /// Since which millisecond it is pending.
    pending: i64,
    /// Numbers the reads of tickets. Zero if the ticket was not read.
    read: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Found {
    ticket: bool,
    mark: bool,
}

impl Slot {
    fn id(&self) -> &[u8] {
        match self.read {
            0 => &self.body,
            _ => id_of_frame(&self.body),
        }
    }
}

/// The tickets that a query found. Refers to the index, so that unread pages cost little memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    slots: Vec<u32>,
    reads: u64,
    generation: u64,
}

impl Selection {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
}

/// The index was dropped since the selection was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outdated;

impl Index {
    /// Returns how many tickets are in matchmaking, as the store counts them.
    pub(super) fn count(&self) -> u64 {
        self.by_id.len() as u64
    }

    /// Returns how many pending marks there are, as the store counts them.
    pub(super) fn pending(&self) -> u64 {
        self.marks + self.strays.len() as u64
    }

    /// Returns the approximate size of the index.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.fields.bytes()
    }

    /// Drops everything. Selections made before are outdated.
    pub(super) fn clear(&mut self) {
        *self = Self { generation: self.generation + 1, ..Self::default() };
    }

    /// Applies a change that the store recorded. The caller knows which index it is about.
    pub(super) fn apply(&mut self, change: &Change) {
        if change.kind == ChangeKind::AllReleased {
            self.unmark_all();
        }
        for id in change.ids() {
            match change.kind {
                ChangeKind::Created => self.create(id),
                ChangeKind::Left | ChangeKind::BackfillDeleted => self.remove(id),
                ChangeKind::Pending(since) => self.mark(id, since),
                ChangeKind::Released => self.unmark(id),
                ChangeKind::AllReleased => {}
                ChangeKind::BackfillKept(until) => self.keep(id, until),
                ChangeKind::BackfillChanged => self.change(id),
            }
        }
    }

    /// Starts to compare the index with a scan of the store.
    pub(super) fn begin_scan(&mut self) {
        self.scanned = Some(vec![Found::default(); self.slots.len()]);
        self.strays.values_mut().for_each(|(_, found)| *found = false);
    }

    /// Removes what the scan did not find.
    pub(super) fn end_scan(&mut self) {
        let Some(scanned) = self.scanned.take() else { return };
        for (slot, found) in scanned.iter().enumerate() {
            if self.slots[slot].body.is_empty() {
                continue;
            }
            if !found.mark {
                self.set_pending(slot as u32, NOT_PENDING);
            }
            if !found.ticket {
                self.vacate(slot as u32);
            }
        }
        self.strays.retain(|_, (_, found)| *found);
    }

    /// Returns up to `max` tickets whose data must be read next. Their data is passed to [`read`](Self::read).
    pub(super) fn take_unread<T>(&mut self, max: usize, parse: impl Fn(&str) -> Option<T>) -> Vec<T> {
        let mut ids = Vec::new();
        while ids.len() < max
            && let Some(slot) = self.unread.pop()
        {
            let slot = &self.slots[slot as usize];
            let id = std::str::from_utf8(&slot.body).ok().filter(|_| slot.read == 0);
            ids.extend(id.and_then(&parse));
        }
        ids
    }

    /// Indexes a ticket. Without readable data the ticket stays unread and is in no pool.
    pub(super) fn read(&mut self, id: &str, document: Option<Document>) {
        let (Some(slot), Some(document)) = (self.find(id), document) else { return };
        if self.slots[slot as usize].read != 0 {
            return;
        }
        self.reads += 1;
        self.bytes = self.bytes - self.slots[slot as usize].body.len() + document.frame.len();
        self.fill(slot, document);
    }

    /// Marks a ticket to be read again, because its data could not be read.
    pub(super) fn read_again(&mut self, id: &str) {
        self.unread.extend(self.find(id));
    }

    fn fill(&mut self, slot: u32, document: Document) {
        let fields = self.fields.insert(slot, &document.fields);
        self.created.insert((document.created.nanos(), slot));
        self.bytes += 4 * fields.len();
        let reads = self.reads;
        let this = &mut self.slots[slot as usize];
        this.body = document.frame;
        this.fields = fields;
        this.created = document.created.nanos();
        this.expires = document.expires.map_or(this.expires, Moment::nanos);
        this.read = reads;
    }

    /// Adds a ticket that was created just now. A known id has new data.
    fn create(&mut self, id: &str) {
        self.change(id);
        let slot = self.add(id);
        self.slots[slot as usize].expires = i64::MAX;
    }

    /// Has a ticket read again whose data is no longer what was read.
    fn change(&mut self, id: &str) {
        if let Some(slot) = self.find(id)
            && self.slots[slot as usize].read != 0
        {
            self.forget_data(slot);
        }
    }

    /// Adds a backfill, unless it is known, and sets when it expires.
    pub(super) fn keep(&mut self, id: &str, until: Moment) {
        let slot = self.add(id);
        self.slots[slot as usize].expires = until.nanos();
    }

    /// Adds a ticket, unless it is known.
    pub(super) fn add(&mut self, id: &str) -> u32 {
        let slot = self.find(id).unwrap_or_else(|| self.occupy(id));
        if let Some(scanned) = &mut self.scanned {
            scanned[slot as usize].ticket = true;
        }
        slot
    }

    fn occupy(&mut self, id: &str) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        if let Some(scanned) = &mut self.scanned {
            scanned.resize(self.slots.len(), Found::default());
            scanned[slot as usize] = Found::default();
        }
        let (pending, expires) = (NOT_PENDING, i64::MAX);
        self.slots[slot as usize] = Slot { body: id.as_bytes().into(), pending, expires, ..Slot::default() };
        let (slots, hasher) = (&self.slots, &self.hasher);
        let hash = |slot: &u32| hasher.hash_one(slots[*slot as usize].id());
        self.by_id.insert_unique(hasher.hash_one(id.as_bytes()), slot, hash);
        self.unread.push(slot);
        self.bytes += SLOT_BYTES + id.len();
        if let Some((since, found)) = self.strays.remove(id) {
            self.set_pending(slot, since);
            if let Some(scanned) = &mut self.scanned {
                scanned[slot as usize].mark = found;
            }
        }
        slot
    }

    fn find(&self, id: &str) -> Option<u32> {
        let is_it = |slot: &u32| self.slots[*slot as usize].id() == id.as_bytes();
        self.by_id.find(self.hasher.hash_one(id.as_bytes()), is_it).copied()
    }

    /// Removes a ticket and its pending mark.
    fn remove(&mut self, id: &str) {
        self.unmark(id);
        if let Some(slot) = self.find(id) {
            self.vacate(slot);
        }
    }

    pub(super) fn mark(&mut self, id: &str, since: i64) {
        match self.find(id) {
            Some(slot) => {
                self.set_pending(slot, since);
                if let Some(scanned) = &mut self.scanned {
                    scanned[slot as usize].mark = true;
                }
            }
            None => {
                self.strays.insert(id.to_owned(), (since, true));
            }
        }
    }

    fn unmark(&mut self, id: &str) {
        match self.find(id) {
            Some(slot) => self.set_pending(slot, NOT_PENDING),
            None => {
                self.strays.remove(id);
            }
        }
    }

    fn unmark_all(&mut self) {
        for slot in &mut self.slots {
            slot.pending = NOT_PENDING;
        }
        self.marks = 0;
        self.strays.clear();
    }

    fn set_pending(&mut self, slot: u32, since: i64) {
        let before = std::mem::replace(&mut self.slots[slot as usize].pending, since);
        self.marks += u64::from(since != NOT_PENDING);
        self.marks -= u64::from(before != NOT_PENDING);
    }

    /// Frees the slot of a ticket that left. A mark that is still there becomes a stray.
    fn vacate(&mut self, slot: u32) {
        let id = self.slots[slot as usize].id().to_vec();
        let since = self.slots[slot as usize].pending;
        if since != NOT_PENDING {
            self.set_pending(slot, NOT_PENDING);
            self.strays.insert(String::from_utf8_lossy(&id).into_owned(), (since, true));
        }
        if self.slots[slot as usize].read != 0 {
            self.forget_data(slot);
        }
        let (slots, hash) = (&self.slots, self.hasher.hash_one(&id[..]));
        if let Ok(entry) = self.by_id.find_entry(hash, |other| slots[*other as usize].id() == id) {
            entry.remove();
        }
        self.bytes -= SLOT_BYTES + id.len();
        self.slots[slot as usize] = Slot::default();
        self.free.push(slot);
    }

    /// Forgets what was read of a ticket. It is unread again.
    fn forget_data(&mut self, slot: u32) {
        let this = &mut self.slots[slot as usize];
        let id: Box<[u8]> = this.id().into();
        self.bytes = self.bytes - this.body.len() + id.len() - 4 * this.fields.len();
        (this.body, this.read) = (id, 0);
        let (fields, created) = (std::mem::take(&mut this.fields), this.created);
        self.fields.remove(slot, &fields);
        self.created.remove(&(created, slot));
        self.unread.push(slot);
    }

    /// Appends the response with the next tickets of a selection to `out`: as many as `max` and `max_bytes` allow, and
    /// at least one. Tickets that left matchmaking since are left out. Returns where the next response starts.
    pub(super) fn write_page(
        &self,
        selection: &Selection,
        from: usize,
        page: &Page,
        out: &mut Vec<u8>,
    ) -> Result<usize, Outdated> {
        if selection.generation != self.generation {
            return Err(Outdated);
        }
        let mut count = 0;
        for (at, slot) in selection.slots.iter().enumerate().skip(from) {
            let slot = &self.slots[*slot as usize];
            if slot.read == 0 || slot.read > selection.reads {
                continue;
            }
            let body = if page.ids_only { field_1(&slot.body) } else { &slot.body };
            if count == page.max || count > 0 && out.len() + body.len() > page.max_bytes {
                return Ok(at);
            }
            out.extend_from_slice(body);
            count += 1;
        }
        Ok(selection.len())
    }
}

/// What a response contains.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    /// Only the ids of tickets, as a `QueryTicketIdsResponse`.
    pub(super) ids_only: bool,
    pub(super) max: usize,
    pub(super) max_bytes: usize,
}
