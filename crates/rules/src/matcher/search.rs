//! Builds one match: a first attempt that takes candidates in order, then a search over all lineups within a budget.

use std::cmp::Reverse;

use super::Evaluations;
use super::index::{Index, is_window_exact};
use super::sort::sort;
use crate::judge::{Bounds, Judge, Lineup, range};
use crate::model::{Age, AttributeKind, Party, RuleKind};
use crate::roles;
use crate::ticket::Candidate;

/// How a search ended.
#[derive(Debug)]
pub(super) enum Found {
    Match(Lineup),
    Nothing,
    CutShort,
}

/// Which candidates a search looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The first ones in the order of the index.
    Nearest,
    /// Those of the whole pool that pass every rule together with the pivot. If there are too many, the nearest or a random
    /// choice, by turns.
    All { turn: u64 },
}

/// Which lineups the first attempt accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Full,
    Any,
}

/// How many candidates for each place are tried first. They make most matches, and further ones would not change those.
const FIRST_PER_PLACE: usize = 2;
/// How many tickets the index yields for each candidate that is wanted, at most, so that one pivot does not read the whole pool.
const SCANNED_PER_CANDIDATE: usize = 20;
/// How many tickets the first attempt gives up again, one by one, before it fails.
const MAX_SHRINK: usize = 12;

/// The search around one pivot.
#[derive(Debug)]
pub(super) struct Search<'a, 'b> {
    pub(super) judge: Judge<'a>,
    pivot: usize,
    /// The fewest players of each team that can do.
    min: Vec<usize>,
    /// The fewest players of each team if all wait for as long as the pivot. Teams below are filled first.
    wanted: Vec<usize>,
    /// The rules that no further ticket can satisfy once they are broken, each with its limits.
    lasting: Vec<(usize, Bounds)>,
    /// Rules on the range of a number, with the limit.
    ranges: Vec<(usize, usize, Party, f64)>,
    /// Rules on equal texts.
    texts: Vec<(usize, usize)>,
    latency: Option<(usize, Option<f64>)>,
    /// Whether the rules sort candidates.
    sorts: bool,
    candidates: Vec<usize>,
    /// The lineup of a match under way, which every lineup begins with.
    pub(super) seated: Option<&'b Lineup>,
    pub(super) lineup: Lineup,
    pub(super) counts: Vec<usize>,
    /// The lowest and highest number of the lineup for each of `ranges`.
    now: Vec<(f64, f64)>,
    /// What was added, with the numbers before.
    added: Vec<(usize, Vec<(f64, f64)>)>,
    budget: u32,
    /// How many tickets were compared with the pivot.
    compared: usize,
    was_cut_short: bool,
    evaluations: &'b mut [Evaluations],
}

impl<'a, 'b> Search<'a, 'b> {
    pub(super) fn new(
        judge: Judge<'a>,
        pivot: usize,
        budget: u32,
        evaluations: &'b mut [Evaluations],
    ) -> Self {
        let age = judge.pool[pivot].age(judge.now);
        Self::with_age(judge, pivot, age, budget, evaluations)
    }

    /// Prepares a search around a ticket that joins a match under way.
    pub(super) fn under_way(
        judge: Judge<'a>,
        pivot: usize,
        seated: &'b Lineup,
        budget: u32,
        evaluations: &'b mut [Evaluations],
    ) -> Self {
        let tickets = seated.iter().flatten().chain([&pivot]);
        let age = tickets.map(|ticket| judge.pool[*ticket].age(judge.now)).fold(0.0, f64::max);
        let mut search = Self::with_age(judge, pivot, age, budget, evaluations);
        search.seated = Some(seated);
        search.min.fill(0);
        // There is no list of candidates by text and region, so that these rules are checked as the others are.
        let rules = judge.rules;
        let by_list =
            search.texts.drain(..).map(|(rule, _)| rule).chain(search.latency.take().map(|(rule, _)| rule));
        let bounds = by_list.map(|rule| (rule, rules.rules[rule].lasting_bounds(rules)));
        search.lasting.extend(bounds.filter(|(_, bounds)| bounds.min || bounds.max));
        search.clear();
        search
    }

