//! The operations on entitlements.

use std::time::Duration;

use account::{AccountId, UserId};
use base::{Clock, Timestamp};
use db::{Db, IdempotencyKey, Tx};
use hierlock::{LockManager, Target};
use outbox::Outbox;
use runtime::batch::Batcher;
use runtime::telemetry::TraceContext;
use tokio::time::Instant;

use crate::applier::{Applier, IfSuperseded, Request};
use crate::error::Error;
use crate::fingerprint::fingerprint;
use crate::metrics::Metrics;
use crate::model::{Change, Holding};
use crate::response::{ApplyResponse, EntitlementView, HistoryEntry};
use crate::store;

/// How many changes a request may have.
pub const MAX_BATCH: usize = 100;

/// How many transactions that batch the requests of several callers may run concurrently.
const LANES: usize = 4;
/// How many requests share a transaction at most.
const MAX_GROUP: usize = 32;
/// How long such a transaction waits for its locks. Short, since a request whose lock is free waits for the others.
const GROUP_LOCK_TIMEOUT: Duration = Duration::from_millis(50);

/// The entitlements. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Entitlements {
    applier: Applier,
    /// Batches concurrent requests: four round trips per transaction instead of per request (ADR 7). Returns none if the request
    /// needs its own transaction.
    batcher: Batcher<Request, Option<Result<ApplyResponse, Error>>>,
    metrics: Metrics,
}

/// A request of [`Entitlements::apply_each_in`].
#[derive(Clone, Debug)]
pub struct NewRequest {
    /// The idempotency key.
    pub key: String,
    /// Applied together or not at all.
    pub changes: Vec<Change>,
    /// The trace of the request.
    pub traceparent: Option<String>,
}

/// Selects entitlements of a list.
#[derive(Clone, Debug)]
pub struct ListOptions {
    /// Only entitlements that are in force now.
    pub in_force: bool,
    /// List resources after this one.
    pub after: String,
    pub limit: u32,
}

impl Entitlements {
    pub fn new(db: Db, locks: LockManager, outbox: Outbox, clock: Clock, metrics: Metrics) -> Self {
        let applier = Applier { db, locks, outbox, clock };
        let group_applier = applier.clone();
        let batcher = Batcher::new(LANES, MAX_GROUP, move |requests: Vec<Request>| {
            let applier = group_applier.clone();
            async move {
                match applier.apply(&requests, GROUP_LOCK_TIMEOUT).await {
                    Ok(responses) => responses.into_iter().map(Some).collect(),
                    // Which request caused the failure is unknown, so each gets its own transaction. If the commit succeeded after all,
                    // its key returns the recorded response.
                    Err(_) => requests.iter().map(|_| None).collect(),
                }
            }
        });
        Self { applier, batcher, metrics }
    }

    /// Applies changes, all or none of them, once per caller and key. A repeated request gets the recorded response.
    pub async fn apply(&self, caller: &str, key: &str, changes: &[Change]) -> Result<ApplyResponse, Error> {
        let request = self.request(caller, key, changes)?;
        let start = Instant::now();
        let response = self.apply_request(request).await?;
        self.metrics.succeeded(response.is_replayed(), start.elapsed());
        Ok(response)
    }

