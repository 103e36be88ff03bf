//! The order in which the first attempt takes candidates, where a rule set sorts them.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::judge::{Judge, range};
use crate::model::{MapKey, Party, RuleKind, SortBy, Value};
use crate::ticket::Candidate;

/// Sorts the candidates of a pivot by the sorts of the rules.
pub(super) fn sort(judge: &Judge<'_>, pivot: usize, candidates: &mut [usize]) {
    let pool = judge.pool;
    let anchor = &pool[pivot];
    let sorts: Vec<_> = judge
        .rules
        .rules
        .iter()
        .filter_map(|rule| match rule.kind {
            RuleKind::Sort { by, attribute, key, is_descending } => {
                Some((by, attribute, key, is_descending, rule.party))
            }
            _ => None,
        })
        .collect();
    let order = |one: &usize, two: &usize| {
        for (by, attribute, key, is_descending, party) in &sorts {
            let sort_key = |ticket: usize| sort_key(&pool[ticket], anchor, *by, *attribute, *key, *party);
            let order = compare_keys(&sort_key(*one), &sort_key(*two), *is_descending);
            if order != Ordering::Equal {
                return order;
            }
        }
        pool[*one].tie.cmp(&pool[*two].tie).then(one.cmp(two))
    };
    candidates.sort_by(order);
}

/// What a candidate is sorted by.
#[derive(Debug)]
enum SortKey {
    Number(f64),
    Text(Arc<str>),
    /// Comes last in both directions.
    Missing,
}

fn sort_key(
    ticket: &Candidate,
    anchor: &Candidate,
    by: SortBy,
    attribute: usize,
    key: MapKey,
    party: Party,
) -> SortKey {
    match &anchor.players[0].values[attribute] {
        Value::Text(_) => match &ticket.players[0].values[attribute] {
            Value::Text(text) => SortKey::Text(text.clone()),
            _ => SortKey::Missing,
        },
        Value::NumberMap(_) => {
            // The anchor's best entry is used for everyone.
            let best = best_key(anchor, attribute, key);
            let value = |candidate: &Candidate| {
                best.as_ref().and_then(|best| map_value(candidate, attribute, best, party))
            };
            let Some(found) = value(ticket) else { return SortKey::Missing };
            SortKey::Number(match by {
                SortBy::Value => found,
                SortBy::Distance => value(anchor).map_or(f64::INFINITY, |mine| (found - mine).abs()),
            })
        }
        _ => {
            let value = range(ticket, attribute, party).0;
            SortKey::Number(match by {
                SortBy::Value => value,
                SortBy::Distance => (value - range(anchor, attribute, party).0).abs(),
            })
        }
    }
}

fn best_key(anchor: &Candidate, attribute: usize, key: MapKey) -> Option<Arc<str>> {
    let Value::NumberMap(map) = &anchor.players[0].values[attribute] else { return None };
    let better = |one: &(&Arc<str>, &f64), two: &(&Arc<str>, &f64)| {
        one.1.total_cmp(two.1).then_with(|| two.0.cmp(one.0))
    };
    let best = match key {
        MapKey::Min => map.iter().min_by(|one, two| one.1.total_cmp(two.1).then_with(|| one.0.cmp(two.0))),
        MapKey::Max => map.iter().max_by(better),
    };
    best.map(|(name, _)| name.clone())
}

fn map_value(ticket: &Candidate, attribute: usize, key: &str, party: Party) -> Option<f64> {
    let values: Vec<f64> = ticket
        .players
        .iter()
        .filter_map(|player| match &player.values[attribute] {
            Value::NumberMap(map) => find(map, key),
            _ => None,
        })
        .collect();
    match party {
        _ if values.is_empty() => None,
        Party::Min => values.iter().copied().reduce(f64::min),
        Party::Max => values.iter().copied().reduce(f64::max),
        _ => Some(values.iter().sum::<f64>() / values.len() as f64),
    }
}

fn find(map: &BTreeMap<Arc<str>, f64>, key: &str) -> Option<f64> {
    map.get(key).copied()
}

fn compare_keys(one: &SortKey, two: &SortKey, is_descending: bool) -> Ordering {
    let order = match (one, two) {
        (SortKey::Number(one), SortKey::Number(two)) => one.total_cmp(two),
        (SortKey::Text(one), SortKey::Text(two)) => one.cmp(two),
        (SortKey::Missing, SortKey::Missing) => return Ordering::Equal,
        (SortKey::Missing, _) => return Ordering::Greater,
        (_, SortKey::Missing) => return Ordering::Less,
        (SortKey::Number(_), SortKey::Text(_)) => Ordering::Less,
        (SortKey::Text(_), SortKey::Number(_)) => Ordering::Greater,
    };
    if is_descending { order.reverse() } else { order }
}
