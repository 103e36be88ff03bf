//! The built-in assigner: a list of addresses.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;

use super::plugins::{Assigner, PluginFuture};
use crate::model::{Assignment, Match, MatchId};

/// Sends each match to the next address of a list. `{match_id}` in an address stands for the id of the match.
#[derive(Debug)]
pub struct StaticList {
    addresses: Vec<String>,
    next: AtomicUsize,
}

impl StaticList {
    pub const MATCH_ID: &'static str = "{match_id}";

    pub fn new(addresses: Vec<String>) -> Self {
        Self { addresses, next: AtomicUsize::new(0) }
    }

    fn assignment(&self, match_: &Match) -> Option<(MatchId, Assignment)> {
        let position = self.next.fetch_add(1, Ordering::Relaxed).checked_rem(self.addresses.len())?;
        let address = self.addresses.get(position)?;
        let connection = match address.contains(Self::MATCH_ID) {
            true => address.replace(Self::MATCH_ID, &match_.id.to_string()),
            false => address.clone(),
        };
        Some((match_.id, Assignment::new(connection)))
    }
}

impl Assigner for StaticList {
    fn assign<'a>(&'a self, matches: &'a [Match]) -> PluginFuture<'a, Vec<(MatchId, Assignment)>> {
        let assigned = matches.iter().filter_map(|match_| self.assignment(match_)).collect();
        std::future::ready(Ok(assigned)).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Proposal;

    #[tokio::test]
    async fn matches_rotate_through_the_addresses() {
        let new_match = || Match {
            id: MatchId::generate(),
            profile: "p".into(),
            profile_version: 0,
            function: "f".into(),
            proposal: Proposal::new(Vec::new()),
            backfill: None,
        };
        let matches = [new_match(), new_match(), new_match()];
        let list = StaticList::new(vec!["a:1".to_owned(), "{match_id}.b:2".to_owned()]);
        let assigned = list.assign(&matches).await.unwrap();
        let connections: Vec<&str> = assigned.iter().map(|(_, to)| to.connection.as_str()).collect();
        assert_eq!(connections, ["a:1", &format!("{}.b:2", matches[1].id), "a:1"]);
        assert!(StaticList::new(Vec::new()).assign(&matches).await.unwrap().is_empty());
    }
}
