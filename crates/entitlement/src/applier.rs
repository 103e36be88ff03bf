//! The transaction that applies requests.

use std::collections::HashMap;
use std::time::Duration;

use base::{Clock, Timestamp};
use bus::EventId;
use db::{Db, IdempotencyKey, KeyLookup, Tx};
use hierlock::{LockManager, OwnedTarget, Target};
use outbox::Outbox;
use runtime::fault;

use crate::error::Error;
use crate::event;
use crate::fingerprint::legacy_description;
use crate::model::{Change, Effect, Entitlement, Holding};
use crate::response::{ApplyResponse, ChangeResult};
use crate::store::{self, DecidedChange, HoldingLookup};

/// Changes that are applied together or not at all, once per key.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) caller: String,
    pub(crate) key: IdempotencyKey,
    /// At least one.
    pub(crate) changes: Vec<Change>,
    /// The trace of the request.
    pub(crate) traceparent: Option<String>,
    pub(crate) if_superseded: IfSuperseded,
}

/// How a request is handled if a newer change supersedes one of its changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfSuperseded {
    /// The history and the response record the change as superseded.
    Record,
    /// The request fails with [`Error::Superseded`] and has no effect.
    Refuse,
}

/// Applies requests. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(crate) struct Applier {
    pub(crate) db: Db,
    pub(crate) locks: LockManager,
    pub(crate) outbox: Outbox,
    pub(crate) clock: Clock,
}

impl Applier {
    /// Applies requests in one transaction. Each has its own response or error. If the call fails, nothing was applied, unless the
    /// acknowledgement of the commit was lost.
    ///
    /// It takes four round trips: begin, lock, look up, write and commit (ADR 7). More than four changes take six: the lookup takes three.
    pub(crate) async fn apply(
        &self,
        requests: &[Request],
        lock_timeout: Duration,
    ) -> Result<Vec<Result<ApplyResponse, Error>>, Error> {
        let changes = requests.iter().flat_map(|request| &request.changes);
        let mut tx = self.begin(changes, &[], lock_timeout).await?;
        let responses = self.db.bounded(self.apply_locked(&mut tx, requests)).await?;
        if responses.iter().flatten().all(ApplyResponse::is_replayed) {
            tx.rollback().await?;
            return Ok(responses);
        }
        fault::point("entitlement.uncommitted");
        tx.commit().await?;
        fault::point("entitlement.committed");
        Ok(responses)
    }

    /// Begins a transaction that holds the locks of these changes and those on `others`.
    pub(crate) async fn begin<'a>(
        &self,
        changes: impl Iterator<Item = &'a Change>,
        others: &[Target<'_>],
        lock_timeout: Duration,
    ) -> Result<Tx, Error> {
        let owned = changes.map(|change| target(&change.holding)).collect::<Result<Vec<_>, _>>()?;
        let targets = owned.iter().map(OwnedTarget::as_target).chain(others.iter().copied());
        let targets: Vec<Target<'_>> = targets.collect();
        Ok(self.db.begin_locked(&self.locks.with_timeout(lock_timeout), &targets).await?)
    }

    /// Applies requests in a caller's transaction. Each has its own response or error. Fails if the transaction does not hold their locks.
    pub(crate) async fn apply_in(
        &self,
        tx: &mut Tx,
        requests: &[Request],
    ) -> Result<Vec<Result<ApplyResponse, Error>>, Error> {
        for Change { holding, .. } in requests.iter().flat_map(|request| &request.changes) {
            if !tx.holds(&target(holding)?.as_target()) {
                return Err(Error::NotLocked(holding.clone()));
            }
        }
        self.db.bounded(self.apply_locked(tx, requests)).await
    }

    /// Applies requests in a transaction that holds their locks. They are written at its commit at the latest.
    async fn apply_locked(
        &self,
        tx: &mut Tx,
        requests: &[Request],
    ) -> Result<Vec<Result<ApplyResponse, Error>>, Error> {
        // The reads below must see the keys, entitlements and events that an earlier call has left for the commit.
        tx.flush().await?;
        // The key of a request is looked up with its first change.
        let queries = requests.iter().flat_map(|request| {
            let rest = std::iter::repeat(None);
            let keys = std::iter::once(Some(&request.key)).chain(rest);
            keys.zip(request.changes.iter().map(|change| &change.holding))
        });
        let mut lookups = store::look_up(tx, &self.outbox, &queries.collect::<Vec<_>>()).await?.into_iter();
        let now = self.clock.now();
        let mut applied = AppliedRequests::default();
        let mut responses = Vec::with_capacity(requests.len());
        for request in requests {
            let lookups: Vec<HoldingLookup> = lookups.by_ref().take(request.changes.len()).collect();
            let response = self.apply_one(request, lookups, now, &mut applied);
            if let Ok(response) = &response {
                applied
                    .responses
                    .insert(request.key.hash().to_vec(), (request.key, response.text().to_owned()));
            }
            responses.push(response);
        }
        // An entitlement that changes more than once is written once, in its last state.
        store::save(tx, &applied.latest);
        let new = requests.iter().zip(&responses).filter_map(|(request, response)| {
            let response = response.as_ref().ok().filter(|response| !response.is_replayed())?;
            Some((&request.key, request.changes[0].holding.user.as_uuid(), response.text()))
        });
        IdempotencyKey::record_all(tx, new);
        let decided = applied.decided.iter().map(|(request, decided)| DecidedRequest {
            caller: &request.caller,
            decided,
            traceparent: request.traceparent.as_deref(),
        });
        write(tx, &self.outbox, &decided.collect::<Vec<_>>(), now)?;
        Ok(responses)
    }