    fn with_age(
        judge: Judge<'a>,
        pivot: usize,
        pivot_age: f64,
        budget: u32,
        evaluations: &'b mut [Evaluations],
    ) -> Self {
        let rules = judge.rules;
        let (mut lasting, mut ranges, mut texts, mut latency) = (Vec::new(), Vec::new(), Vec::new(), None);
        for (at, rule) in rules.conditions() {
            let follows_pivot =
                rule.age == Age::Oldest || rule.schedules().iter().all(|(_, schedule)| schedule.is_fixed());
            let may_be_off = if follows_pivot { rule.is_off(pivot_age) } else { true };
            if may_be_off {
                continue;
            }
            match rule.kind {
                RuleKind::BatchDistance { attribute }
                    if rules.attributes[attribute].kind == AttributeKind::Number =>
                {
                    if let Some(limit) = rule.max.at(pivot_age) {
                        ranges.push((at, attribute, rule.party, limit));
                    }
                }
                RuleKind::BatchDistance { attribute } if rule.max.at(pivot_age).unwrap_or(0.0) < 1.0 => {
                    texts.push((at, attribute))
                }
                RuleKind::Latency { .. } if latency.is_none() => {
                    latency = Some((at, rule.max.at(pivot_age)));
                }
                _ => {
                    let bounds = rule.lasting_bounds(rules);
                    if bounds.min || bounds.max {
                        lasting.push((at, bounds));
                    }
                }
            }
        }
        let min = |team: &crate::model::Team| {
            if team.age == Age::Oldest || team.min.is_fixed() {
                return team.min_at(pivot_age);
            }
            let lowest = team
                .min
                .changes()
                .into_iter()
                .filter_map(|age| team.min.at(age))
                .fold(team.min.at(0.0).unwrap_or(0.0), f64::min);
            lowest.max(0.0) as usize
        };
        let now = vec![(f64::INFINITY, f64::NEG_INFINITY); ranges.len()];
        Self {
            judge,
            pivot,
            min: rules.slots.iter().map(|slot| min(&rules.teams[slot.team])).collect(),
            wanted: rules.slots.iter().map(|slot| rules.teams[slot.team].min_at(pivot_age)).collect(),
            lasting,
            ranges,
            texts,
            latency,
            sorts: rules.rules.iter().any(|rule| matches!(rule.kind, RuleKind::Sort { .. })),
            candidates: Vec::new(),
            seated: None,
            lineup: vec![Vec::new(); rules.slots.len()],
            counts: vec![0; rules.slots.len()],
            now,
            added: Vec::new(),
            budget,
            compared: 0,
            was_cut_short: false,
            evaluations,
        }
    }

    pub(super) fn budget_left(&self) -> u32 {
        self.budget
    }

    pub(super) fn compared(&self) -> usize {
        self.compared
    }

    /// Finds a match around the pivot: in each region that it can play in, the nearest first. If the quality differs between
    /// regions, first attempts are made in all of them, and the best one is the match.
    pub(super) fn run(&mut self, index: &mut Index, count: usize, reach: Reach) -> Found {
        let (rules, pivot) = (self.judge.rules, &self.judge.pool[self.pivot]);
        let Some((rule, limit)) = self.latency else {
            return self.run_in(index, None, count, reach);
        };
        let is_near = |latency: f64| latency.is_finite() && limit.is_none_or(|limit| latency <= limit);
        let mut regions: Vec<(usize, f64)> =
            pivot.latency.iter().copied().enumerate().filter(|(_, latency)| is_near(*latency)).collect();
        if regions.is_empty() {
            self.evaluations[rule].failed += 1;
        }
        regions.sort_by(|one, two| one.1.total_cmp(&two.1).then(one.0.cmp(&two.0)));
        let is_choice = regions.len() > 1 && rules.quality.differs_between_regions();
        if is_choice && let Some(lineup) = self.best_attempt(index, &regions, count, reach) {
            return Found::Match(lineup);
        }
        for (region, _) in regions {
            if is_choice {
                // The first attempt has failed already.
                self.gather(index, Some(region), count, reach);
                if self.has_enough() && self.search_all() {
                    return Found::Match(self.take_lineup());
                }
                continue;
            }
            let found = self.run_in(index, Some(region), count, reach);
            if matches!(found, Found::Match(_)) {
                return found;
            }
        }
        if self.was_cut_short { Found::CutShort } else { Found::Nothing }
    }

