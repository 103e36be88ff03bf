//! Tickets that nobody matches.

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

/// Tickets that are being created at the same time.
const AT_ONCE: usize = 512;

/// Watchers who wait for nothing. Dropping it ends them.
#[derive(Debug)]
pub struct Idle {
    watchers: JoinSet<()>,
    troubles: Rc<RefCell<Vec<String>>>,
    count: usize,
}

/// Creates `count` tickets, and returns their ids.
pub async fn preload(target: &Target, options: &Options, count: usize) -> Result<Vec<Bytes>, Failure> {
    let pool = Pool::open(target, options.connections.unwrap_or(1)).await?;
    create_all(&pool, options.timeout, count).await
}

/// Creates `count` tickets and watches each of them, on `options.connections` connections.
///
/// There must be no engine that would match them.
pub async fn idle(target: &Target, options: &Options, count: usize) -> Result<Idle, Failure> {
    let pool = Rc::new(Pool::open(target, options.connections.unwrap_or(1)).await?);
    let tickets = create_all(&pool, options.timeout, count).await?;
    let room = pool.room();
    if room < count {
        return Err(Failure::Connection(format!(
            "the server allows {room} streams in all, too few for {count} watchers: open more connections"
        )));
    }
    let mut idle = Idle { watchers: JoinSet::new(), troubles: Rc::default(), count };
    for ticket in tickets {
        let lease = pool.lease().await;
        let watch = Watch::start(&lease.link, &ticket)?;
        let (pool, troubles) = (Rc::clone(&pool), Rc::clone(&idle.troubles));
        idle.watchers.spawn_local(async move {
            let mut watch = watch;
            let trouble = match watch.next().await {
                Ok(Some(connection)) => format!("assigned to {}", String::from_utf8_lossy(&connection)),
                Ok(None) => Failure::Ended.to_string(),
                Err(failure) => failure.to_string(),
            };
            troubles.borrow_mut().push(trouble);
            drop((watch, lease, pool));
        });
    }
    Ok(idle)
}

impl Idle {
    /// Watchers who still wait.
    pub fn waiting(&self) -> usize {
        self.count - self.troubles.borrow().len()
    }

    /// Why the others do not.
    pub fn troubles(&self) -> Vec<String> {
        self.troubles.borrow().clone()
    }
}

async fn create_all(pool: &Pool, patience: Duration, count: usize) -> Result<Vec<Bytes>, Failure> {
    let body = wire::create_ticket();
    let left = Cell::new(count);
    let tickets = RefCell::new(Vec::with_capacity(count));
    let worker = async || {
        while let Some(after) = left.get().checked_sub(1) {
            left.set(after);
            let lease = pool.lease().await;
            let created = timeout(patience, create(&lease.link, &body)).await;
            let ticket = created.map_err(|_| Failure::Timeout).flatten()?;
            tickets.borrow_mut().push(ticket);
        }
        Ok::<_, Failure>(())
    };
    let mut workers = Vec::new();
    for _ in 0..AT_ONCE.min(count) {
        workers.push(worker());
    }
    try_join_all(workers).await?;
    Ok(tickets.into_inner())
}
