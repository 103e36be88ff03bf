//! Cycles: the proposals of concurrent calls are evaluated together.
//!
//! A cycle begins with its first call and takes further calls for the registration window. Match functions run at once,
//! and the evaluator gets their proposals as they come. Its input ends when the registration window has passed and all
//! match functions have finished; those that run longer than the proposal window are cancelled. Cycles may overlap,
//! also those of several processes: what the evaluator accepts must still be claimed in the store.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use proto::openmatch;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::Inner;
use super::evaluate::Evaluation;
use super::fetch::{Accepted, Call, End, Proposal, TOO_LONG, is_new};
use crate::error::Error;
use crate::model::Moment;
use crate::store::Holder;

/// The cycle that takes calls at the moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Cycles {
    current: Arc<Mutex<Option<Registration>>>,
    last_call: Arc<AtomicUsize>,
}

/// How a call takes part in a cycle.
#[derive(Clone, Debug)]
struct Registration {
    proposals: mpsc::Sender<Message>,
    /// When the proposal window has passed.
    over: Instant,
    /// Becomes true at that time.
    is_over: watch::Receiver<bool>,
}

/// What a call sends to its cycle.
#[derive(Debug)]
enum Message {
    Joined(Participant),
    Proposed(usize, Box<openmatch::Match>),
}

/// A call, as its cycle sees it.
#[derive(Debug)]
struct Participant {
    id: usize,
    holder: Holder,
    number: Option<u32>,
    accepted: mpsc::UnboundedSender<Result<Accepted, CycleError>>,
}

/// Why a cycle failed, for all its calls.
#[derive(Clone, Debug)]
enum CycleError {
    Evaluation(String),
    Store(Error),
}

impl Call {
    /// Sends the proposals to the current cycle, and delivers those that are accepted.
    pub(super) async fn join_cycle(&self) -> Result<(), End> {
        let registration = self.backend.register();
        let (accepted, mut results) = mpsc::unbounded_channel();
        let id = self.backend.cycles.last_call.fetch_add(1, Ordering::Relaxed);
        let participant = Participant { id, holder: self.holder(), number: None, accepted };
        let joined = registration.proposals.send(Message::Joined(participant)).await;
        joined.map_err(|_| End::Failed(Error::Interrupted))?;
        let (mut proposed, mut delivered): (Option<Result<(), End>>, _) = (None, None);
        {
            let (mut proposing, mut delivering) =
                (pin!(self.propose(id, registration)), pin!(self.deliver_results(&mut results)));
            // A match function that fails does not end the call: what it proposed before may still be accepted.
            let must_end = |end: &End| !matches!(end, End::Errors { sync: None, .. });
            while delivered.is_none()
                && !proposed.as_ref().is_some_and(|end| end.as_ref().is_err_and(&must_end))
            {
                tokio::select! {
                    result = &mut proposing, if proposed.is_none() => proposed = Some(result),
                    result = &mut delivering => delivered = Some(result),
                }
            }
        }
        // What the cycle accepts after this has nobody to send it to, and is released there.
        results.close();
        let mut undelivered = Vec::new();
        while let Some(result) = results.recv().await {
            undelivered.extend(result.ok().map(|accepted| accepted.held));
        }
        self.backend.release(undelivered).await;

        let (mut sync, mut function) = (None, None);
        match proposed {
            Some(Err(End::Errors { sync: in_calls, function: of_function })) => {
                (sync, function) = (in_calls, of_function);
            }
            Some(Err(end)) => return Err(end),
            Some(Ok(())) | None => {}
        }
        match delivered.transpose()?.flatten() {
            Some(CycleError::Store(error)) => return Err(End::Failed(error)),
            Some(CycleError::Evaluation(cause)) => sync = Some(cause),
            None => {}
        }
        if sync.is_none() && function.is_none() { Ok(()) } else { Err(End::Errors { sync, function }) }
    }

    /// Hands the accepted matches to the caller until the cycle ends. Returns why the cycle failed.
    async fn deliver_results(
        &self,
        results: &mut mpsc::UnboundedReceiver<Result<Accepted, CycleError>>,
    ) -> Result<Option<CycleError>, End> {
        let mut failure = None;
        loop {
            let place = self.sender.reserve().await.map_err(|_| End::Cancelled)?;
            let result = tokio::select! {
                biased;
                () = self.sender.closed() => return Err(End::Cancelled),
                result = results.recv() => result,
            };
            match result {
                Some(Ok(accepted)) => place.send(Ok(accepted)),
                Some(Err(error)) => failure = Some(error),
                None => return Ok(failure),
            }
        }
    }

    async fn propose(&self, id: usize, mut registration: Registration) -> Result<(), End> {
        let mut proposals = pin!(self.run_function(registration.over));
        let mut known = HashSet::new();
        loop {
            let proposal = tokio::select! {
                biased;
                () = self.sender.closed() => return Err(End::Cancelled),
                () = self.drain.requested() => return Err(End::Stopping),
                proposal = proposals.next() => proposal,
                _ = registration.is_over.wait_for(|is_over| *is_over) => return Err(End::function(TOO_LONG.to_owned())),
            };
            let Some(proposal) = proposal else { return Ok(()) };
            let proposal = match proposal {
                Ok(proposal) => is_new(&mut known, proposal)?,
                Err(cause) => return Err(self.function_failed(cause, registration.over).await),
            };
            if registration.proposals.send(Message::Proposed(id, Box::new(proposal))).await.is_err() {
                // The cycle has failed. Its error is on its way.
                return Ok(());
            }
        }
    }
}

