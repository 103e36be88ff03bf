//! The transaction in which requests are done.

use std::collections::HashMap;
use std::time::Duration;

use base::{Clock, Timestamp};
use bus::EventId;
use db::{Db, Earlier, IdempotencyKey, Tx};
use hierlock::{Locks, OwnedTarget, Target};
use outbox::Outbox;
use runtime::fault;

use crate::answer::{Answer, Applied};
use crate::error::Error;
use crate::event;
use crate::fingerprint::before_fingerprints;
use crate::model::{Change, Effect, Entitlement, Holding};
use crate::store::{self, Decided, KnownHolding};

/// Changes that are made together or not at all, once per key.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) caller: String,
    pub(crate) key: IdempotencyKey,
    /// At least one.
    pub(crate) changes: Vec<Change>,
    /// The trace that it belongs to.
    pub(crate) traceparent: Option<String>,
    pub(crate) if_superseded: IfSuperseded,
}

/// What becomes of a request with a change that something newer supersedes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfSuperseded {
    /// The history and the answer say so.
    Record,
    /// It is refused with [`Error::Superseded`], as if it had not been sent.
    Refuse,
}

#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    pub(crate) db: Db,
    pub(crate) locks: Locks,
    pub(crate) outbox: Outbox,
    pub(crate) clock: Clock,
}

impl Ledger {
    /// Applies requests in one transaction. Each has an answer or an error of its own; an error of all means that nothing was
    /// applied.
    ///
    /// Four round trips: begin, lock, read all that must be known, write everything and commit. Six for more than four changes, of which
    /// reading takes three.
    pub(crate) async fn apply(
        &self,
        requests: &[Request],
        patience: Duration,
    ) -> Result<Vec<Result<Answer, Error>>, Error> {
        let changes = requests.iter().flat_map(|request| &request.changes);
        let mut tx = self.begin(changes, &[], patience).await?;
        let answers = self.db.bounded(self.apply_locked(&mut tx, requests)).await?;
        if answers.iter().flatten().all(Answer::is_replayed) {
            // Nothing is to be written.
            tx.rollback().await?;
            return Ok(answers);
        }
        fault::point("entitlement.uncommitted");
        tx.commit().await?;
        fault::point("entitlement.committed");
        Ok(answers)
    }

    /// Begins a transaction that holds the locks on what is changed, and on other targets.
    pub(crate) async fn begin<'a>(
        &self,
        changes: impl Iterator<Item = &'a Change>,
        others: &[Target<'_>],
        patience: Duration,
    ) -> Result<Tx, Error> {
        let owned = changes.map(|change| target(&change.holding)).collect::<Result<Vec<_>, _>>()?;
        let targets = owned.iter().map(OwnedTarget::as_target).chain(others.iter().copied());
        let targets: Vec<Target<'_>> = targets.collect();
        Ok(self.db.begin_locked(&self.locks.within(patience), &targets).await?)
    }

    /// Applies requests in a caller's transaction. Each has an answer or an error of its own. Fails if the transaction does not hold the
    /// locks on what they change.
    pub(crate) async fn apply_in(
        &self,
        tx: &mut Tx,
        requests: &[Request],
    ) -> Result<Vec<Result<Answer, Error>>, Error> {
        for Change { holding, .. } in requests.iter().flat_map(|request| &request.changes) {
            if !tx.holds(&target(holding)?.as_target()) {
                return Err(Error::NotLocked(holding.clone()));
            }
        }
        self.db.bounded(self.apply_locked(tx, requests)).await
    }

