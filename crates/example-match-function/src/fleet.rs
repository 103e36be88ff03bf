//! The assigner.

use std::sync::{Mutex, PoisonError};

use futures::FutureExt;
use matchmaking::engine::{Assigner, PluginFuture};
use matchmaking::model::{Assignment, Match, MatchId};

/// A fixed number of game servers, each for one match. A real assigner would call the service that starts game servers.
#[derive(Debug)]
pub struct Fleet {
    free: Mutex<Vec<String>>,
}

impl Fleet {
    /// Creates a fleet of servers on this host, with ports from 7001.
    pub fn new(host: &str, servers: u16) -> Self {
        let free = (1..=servers).rev().map(|number| format!("{host}:{}", 7000 + u32::from(number)));
        Self { free: Mutex::new(free.collect()) }
    }
}

impl Assigner for Fleet {
    fn assign<'a>(&'a self, matches: &'a [Match]) -> PluginFuture<'a, Vec<(MatchId, Assignment)>> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        // When no server is left, the remaining matches are omitted and their players keep waiting.
        let assigned = matches.iter().map_while(|made| Some((made.id, Assignment::new(free.pop()?))));
        std::future::ready(Ok(assigned.collect())).boxed()
    }
}