    fn apply_one<'a>(
        &self,
        request: &'a Request,
        lookups: Vec<HoldingLookup>,
        now: Timestamp,
        applied: &mut AppliedRequests<'a>,
    ) -> Result<ApplyResponse, Error> {
        let key = match (applied.responses.get(request.key.hash()), lookups.first()) {
            (Some((key, response)), _) if *key == request.key => {
                KeyLookup::RecordedResponse(response.clone())
            }
            (Some(_), _) => return Err(Error::KeyReused),
            (None, lookup) => lookup.map_or(KeyLookup::New, |lookup| lookup.key.clone()),
        };
        match key.or_legacy(|| legacy_description(&request.changes)) {
            KeyLookup::New => {}
            KeyLookup::RecordedResponse(response) => {
                let corrupt = |cause| self.db.corrupt("idempotency_keys", request.key.row(), cause);
                return ApplyResponse::replayed(response).map_err(|cause| corrupt(cause).into());
            }
            KeyLookup::Unreadable(cause) => {
                return Err(self.db.corrupt("idempotency_keys", request.key.row(), cause).into());
            }
            KeyLookup::OtherRequest(_) => return Err(Error::KeyReused),
        }
        let decided = decide(&request.changes, lookups, &applied.latest)?;
        let superseded = decided.iter().find(|decided| decided.effect == Effect::Superseded);
        if let Some(superseded) = superseded.filter(|_| request.if_superseded == IfSuperseded::Refuse) {
            return Err(Error::Superseded(superseded.after.as_of));
        }
        let response =
            ApplyResponse::new(decided.iter().map(|decided| ChangeResult::new(decided, now)).collect())?;
        for DecidedChange { change, after, .. } in &decided {
            applied.latest.insert(change.holding.clone(), after.clone());
        }
        applied.decided.push((request, decided));
        Ok(response)
    }
}

/// Returns the lock target of an entitlement.
fn target(Holding { user, account, resource }: &Holding) -> Result<OwnedTarget, Error> {
    let (user, account) = (user.to_string(), account.to_string());
    let target = Target::resource(&user, &account, resource);
    Ok(target.map_err(|empty| db::Error::Lock(empty.into()))?.into())
}

/// The requests that a transaction has applied so far.
#[derive(Default)]
struct AppliedRequests<'a> {
    latest: HashMap<Holding, Entitlement>,
    /// Responses, by the hash of the request's key.
    responses: HashMap<Vec<u8>, (IdempotencyKey, String)>,
    decided: Vec<(&'a Request, Vec<DecidedChange>)>,
}

/// The decided changes of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecidedRequest<'a> {
    pub(crate) caller: &'a str,
    pub(crate) decided: &'a [DecidedChange],
    /// The trace of the request.
    pub(crate) traceparent: Option<&'a str>,
}

/// Decides changes one after the other. Each sees the effects of those before it, in the request and in the transaction.
fn decide(
    changes: &[Change],
    lookups: Vec<HoldingLookup>,
    latest: &HashMap<Holding, Entitlement>,
) -> Result<Vec<DecidedChange>, Error> {
    let mut decided: Vec<DecidedChange> = Vec::with_capacity(changes.len());
    for (change, HoldingLookup { has_account, entitlement, all_published, .. }) in changes.iter().zip(lookups)
    {
        if !has_account {
            return Err(Error::NoAccount(change.holding.clone()));
        }
        let in_request = decided.iter().rev().find(|decided| decided.change.holding == change.holding);
        let before = in_request.map(|decided| &decided.after).or_else(|| latest.get(&change.holding));
        let (after, effect) = change.apply(before.or(entitlement.as_ref()))?;
        let event = (effect == Effect::Applied).then(EventId::generate);
        decided.push(DecidedChange { change: change.clone(), after, effect, event, all_published });
    }
    Ok(decided)
}

/// Writes the histories and events of decided changes, at the commit of the transaction.
pub(crate) fn write(
    tx: &mut Tx,
    outbox: &Outbox,
    requests: &[DecidedRequest<'_>],
    now: Timestamp,
) -> Result<(), Error> {
    let (mut local, mut queued) = (Vec::new(), Vec::new());
    let rows = requests.iter().flat_map(|request| request.decided.iter().map(|one| (one, request.caller)));
    store::add_history(tx, rows, now);
    for &DecidedRequest { decided, traceparent, .. } in requests {
        for DecidedChange { change, after, event, all_published, .. } in decided {
            let Some(id) = event else { continue };
            let event = event::new(*id, change, after, traceparent, now)?;
            let events = if *all_published { &mut local } else { &mut queued };
            events.push((*change.holding.user.as_uuid(), event));
        }
    }
    // All events of a key have the same `all_published`, so one call gets them all, in order.
    outbox.append_local(tx, &local);
    outbox.append(tx, &queued);
    Ok(())
}

#[cfg(test)]
mod tests;