    /// Applies requests in a transaction that holds the locks on what they change. They are written at the latest when it is committed.
    async fn apply_locked(
        &self,
        tx: &mut Tx,
        requests: &[Request],
    ) -> Result<Vec<Result<Answer, Error>>, Error> {
        // An earlier call may have left writes for the commit, which the reads below must see: its keys, entitlements and events.
        tx.write().await?;
        // The key of a request is looked up beside its first change.
        let questions = requests.iter().flat_map(|request| {
            let rest = std::iter::repeat(None);
            let keys = std::iter::once(Some(&request.key)).chain(rest);
            keys.zip(request.changes.iter().map(|change| &change.holding))
        });
        let mut known = store::know(tx, &self.outbox, &questions.collect::<Vec<_>>()).await?.into_iter();
        let now = self.clock.now();
        let mut done = Done::default();
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            let known: Vec<KnownHolding> = known.by_ref().take(request.changes.len()).collect();
            let answer = self.apply_one(request, known, now, &mut done);
            if let Ok(answer) = &answer {
                done.answers.insert(request.key.hash().to_vec(), (request.key, answer.text().to_owned()));
            }
            answers.push(answer);
        }
        // Of an entitlement that changes more than once, the last state.
        store::save(tx, &done.latest);
        let new = requests.iter().zip(&answers).filter_map(|(request, answer)| {
            let answer = answer.as_ref().ok().filter(|answer| !answer.is_replayed())?;
            Some((&request.key, request.changes[0].holding.user.as_uuid(), answer.text()))
        });
        IdempotencyKey::record_all(tx, new);
        let decided = done.decided.iter().map(|(request, decided)| DecidedRequest {
            caller: &request.caller,
            decided,
            traceparent: request.traceparent.as_deref(),
        });
        write(tx, &self.outbox, &decided.collect::<Vec<_>>(), now)?;
        Ok(answers)
    }

    fn apply_one<'a>(
        &self,
        request: &'a Request,
        known: Vec<KnownHolding>,
        now: Timestamp,
        done: &mut Done<'a>,
    ) -> Result<Answer, Error> {
        let earlier = match (done.answers.get(request.key.hash()), known.first()) {
            (Some((key, answer)), _) if *key == request.key => Earlier::Answer(answer.clone()),
            (Some(_), _) => return Err(Error::KeyReused),
            (None, known) => known.map_or(Earlier::Nothing, |known| known.earlier.clone()),
        };
        match earlier.or_before(|| before_fingerprints(&request.changes)) {
            Earlier::Nothing => {}
            Earlier::Answer(answer) => {
                let corrupt = |cause| self.db.corrupt("idempotency_keys", request.key.row(), cause);
                return Answer::replayed(answer).map_err(|cause| corrupt(cause).into());
            }
            Earlier::Unreadable(cause) => {
                return Err(self.db.corrupt("idempotency_keys", request.key.row(), cause).into());
            }
            Earlier::OtherRequest(_) => return Err(Error::KeyReused),
        }
        let decided = decide(&request.changes, known, &done.latest)?;
        let superseded = decided.iter().find(|decided| decided.effect == Effect::Superseded);
        if let Some(superseded) = superseded.filter(|_| request.if_superseded == IfSuperseded::Refuse) {
            return Err(Error::Superseded(superseded.after.as_of));
        }
        let answer = Answer::new(decided.iter().map(|decided| Applied::new(decided, now)).collect())?;
        for Decided { change, after, .. } in &decided {
            done.latest.insert(change.holding.clone(), after.clone());
        }
        done.decided.push((request, decided));
        Ok(answer)
    }
}

/// The lock on an entitlement.
fn target(Holding { user, account, resource }: &Holding) -> Result<OwnedTarget, Error> {
    let (user, account) = (user.to_string(), account.to_string());
    let target = Target::resource(&user, &account, resource);
    Ok(target.map_err(|empty| db::Error::Lock(empty.into()))?.into())
}

/// What the requests of a transaction have done so far.
#[derive(Default)]
struct Done<'a> {
    latest: HashMap<Holding, Entitlement>,
    /// By the hash of their keys.
    answers: HashMap<Vec<u8>, (IdempotencyKey, String)>,
    decided: Vec<(&'a Request, Vec<Decided>)>,
}

/// The changes of a request, as they were decided on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecidedRequest<'a> {
    pub(crate) caller: &'a str,
    pub(crate) decided: &'a [Decided],
    /// The trace that it belongs to.
    pub(crate) traceparent: Option<&'a str>,
}

/// What changes make of the entitlements, one after the other.
fn decide(
    changes: &[Change],
    known: Vec<KnownHolding>,
    latest: &HashMap<Holding, Entitlement>,
) -> Result<Vec<Decided>, Error> {
    let mut decided: Vec<Decided> = Vec::with_capacity(changes.len());
    for (change, KnownHolding { has_account, entitlement, is_told, .. }) in changes.iter().zip(known) {
        if !has_account {
            return Err(Error::NoAccount(change.holding.clone()));
        }
        let here = decided.iter().rev().find(|decided| decided.change.holding == change.holding);
        let before = here.map(|decided| &decided.after).or_else(|| latest.get(&change.holding));
        let (after, effect) = change.apply(before.or(entitlement.as_ref()))?;
        let event = (effect == Effect::Applied).then(EventId::generate);
        decided.push(Decided { change: change.clone(), after, effect, event, is_told });
    }
    Ok(decided)
}

/// Writes histories and events of what was decided, when the transaction is committed.
pub(crate) fn write(
    tx: &mut Tx,
    outbox: &Outbox,
    requests: &[DecidedRequest<'_>],
    now: Timestamp,
) -> Result<(), Error> {
    let (mut next, mut behind) = (Vec::new(), Vec::new());
    let rows = requests.iter().flat_map(|request| request.decided.iter().map(|one| (one, request.caller)));
    store::add_history(tx, rows, now);
    for &DecidedRequest { decided, traceparent, .. } in requests {
        for Decided { change, after, event, is_told, .. } in decided {
            let Some(id) = event else { continue };
            let event = event::of(*id, change, after, traceparent, now)?;
            let events = if *is_told { &mut next } else { &mut behind };
            events.push((*change.holding.user.as_uuid(), event));
        }
    }
    // Each by one call, so that those of one key stay together.
    outbox.append_next(tx, &next);
    outbox.append(tx, &behind);
    Ok(())
}

#[cfg(test)]
mod tests;
