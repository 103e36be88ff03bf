//! The built-in evaluator, which decides which of the proposed matches are made.

use std::cmp::Ordering;
use std::collections::HashSet;

use futures::FutureExt;

use super::plugins::{Evaluator, PluginFuture};
use crate::model::{Match, MatchId, Moment, TicketId};

/// The default: the higher score wins, then the match with the oldest ticket. No ticket is in two matches.
#[derive(Clone, Copy, Debug, Default)]
pub struct BestFirst;

impl Evaluator for BestFirst {
    fn evaluate<'a>(&'a self, matches: &'a [Match]) -> PluginFuture<'a, Vec<MatchId>> {
        let mut best: Vec<(&Match, Moment)> = matches.iter().map(|match_| (match_, oldest(match_))).collect();
        best.sort_by(|(a, a_age), (b, b_age)| by_score(a.score, b.score).then(a_age.cmp(b_age)));
        let kept = without_overlaps(best.into_iter().map(|(match_, _)| match_));
        std::future::ready(Ok(kept.into_iter().map(|match_| match_.id).collect())).boxed()
    }
}

/// Keeps the first of any matches that overlap.
pub(super) fn without_overlaps<'a>(matches: impl Iterator<Item = &'a Match>) -> Vec<&'a Match> {
    let mut taken: HashSet<&TicketId> = HashSet::new();
    matches
        .filter(|match_| {
            let free = match_.tickets.iter().all(|ticket| !taken.contains(&ticket.id));
            if free {
                taken.extend(match_.tickets.iter().map(|ticket| &ticket.id));
            }
            free
        })
        .collect()
}

fn oldest(match_: &Match) -> Moment {
    match_.tickets.iter().map(|ticket| ticket.created).min().unwrap_or_default()
}

/// Sorts higher scores first, and NaN last.
fn by_score(a: f64, b: f64) -> Ordering {
    let rank = |score: f64| if score.is_nan() { f64::NEG_INFINITY } else { score };
    rank(b).total_cmp(&rank(a))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{Proposal, Ticket};

    fn new_match(score: f64, tickets: &[(&str, i64)]) -> Match {
        let tickets = tickets.iter().map(|(id, created)| {
            let (id, created) = (TicketId::parse(id).unwrap(), Moment::from_nanos(*created));
            Arc::new(Ticket { id, created, ..Ticket::default() })
        });
        let proposal = Proposal { tickets: tickets.collect(), score, lineup: None };
        Match {
            id: MatchId::generate(),
            profile: "p".into(),
            profile_version: 0,
            function: "f".into(),
            proposal,
            backfill: None,
        }
    }

    async fn winners(matches: &[Match]) -> Vec<usize> {
        let ids = BestFirst.evaluate(matches).await.unwrap();
        ids.iter().map(|id| matches.iter().position(|match_| match_.id == *id).unwrap()).collect()
    }

    #[tokio::test]
    async fn higher_score_wins_then_older_ticket() {
        let low = new_match(1.0, &[("a", 1), ("b", 2)]);
        let high = new_match(2.0, &[("b", 2), ("c", 3)]);
        assert_eq!(winners(&[low.clone(), high.clone()]).await, [1]);
        let young = new_match(1.0, &[("b", 2), ("d", 9)]);
        assert_eq!(winners(&[young.clone(), low.clone()]).await, [1]);
        assert_eq!(winners(&[low, new_match(1.0, &[("x", 5)]), young]).await, [0, 1]);
    }

    #[tokio::test]
    async fn nan_score_ranks_last() {
        let nan = new_match(f64::NAN, &[("a", 1)]);
        assert_eq!(winners(&[nan, new_match(f64::NEG_INFINITY, &[("a", 1)])]).await.len(), 1);
        assert_eq!(winners(&[new_match(f64::NAN, &[("a", 1)]), new_match(-5.0, &[("a", 1)])]).await, [1]);
    }
}
