//! Finds the tickets of a pool: the most selective filter gives the candidates, the others are checked.

use std::collections::btree_set;
use std::ops::Bound;
use std::time::Duration;

use super::fields::{Range, terms};
use super::{Index, Selection, Slot};
use crate::model::{Filter, Moment, Pool};

/// The filters of a pool, looked up in the index.
struct Plan {
    terms: Vec<u32>,
    /// The terms that a ticket must not have.
    excluded: Vec<u32>,
    ranges: Vec<Range>,
    /// The first and last nanosecond of the creation time.
    created: (i64, i64),
}

/// Where the candidates come from.
enum Source<'a> {
    All,
    Term(u32),
    Range(&'a Range),
    Created,
}

/// When a query looks at the index.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::query) struct At {
    pub(in crate::query) now: Moment,
    /// A ticket that became pending before this millisecond is active again.
    pub(in crate::query) live_since: i64,
}

impl At {
    pub(in crate::query) fn after(self, time: Duration) -> Self {
        let now = Moment::from_nanos(self.now.nanos().saturating_add(time.as_nanos() as i64));
        Self { now, live_since: self.live_since.saturating_add(time.as_millis() as i64) }
    }

    fn is_active(&self, slot: &Slot) -> bool {
        slot.read != 0 && slot.pending < self.live_since && slot.expires > self.now.nanos()
    }
}

impl Index {
    /// Returns how many tickets the search of a pool has to look at, at most.
    pub(in crate::query) fn effort(&self, pool: &Pool, at: At) -> usize {
        self.plan(pool, at.now).map_or(0, |plan| self.source(&plan).1)
    }

    /// Selects the active tickets of a pool.
    pub(in crate::query) fn search(&self, pool: &Pool, at: At) -> Selection {
        let slots = self.plan(pool, at.now).map_or_else(Vec::new, |plan| self.candidates(&plan, at));
        Selection { slots, reads: self.reads, generation: self.generation }
    }

    /// Looks up the filters. Returns `None` if no ticket has such fields.
    fn plan(&self, pool: &Pool, now: Moment) -> Option<Plan> {
        let (terms, excluded, ranges) = (Vec::new(), Vec::new(), Vec::new());
        let mut plan = Plan { terms, excluded, ranges, created: (i64::MIN, i64::MAX) };
        let (first, last) = &mut plan.created;
        for filter in &pool.filters {
            match filter {
                Filter::Double { field, min, max, bounds } => {
                    plan.ranges.push(self.fields.range(field, *min, *max, *bounds)?);
                }
                Filter::Text { field, value } => plan.terms.push(self.fields.text(field, value)?),
                // A text that no ticket has excludes none.
                Filter::OtherText { field, value } => plan.excluded.extend(self.fields.text(field, value)),
                Filter::Tag(tag) => plan.terms.push(self.fields.tag(tag)?),
                Filter::CreatedBefore(moment) => *last = (*last).min(moment.nanos().checked_sub(1)?),
                Filter::CreatedAfter(moment) => *first = (*first).max(moment.nanos().checked_add(1)?),
                Filter::MinWait(wait) if wait.is_zero() => {}
                Filter::MinWait(wait) => *last = (*last).min(now.minus(*wait).nanos()),
                Filter::MaxWait(wait) => *first = (*first).max(now.minus(*wait).nanos()),
            }
        }
        (plan.created.0 <= plan.created.1).then_some(plan)
    }

    /// Chooses the filter with the fewest tickets, and returns their number. Counting stops at the best one so far.
    fn source<'a>(&self, plan: &'a Plan) -> (Source<'a>, usize) {
        // Reading all slots in order is several times faster than following a sorted set.
        let (mut source, mut least) = (Source::All, self.slots.len() / 4);
        for term in &plan.terms {
            let count = self.fields.slots_of_term(*term).len();
            if count < least {
                (source, least) = (Source::Term(*term), count);
            }
        }
        for range in &plan.ranges {
            let count = self.fields.slots_in_range(range).take(least).count();
            if count < least {
                (source, least) = (Source::Range(range), count);
            }
        }
        if plan.created != (i64::MIN, i64::MAX) {
            let count = self.slots_created(plan).take(least).count();
            if count < least {
                (source, least) = (Source::Created, count);
            }
        }
        if matches!(source, Source::All) {
            least = self.slots.len();
        }
        (source, least)
    }

    fn slots_created(&self, plan: &Plan) -> btree_set::Range<'_, (i64, u32)> {
        let (first, last) = plan.created;
        self.created.range((Bound::Included((first, 0)), Bound::Included((last, u32::MAX))))
    }

    fn candidates(&self, plan: &Plan, at: At) -> Vec<u32> {
        let check = |slot: &u32| self.is_selected(&self.slots[*slot as usize], plan, at);
        match self.source(plan).0 {
            Source::All => (0..self.slots.len() as u32).filter(check).collect(),
            Source::Term(term) => self.fields.slots_of_term(term).iter().filter(check).collect(),
            Source::Range(range) => self.fields.slots_in_range(range).filter(check).collect(),
            Source::Created => self.slots_created(plan).map(|(_, slot)| *slot).filter(check).collect(),
        }
    }

    fn is_selected(&self, slot: &Slot, plan: &Plan, at: At) -> bool {
        at.is_active(slot)
            && plan.created.0 <= slot.created
            && slot.created <= plan.created.1
            && plan.terms.iter().all(|term| terms(&slot.fields).contains(term))
            && !plan.excluded.iter().any(|term| terms(&slot.fields).contains(term))
            && plan.ranges.iter().all(|range| range.contains(&slot.fields))
    }
}
