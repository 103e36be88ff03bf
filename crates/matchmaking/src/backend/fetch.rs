//! `FetchMatches`: from the proposals of a match function to matches.

use std::collections::HashSet;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::error::chain;
use buffa::MessageField;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use proto::openmatch;
use runtime::Drain;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::function::Function;
use super::{Backend, Inner};
use crate::backfills::{BackfillLimits, ProposedBackfill};
use crate::error::Error;
use crate::model::{Moment, TicketId};
use crate::store::{BackfillChange, Claim, Holder};

/// How many matches wait for a caller that reads slowly. Then the match function has to wait.
const MAX_UNREAD: usize = 256;
/// How many proposals are claimed together.
const MAX_CLAIMED_AT_ONCE: usize = 64;
/// How much earlier than ours the clock of a match function may reach its deadline.
const CLOCK_SLACK: Duration = Duration::from_millis(10);
/// The error of a match function that ran for too long, in the original's words.
pub(super) const TOO_LONG: &str = "match function ran longer than proposal window, canceling";

/// A proposal of a match function.
#[derive(Debug)]
pub(super) struct Proposal {
    pub(super) match_: openmatch::Match,
    pub(super) tickets: Vec<TicketId>,
    pub(super) backfill: Option<BackfillChange>,
}

/// Tickets that are claimed for a match.
#[derive(Clone, Debug)]
pub(super) struct HeldTickets {
    pub(super) claim: Claim,
    pub(super) tickets: Vec<TicketId>,
    /// What the claim did to the match's backfill.
    pub(super) backfill: Option<BackfillChange>,
}

/// A match that is claimed for a caller.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) match_: openmatch::Match,
    pub(super) held: HeldTickets,
}

/// The matches of a call. Dropping it cancels the match function, and releases the matches that were not taken.
#[derive(Debug)]
pub struct MatchStream {
    receiver: mpsc::Receiver<Result<Accepted, Error>>,
    backend: Backend,
}

/// A call of `FetchMatches`.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) backend: Arc<Inner>,
    pub(super) function: Function,
    pub(super) profile: openmatch::MatchProfile,
    pub(super) sender: mpsc::Sender<Result<Accepted, Error>>,
    /// The caller's deadline.
    pub(super) deadline: Option<Instant>,
    pub(super) drain: Drain,
}

/// Why a call ended early.
#[derive(Debug)]
pub(super) enum End {
    /// The caller has gone.
    Cancelled,
    /// This process shuts down.
    Stopping,
    /// The store, or another part of this process, failed.
    Failed(Error),
    /// The match function failed, or the proposals do not fit together.
    Errors { sync: Option<String>, function: Option<String> },
}

impl Proposal {
    /// Reads a proposal, and completes its backfill if that is new. Fails if one of its ids cannot be that of a ticket or of
    /// a backfill, and if its backfill is too large.
    pub(super) fn read(
        mut match_: openmatch::Match,
        now: Moment,
        limits: BackfillLimits,
    ) -> Result<Self, Error> {
        let ids = match_
            .tickets
            .iter()
            .map(|ticket| TicketId::parse(&ticket.id).ok_or_else(|| Error::NotFound(ticket.id.clone())));
        let tickets = ids.collect::<Result<_, Error>>()?;
        let mut backfill = None;
        if let Some(proposed) = match_.backfill.take() {
            let ProposedBackfill { change, returned } = ProposedBackfill::read(proposed, now, limits)?;
            match_.backfill = MessageField::some(returned);
            backfill = Some(change);
        }
        Ok(Self { match_, tickets, backfill })
    }
}

impl Backend {
    /// Calls a match function for a profile and streams the matches whose tickets could be claimed.
    ///
    /// Ends with an error if the match function fails, takes too long or proposes two matches of one id. Matches before
    /// the error are valid. The match function learns of `deadline`; the caller drops the stream when it has passed.
    pub async fn fetch_matches(
        &self,
        config: Option<openmatch::FunctionConfig>,
        profile: Option<openmatch::MatchProfile>,
        deadline: Option<std::time::Instant>,
        drain: Drain,
    ) -> Result<MatchStream, Error> {
        let config = config.ok_or_else(|| Error::Invalid(".config is required".to_owned()))?;
        let profile = profile.ok_or_else(|| Error::Invalid(".profile is required".to_owned()))?;
        let function = self.0.functions.find(&config).await?;
        let (sender, receiver) = mpsc::channel(MAX_UNREAD);
        let deadline = deadline.map(Instant::from_std);
        let call = Call { backend: self.0.clone(), function, profile, sender, deadline, drain };
        tokio::spawn(async move {
            let outcome = if call.backend.config.has_cycles() {
                call.join_cycle().await
            } else {
                call.decide_at_once().await
            };
            call.finish(outcome).await;
        });
        Ok(MatchStream { receiver, backend: self.clone() })
    }
}

impl Call {
    pub(super) fn holder(&self) -> Holder {
        Holder { profile: self.profile.name.clone(), function: self.function.name.clone() }
    }

    /// Claims each proposal as soon as it arrives.
    async fn decide_at_once(&self) -> Result<(), End> {
        let holder = self.holder();
        let over = Instant::now() + self.backend.config.proposal_window;
        let mut proposals = pin!(self.run_function(over).ready_chunks(MAX_CLAIMED_AT_ONCE));
        let (mut known, mut number) = (HashSet::new(), None);
        loop {
            let arrived = tokio::select! {
                biased;
                () = self.sender.closed() => return Err(End::Cancelled),
                () = self.drain.requested() => return Err(End::Stopping),
                arrived = proposals.next() => arrived,
                () = tokio::time::sleep_until(over) => return Err(End::function(TOO_LONG.to_owned())),
            };
            let Some(arrived) = arrived else { return Ok(()) };
            let mut readable = Vec::with_capacity(arrived.len());
            let mut end = None;
            for proposal in arrived {
                let proposal = match proposal {
                    Ok(proposal) => is_new(&mut known, proposal),
                    Err(cause) => Err(self.function_failed(cause, over).await),
                };
                match proposal {
                    Ok(proposal) => readable.extend(self.read(proposal)),
                    Err(error) => {
                        end = Some(error);
                        break;
                    }
                }
            }
            let held = self.backend.claim(&mut number, &holder, &readable).await.map_err(End::Failed)?;
            self.deliver_all(readable.into_iter().zip(held)).await?;
            if let Some(end) = end {
                return Err(end);
            }
        }
    }

