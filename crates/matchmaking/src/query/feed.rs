//! Keeps the indexes of tickets and of backfills in step with the store.
//!
//! Before a query the feed reads what the store recorded since its position, in one round trip, and the data of new
//! tickets and of new or changed backfills in another. All queries that wait at that moment share them. Programs that do not record their changes show
//! in the number of tickets or of pending marks, which come with the changes; then the feed scans the store.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use base::error::Coded;
use runtime::batch::Batcher;
use tokio::time::Instant;

use super::index::{At, Page, Selection};
use super::indexes::Indexes;
use super::{QueryConfig, QueryKind};
use crate::error::Error;
use crate::metrics::Metrics;
use crate::model::Pool;
use crate::store::Store;
use crate::store::changes::{Changes, Position, ScanCursor};

/// How many tickets are read at a time.
const READ_PAGE: usize = 1000;

/// How many queries share a refresh.
const MAX_WAITING: usize = 100_000;

/// How long after an unrecorded change another program is expected to make more of them.
const FOREIGN_FOR: Duration = Duration::from_secs(60);

/// How often the store is scanned while another program may exchange tickets without changing their number.
const FOREIGN_SCAN: Duration = Duration::from_secs(1);

/// How long queries are refused after the tickets did not fit into the memory.
const REFUSE_FOR: Duration = Duration::from_secs(5);

/// How often a scan is repeated at once because the store recorded more than it keeps.
const MAX_SCANS: usize = 3;

#[derive(Debug)]
pub(super) struct Feed {
    shared: Arc<Shared>,
    refreshes: Batcher<(), Result<(), Error>>,
    /// When the last query began.
    last_query: Mutex<Option<Instant>>,
}

#[derive(Debug)]
struct Shared {
    store: Store,
    config: QueryConfig,
    metrics: Metrics,
    state: RwLock<State>,
    /// Held by the refresh that is under way.
    follower: tokio::sync::Mutex<Follower>,
    /// The size of all selections that are being read.
    held: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct State {
    indexes: Indexes,
    /// The moment of the store to which the indexes belong, and when that was by our clock.
    at: At,
    refreshed: Option<Instant>,
}

/// How far the feed has read.
#[derive(Debug, Default)]
struct Follower {
    /// `None` while the index is empty.
    position: Option<Position>,
    last_scan: Option<Instant>,
    foreign_until: Option<Instant>,
    refused: Option<(Instant, Error)>,
}

impl Feed {
    pub(super) fn new(store: Store, config: QueryConfig, metrics: Metrics) -> Self {
        let shared = Arc::new(Shared {
            store,
            config,
            metrics,
            state: RwLock::default(),
            follower: tokio::sync::Mutex::default(),
            held: Arc::default(),
        });
        let worker = shared.clone();
        let refreshes = Batcher::new(1, MAX_WAITING, move |queries: Vec<()>| {
            let worker = worker.clone();
            async move { vec![worker.refresh().await; queries.len()] }
        });
        Self { shared, refreshes, last_query: Mutex::default() }
    }

