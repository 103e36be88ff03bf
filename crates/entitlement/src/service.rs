//! What can be done with entitlements.

use std::time::Duration;

use account::{AccountId, UserId};
use base::{Clock, Timestamp};
use db::{Db, IdempotencyKey, Tx};
use hierlock::{Locks, Target};
use outbox::Outbox;
use runtime::batch::Batcher;
use runtime::telemetry::TraceContext;
use tokio::time::Instant;

use crate::answer::{Answer, EntitlementView, HistoryEntry};
use crate::error::Error;
use crate::fingerprint::fingerprint;
use crate::ledger::{IfSuperseded, Ledger, Request};
use crate::metrics::Metrics;
use crate::model::{Change, Holding};
use crate::store;

/// How many changes one request may have.
pub const MAX_BATCH: usize = 100;

/// How many transactions with the requests of several callers may be under way, and how many requests one has at most.
const LANES: usize = 4;
const TOGETHER: usize = 32;
/// How long those wait for their locks: not long, since whoever is in nobody's way waits with the rest.
const TOGETHER_WAITS: Duration = Duration::from_millis(50);

/// The entitlements. Clones are the same.
#[derive(Clone, Debug)]
pub struct Entitlements {
    ledger: Ledger,
    /// Requests that arrive together are done together: that costs a fraction. None comes back for those that have to be done
    /// alone.
    together: Batcher<Request, Option<Result<Answer, Error>>>,
    metrics: Metrics,
}

/// A request of [`Entitlements::apply_each_in`].
#[derive(Clone, Debug)]
pub struct NewRequest {
    /// The idempotency key.
    pub key: String,
    /// Made together or not at all.
    pub changes: Vec<Change>,
    /// The trace that it belongs to.
    pub traceparent: Option<String>,
}

/// What to list.
#[derive(Clone, Debug)]
pub struct ListOptions {
    /// Only what the account has now.
    pub in_force: bool,
    /// From behind this resource.
    pub after: String,
    pub limit: u32,
}

impl Entitlements {
    pub fn new(db: Db, locks: Locks, outbox: Outbox, clock: Clock, metrics: Metrics) -> Self {
        let ledger = Ledger { db, locks, outbox, clock };
        let of = ledger.clone();
        let together = Batcher::new(LANES, TOGETHER, move |requests: Vec<Request>| {
            let ledger = of.clone();
            async move {
                match ledger.apply(&requests, TOGETHER_WAITS).await {
                    Ok(answers) => answers.into_iter().map(Some).collect(),
                    // One of them was in somebody's way, and nobody knows which. Nothing was done, or may have been: to try again
                    // under the same key tells.
                    Err(_) => requests.iter().map(|_| None).collect(),
                }
            }
        });
        Self { ledger, together, metrics }
    }

    /// Applies changes, all or none of them, once per caller and key. A repeated request gets the first answer.
    pub async fn apply(&self, caller: &str, key: &str, changes: &[Change]) -> Result<Answer, Error> {
        let request = self.request(caller, key, changes)?;
        let began = Instant::now();
        let answer = self.apply_request(request).await?;
        self.metrics.applied(answer.is_replayed(), began.elapsed());
        Ok(answer)
    }

    /// Begins a transaction for [`apply_in`](Self::apply_in): it holds the locks that these changes need, and those on `others`, which the
    /// caller needs for its own work. All locks are taken here, in one order, so two such transactions cannot deadlock.
    pub async fn begin(&self, changes: &[Change], others: &[Target<'_>]) -> Result<Tx, Error> {
        self.ledger.begin(changes.iter(), others, Duration::MAX).await
    }

    /// Begins a transaction for [`apply_each_in`](Self::apply_each_in) with the requests of several callers. Waits for its locks until
    /// `patience` ends, since a request whose lock is free waits with the rest, and then fails: do each request alone.
    pub async fn begin_shared(&self, changes: &[Change], patience: Duration) -> Result<Tx, Error> {
        self.ledger.begin(changes.iter(), &[], patience).await
    }

    /// Applies changes in the caller's transaction: they become true with its commit, or never. As [`apply`](Self::apply) does, it applies
    /// them once per caller and key, adds to the histories and appends the events; after the commit this process publishes the events and
    /// counts the request.
    ///
    /// The transaction must hold the locks on all that is changed, or on the accounts or users above: [`begin`](Self::begin) takes them.
    /// Otherwise this fails with [`Error::NotLocked`] and does nothing.
    ///
    /// After [`Error::Db`] or [`Error::Answer`] drop the transaction, since it may have been written to in part. Any other error adds nothing to it.
    /// An error that [is a conflict](Error::is_conflict), from here or from the commit, is gone when the whole transaction is repeated:
    ///
    /// ```
    /// # use entitlement::{Answer, Change, Entitlements, Error};
    /// async fn claim(entitlements: &Entitlements, key: &str, grant: &[Change]) -> Result<Answer, Error> {
    ///     db::retrying(Error::is_conflict, || async {
    ///         let mut tx = entitlements.begin(grant, &[]).await?;
    ///         // The caller's own reads and writes come here.
    ///         let answer = entitlements.apply_in(&mut tx, "drops", key, grant).await?;
    ///         tx.commit().await?;
    ///         Ok(answer)
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
    ) -> Result<Answer, Error> {
        let request = self.request(caller, key, changes)?;
        self.apply_all_in(tx, &[request]).await?.pop().unwrap_or(Err(Error::NoAnswer))
    }

