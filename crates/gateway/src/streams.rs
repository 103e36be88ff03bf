//! Streams that are open in this process: how many a player has, and which end with a session.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use account::UserId;
use futures::StreamExt;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use sessions::{SessionId, Sessions};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// The open streams of this process. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Streams(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    open: Mutex<Open>,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct Open {
    players: HashMap<UserId, usize>,
    sessions: HashMap<SessionId, (usize, CancellationToken)>,
}

/// A stream that is open, until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenStream {
    streams: Streams,
    user: UserId,
    session: Option<SessionId>,
    /// Cancelled when the session ends.
    pub(crate) ended: CancellationToken,
}

impl Streams {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self(Arc::new(Inner { open: Mutex::default(), metrics }))
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a stream; none when the player has `most` of them already.
    pub(crate) fn open(&self, user: UserId, session: Option<&SessionId>, most: usize) -> Option<OpenStream> {
        let mut open = self.lock();
        let count = open.players.entry(user).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        let ended = match session {
            None => CancellationToken::new(),
            Some(id) => {
                let (count, ended) = open.sessions.entry(id.clone()).or_default();
                *count += 1;
                ended.clone()
            }
        };
        self.0.metrics.streams.inc();
        Some(OpenStream { streams: self.clone(), user, session: session.cloned(), ended })
    }

    /// Ends the streams of sessions that end, until told to stop.
    pub(crate) async fn run(&self, sessions: &Sessions, drain: Drain) -> Result<(), LoopError> {
        let mut ends = sessions.ends().await?;
        loop {
            tokio::select! {
                end = ends.next() => match end {
                    Some(id) => self.end(&id),
                    None => return Err("the store no longer tells of sessions that end".into()),
                },
                () = drain.requested() => return Ok(()),
            }
        }
    }

    fn end(&self, id: &SessionId) {
        if let Some((_, ended)) = self.lock().sessions.get(id) {
            ended.cancel();
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.streams.0.metrics.streams.dec();
        let mut open = self.streams.lock();
        if let Entry::Occupied(mut entry) = open.players.entry(self.user) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
        if let Some(id) = &self.session
            && let Entry::Occupied(mut entry) = open.sessions.entry(id.clone())
        {
            entry.get_mut().0 -= 1;
            if entry.get().0 == 0 {
                entry.remove();
            }
        }
    }
}