    /// Begins a transaction for [`apply_in`](Self::apply_in). It holds the locks of these changes, and those on `others`, which the caller
    /// needs for its own work. All locks are taken here, in one order, so two such transactions cannot deadlock.
    pub async fn begin(&self, changes: &[Change], others: &[Target<'_>]) -> Result<Tx, Error> {
        self.applier.begin(changes.iter(), others, Duration::MAX).await
    }

    /// Begins a transaction for [`apply_each_in`](Self::apply_each_in) with the requests of several callers. Fails if it does not get its
    /// locks within `lock_timeout`; give each request its own transaction then. Keep the timeout short: a request whose lock is free waits
    /// for the others.
    pub async fn begin_shared(&self, changes: &[Change], lock_timeout: Duration) -> Result<Tx, Error> {
        self.applier.begin(changes.iter(), &[], lock_timeout).await
    }

    /// Applies changes in the caller's transaction: they are committed with it or not at all. Like [`apply`](Self::apply), it applies them
    /// once per caller and key, adds to the histories and appends the events. After the commit this process publishes the events and counts
    /// the request.
    ///
    /// The transaction must hold the locks on all changed entitlements, or on their accounts or users: [`begin`](Self::begin) takes them.
    /// Otherwise this fails with [`Error::NotLocked`] and does nothing.
    ///
    /// After [`Error::Db`] or [`Error::Json`], drop the transaction: it may contain a part of the request. Any other error adds nothing.
    /// If an error from here or from the commit [is a conflict](Error::is_conflict), retry the whole transaction:
    ///
    /// ```
    /// # use entitlement::{ApplyResponse, Change, Entitlements, Error};
    /// async fn claim(entitlements: &Entitlements, key: &str, grant: &[Change]) -> Result<ApplyResponse, Error> {
    ///     db::retry_conflicts(Error::is_conflict, || async {
    ///         let mut tx = entitlements.begin(grant, &[]).await?;
    ///         // The caller's own reads and writes come here.
    ///         let response = entitlements.apply_in(&mut tx, "drops", key, grant).await?;
    ///         tx.commit().await?;
    ///         Ok(response)
    ///     })
    ///     .await
    /// }
    /// ```
    pub async fn apply_in(
        &self,
        tx: &mut Tx,
        caller: &str,
        key: &str,
        changes: &[Change],
    ) -> Result<ApplyResponse, Error> {
        let request = self.request(caller, key, changes)?;
        self.apply_all_in(tx, &[request]).await?.pop().unwrap_or(Err(Error::NoResponse))
    }

    /// Applies several requests in the caller's transaction and looks all of them up together. Each has its own response or error and sees
    /// the effects of those before it. A refused request adds nothing to the transaction.
    ///
    /// If a newer change supersedes a change, its request fails with [`Error::Superseded`] and is not recorded: the caller may retry it
    /// with a later time. The locks, and errors of the whole call, are as for [`apply_in`](Self::apply_in).
    pub async fn apply_each_in(
        &self,
        tx: &mut Tx,
        caller: &str,
        requests: &[NewRequest],
    ) -> Result<Vec<Result<ApplyResponse, Error>>, Error> {
        let check = |NewRequest { key, changes, traceparent }: &NewRequest| {
            let request = self.request(caller, key, changes)?;
            let traceparent = traceparent.clone();
            Ok::<_, Error>(Request { traceparent, if_superseded: IfSuperseded::Refuse, ..request })
        };
        let checked: Vec<Result<Request, Error>> = requests.iter().map(check).collect();
        let valid: Vec<Request> = checked.iter().flatten().cloned().collect();
        let mut applied = self.apply_all_in(tx, &valid).await?.into_iter();
        let response = |checked: Result<Request, Error>| {
            checked.and_then(|_| applied.next().unwrap_or(Err(Error::NoResponse)))
        };
        Ok(checked.into_iter().map(response).collect())
    }

    async fn apply_all_in(
        &self,
        tx: &mut Tx,
        requests: &[Request],
    ) -> Result<Vec<Result<ApplyResponse, Error>>, Error> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let start = Instant::now();
        let responses = self.applier.apply_in(tx, requests).await?;
        let replayed: Vec<bool> = responses.iter().flatten().map(ApplyResponse::is_replayed).collect();
        let metrics = self.metrics.clone();
        tx.after_commit(move || {
            replayed.into_iter().for_each(|is_replayed| metrics.succeeded(is_replayed, start.elapsed()));
        });
        Ok(responses)
    }

