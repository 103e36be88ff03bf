//! Which of the proposed matches are made.

use std::cmp::Ordering;
use std::collections::HashSet;

use futures::FutureExt;

use super::plugins::{Answer, Evaluator};
use crate::model::{Match, MatchId, Moment, TicketId};

/// The default: the higher score, then the match that holds the oldest ticket. No ticket is in two.
#[derive(Clone, Copy, Debug, Default)]
pub struct BestFirst;

impl Evaluator for BestFirst {
    fn evaluate<'a>(&'a self, matches: &'a [Match]) -> Answer<'a, Vec<MatchId>> {
        let mut best: Vec<(&Match, Moment)> = matches.iter().map(|made| (made, oldest(made))).collect();
        best.sort_by(|(a, a_age), (b, b_age)| by_score(a.score, b.score).then(a_age.cmp(b_age)));
        let kept = without_overlaps(best.into_iter().map(|(made, _)| made));
        std::future::ready(Ok(kept.into_iter().map(|made| made.id).collect())).boxed()
    }
}

/// Of matches that overlap, the one that comes first.
pub(super) fn without_overlaps<'a>(matches: impl Iterator<Item = &'a Match>) -> Vec<&'a Match> {
    let mut taken: HashSet<&TicketId> = HashSet::new();
    matches
        .filter(|made| {
            let free = made.tickets.iter().all(|ticket| !taken.contains(&ticket.id));
            if free {
                taken.extend(made.tickets.iter().map(|ticket| &ticket.id));
            }
            free
        })
        .collect()
}

fn oldest(made: &Match) -> Moment {
    made.tickets.iter().map(|ticket| ticket.created).min().unwrap_or_default()
}

/// Higher first; what is not a number last.
fn by_score(a: f64, b: f64) -> Ordering {
    let known = |score: f64| if score.is_nan() { f64::NEG_INFINITY } else { score };
    known(b).total_cmp(&known(a))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{Proposal, Ticket};

    fn made(score: f64, tickets: &[(&str, i64)]) -> Match {
        let tickets = tickets.iter().map(|(id, created)| {
            let (id, created) = (TicketId::parse(id).unwrap(), Moment::from_nanos(*created));
            Arc::new(Ticket { id, created, ..Ticket::default() })
        });
        let proposal = Proposal { tickets: tickets.collect(), score };
        Match { id: MatchId::generate(), profile: "p".into(), function: "f".into(), proposal }
    }

    async fn winners(matches: &[Match]) -> Vec<usize> {
        let ids = BestFirst.evaluate(matches).await.unwrap();
        ids.iter().map(|id| matches.iter().position(|made| made.id == *id).unwrap()).collect()
    }

    #[tokio::test]
    async fn the_better_match_wins_then_the_one_with_the_older_ticket() {
        let low = made(1.0, &[("a", 1), ("b", 2)]);
        let high = made(2.0, &[("b", 2), ("c", 3)]);
        assert_eq!(winners(&[low.clone(), high.clone()]).await, [1]);
        let young = made(1.0, &[("b", 2), ("d", 9)]);
        assert_eq!(winners(&[young.clone(), low.clone()]).await, [1]);
        assert_eq!(winners(&[low, made(1.0, &[("x", 5)]), young]).await, [0, 1]);
    }

    #[tokio::test]
    async fn a_score_that_is_not_a_number_is_the_worst() {
        let nan = made(f64::NAN, &[("a", 1)]);
        assert_eq!(winners(&[nan, made(f64::NEG_INFINITY, &[("a", 1)])]).await.len(), 1);
        assert_eq!(winners(&[made(f64::NAN, &[("a", 1)]), made(-5.0, &[("a", 1)])]).await, [1]);
    }
}