    fn run_in(&mut self, index: &mut Index, region: Option<usize>, count: usize, reach: Reach) -> Found {
        if self.attempt_in(index, region, count, reach) || self.has_enough() && self.search_all() {
            return Found::Match(self.take_lineup());
        }
        if self.was_cut_short { Found::CutShort } else { Found::Nothing }
    }

    /// Makes first attempts in a region: for a full match among few candidates, then for any among all.
    fn attempt_in(&mut self, index: &mut Index, region: Option<usize>, count: usize, reach: Reach) -> bool {
        let few = FIRST_PER_PLACE * self.judge.rules.max_players();
        // With sorts, the best candidate may be the last that is found.
        if reach == Reach::Nearest && !self.sorts && few < count {
            self.gather(index, region, few, reach);
            if self.has_enough() && self.first_attempt(Size::Full) {
                return true;
            }
        }
        self.gather(index, region, count, reach);
        self.has_enough() && self.first_attempt(Size::Any)
    }

    /// Makes first attempts in all regions. Returns the best of the full matches, or else of the others.
    fn best_attempt(
        &mut self,
        index: &mut Index,
        regions: &[(usize, f64)],
        count: usize,
        reach: Reach,
    ) -> Option<Lineup> {
        let mut best: Option<(bool, f64, Lineup)> = None;
        for (region, _) in regions {
            if !self.attempt_in(index, Some(*region), count, reach) {
                continue;
            }
            let is_full = self.counts.iter().sum::<usize>() >= self.judge.rules.max_players();
            let quality = self.judge.quality(&self.lineup);
            if best.as_ref().is_none_or(|(was_full, least, _)| (is_full, quality) > (*was_full, *least)) {
                best = Some((is_full, quality, self.take_lineup()));
            }
        }
        best.map(|(.., lineup)| lineup)
    }

    fn take_lineup(&mut self) -> Lineup {
        std::mem::replace(&mut self.lineup, vec![Vec::new(); self.counts.len()])
    }

    /// Returns whether the pivot and the candidates are enough players.
    fn has_enough(&self) -> bool {
        let players = self.judge.pool[self.pivot].players.len() + self.judge.size(&self.candidates);
        players >= self.min.iter().sum()
    }

    /// Lists candidates that the pivot could play with, in order.
    fn gather(&mut self, index: &mut Index, region: Option<usize>, count: usize, reach: Reach) {
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        let window = self
            .ranges
            .iter()
            .find(|(_, attribute, party, _)| index.number == Some(*attribute) && is_window_exact(*party))
            .copied();
        let (pool, pivot) = (self.judge.pool, self.pivot);
        let (mut left, most) = match reach {
            Reach::Nearest => (count.saturating_mul(SCANNED_PER_CANDIDATE), count),
            Reach::All { .. } => (usize::MAX, usize::MAX),
        };
        let largest = self.judge.rules.teams.iter().map(|team| team.max).max().unwrap_or(0);
        let is_nearest_first = !self.sorts;
        index.candidates(pivot, region, |ticket| {
            left -= 1;
            self.compared += 1;
            if let Some((_, attribute, _, limit)) = window {
                let distance = (pool[ticket].averages[attribute] - pool[pivot].averages[attribute]).abs();
                // The others are farther away.
                if !is_within(0.0, distance, limit) && is_nearest_first {
                    return false;
                }
            }
            let suits = pool[ticket].players.len() <= largest
                && self.suits(ticket, region)
                && (reach == Reach::Nearest || self.suits_lastingly(ticket));
            if suits {
                candidates.push(ticket);
            }
            left > 0 && candidates.len() < most
        });
        if let Reach::All { turn } = reach
            && candidates.len() > count
        {
            if turn % 2 == 1 {
                candidates.sort_by_cached_key(|ticket| mixed(pool[*ticket].tie ^ turn));
            } else if self.sorts {
                sort(&self.judge, self.pivot, &mut candidates);
            }
            candidates.truncate(count);
        }
        if self.sorts {
            sort(&self.judge, self.pivot, &mut candidates);
        }
        self.candidates = candidates;
    }

