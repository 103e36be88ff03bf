//! The open streams of this process: their number per player, and the session that each belongs to.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use account::UserId;
use futures::StreamExt;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use sessions::{EndCause, PublishedEnd, SessionId, Sessions};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// The open streams of this process. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(crate) struct Streams(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    counts: Mutex<StreamCounts>,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct StreamCounts {
    players: HashMap<UserId, usize>,
    sessions: HashMap<SessionId, SessionStreams>,
}

/// The open streams of a session.
#[derive(Debug, Default)]
struct SessionStreams {
    count: usize,
    ended: SessionEnded,
}

/// Becomes known when the session of a stream ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionEnded {
    token: CancellationToken,
    cause: Arc<OnceLock<EndCause>>,
}

impl SessionEnded {
    fn set(&self, cause: EndCause) {
        let _ = self.cause.set(cause);
        self.token.cancel();
    }

    /// Waits until the session has ended. Cancel safe.
    pub(crate) async fn wait(&self) -> EndCause {
        self.token.cancelled().await;
        self.cause.get().copied().unwrap_or(EndCause::Ended)
    }
}

/// Counts an open stream until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenStream {
    streams: Streams,
    user: UserId,
    session: Option<SessionId>,
    pub(crate) ended: SessionEnded,
}

impl Streams {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self(Arc::new(Inner { counts: Mutex::default(), metrics }))
    }

    fn lock(&self) -> MutexGuard<'_, StreamCounts> {
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a stream. Returns none if the player already has `max` of them.
    pub(crate) fn open(&self, user: UserId, session: Option<&SessionId>, max: usize) -> Option<OpenStream> {
        let mut counts = self.lock();
        let count = counts.players.entry(user).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        let ended = match session {
            None => SessionEnded::default(),
            Some(id) => {
                let streams = counts.sessions.entry(id.clone()).or_default();
                streams.count += 1;
                streams.ended.clone()
            }
        };
        self.0.metrics.streams.inc();
        Some(OpenStream { streams: self.clone(), user, session: session.cloned(), ended })
    }

    /// Closes the streams of sessions that end. Runs until `drain` is requested.
    pub(crate) async fn run(&self, sessions: &Sessions, drain: Drain) -> Result<(), LoopError> {
        let mut ends = sessions.ends().await?;
        loop {
            tokio::select! {
                end = ends.next() => match end {
                    Some(end) => self.end(&end),
                    None => return Err("the subscription to ended sessions was closed".into()),
                },
                () = drain.requested() => return Ok(()),
            }
        }
    }

    fn end(&self, end: &PublishedEnd) {
        if let Some(streams) = self.lock().sessions.get(&end.id) {
            streams.ended.set(end.cause);
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.streams.0.metrics.streams.dec();
        let mut counts = self.streams.lock();
        if let Entry::Occupied(mut entry) = counts.players.entry(self.user) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
        if let Some(id) = &self.session
            && let Entry::Occupied(mut entry) = counts.sessions.entry(id.clone())
        {
            entry.get_mut().count -= 1;
            if entry.get().count == 0 {
                entry.remove();
            }
        }
    }
}
