//! The evaluator.

use std::collections::HashSet;

use futures::FutureExt;
use matchmaking::engine::{Evaluator, PluginFuture};
use matchmaking::model::{Match, MatchId};

/// Prefers the match with the longest waiting player, regardless of the scores.
#[derive(Clone, Copy, Debug)]
pub struct LongestWaiting;

impl Evaluator for LongestWaiting {
    fn evaluate<'a>(&'a self, matches: &'a [Match]) -> PluginFuture<'a, Vec<MatchId>> {
        let mut matches: Vec<&Match> = matches.iter().collect();
        matches.sort_by_key(|made| made.tickets.iter().map(|ticket| ticket.created).min());
        let mut taken = HashSet::new();
        matches.retain(|made| {
            let free = made.tickets.iter().all(|ticket| !taken.contains(&ticket.id));
            if free {
                taken.extend(made.tickets.iter().map(|ticket| &ticket.id));
            }
            free
        });
        std::future::ready(Ok(matches.into_iter().map(|made| made.id).collect())).boxed()
    }
}