    /// Returns whether the pivot and one candidate pass the rules that look at two tickets.
    fn suits(&mut self, ticket: usize, region: Option<usize>) -> bool {
        let pool = self.judge.pool;
        let (pivot, candidate) = (&pool[self.pivot], &pool[ticket]);
        for at in 0..self.ranges.len() {
            let (rule, attribute, party, limit) = self.ranges[at];
            let (low, high) = range(pivot, attribute, party);
            let (other_low, other_high) = range(candidate, attribute, party);
            if !self.note(rule, is_within(low.min(other_low), high.max(other_high), limit)) {
                return false;
            }
        }
        for at in 0..self.texts.len() {
            let (rule, attribute) = self.texts[at];
            let is_equal = pivot.players[0].values[attribute] == candidate.players[0].values[attribute];
            if !self.note(rule, is_equal) {
                return false;
            }
        }
        match (self.latency, region) {
            (Some((rule, limit)), Some(region)) => {
                let latency = candidate.latency[region];
                self.note(rule, latency.is_finite() && limit.is_none_or(|limit| latency <= limit))
            }
            _ => true,
        }
    }

    /// Returns whether no rule is broken for good by the pivot and one candidate, in some teams.
    fn suits_lastingly(&self, ticket: usize) -> bool {
        let (judge, slots) = (self.judge, self.counts.len());
        let mut lineup: Lineup = vec![Vec::new(); slots];
        let mut holds = |one: usize, two: usize| {
            lineup.iter_mut().for_each(Vec::clear);
            lineup[one].push(self.pivot);
            lineup[two].push(ticket);
            self.lasting
                .iter()
                .all(|(rule, bounds)| judge.excess(&judge.rules.rules[*rule], &lineup, *bounds) == 0.0)
        };
        self.lasting.is_empty() || (0..slots).any(|one| (0..slots).any(|two| holds(one, two)))
    }

    /// Counts an evaluation.
    fn note(&mut self, rule: usize, passed: bool) -> bool {
        let evaluations = &mut self.evaluations[rule];
        *if passed { &mut evaluations.passed } else { &mut evaluations.failed } += 1;
        passed
    }

    /// Puts a ticket into a team if no rule is broken for good.
    pub(super) fn add(&mut self, ticket: usize, slot: usize) -> bool {
        let rules = self.judge.rules;
        let candidate = &self.judge.pool[ticket];
        let team = &rules.teams[rules.slots[slot].team];
        let count = self.counts[slot] + candidate.players.len();
        if count > team.max || self.meets_itself(candidate) {
            return false;
        }
        let before = self.now.clone();
        for at in 0..self.ranges.len() {
            let (rule, attribute, party, limit) = self.ranges[at];
            let (low, high) = range(candidate, attribute, party);
            let (low, high) = (self.now[at].0.min(low), self.now[at].1.max(high));
            if !self.note(rule, is_within(low, high, limit)) {
                self.now = before;
                return false;
            }
            self.now[at] = (low, high);
        }
        self.lineup[slot].push(ticket);
        let has_roles = team.roles.is_empty()
            || roles::assign(
                &team.roles,
                rules.role_attribute,
                &self.judge.members(&self.lineup[slot]),
                team.max - count,
            )
            .is_some();
        let judge = self.judge;
        let mut holds = has_roles;
        for at in 0..self.lasting.len() {
            let (rule, bounds) = self.lasting[at];
            holds = holds && {
                let passed = judge.excess(&rules.rules[rule], &self.lineup, bounds) == 0.0;
                self.note(rule, passed)
            };
        }
        if !holds {
            self.lineup[slot].pop();
            self.now = before;
            return false;
        }
        self.counts[slot] = count;
        self.added.push((slot, before));
        true
    }

