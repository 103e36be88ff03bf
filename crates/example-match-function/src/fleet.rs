//! The assigner.

use std::sync::{Mutex, PoisonError};

use futures::FutureExt;
use matchmaking::engine::{Answer, Assigner};
use matchmaking::model::{Assignment, Match, MatchId};

/// A number of game servers, each for one match. A real one would ask whoever starts game servers.
#[derive(Debug)]
pub struct Fleet {
    free: Mutex<Vec<String>>,
}

impl Fleet {
    /// Servers on this host, on the ports from 7001 up.
    pub fn new(host: &str, servers: u16) -> Self {
        let free = (1..=servers).rev().map(|number| format!("{host}:{}", 7000 + u32::from(number)));
        Self { free: Mutex::new(free.collect()) }
    }
}

impl Assigner for Fleet {
    fn assign<'a>(&'a self, matches: &'a [Match]) -> Answer<'a, Vec<(MatchId, Assignment)>> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        // When no server is left, the rest of the matches are left out: their players go on waiting.
        let assigned = matches.iter().map_while(|made| Some((made.id, Assignment::to(free.pop()?))));
        std::future::ready(Ok(assigned.collect())).boxed()
    }
}