    /// Brings the index up to date for a query, and keeps it from being dropped. If the store does not answer, an index
    /// that is young enough is used as it is.
    pub(super) async fn refresh(&self) -> Result<(), Error> {
        *self.last_query() = Some(Instant::now());
        let refreshed = self.refreshes.run(()).await.unwrap_or(Err(Error::Interrupted));
        let Err(error) = refreshed else { return Ok(()) };
        let age = self.shared.state().refreshed.map(|at| at.elapsed());
        match age {
            Some(age) if error.is_transient() && age <= self.shared.config.max_age => {
                self.shared.metrics.query_stale.inc();
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Reads what the store recorded, unless there is no index. Drops the index if there were no queries for a while.
    pub(super) async fn follow(&self) -> Result<(), Error> {
        let Some(last_query) = *self.last_query() else { return Ok(()) };
        let is_read = self.shared.held.load(Ordering::Relaxed) > 0;
        if !is_read && last_query.elapsed() >= self.shared.config.idle_timeout {
            let mut follower = self.shared.follower.lock().await;
            *follower = Follower::default();
            self.shared.drop_index();
            *self.last_query() = None;
            return Ok(());
        }
        let refreshed = self.refreshes.run(()).await.unwrap_or(Err(Error::Interrupted));
        let age = self.shared.state().refreshed.map(|at| at.elapsed());
        self.shared.metrics.query_age.set(age.unwrap_or_default().as_secs_f64());
        refreshed
    }

    fn last_query(&self) -> MutexGuard<'_, Option<Instant>> {
        self.last_query.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn effort(&self, kind: QueryKind, pool: &Pool) -> usize {
        let state = self.shared.state();
        state.indexes.of(kind).effort(pool, state.now())
    }

    pub(super) fn search(&self, kind: QueryKind, pool: &Pool) -> Selection {
        let state = self.shared.state();
        state.indexes.of(kind).search(pool, state.now())
    }

    /// Reserves the memory of a selection until it is read.
    pub(super) fn hold(&self, selection: &Selection) -> Result<HeldBytes, Error> {
        let held = HeldBytes { all: self.shared.held.clone(), bytes: 4 * selection.len() + 1 };
        let all = held.all.fetch_add(held.bytes, Ordering::Relaxed) + held.bytes;
        if (all + self.shared.state().indexes.bytes()) as u64 > self.shared.config.max_memory {
            return Err(Error::TooMany(
                "too many query responses are unread: read them faster, or raise matchmaking.query_max_memory"
                    .to_owned(),
            ));
        }
        Ok(held)
    }

    /// Returns a response, which is empty if nothing is left, and where the next one starts.
    pub(super) fn write_page(
        &self,
        kind: QueryKind,
        selection: &Selection,
        from: usize,
        page: &Page,
    ) -> Result<(Vec<u8>, usize), Error> {
        let mut out = Vec::new();
        let state = self.shared.state();
        let next = state.indexes.of(kind).write_page(selection, from, page, &mut out);
        next.map(|next| (out, next)).map_err(|_| Error::Interrupted)
    }
}

/// Memory that a selection takes.
#[derive(Debug)]
pub(super) struct HeldBytes {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl State {
    /// Returns the moment at which the index is looked at. Without refreshes the store's clock goes on.
    fn now(&self) -> At {
        let age = self.refreshed.map(|at| at.elapsed()).unwrap_or_default();
        self.at.after(age)
    }
}

/// Why the index is compared with the whole store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// There is no index yet.
    Start,
    /// The store no longer has what happened since the position.
    Missed,
    /// Another program changed tickets, or an older version of this one backfills.
    Foreign,
}

impl Reason {
    const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Missed => "missed",
            Self::Foreign => "foreign",
        }
    }
}

impl Shared {
    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn drop_index(&self) {
        let mut state = self.state_mut();
        state.indexes.clear();
        state.refreshed = None;
        drop(state);
        self.show_size();
    }

    fn show_size(&self) {
        let state = self.state();
        self.metrics.query_tickets.set(state.indexes.of(QueryKind::Tickets).count() as i64);
        self.metrics.query_backfills.set(state.indexes.of(QueryKind::Backfills).count() as i64);
        self.metrics.query_bytes.set(state.indexes.bytes() as i64);
    }

    async fn refresh(&self) -> Result<(), Error> {
        let mut follower = self.follower.lock().await;
        if let Some((at, error)) = &follower.refused {
            if at.elapsed() < REFUSE_FOR {
                return Err(error.clone());
            }
            follower.refused = None;
        }
        let refreshed = self.follow(&mut follower).await;
        if let Err(error @ Error::TooMany(_)) = &refreshed {
            *follower = Follower { refused: Some((Instant::now(), error.clone())), ..Follower::default() };
            self.drop_index();
        }
        self.show_size();
        refreshed
    }