    /// Applies several requests in the caller's transaction, with one query for all of them. Each has an answer or an error of its own,
    /// and sees the effects of those before it. A request that is refused adds nothing to the transaction.
    ///
    /// A request with a change that something newer supersedes is refused with [`Error::Superseded`] instead of being recorded as such:
    /// the caller sends it again with a later time. Locks and errors of all requests are those of [`apply_in`](Self::apply_in).
    pub async fn apply_each_in(
        &self,
        tx: &mut Tx,
        caller: &str,
        requests: &[NewRequest],
    ) -> Result<Vec<Result<Answer, Error>>, Error> {
        let check = |NewRequest { key, changes, traceparent }: &NewRequest| {
            let request = self.request(caller, key, changes)?;
            let traceparent = traceparent.clone();
            Ok::<_, Error>(Request { traceparent, if_superseded: IfSuperseded::Refuse, ..request })
        };
        let checked: Vec<Result<Request, Error>> = requests.iter().map(check).collect();
        let sound: Vec<Request> = checked.iter().flatten().cloned().collect();
        let mut applied = self.apply_all_in(tx, &sound).await?.into_iter();
        let answer = |checked: Result<Request, Error>| {
            checked.and_then(|_| applied.next().unwrap_or(Err(Error::NoAnswer)))
        };
        Ok(checked.into_iter().map(answer).collect())
    }

    async fn apply_all_in(
        &self,
        tx: &mut Tx,
        requests: &[Request],
    ) -> Result<Vec<Result<Answer, Error>>, Error> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let began = Instant::now();
        let answers = self.ledger.apply_in(tx, requests).await?;
        let replayed: Vec<bool> = answers.iter().flatten().map(Answer::is_replayed).collect();
        let metrics = self.metrics.clone();
        tx.after_commit(move || {
            replayed.into_iter().for_each(|is_replayed| metrics.applied(is_replayed, began.elapsed()));
        });
        Ok(answers)
    }

    /// Returns how many units of a counted entitlement the account has, in the caller's transaction. None if there is no such entitlement
    /// or it is not counted. Exact while the transaction holds the lock that [`begin`](Self::begin) takes.
    pub async fn balance_in(&self, tx: &mut Tx, holding: &Holding) -> Result<Option<i64>, Error> {
        // An earlier change of this transaction may wait for the commit.
        tx.write().await?;
        Ok(store::get_in(tx, holding).await?.and_then(|found| found.balance()))
    }

    pub(crate) const fn db(&self) -> &Db {
        &self.ledger.db
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.ledger.clock.now()
    }

    /// Checks what a caller asks for.
    fn request(&self, caller: &str, key: &str, changes: &[Change]) -> Result<Request, Error> {
        if !(1..=MAX_BATCH).contains(&changes.len()) {
            let what = format!("has 1 to {MAX_BATCH} entries, not {}", changes.len());
            return Err(Error::Invalid { field: "changes", what });
        }
        let now = self.ledger.clock.now();
        changes.iter().try_for_each(|change| change.check(now))?;
        Ok(Request {
            caller: caller.to_owned(),
            key: IdempotencyKey::new(caller, key, fingerprint(changes))?,
            changes: changes.to_vec(),
            traceparent: TraceContext::current().traceparent().map(str::to_owned),
            if_superseded: IfSuperseded::Record,
        })
    }

    async fn apply_request(&self, request: Request) -> Result<Answer, Error> {
        // Those with many changes are enough for a transaction of their own.
        if request.changes.len() == 1
            && let Some(Some(answer)) = self.together.run(request.clone()).await
        {
            return answer;
        }
        self.apply_alone(request).await
    }

    async fn apply_alone(&self, request: Request) -> Result<Answer, Error> {
        let request = [request];
        let applied = db::retrying(Error::is_conflict, || self.ledger.apply(&request, Duration::MAX)).await;
        applied.map_err(still_running)?.pop().unwrap_or(Err(Error::NoAnswer))
    }

    /// One entitlement.
    pub async fn get(&self, holding: &Holding) -> Result<EntitlementView, Error> {
        let found = self.ledger.db.bounded(async {
            let mut connection = self.ledger.db.connection().await?;
            store::get(&mut connection, holding).await
        });
        let found = found.await?.ok_or_else(|| Error::Unknown(holding.clone()))?;
        Ok(EntitlementView::new(holding, &found, self.ledger.clock.now()))
    }

    /// Those of an account, in the order of their resources.
    pub async fn list(
        &self,
        user: UserId,
        account: AccountId,
        options: &ListOptions,
    ) -> Result<Vec<EntitlementView>, Error> {
        let now = self.ledger.clock.now();
        let in_force_at = options.in_force.then_some(now);
        let found = self.ledger.db.bounded(async {
            let mut connection = self.ledger.db.connection().await?;
            store::list(&mut connection, user, account, &options.after, in_force_at, options.limit).await
        });
        let found = found.await?;
        Ok(found.iter().map(|(holding, found)| EntitlementView::new(holding, found, now)).collect())
    }

    /// All that happened to an entitlement, the newest first, from before an entry.
    pub async fn history(
        &self,
        holding: &Holding,
        before: i64,
        limit: u32,
    ) -> Result<Vec<HistoryEntry>, Error> {
        let found = self.ledger.db.bounded(async {
            let mut connection = self.ledger.db.connection().await?;
            store::history(&mut connection, holding, before, limit).await
        });
        Ok(found.await?.into_iter().map(HistoryEntry::new).collect())
    }
}

/// Turns a conflict that outlasted all attempts, or a wait that was too long, into the error that callers see.
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
