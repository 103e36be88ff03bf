//! Finds candidates for a pivot without looking at the whole pool: lists by region and by attributes that must be equal, each
//! sorted by a number.

use std::collections::HashMap;

use crate::model::{AttributeKind, Party, RuleKind, RuleSet, Schedule, SortBy, Value};
use crate::ticket::Candidate;

/// The candidates of a pool that are still free.
#[derive(Debug)]
pub(super) struct Index {
    /// The number that lists are sorted by. Without one they are sorted by age.
    pub(super) number: Option<usize>,
    /// In which order candidates are found.
    order: Order,
    /// The group of each ticket. Tickets of a match share the texts that make a group.
    groups: Vec<u32>,
    /// How many regions there are.
    regions: usize,
    /// For each group: a list of all its tickets, then one for each region.
    lists: Vec<List>,
    /// The number of each ticket. Empty if lists are sorted by age.
    numbers: Vec<f64>,
    taken: Vec<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Age,
    Nearest,
    Farthest,
    Lowest,
    Highest,
}

/// Tickets in order. `next` and `previous` skip those that are taken; they are shortened when they are followed.
#[derive(Debug, Default)]
struct List {
    tickets: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
}

impl Index {
    pub(super) fn new(rules: &RuleSet, pool: &[Candidate]) -> Self {
        let (number, order) = search_order(rules);
        let farthest = farthest_latency(rules);
        let regions =
            if farthest.is_some() { pool.first().map_or(0, |first| first.latency.len()) } else { 0 };
        let (groups, count) = groups(&equal_texts(rules), pool);
        let mut lists: Vec<List> = Vec::new();
        lists.resize_with(count * (regions + 1), List::default);
        let numbers: Vec<f64> = number
            .map_or_else(Vec::new, |number| pool.iter().map(|ticket| ticket.averages[number]).collect());
        let mut sorted: Vec<u32> = (0..pool.len() as u32).collect();
        if number.is_some() {
            sorted.sort_by(|one, two| {
                let (first, second) = (*one as usize, *two as usize);
                numbers[first]
                    .total_cmp(&numbers[second])
                    .then_with(|| pool[first].tie.cmp(&pool[second].tie))
                    .then(one.cmp(two))
            });
        }
        for at in sorted {
            let candidate = &pool[at as usize];
            let all = groups[at as usize] as usize * (regions + 1);
            lists[all].tickets.push(at);
            for (region, latency) in candidate.latency.iter().take(regions).enumerate() {
                if latency.is_finite() && farthest.is_some_and(|farthest| *latency <= farthest) {
                    lists[all + 1 + region].tickets.push(at);
                }
            }
        }
        for list in &mut lists {
            let count = list.tickets.len() as u32;
            list.next = (0..=count).collect();
            list.previous = (0..=count).collect();
        }
        Self { number, order, groups, regions, lists, numbers, taken: vec![false; pool.len()] }
    }

    pub(super) fn is_taken(&self, ticket: usize) -> bool {
        self.taken[ticket]
    }

    pub(super) fn take(&mut self, ticket: usize) {
        self.taken[ticket] = true;
    }

    /// Calls `found` with free candidates for the pivot, in the order of the search, until it returns false.
    pub(super) fn candidates(
        &mut self,
        pivot: usize,
        region: Option<usize>,
        mut found: impl FnMut(usize) -> bool,
    ) {
        let at = self.groups[pivot] as usize * (self.regions + 1) + region.map_or(0, |region| region + 1);
        let (list, taken, numbers) = (&mut self.lists[at], &self.taken, &self.numbers);
        let value = |ticket: u32| numbers.get(ticket as usize).copied().unwrap_or_default();
        let mine = value(pivot as u32);
        let count = list.tickets.len();
        // `low` goes down, `high` goes up; one past the position.
        let (mut low, mut high) = match self.order {
            Order::Age | Order::Lowest => (0, 0),
            Order::Highest => (count, count),
            Order::Nearest => {
                let at = list.tickets.partition_point(|ticket| value(*ticket) < mine);
                (at, at)
            }
            Order::Farthest => (count, 0),
        };
        loop {
            let above = list.next_free(high, taken);
            let below = list.previous_free(low, taken);
            let distance = |at: Option<usize>| at.map(|at| (value(list.tickets[at]) - mine).abs());
            let chosen = match (self.order, above, below) {
                (Order::Age | Order::Lowest, Some(above), _) => above,
                (Order::Highest, _, Some(below)) => below,
                (Order::Nearest, ..) => match (distance(above), distance(below)) {
                    (Some(up), Some(down)) if down < up => below.unwrap_or(0),
                    (Some(_), _) => above.unwrap_or(0),
                    (None, Some(_)) => below.unwrap_or(0),
                    (None, None) => return,
                },
                // From both ends to the middle, until the two meet.
                (Order::Farthest, Some(above), Some(below)) if above <= below => {
                    if distance(Some(above)) >= distance(Some(below)) { above } else { below }
                }
                _ => return,
            };
            if above == Some(chosen) && self.order != Order::Highest {
                high = chosen + 1;
            } else {
                low = chosen;
            }
            let ticket = list.tickets[chosen] as usize;
            if ticket != pivot && !found(ticket) {
                return;
            }
        }
    }
}