    async fn follow(&self, follower: &mut Follower) -> Result<(), Error> {
        let started = Instant::now();
        let (mut reason, changes) = match &follower.position {
            None => (Some(Reason::Start), None),
            Some(_) => match self.read_changes(follower).await? {
                None => (Some(Reason::Missed), None),
                Some(changes) => (self.unrecorded_changes(follower, &changes), Some(changes)),
            },
        };
        let mut last = changes;
        for _ in 0..MAX_SCANS {
            let Some(why) = reason else { break };
            self.metrics.query_scanned(why.name());
            last = self.scan(follower, why).await?;
            reason = last.is_none().then_some(Reason::Missed);
        }
        let Some(last) = last else { return Err(Error::Interrupted) };
        self.read_new().await?;
        let mut state = self.state_mut();
        state.at = At { now: last.now, live_since: last.live_since };
        // The index is as old as the request of its last change.
        state.refreshed = Some(started.max(follower.last_scan.unwrap_or(started)));
        Ok(())
    }

    /// Decides whether another program has changed tickets.
    fn unrecorded_changes(&self, follower: &mut Follower, changes: &Changes) -> Option<Reason> {
        let is_complete = self.state_mut().indexes.is_complete(changes);
        let now = Instant::now();
        if !is_complete {
            follower.foreign_until = Some(now + FOREIGN_FOR);
            return Some(Reason::Foreign);
        }
        let is_expected = follower.foreign_until.is_some_and(|until| now < until);
        let is_due = follower.last_scan.is_none_or(|at| now.duration_since(at) >= FOREIGN_SCAN);
        (is_expected && is_due).then_some(Reason::Foreign)
    }

    /// Applies what the store recorded since the position. Returns `None`, and a new position, if something was missed.
    async fn read_changes(&self, follower: &mut Follower) -> Result<Option<Changes>, Error> {
        loop {
            let position = follower.position.clone().unwrap_or_default();
            let changes = self.store.changes(&position).await?;
            follower.position = Some(changes.position.clone());
            if !changes.is_continuous {
                return Ok(None);
            }
            let mut state = self.state_mut();
            changes.changes.iter().for_each(|change| state.indexes.apply(change));
            if changes.is_last {
                return Ok(Some(changes));
            }
        }
    }

    /// Compares the index with the whole store, page by page. Changes are applied in between, so that none is missed
    /// however long the scan takes. Returns `None` if one was missed all the same.
    async fn scan(&self, follower: &mut Follower, reason: Reason) -> Result<Option<Changes>, Error> {
        if reason != Reason::Foreign {
            self.drop_index();
        }
        if reason == Reason::Start {
            follower.position = None;
            self.read_changes(follower).await?;
        }
        follower.last_scan = Some(Instant::now());
        self.state_mut().indexes.begin_scan();
        // A scan that fails half-way starts over.
        let position = follower.position.take();
        let mut reader = Follower { position, ..Follower::default() };
        let mut cursor = Some(ScanCursor::START);
        let mut last = None;
        while let Some(at) = cursor {
            let page = self.store.scan(at).await?;
            self.state_mut().indexes.apply_page(&page);
            last = self.read_changes(&mut reader).await?;
            if last.is_none() {
                break;
            }
            self.read_new().await?;
            cursor = page.next;
        }
        follower.position = reader.position;
        if last.is_some() {
            self.state_mut().indexes.end_scan();
        }
        Ok(last)
    }

    /// Reads the tickets and backfills that the indexes do not have yet.
    async fn read_new(&self) -> Result<(), Error> {
        loop {
            let unread = self.state_mut().indexes.take_unread(READ_PAGE);
            if unread.is_empty() {
                return Ok(());
            }
            let tickets = self.store.peek(&unread.tickets);
            let backfills = self.store.read_backfills(&unread.backfills);
            let read = futures::try_join!(tickets, backfills);
            let mut state = self.state_mut();
            match read {
                Ok((tickets, backfills)) => state.indexes.read(&unread, &tickets, &backfills),
                Err(error) => {
                    state.indexes.read_again(&unread);
                    return Err(error);
                }
            }
            if state.indexes.bytes() as u64 > self.config.max_memory {
                return Err(Error::TooMany(
                    "there are more tickets than fit into the memory for queries: raise matchmaking.query_max_memory"
                        .to_owned(),
                ));
            }
        }
    }
}
