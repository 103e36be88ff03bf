//! The search fields of all tickets: which slots have a value.
//!
//! A string value or a tag is a *term* with a number, and so is the name of a double argument. A slot keeps its fields
//! packed: the number of terms, the terms, then for each double its field and value.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use crate::model::{Bounds, SearchFields};

/// The memory of a term beside its name and its slots.
const TERM_BYTES: usize = 140;
/// The memory of a slot in a posting list, and in the sorted set of a double argument.
const POSTING_BYTES: usize = 8;
const SORTED_BYTES: usize = 24;

#[derive(Debug, Default)]
pub(super) struct Fields {
    terms: Numbered<Posting>,
    doubles: Numbered<BTreeSet<(u64, u32)>>,
    bytes: usize,
}

/// The slots of a term. Many terms have one ticket, such as the name of a player.
#[derive(Debug, Default)]
pub(super) enum Posting {
    #[default]
    None,
    One(u32),
    Many(BTreeSet<u32>),
}

impl Posting {
    fn insert(&mut self, slot: u32) {
        match self {
            Self::None => *self = Self::One(slot),
            Self::One(first) => *self = Self::Many([*first, slot].into()),
            Self::Many(slots) => {
                slots.insert(slot);
            }
        }
    }

    fn remove(&mut self, slot: u32) {
        match self {
            Self::Many(slots) => {
                slots.remove(&slot);
                if slots.is_empty() {
                    *self = Self::None;
                }
            }
            _ => *self = Self::None,
        }
    }

    const fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Many(slots) => slots.len(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(slot) => (Some(*slot), None),
            Self::Many(slots) => (None, Some(slots)),
        };
        one.into_iter().chain(many.into_iter().flatten().copied())
    }
}

/// Values with a name and a number. Numbers of removed values are reused.
#[derive(Debug)]
struct Numbered<T> {
    by_name: HashMap<Arc<str>, u32>,
    all: Vec<(Arc<str>, T)>,
    free: Vec<u32>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { by_name: HashMap::new(), all: Vec::new(), free: Vec::new() }
    }
}

impl<T: Default> Numbered<T> {
    /// Returns the number of a name. Also returns whether it is new.
    fn number(&mut self, name: &str) -> (u32, bool) {
        if let Some(number) = self.by_name.get(name) {
            return (*number, false);
        }
        let name: Arc<str> = name.into();
        let number = self.free.pop().unwrap_or_else(|| {
            self.all.push((name.clone(), T::default()));
            (self.all.len() - 1) as u32
        });
        self.all[number as usize] = (name.clone(), T::default());
        self.by_name.insert(name, number);
        (number, true)
    }

    fn find(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    fn get(&self, number: u32) -> &T {
        &self.all[number as usize].1
    }

    fn get_mut(&mut self, number: u32) -> &mut T {
        &mut self.all[number as usize].1
    }

    /// Removes a value. Returns the length of its name.
    fn remove(&mut self, number: u32) -> usize {
        let (name, _) = std::mem::take(&mut self.all[number as usize]);
        self.by_name.remove(&name);
        self.free.push(number);
        name.len()
    }
}

impl Fields {
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a ticket. Returns its packed fields.
    pub(super) fn insert(&mut self, slot: u32, fields: &SearchFields) -> Box<[u32]> {
        let texts = fields.strings.iter().map(|(field, value)| text_name(field, value));
        let names = texts.chain(fields.tags.iter().map(|tag| tag_name(tag)));
        let mut packed = vec![0];
        for name in names {
            let (term, is_new) = self.terms.number(&name);
            self.bytes += if is_new { TERM_BYTES + name.len() } else { 0 };
            // A tag may be repeated.
            if !packed[1..].contains(&term) {
                self.terms.get_mut(term).insert(slot);
                self.bytes += POSTING_BYTES;
                packed.push(term);
            }
        }
        packed[0] = (packed.len() - 1) as u32;
        // NaN is in no range.
        for (name, value) in fields.doubles.iter().filter(|(_, value)| !value.is_nan()) {
            let (field, is_new) = self.doubles.number(name);
            self.bytes += SORTED_BYTES + if is_new { TERM_BYTES + name.len() } else { 0 };
            let place = order(*value);
            self.doubles.get_mut(field).insert((place, slot));
            packed.extend([field, (place >> 32) as u32, place as u32]);
        }
        packed.into()
    }

    /// Removes a ticket.
    pub(super) fn remove(&mut self, slot: u32, packed: &[u32]) {
        for term in terms(packed) {
            self.terms.get_mut(*term).remove(slot);
            self.bytes -= POSTING_BYTES;
            if self.terms.get(*term).is_empty() {
                self.bytes -= TERM_BYTES + self.terms.remove(*term);
            }
        }
        for (field, place) in doubles(packed) {
            self.doubles.get_mut(field).remove(&(place, slot));
            self.bytes -= SORTED_BYTES;
            if self.doubles.get(field).is_empty() {
                self.bytes -= TERM_BYTES + self.doubles.remove(field);
            }
        }
    }

    pub(super) fn text(&self, field: &str, value: &str) -> Option<u32> {
        self.terms.find(&text_name(field, value))
    }

    pub(super) fn tag(&self, tag: &str) -> Option<u32> {
        self.terms.find(&tag_name(tag))
    }

    pub(super) fn slots_of_term(&self, term: u32) -> &Posting {
        self.terms.get(term)
    }

    /// Returns a range of a double argument, or `None` if no ticket can be in it.
    pub(super) fn range(&self, field: &str, min: f64, max: f64, bounds: Bounds) -> Option<Range> {
        let field = self.doubles.find(field)?;
        // False if either is NaN.
        let is_possible = match bounds {
            Bounds::Closed => min <= max,
            Bounds::OpenMin | Bounds::OpenMax | Bounds::Open => min < max,
        };
        if !is_possible {
            return None;
        }
        let (min, max) = (order(min), order(max));
        let (first, last) = match bounds {
            Bounds::Closed => (min, max),
            Bounds::OpenMin => (min + 1, max),
            Bounds::OpenMax => (min, max - 1),
            Bounds::Open => (min + 1, max - 1),
        };
        (first <= last).then_some(Range { field, first, last })
    }

    pub(super) fn slots_in_range(&self, range: &Range) -> impl Iterator<Item = u32> {
        let bounds = (Bound::Included((range.first, 0)), Bound::Included((range.last, u32::MAX)));
        self.doubles.get(range.field).range(bounds).map(|(_, slot)| *slot)
    }
}

/// Values of a double argument, both ends included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    field: u32,
    first: u64,
    last: u64,
}

impl Range {
    pub(super) fn contains(&self, packed: &[u32]) -> bool {
        doubles(packed).any(|(field, place)| field == self.field && self.first <= place && place <= self.last)
    }
}

pub(super) fn terms(packed: &[u32]) -> &[u32] {
    &packed[1..=packed[0] as usize]
}

fn doubles(packed: &[u32]) -> impl Iterator<Item = (u32, u64)> {
    let doubles = packed[1 + packed[0] as usize..].chunks_exact(3);
    doubles.map(|each| (each[0], u64::from(each[1]) << 32 | u64::from(each[2])))
}

/// Maps a number to an integer of the same order. Both zeros are equal.
fn order(value: f64) -> u64 {
    let bits = (value + 0.0).to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

/// Returns the name of a term. The length keeps apart which part is the field.
fn text_name(field: &str, value: &str) -> String {
    format!("{}:{field}{value}", field.len())
}

fn tag_name(tag: &str) -> String {
    format!("#{tag}")
}