    /// Calls the match function. It learns how long it may take: until `over`, and no longer than the caller waits.
    pub(super) fn run_function(&self, over: Instant) -> BoxStream<'static, Result<openmatch::Match, String>> {
        let until = self.deadline.map_or(over, |deadline| deadline.min(over));
        self.backend.functions.run(&self.function, self.profile.clone(), until)
    }

    /// Returns why a match function that failed ends the call. A failure at its deadline is that of the deadline.
    pub(super) async fn function_failed(&self, cause: String, over: Instant) -> End {
        let soon = Instant::now() + CLOCK_SLACK;
        if self.deadline.is_some_and(|deadline| soon >= deadline) {
            // The caller has its own error for that.
            self.sender.closed().await;
            return End::Cancelled;
        }
        End::function(if soon >= over { TOO_LONG.to_owned() } else { cause })
    }

    /// Reads a proposal, and counts one that is unreadable.
    pub(super) fn read(&self, match_: openmatch::Match) -> Option<Proposal> {
        let now = Moment::from(self.backend.clock.now());
        let proposal = Proposal::read(match_, now, self.backend.backfill_limits);
        let dropped = |error: &Error| {
            self.backend.metrics.director_match("refused");
            let (function, cause) = (&*self.function.name, chain(error));
            tracing::debug!(
                function,
                cause,
                "Dropped a proposal: it has an invalid id or too large a backfill"
            );
        };
        proposal.inspect_err(dropped).ok()
    }

    /// Hands claimed matches to the caller. Releases those that it does not take.
    async fn deliver_all(
        &self,
        claimed: impl Iterator<Item = (Proposal, Option<HeldTickets>)>,
    ) -> Result<(), End> {
        let mut claimed = claimed
            .filter_map(|(proposal, held)| held.map(|held| Accepted { match_: proposal.match_, held }));
        while let Some(accepted) = claimed.next() {
            if let Err(unsent) = self.deliver(accepted).await {
                let unsent = unsent.into_iter().chain(claimed.map(|accepted| accepted.held));
                self.backend.release(unsent.collect()).await;
                return Err(End::Cancelled);
            }
        }
        Ok(())
    }

    /// Hands a match to the caller. Returns its tickets if the caller has gone.
    pub(super) async fn deliver(&self, accepted: Accepted) -> Result<(), Option<HeldTickets>> {
        let sent = self.sender.send(Ok(accepted)).await;
        sent.map_err(|unsent| unsent.0.ok().map(|accepted| accepted.held))
    }

    /// Ends the stream of the caller.
    async fn finish(&self, outcome: Result<(), End>) {
        let metrics = &self.backend.metrics;
        let error = match outcome {
            Ok(()) => return metrics.function_call("succeeded"),
            Err(End::Cancelled) => return metrics.function_call("cancelled"),
            Err(End::Stopping) => Error::Stopping,
            Err(End::Failed(error)) => error,
            Err(End::Errors { sync, function }) => {
                let is_late = function.as_deref() == Some(TOO_LONG);
                metrics.function_call(if is_late { "timed_out" } else { "failed" });
                let [sync, function] =
                    [sync, function].map(|error| error.unwrap_or_else(|| "<nil>".to_owned()));
                let text = format!("error(s) in FetchMatches call. syncErr=[{sync}], mmfErr=[{function}]");
                tracing::warn!(
                    outage = "match_function",
                    function = self.function.name,
                    profile = self.profile.name,
                    cause = text,
                    "A call of FetchMatches failed"
                );
                Error::Function(text)
            }
        };
        // An error means that the caller has gone.
        let _ = self.sender.send(Err(error)).await;
    }
}

impl End {
    pub(super) const fn function(cause: String) -> Self {
        Self::Errors { sync: None, function: Some(cause) }
    }

    pub(super) const fn sync(cause: String) -> Self {
        Self::Errors { sync: Some(cause), function: None }
    }
}

/// Returns a proposal whose id its match function has not used before.
pub(super) fn is_new(
    known: &mut HashSet<String>,
    proposal: openmatch::Match,
) -> Result<openmatch::Match, End> {
    if known.insert(proposal.match_id.clone()) {
        return Ok(proposal);
    }
    let id = &proposal.match_id;
    Err(End::sync(format!("MatchMakingFunction returned same match_id twice: \"{id}\"")))
}

impl Stream for MatchStream {
    type Item = Result<openmatch::Match, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.poll_recv(context).map(|next| {
            next.map(|next| {
                let accepted = next?;
                self.backend.0.metrics.director_match("returned");
                Ok(accepted.match_)
            })
        })
    }
}

impl Drop for MatchStream {
    fn drop(&mut self) {
        self.receiver.close();
        let mut unread = Vec::new();
        while let Ok(next) = self.receiver.try_recv() {
            unread.extend(next.ok().map(|accepted| accepted.held));
        }
        if let (false, Ok(runtime)) = (unread.is_empty(), tokio::runtime::Handle::try_current()) {
            let backend = self.backend.0.clone();
            runtime.spawn(async move { backend.release(unread).await });
        }
    }
}