    /// Takes the last added ticket out. Not for lineups in which tickets were swapped.
    fn undo(&mut self) {
        if let Some((slot, before)) = self.added.pop() {
            if let Some(ticket) = self.lineup[slot].pop() {
                self.counts[slot] -= self.judge.pool[ticket].players.len();
            }
            self.now = before;
        }
    }

    /// Takes all tickets out that may be: all but those of a match under way.
    fn clear(&mut self) {
        self.lineup.iter_mut().for_each(Vec::clear);
        self.counts.fill(0);
        self.now.fill((f64::INFINITY, f64::NEG_INFINITY));
        self.added.clear();
        let Some(seated) = self.seated else { return };
        self.lineup.clone_from(seated);
        for (slot, tickets) in seated.iter().enumerate() {
            self.counts[slot] = self.judge.size(tickets);
        }
        for (at, (_, attribute, party, _)) in self.ranges.iter().enumerate() {
            for ticket in seated.iter().flatten() {
                let (low, high) = range(&self.judge.pool[*ticket], *attribute, *party);
                self.now[at] = (self.now[at].0.min(low), self.now[at].1.max(high));
            }
        }
    }

    /// Lets the pivot join the match under way: alone, or else together with some of these others. Returns the new lineup.
    pub(super) fn join(&mut self, others: &[usize], most: usize) -> Option<Lineup> {
        let slots = self.slots_for_pivot();
        let mut has_place = false;
        for slot in slots {
            self.clear();
            if self.add(self.pivot, slot) {
                if self.is_match() {
                    return Some(std::mem::take(&mut self.lineup));
                }
                has_place = true;
            }
        }
        if !has_place {
            return None;
        }
        self.clear();
        let mut candidates = std::mem::take(&mut self.candidates);
        for ticket in others.iter().copied().take(most * SCANNED_PER_CANDIDATE) {
            self.compared += 1;
            if self.add_anywhere(ticket) {
                self.undo();
                candidates.push(ticket);
            }
            if candidates.len() == most {
                break;
            }
        }
        self.candidates = candidates;
        self.search_all().then(|| std::mem::take(&mut self.lineup))
    }

    /// Returns whether a player of the ticket is in the lineup already, through another ticket.
    fn meets_itself(&self, candidate: &Candidate) -> bool {
        let is_there = |member: &crate::ticket::Member| {
            let mut others =
                self.lineup.iter().flatten().flat_map(|ticket| &self.judge.pool[*ticket].players);
            others.any(|other| other.id == member.id)
        };
        candidate.shares_player && candidate.players.iter().any(is_there)
    }

    /// Lists the teams to try for a ticket: those that need players, then those with the most room. Of equal teams without players
    /// only the first.
    fn slots_for(&self, size: usize) -> Vec<usize> {
        let rules = self.judge.rules;
        let max = |slot: usize| rules.teams[rules.slots[slot].team].max;
        let is_new = |slot: usize| {
            self.counts[slot] > 0
                || !(0..slot).any(|earlier| {
                    self.counts[earlier] == 0 && rules.slots[earlier].team == rules.slots[slot].team
                })
        };
        let mut slots: Vec<usize> = (0..self.counts.len())
            .filter(|slot| self.counts[*slot] + size <= max(*slot) && is_new(*slot))
            .collect();
        slots.sort_by_key(|slot| {
            (self.counts[*slot] >= self.wanted[*slot], Reverse(max(*slot) - self.counts[*slot]), *slot)
        });
        slots
    }

    fn add_anywhere(&mut self, ticket: usize) -> bool {
        let slots = self.slots_for(self.judge.pool[ticket].players.len());
        slots.into_iter().any(|slot| self.add(ticket, slot))
    }

