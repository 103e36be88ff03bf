//! Tickets that no engine matches.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join_all;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::call::{Failure, Watch, create};
use crate::pool::{Pool, Target};
use crate::run::Options;
use crate::wire;

/// How many tickets are created concurrently.
const CONCURRENCY: usize = 512;

/// Watchers of tickets that are never assigned. Dropping it cancels the watches.
#[derive(Debug)]
pub struct IdleWatchers {
    watchers: JoinSet<()>,
    errors: Rc<RefCell<Vec<String>>>,
    count: usize,
}

/// Creates `count` tickets and returns their ids.
pub async fn preload(target: &Target, options: &Options, count: usize) -> Result<Vec<Bytes>, Failure> {
    let pool = Pool::open(target, options.connections.unwrap_or(1)).await?;
    create_all(&pool, options.timeout, count).await
}

/// Creates `count` tickets and watches each of them, on `options.connections` connections.
///
/// No engine may be running, because it would match them.
pub async fn idle(target: &Target, options: &Options, count: usize) -> Result<IdleWatchers, Failure> {
    let pool = Rc::new(Pool::open(target, options.connections.unwrap_or(1)).await?);
    let tickets = create_all(&pool, options.timeout, count).await?;
    let allowed = pool.max_streams();
    if allowed < count {
        return Err(Failure::Connection(format!(
            "the server allows {allowed} streams in total, too few for {count} watchers: use more connections"
        )));
    }
    let mut idle = IdleWatchers { watchers: JoinSet::new(), errors: Rc::default(), count };
    for ticket in tickets {
        let permit = pool.acquire().await;
        let watch = Watch::start(&permit.client, &ticket)?;
        let (pool, errors) = (Rc::clone(&pool), Rc::clone(&idle.errors));
        idle.watchers.spawn_local(async move {
            let mut watch = watch;
            let error = match watch.next().await {
                Ok(Some(connection)) => format!("assigned to {}", String::from_utf8_lossy(&connection)),
                Ok(None) => Failure::Ended.to_string(),
                Err(failure) => failure.to_string(),
            };
            errors.borrow_mut().push(error);
            drop((watch, permit, pool));
        });
    }
    Ok(idle)
}

impl IdleWatchers {
    /// Returns how many watchers are still waiting.
    pub fn waiting(&self) -> usize {
        self.count - self.errors.borrow().len()
    }

    /// Returns why the other watchers have ended.
    pub fn errors(&self) -> Vec<String> {
        self.errors.borrow().clone()
    }
}

async fn create_all(pool: &Pool, time_limit: Duration, count: usize) -> Result<Vec<Bytes>, Failure> {
    let body = wire::create_ticket();
    let left = Cell::new(count);
    let tickets = RefCell::new(Vec::with_capacity(count));
    let worker = async || {
        while let Some(after) = left.get().checked_sub(1) {
            left.set(after);
            let permit = pool.acquire().await;
            let created = timeout(time_limit, create(&permit.client, &body)).await;
            let ticket = created.map_err(|_| Failure::Timeout).flatten()?;
            tickets.borrow_mut().push(ticket);
        }
        Ok::<_, Failure>(())
    };
    let mut workers = Vec::new();
    for _ in 0..CONCURRENCY.min(count) {
        workers.push(worker());
    }
    try_join_all(workers).await?;
    Ok(tickets.into_inner())
}