impl List {
    /// Returns the first free position from `at` on.
    fn next_free(&mut self, at: usize, taken: &[bool]) -> Option<usize> {
        let mut at = at;
        while at < self.tickets.len() && taken[self.tickets[at] as usize] {
            let next = (self.next[at] as usize).max(at + 1).min(self.tickets.len());
            // Halve the path.
            let is_taken = |at: usize| at < self.tickets.len() && taken[self.tickets[at] as usize];
            let beyond = if is_taken(next) {
                (self.next[next] as usize).max(next + 1).min(self.tickets.len())
            } else {
                next
            };
            self.next[at] = beyond as u32;
            at = beyond;
        }
        (at < self.tickets.len()).then_some(at)
    }

    /// Returns the last free position below `at`.
    fn previous_free(&mut self, at: usize, taken: &[bool]) -> Option<usize> {
        // `previous[i]` is one past a position at or below `i - 1`.
        let mut at = at;
        while at > 0 && taken[self.tickets[at - 1] as usize] {
            let previous = (self.previous[at] as usize).min(at - 1);
            let is_taken = |at: usize| at > 0 && taken[self.tickets[at - 1] as usize];
            let beyond = if is_taken(previous) {
                (self.previous[previous] as usize).min(previous - 1)
            } else {
                previous
            };
            self.previous[at] = beyond as u32;
            at = beyond;
        }
        at.checked_sub(1)
    }
}

/// Puts tickets with the same texts into the same group. Returns the group of each ticket and the number of groups.
fn groups<'a>(texts: &[usize], pool: &'a [Candidate]) -> (Vec<u32>, usize) {
    if texts.is_empty() {
        return (vec![0; pool.len()], 1);
    }
    let mut known: HashMap<Vec<&'a str>, u32> = HashMap::new();
    let group = |candidate: &'a Candidate| {
        let text = |at: &usize| match &candidate.players[0].values[*at] {
            Value::Text(text) => text.as_ref(),
            _ => "",
        };
        let next = known.len() as u32;
        *known.entry(texts.iter().map(text).collect()).or_insert(next)
    };
    (pool.iter().map(group).collect(), known.len())
}

/// Chooses the number to search by: that of the first sort, else of the first batch distance, else of the quality, else of the
/// first rule that compares numbers.
fn search_order(rules: &RuleSet) -> (Option<usize>, Order) {
    let is_number = |at: &usize| rules.attributes[*at].kind == AttributeKind::Number;
    let first_sort = rules.rules.iter().find_map(|rule| match rule.kind {
        RuleKind::Sort { by, attribute, is_descending, .. } => Some((by, attribute, is_descending)),
        _ => None,
    });
    if let Some((by, attribute, is_descending)) = first_sort.filter(|(_, attribute, _)| is_number(attribute))
    {
        let order = match (by, is_descending) {
            (SortBy::Value, false) => Order::Lowest,
            (SortBy::Value, true) => Order::Highest,
            (SortBy::Distance, false) => Order::Nearest,
            (SortBy::Distance, true) => Order::Farthest,
        };
        return (Some(attribute), order);
    }
    let batch = rules.conditions().find_map(|(_, rule)| match rule.kind {
        RuleKind::BatchDistance { attribute } if is_number(&attribute) => Some(attribute),
        _ => None,
    });
    let compared = || {
        rules.conditions().find_map(|(_, rule)| {
            let measurements = match &rule.kind {
                RuleKind::Distance { measurements, .. } | RuleKind::Comparison { measurements, .. } => {
                    measurements
                }
                _ => return None,
            };
            let mut first = None;
            for measurement in measurements {
                measurement.attributes(&mut |attribute| first = first.or(Some(attribute).filter(is_number)));
            }
            first
        })
    };
    match batch.or(rules.quality.attribute).or_else(compared) {
        Some(number) => (Some(number), Order::Nearest),
        None => (None, Order::Age),
    }
}

/// Returns the texts that must always be equal in a match.
fn equal_texts(rules: &RuleSet) -> Vec<usize> {
    let is_zero = |schedule: &Schedule| schedule.is_fixed() && schedule.base.unwrap_or(0.0) == 0.0;
    rules
        .conditions()
        .filter_map(|(_, rule)| match rule.kind {
            RuleKind::BatchDistance { attribute }
                if rules.attributes[attribute].kind == AttributeKind::Text
                    && is_zero(&rule.max)
                    && is_zero(&rule.off) =>
            {
                Some(attribute)
            }
            _ => None,
        })
        .collect()
}

/// Returns the highest latency that the first latency rule ever admits, if there is such a rule.
fn farthest_latency(rules: &RuleSet) -> Option<f64> {
    let (_, rule) = rules.conditions().find(|(_, rule)| matches!(rule.kind, RuleKind::Latency { .. }))?;
    Some(highest(&rule.max))
}

/// Returns the highest value that a schedule ever has, infinity if it has none at first.
fn highest(schedule: &Schedule) -> f64 {
    let changes = schedule.changes().into_iter().filter_map(|age| schedule.at(age));
    schedule.base.map_or(f64::INFINITY, |base| changes.fold(base, f64::max))
}

/// Returns whether the window of a sorted list is exact for a party aggregation.
pub(super) fn is_window_exact(party: Party) -> bool {
    party == Party::Average
}
