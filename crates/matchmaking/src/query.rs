//! The use cases of match functions: query the tickets or the backfills of a pool.
//!
//! Queries are answered from an index in the process ([`Feed`]), which is brought up to date before each query. A
//! response is made when the transport asks for it, from a list of tickets, so that a slow reader costs little.

mod feed;
mod grpc;
mod index;
mod indexes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::Stream;
use proto::openmatch;
use runtime::Drain;
use runtime::lifecycle::LoopError;

use crate::error::Error;
use crate::metrics::Metrics;
use crate::model::Pool;
use crate::store::Store;
use crate::wire;

use self::feed::{Feed, HeldBytes};
use self::index::{Page, Selection};

/// Up to how many tickets a query looks at in the task of its request. More are looked at in a thread of their own, so
/// that other requests do not wait.
const QUICK_SEARCH: usize = 20_000;

/// The size of a response beyond which the next ticket goes into the next response. Clients accept 4 MiB by default.
const MAX_PAGE_BYTES: usize = 3 << 20;

/// The interval at which the index follows the store without queries, so that it misses nothing.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// The settings of queries.
#[derive(Clone, Debug)]
pub struct QueryConfig {
    /// How many tickets a response contains at most.
    pub page_size: usize,
    /// How much memory the index and the answers that are being read may take.
    pub max_memory: u64,
    /// How old the index may be if the store does not answer.
    pub max_age: Duration,
    /// How long after the last query the index is dropped.
    pub idle_timeout: Duration,
}

/// What a query returns: tickets, only their ids, or backfills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKind {
    Tickets,
    Ids,
    Backfills,
}

/// The use cases. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Queries {
    feed: Arc<Feed>,
    page_size: usize,
    metrics: Metrics,
}

impl Queries {
    pub fn new(store: Store, config: QueryConfig, metrics: Metrics) -> Self {
        let page_size = config.page_size;
        Self { feed: Arc::new(Feed::new(store, config, metrics.clone())), page_size, metrics }
    }

    /// Follows the store until `drain` is requested, as long as there are queries.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            tokio::select! {
                () = drain.requested() => return Ok(()),
                () = tokio::time::sleep(FOLLOW_INTERVAL) => self.tick().await,
            }
        }
    }

    /// Brings the index up to date, or drops it if there were no queries for a while.
    pub async fn tick(&self) {
        if let Err(error) = self.feed.follow().await {
            error.log();
        }
    }

    /// Returns the active tickets of a pool, as encoded `QueryTicketsResponse`s or `QueryTicketIdsResponse`s, or the
    /// backfills that have not expired, as `QueryBackfillsResponse`s. What was created before the call is found, as it was
    /// last changed before the call.
    pub async fn query(
        &self,
        pool: Option<openmatch::Pool>,
        kind: QueryKind,
    ) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + use<>, Error> {
        let pool = pool_of(pool)?;
        let start = Instant::now();
        self.feed.refresh().await?;
        let selection = if self.feed.effort(kind, &pool) <= QUICK_SEARCH {
            self.feed.search(kind, &pool)
        } else {
            let feed = self.feed.clone();
            let search = tokio::task::spawn_blocking(move || feed.search(kind, &pool));
            search.await.map_err(|_| Error::Interrupted)?
        };
        let held = self.feed.hold(&selection)?;
        self.metrics.query_latency.observe(start.elapsed().as_secs_f64());
        let page = Page { ids_only: kind == QueryKind::Ids, max: self.page_size, max_bytes: MAX_PAGE_BYTES };
        let answer = Answer { feed: self.feed.clone(), kind, selection, page, from: 0, _held: held };
        Ok(futures::stream::unfold(Some(answer), |answer| async move { answer?.next() }))
    }
}

/// Checks the pool of a query.
fn pool_of(pool: Option<openmatch::Pool>) -> Result<Pool, Error> {
    let pool = pool.ok_or_else(|| Error::Invalid(".pool is required".to_owned()))?;
    wire::pool_from_wire(pool)
}

/// What a query has found and the client has not read yet.
struct Answer {
    feed: Arc<Feed>,
    kind: QueryKind,
    selection: Selection,
    page: Page,
    from: usize,
    _held: HeldBytes,
}

impl Answer {
    /// Returns the next response, and what is left.
    fn next(mut self) -> Option<(Result<Bytes, Error>, Option<Self>)> {
        match self.feed.write_page(self.kind, &self.selection, self.from, &self.page) {
            Ok((page, _)) if page.is_empty() => None,
            Ok((page, next)) => {
                self.from = next;
                Some((Ok(page.into()), Some(self)))
            }
            Err(error) => Some((Err(error), None)),
        }
    }
}