impl Inner {
    /// Returns the current cycle. Begins one if there is none.
    fn register(self: &Arc<Self>) -> Registration {
        let mut current = self.cycles.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(registration) = current.as_ref().filter(|current| !current.proposals.is_closed()) {
            return registration.clone();
        }
        let (proposals, received) = mpsc::channel(64);
        let (window, is_over) = watch::channel(false);
        let (backend, begun) = (self.clone(), Instant::now());
        let over = begun + self.config.registration_window.max(self.config.proposal_window);
        let registration = Registration { proposals, over, is_over };
        *current = Some(registration.clone());
        let cycles = self.cycles.clone();
        let own = registration.proposals.clone().downgrade();
        tokio::spawn(async move {
            sleep_until(begun + backend.config.registration_window).await;
            let mut current = cycles.current.lock().unwrap_or_else(PoisonError::into_inner);
            let is_own = |current: &Registration| {
                own.upgrade().is_some_and(|own| current.proposals.same_channel(&own))
            };
            // Later calls begin a new cycle.
            current.take_if(|current| is_own(current));
        });
        let backend = self.clone();
        tokio::spawn(async move {
            let mut cycle = Cycle::default();
            let evaluation = backend.evaluator.start(over + backend.config.evaluator_timeout);
            let failure = cycle.run(&backend, evaluation, received, window, over).await.err();
            let outcome = if failure.is_some() { "failed" } else { "succeeded" };
            backend.metrics.evaluator_call(outcome);
            cycle.finish(failure);
        });
        registration
    }
}

/// A cycle while it runs.
#[derive(Debug, Default)]
struct Cycle {
    participants: HashMap<usize, Participant>,
    /// By match id. `None` if the evaluator has chosen it.
    proposals: HashMap<String, Option<(usize, openmatch::Match)>>,
}

impl Cycle {
    async fn run(
        &mut self,
        backend: &Inner,
        mut evaluation: Evaluation,
        mut received: mpsc::Receiver<Message>,
        window: watch::Sender<bool>,
        over: Instant,
    ) -> Result<(), CycleError> {
        let mut is_open = true;
        let mut late = Instant::now();
        loop {
            tokio::select! {
                message = received.recv(), if is_open => match message {
                    Some(Message::Joined(participant)) => {
                        self.participants.insert(participant.id, participant);
                    }
                    Some(Message::Proposed(call, proposal)) => {
                        let id = proposal.match_id.clone();
                        if self.proposals.contains_key(&id) {
                            let text = format!("multiple match functions used same match_id: \"{id}\"");
                            return Err(CycleError::Evaluation(text));
                        }
                        let max = backend.config.max_proposals;
                        if self.proposals.len() == max {
                            return Err(CycleError::Evaluation(format!(
                                "the cycle has more than {max} proposals: propose fewer, or raise \
                                 matchmaking.director.max_proposals"
                            )));
                        }
                        evaluation.send(&proposal);
                        self.proposals.insert(id, Some((call, *proposal)));
                    }
                    None => {
                        is_open = false;
                        late = Instant::now() + backend.config.evaluator_timeout;
                        evaluation.close();
                    }
                },
                chosen = evaluation.next() => match chosen {
                    Some(Ok(id)) => self.accept(backend, id).await?,
                    Some(Err(cause)) => return Err(CycleError::Evaluation(cause)),
                    None => return Ok(()),
                },
                () = sleep_until(late), if !is_open => {
                    let limit = backend.config.evaluator_timeout;
                    return Err(CycleError::Evaluation(format!("evaluator ran longer than {limit:?}, canceling")));
                }
                () = sleep_until(over), if is_open && !*window.borrow() => {
                    window.send_replace(true);
                }
            }
        }
    }

    /// Claims a match that the evaluator chose, and hands it to its call.
    async fn accept(&mut self, backend: &Inner, id: String) -> Result<(), CycleError> {
        let found = self.proposals.get_mut(&id).ok_or_else(|| {
            CycleError::Evaluation(format!(
                "evaluator returned match_id \"{id}\" which does not correspond to its any match in its input"
            ))
        })?;
        let (call, match_) = found.take().ok_or_else(|| {
            CycleError::Evaluation(format!("evaluator returned same match_id twice: \"{id}\""))
        })?;
        let Some(participant) = self.participants.get_mut(&call) else { return Ok(()) };
        let now = Moment::from(backend.clock.now());
        let proposal = Proposal::read(match_, now, backend.backfill_limits);
        let Some(proposal) = proposal.ok().filter(|_| !participant.accepted.is_closed()) else {
            backend.metrics.director_match("refused");
            return Ok(());
        };
        let proposals = [proposal];
        let claimed = backend.claim(&mut participant.number, &participant.holder, &proposals).await;
        let held = claimed.map_err(CycleError::Store)?.pop().flatten();
        let [proposal] = proposals;
        if let Some(held) = held {
            let accepted = Accepted { match_: proposal.match_, held };
            if let Err(unsent) = participant.accepted.send(Ok(accepted)) {
                backend.release(unsent.0.ok().map(|accepted| accepted.held).into_iter().collect()).await;
            }
        }
        Ok(())
    }

    /// Ends the calls of the cycle.
    fn finish(self, failure: Option<CycleError>) {
        for participant in self.participants.into_values() {
            if let Some(failure) = failure.clone() {
                // An error means that the caller has gone.
                let _ = participant.accepted.send(Err(failure));
            }
        }
    }
}