    /// Returns how many units of a counted entitlement the account has, as the caller's transaction sees it. Returns none if there is no
    /// such entitlement or it is not counted. Exact while the transaction holds the lock that [`begin`](Self::begin) takes.
    pub async fn balance_in(&self, tx: &mut Tx, holding: &Holding) -> Result<Option<i64>, Error> {
        // An earlier change of this transaction may still be buffered for the commit.
        tx.flush().await?;
        Ok(store::get_in(tx, holding).await?.and_then(|found| found.balance()))
    }

    pub(crate) const fn db(&self) -> &Db {
        &self.applier.db
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.applier.clock.now()
    }

    /// Validates a request.
    fn request(&self, caller: &str, key: &str, changes: &[Change]) -> Result<Request, Error> {
        if !(1..=MAX_BATCH).contains(&changes.len()) {
            let what = format!("must have 1 to {MAX_BATCH} entries, not {}", changes.len());
            return Err(Error::Invalid { field: "changes", what });
        }
        let now = self.applier.clock.now();
        changes.iter().try_for_each(|change| change.check(now))?;
        Ok(Request {
            caller: caller.to_owned(),
            key: IdempotencyKey::new(caller, key, fingerprint(changes))?,
            changes: changes.to_vec(),
            traceparent: TraceContext::current().traceparent().map(str::to_owned),
            if_superseded: IfSuperseded::Record,
        })
    }

    async fn apply_request(&self, request: Request) -> Result<ApplyResponse, Error> {
        // A request with many changes uses a transaction well on its own.
        if request.changes.len() == 1
            && let Some(Some(response)) = self.batcher.run(request.clone()).await
        {
            return response;
        }
        self.apply_alone(request).await
    }

    async fn apply_alone(&self, request: Request) -> Result<ApplyResponse, Error> {
        let request = [request];
        let applied =
            db::retry_conflicts(Error::is_conflict, || self.applier.apply(&request, Duration::MAX)).await;
        applied.map_err(still_running)?.pop().unwrap_or(Err(Error::NoResponse))
    }

    /// Returns an entitlement. Fails with [`Error::NotFound`] if the account has never owned it.
    pub async fn get(&self, holding: &Holding) -> Result<EntitlementView, Error> {
        let found = self.applier.db.bounded(async {
            let mut connection = self.applier.db.connection().await?;
            store::get(&mut connection, holding).await
        });
        let found = found.await?.ok_or_else(|| Error::NotFound(holding.clone()))?;
        Ok(EntitlementView::new(holding, &found, self.applier.clock.now()))
    }

    /// Lists the entitlements of an account, by resource.
    pub async fn list(
        &self,
        user: UserId,
        account: AccountId,
        options: &ListOptions,
    ) -> Result<Vec<EntitlementView>, Error> {
        let now = self.applier.clock.now();
        let in_force_at = options.in_force.then_some(now);
        let found = self.applier.db.bounded(async {
            let mut connection = self.applier.db.connection().await?;
            store::list(&mut connection, user, account, &options.after, in_force_at, options.limit).await
        });
        let found = found.await?;
        Ok(found.iter().map(|(holding, found)| EntitlementView::new(holding, found, now)).collect())
    }

    /// Lists the entries of an entitlement's history with a smaller number than `before`, newest first.
    pub async fn history(
        &self,
        holding: &Holding,
        before: i64,
        limit: u32,
    ) -> Result<Vec<HistoryEntry>, Error> {
        let found = self.applier.db.bounded(async {
            let mut connection = self.applier.db.connection().await?;
            store::history(&mut connection, holding, before, limit).await
        });
        Ok(found.await?.into_iter().map(HistoryEntry::new).collect())
    }
}

/// Converts a conflict that outlasted all attempts, or a lock timeout, into [`Error::StillRunning`].
fn still_running(error: Error) -> Error {
    match error {
        Error::Db(error @ (db::Error::Busy(_) | db::Error::Duplicate(_))) => {
            Error::StillRunning(Box::new(error))
        }
        Error::Db(error @ db::Error::Lock(hierlock::Error::Timeout(_))) => {
            Error::StillRunning(Box::new(error))
        }
        other => other,
    }
}
