//! The use cases of Directors: fetch matches from match functions, assign tickets, release them.
//!
//! A proposal becomes a match when its tickets are claimed in the store, in one step (docs/adr/0028). So any number of
//! Directors and processes may run at once, and none of them needs to know the others. Without windows a proposal is
//! decided as soon as the match function sends it. With windows an evaluator first chooses among the proposals of all
//! calls of a cycle.
//!
//! Assignments of a Director follow the same steps as the matches of an engine: assigned in the store, recorded in SQL, then
//! its players are notified (docs/adr/0010).

mod assign;
mod cycle;
mod evaluate;
mod fetch;
mod function;
mod grpc;
mod hosts;

use std::sync::Arc;
use std::time::Duration;

use base::Clock;
use base::error::chain;
use runtime::fault;

use crate::backfills::BackfillLimits;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::model::TicketId;
use crate::recorder::MatchRecorder;
use crate::store::{BackfillChange, ClaimOutcome, ClaimRequest, Holder, Store};

use self::cycle::Cycles;
use self::evaluate::EvaluatorClient;
use self::function::FunctionClient;

pub use self::evaluate::EvaluatorAddress;
pub use self::fetch::MatchStream;
pub use self::hosts::HostRules;

/// The settings of the backend.
#[derive(Clone, Debug)]
pub struct BackendConfig {
    /// How long calls of `FetchMatches` join a cycle. Zero decides each proposal at once, without a cycle.
    pub registration_window: Duration,
    /// How long a match function may run.
    pub proposal_window: Duration,
    /// The service that chooses among the proposals of a cycle. `None` chooses by score.
    pub evaluator: Option<EvaluatorAddress>,
    /// How long the evaluator may take after the last proposal.
    pub evaluator_timeout: Duration,
    /// How many proposals a cycle keeps for the evaluator.
    pub max_proposals: usize,
    /// Which hosts may be called as match functions.
    pub hosts: HostRules,
}

impl BackendConfig {
    /// Returns whether proposals of several calls are evaluated together.
    const fn has_cycles(&self) -> bool {
        !self.registration_window.is_zero() || self.evaluator.is_some()
    }
}

/// The use cases. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Backend(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    recorder: Option<Arc<dyn MatchRecorder>>,
    config: BackendConfig,
    backfill_limits: BackfillLimits,
    functions: FunctionClient,
    evaluator: EvaluatorClient,
    cycles: Cycles,
    clock: Clock,
    metrics: Metrics,
}

impl Backend {
    /// Creates the backend. Without a recorder, matches are not recorded.
    pub fn new(
        store: Store,
        recorder: Option<Arc<dyn MatchRecorder>>,
        config: BackendConfig,
        backfill_limits: BackfillLimits,
        clock: Clock,
        metrics: Metrics,
    ) -> Result<Self, reqwest::Error> {
        let functions = FunctionClient::new(&config.hosts)?;
        let evaluator = EvaluatorClient::new(config.evaluator.clone())?;
        let cycles = Cycles::default();
        let inner =
            Inner { store, recorder, config, backfill_limits, functions, evaluator, cycles, clock, metrics };
        Ok(Self(Arc::new(inner)))
    }

    /// Makes pending tickets active again. Unknown tickets are ignored.
    pub async fn release_tickets(&self, ids: &[impl AsRef<str>]) -> Result<(), Error> {
        let ids: Vec<TicketId> = ids.iter().filter_map(|id| TicketId::parse(id.as_ref())).collect();
        self.0.store.release(&ids).await
    }

    /// Makes all pending tickets active again.
    pub async fn release_all_tickets(&self) -> Result<(), Error> {
        let released = self.0.store.release_all().await?;
        tracing::info!(tickets = released, "Released all pending tickets for a Director");
        Ok(())
    }
}

impl Inner {
    /// Claims the tickets of proposals for a call, in their order, and writes their backfills in the same step. Returns
    /// the claim of each match, or `None` for a proposal that loses a ticket or its backfill to another match. The number of
    /// the call's first claim names the call.
    async fn claim(
        &self,
        call: &mut Option<u32>,
        holder: &Holder,
        proposals: &[fetch::Proposal],
    ) -> Result<Vec<Option<fetch::HeldTickets>>, Error> {
        let mut held = Vec::with_capacity(proposals.len());
        let first = if call.is_none() { proposals.len().min(1) } else { 0 };
        for proposals in [&proposals[..first], &proposals[first..]] {
            let requests = proposals.iter().map(|proposal| ClaimRequest {
                number: *call,
                holder: holder.clone(),
                tickets: proposal.tickets.clone(),
                backfill: proposal.backfill.clone(),
            });
            let requests: Vec<ClaimRequest> = requests.collect();
            let outcomes = self.store.claim(&requests).await?;
            fault::point("matchmaking.claimed");
            for (request, outcome) in requests.iter().zip(outcomes) {
                held.push(match outcome {
                    ClaimOutcome::Claimed(claim) => {
                        call.get_or_insert(claim.number());
                        let (tickets, backfill) = (request.tickets.clone(), request.backfill.clone());
                        Some(fetch::HeldTickets { claim, tickets, backfill })
                    }
                    ClaimOutcome::StaleBackfill => {
                        self.metrics.director_match("refused");
                        tracing::debug!("Dropped a proposal: its backfill is gone or has changed");
                        None
                    }
                    ClaimOutcome::Refused(ticket) => {
                        self.metrics.director_match("refused");
                        tracing::debug!(%ticket, "Dropped a proposal: a ticket is gone or in another match");
                        None
                    }
                });
            }
        }
        Ok(held)
    }

    /// Releases matches that reached no caller. The tickets of a backfill that existed before stay with it: its game server
    /// needs no Director to get them, and the match function has already taken their places off its fields.
    async fn release(&self, undelivered: Vec<fetch::HeldTickets>) {
        for held in undelivered {
            self.metrics.director_match("undelivered");
            let released = match &held.backfill {
                // Nobody knows its id, so no game server will acknowledge it.
                Some(BackfillChange::Create(new)) => self.store.delete_backfill(&new.id).await.map(|_| 0),
                Some(BackfillChange::Update { .. }) => continue,
                None => self.store.release_claim(held.claim, &held.tickets).await,
            };
            match released {
                Ok(stale) => self.metrics.claims_stale("release", stale),
                Err(error) => tracing::warn!(
                    outage = "tickets",
                    cause = chain(&error),
                    tickets = held.tickets.len(),
                    "Cannot release the tickets of a match that reached no Director; they are active again after \
                     matchmaking.pending_timeout"
                ),
            }
        }
    }
}