    /// Takes candidates in order until all teams are full, swaps tickets until the rules hold, and gives tickets up if they do not.
    fn first_attempt(&mut self, size: Size) -> bool {
        self.clear();
        if !self.add_anywhere(self.pivot) {
            return false;
        }
        let most = self.judge.rules.max_players();
        for at in 0..self.candidates.len() {
            if self.counts.iter().sum::<usize>() >= most {
                break;
            }
            self.add_anywhere(self.candidates[at]);
        }
        let max_shrink = match size {
            Size::Full if self.counts.iter().sum::<usize>() < most => return false,
            Size::Full => 0,
            Size::Any => MAX_SHRINK,
        };
        let taken: usize = self.lineup.iter().map(Vec::len).sum();
        for given_up in 0..=max_shrink {
            if self.is_enough() && self.is_match_after_swaps() {
                self.improve();
                return true;
            }
            if given_up + 1 >= taken {
                break;
            }
            self.undo();
            if self.counts.iter().sum::<usize>() < self.min.iter().sum() {
                break;
            }
        }
        false
    }

    fn is_enough(&self) -> bool {
        self.counts.iter().zip(&self.min).all(|(count, min)| count >= min)
    }

    /// Returns whether the lineup is a match, possibly after swaps. Otherwise it is unchanged.
    fn is_match_after_swaps(&mut self) -> bool {
        if self.is_match() {
            return true;
        }
        let before = (self.lineup.clone(), self.counts.clone());
        if self.repair() {
            return true;
        }
        (self.lineup, self.counts) = before;
        false
    }

    /// Returns whether the lineup is a match. Counts the evaluation of each rule.
    pub(super) fn is_match(&mut self) -> bool {
        let judge = self.judge;
        let has_sizes = match self.seated {
            Some(_) => judge.has_places(&self.lineup),
            None => judge.is_complete(&self.lineup),
        };
        if !has_sizes {
            return false;
        }
        for (at, rule) in judge.rules.conditions() {
            let passed = judge.passes(rule, &self.lineup);
            if !self.note(at, passed) {
                return false;
            }
        }
        judge.shares_region(&self.lineup)
    }

    /// Spends some of the budget. Returns false once there is none.
    pub(super) fn spend(&mut self) -> bool {
        let has_budget = self.budget > 0;
        self.budget = self.budget.saturating_sub(1);
        self.was_cut_short |= !has_budget;
        has_budget
    }

    /// Tries all lineups within the budget, then adds further candidates to the first match found.
    fn search_all(&mut self) -> bool {
        let mut left = vec![0; self.candidates.len() + 1];
        for at in (0..self.candidates.len()).rev() {
            left[at] = left[at + 1] + self.judge.pool[self.candidates[at]].players.len();
        }
        for slot in self.slots_for_pivot() {
            self.clear();
            if self.add(self.pivot, slot) && self.descend(0, true, &left) {
                self.grow();
                self.improve();
                return true;
            }
        }
        false
    }

    fn slots_for_pivot(&mut self) -> Vec<usize> {
        self.clear();
        self.slots_for(self.judge.pool[self.pivot].players.len())
    }

    fn descend(&mut self, at: usize, has_changed: bool, left: &[usize]) -> bool {
        if !self.spend() {
            return false;
        }
        if has_changed && self.is_enough() && self.is_match() {
            return true;
        }
        let missing: usize =
            self.counts.iter().zip(&self.min).map(|(count, min)| min.saturating_sub(*count)).sum();
        if at == self.candidates.len() || missing > left[at] {
            return false;
        }
        let ticket = self.candidates[at];
        for slot in self.slots_for(self.judge.pool[ticket].players.len()) {
            if self.add(ticket, slot) {
                if self.descend(at + 1, true, left) {
                    return true;
                }
                self.undo();
            }
        }
        self.descend(at + 1, false, left)
    }

    /// Adds candidates one by one while the lineup stays a match.
    fn grow(&mut self) {
        for at in 0..self.candidates.len() {
            let ticket = self.candidates[at];
            if self.lineup.iter().any(|tickets| tickets.contains(&ticket)) {
                continue;
            }
            for slot in self.slots_for(self.judge.pool[ticket].players.len()) {
                if self.add(ticket, slot) {
                    if self.is_match() {
                        break;
                    }
                    self.undo();
                }
            }
        }
    }
}

/// Mixes a number, so that its bits look random (the finalizer of SplitMix64).
fn mixed(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn is_within(low: f64, high: f64, limit: f64) -> bool {
    high - low <= limit + 1e-9
}
