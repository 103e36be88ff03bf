//! Ready checks in Redis: a hash for each, a pointer from each ticket, and a sorted set by when they are due.

use std::time::Duration;

use ::redis::FromRedisValue;
use base::id::Uuid;
use bytes::Bytes;
use redis_store::{Call, Key, Script};

use super::{BATCH, Redis, is_unreachable, scripts};
use crate::error::Error;
use crate::model::{ReadyCheckId, TicketId};
use crate::store::ready::EndCause;
use crate::store::{
    AcceptedMatch, AnswerOutcome, Claim, DueChecks, NewReadyCheck, OpenOutcome, ReadyAnswer, ReadyState,
    ReadyStates,
};

/// The reply of `due_checks.lua`.
type DueReply = (u64, String, Vec<(String, Bytes, u32, u64, Vec<String>)>, Vec<String>);

impl Redis {
    /// Adds the arguments that `ready.lua` expects.
    pub(super) fn add_ready_args<'a>(&self, step: &'a mut Call) -> &'a mut Call {
        let keep = millis(self.rules.assigned_ttl);
        step.arg(self.keys.ready_channel()).arg(self.keys.gone_channel()).arg(keep)
    }

    pub(in crate::store) async fn open_ready_checks(
        &self,
        checks: &[NewReadyCheck],
    ) -> Result<Vec<OpenOutcome>, Error> {
        let mut outcomes = Vec::with_capacity(checks.len());
        for checks in super::claims::chunks(checks, |check| check.tickets.len()) {
            let own = self.keys.ready_checks().into_iter().chain([self.keys.claim_number()]);
            let add = |step: &mut Call| {
                self.add_ready_args(step).arg(self.rules.pending_timeout.as_secs());
                for NewReadyCheck { id, claim, tickets, time, encoded_match } in checks {
                    step.arg(id.as_str()).arg(claim.to_string()).arg(millis(*time)).arg(&encoded_match[..]);
                    step.arg(tickets.len());
                    for (ticket, users) in tickets {
                        step.arg(ticket.as_str()).arg(users.len());
                        users.iter().for_each(|user| step.arg(user.to_string()).end());
                    }
                }
            };
            let replies: Vec<(usize, bool)> = self.exclusive_step(&scripts::OPEN_CHECKS, own, add).await?;
            outcomes.extend(checks.iter().zip(replies).map(|(check, (obstacle, is_stale))| {
                let ticket = obstacle.checked_sub(1).and_then(|at| check.tickets.get(at));
                match ticket.map(|(id, _)| id.clone()) {
                    None => OpenOutcome::Opened,
                    Some(id) if is_stale => OpenOutcome::Stale(id),
                    Some(id) => OpenOutcome::Refused(id),
                }
            }));
        }
        Ok(outcomes)
    }

    pub(in crate::store) async fn answer_ready_check(
        &self,
        ticket: &TicketId,
        user: Uuid,
        answer: ReadyAnswer,
    ) -> Result<AnswerOutcome, Error> {
        let accepts = if answer == ReadyAnswer::Accept { "1" } else { "0" };
        let add = |step: &mut Call| {
            self.add_ready_args(step).arg(ticket.as_str()).arg(user.to_string()).arg(accepts).end();
        };
        let (word, counts, state, ended): (String, String, String, String) =
            self.repeated(&scripts::ANSWER_CHECK, self.keys.ready_checks(), add).await?;
        if let Some(cause) = EndCause::parse(&ended) {
            self.metrics.ready_check_ended(cause);
        }
        Ok(match word.as_str() {
            "open" => match read_state(&format!("{counts} {state}")) {
                Some((_, ReadyState::Open(check))) => AnswerOutcome::Open(check),
                _ => return Err(Error::Interrupted),
            },
            "accepted" => AnswerOutcome::Assigned,
            "left" => AnswerOutcome::Left,
            _ => AnswerOutcome::NoCheck,
        })
    }

    /// Runs an idempotent step, again after a lost reply.
    async fn repeated<T: FromRedisValue, const N: usize>(
        &self,
        script: &'static Script,
        own: [Key; N],
        add: impl Fn(&mut Call),
    ) -> Result<T, Error> {
        let done = self.step(script, own.clone(), &add).await;
        if is_unreachable(&done) { self.step(script, own, &add).await } else { done }
    }

    pub(in crate::store) async fn due_ready_checks(&self, limit: usize) -> Result<DueChecks, Error> {
        let own = self.keys.ready_checks().into_iter().chain([self.keys.claim_number()]);
        let add = |step: &mut Call| {
            self.add_ready_args(step).arg(self.rules.pending_timeout.as_secs());
            step.arg(millis(self.rules.ready_check_lease())).arg(limit).end();
        };
        let (open, claim, accepted, ended): DueReply =
            self.exclusive_step(&scripts::DUE_CHECKS, own, add).await?;
        for cause in ended.iter().filter_map(|cause| EndCause::parse(cause)) {
            self.metrics.ready_check_ended(cause);
        }
        let accepted =
            accepted.into_iter().map(|(id, encoded_match, times_taken, time, tickets)| AcceptedMatch {
                id: ReadyCheckId::stored(&id),
                encoded_match,
                times_taken,
                time_to_accept: Duration::from_millis(time),
                tickets: tickets.iter().filter_map(|id| TicketId::parse(id)).collect(),
            });
        Ok(DueChecks {
            claim: claim.parse().map(Claim::from_score).unwrap_or_default(),
            accepted: accepted.collect(),
            ended: ended.len(),
            open,
        })
    }

    pub(in crate::store) async fn close_ready_checks(
        &self,
        claim: Claim,
        ids: &[ReadyCheckId],
    ) -> Result<(), Error> {
        for ids in ids.chunks(BATCH / 10) {
            let add = |step: &mut Call| {
                self.add_ready_args(step).arg(claim.to_string());
                ids.iter().for_each(|id| step.arg(id.as_str()).end());
            };
            self.repeated::<u64, _>(&scripts::CLOSE_CHECKS, self.keys.ready_checks(), add).await?;
        }
        Ok(())
    }

    pub(in crate::store) async fn ready_states(&self, ids: &[TicketId]) -> Result<ReadyStates, Error> {
        let mut all = ReadyStates::default();
        for ids in ids.chunks(BATCH) {
            let add = |step: &mut Call| {
                self.add_ready_args(step);
                ids.iter().for_each(|id| step.arg(id.as_str()).end());
            };
            let (revision, states): (String, Vec<String>) =
                self.run_unlocked(&scripts::CHECK_STATES, self.keys.ready_checks(), add).await?;
            // The oldest revision of all chunks is certainly included in all of them.
            let revision = revision.parse().unwrap_or_default();
            all.revision = if all.states.is_empty() { revision } else { all.revision.min(revision) };
            let known = ids.iter().zip(states).filter(|(_, state)| !state.is_empty());
            all.states.extend(known.filter_map(|(id, state)| match state.starts_with('!') {
                true => Some((id.clone(), ReadyState::parse(&[], &state)?)),
                false => read_state(&state),
            }));
        }
        Ok(all)
    }

    pub(in crate::store) async fn has_ready_checks(&self) -> Result<bool, Error> {
        let [due, ..] = self.keys.ready_checks();
        Ok(::redis::cmd("EXISTS").arg(due).query_async(&mut self.servers.primary()).await?)
    }
}

/// Reads the counts of a check and the state of one ticket.
fn read_state(text: &str) -> Option<(TicketId, ReadyState)> {
    ReadyStates::parse(&format!("0 {text}"))?.states.pop()
}

fn millis(length: Duration) -> u64 {
    length.as_millis().try_into().unwrap_or(u64::MAX)
}
