//! The built-in match function: first come, first served.

use std::collections::HashSet;

use futures::FutureExt;

use super::plugins::{MatchFunction, PluginFuture, Pools};
use crate::model::Proposal;

/// Groups the tickets at the head of each pool.
#[derive(Clone, Copy, Debug)]
pub struct Fifo {
    players: usize,
}

impl Fifo {
    /// Creates the function for matches of `players` tickets, at least one.
    pub fn new(players: usize) -> Self {
        Self { players: players.max(1) }
    }
}

impl MatchFunction for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn size(&self) -> Option<usize> {
        Some(self.players)
    }

    fn make_matches<'a>(&'a self, pools: &'a Pools) -> PluginFuture<'a, Vec<Proposal>> {
        let mut proposals = Vec::new();
        // A ticket that is in two pools is used once. With one pool there is nothing to remember.
        let has_several = pools.pools.len() > 1;
        let mut taken = HashSet::new();
        for (_, tickets) in &pools.pools {
            let free: Vec<_> =
                tickets.iter().filter(|ticket| !has_several || !taken.contains(&ticket.id)).collect();
            for group in free.chunks_exact(self.players) {
                if has_several {
                    taken.extend(group.iter().map(|ticket| ticket.id.clone()));
                }
                proposals.push(Proposal::new(group.iter().map(|ticket| (*ticket).clone()).collect()));
            }
        }
        std::future::ready(Ok(proposals)).boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{Moment, Pool, Ticket, TicketId};

    fn ticket(id: &str) -> Arc<Ticket> {
        Arc::new(Ticket { id: TicketId::parse(id).unwrap(), ..Ticket::default() })
    }

    async fn groups(players: usize, pools: &[&[&str]]) -> Vec<Vec<String>> {
        let pools = Pools {
            profile: "test".into(),
            now: Moment::default(),
            pools: pools
                .iter()
                .map(|ids| (Arc::default(), ids.iter().map(|id| ticket(id)).collect()))
                .collect(),
        };
        let _: &(Arc<Pool>, Vec<Arc<Ticket>>) = &pools.pools[0];
        let proposals = Fifo::new(players).make_matches(&pools).await.unwrap();
        proposals
            .iter()
            .map(|match_| match_.tickets.iter().map(|ticket| ticket.id.to_string()).collect())
            .collect()
    }

    #[tokio::test]
    async fn oldest_tickets_are_grouped_and_the_rest_waits() {
        assert_eq!(groups(2, &[&["a", "b", "c", "d", "e"]]).await, [["a", "b"], ["c", "d"]]);
        assert_eq!(groups(3, &[&["a", "b", "c", "d", "e"]]).await, [["a", "b", "c"]]);
        assert_eq!(groups(1, &[&["a"]]).await, [["a"]]);
        assert!(groups(4, &[&["a", "b", "c"]]).await.is_empty());
    }

    #[tokio::test]
    async fn ticket_in_two_pools_is_used_once() {
        assert_eq!(groups(2, &[&["a", "b", "c"], &["b", "c", "d"]]).await, [["a", "b"], ["c", "d"]]);
    }
}
