//! Ready checks in memory.

use std::collections::HashMap;
use std::sync::MutexGuard;

use base::Timestamp;
use base::id::Uuid;
use bytes::Bytes;

use super::{Memory, State};
use crate::error::Error;
use crate::model::{ReadyCheckId, TicketId};
use crate::store::changes::ChangeKind;
use crate::store::ready::EndCause;
use crate::store::{
    AcceptedMatch, AnswerOutcome, Claim, DueChecks, NewReadyCheck, OpenOutcome, ReadyAnswer, ReadyCheck,
    ReadyState, ReadyStates, TicketEvent, TicketReason,
};

/// The ready checks, and which tickets they have.
#[derive(Debug, Default)]
pub(super) struct ReadyChecks {
    checks: HashMap<ReadyCheckId, MemoryCheck>,
    pointers: HashMap<TicketId, Pointer>,
    /// Counts news.
    revision: i64,
}

#[derive(Clone, Debug)]
struct MemoryCheck {
    claim: Claim,
    /// Each ticket with its players, and whether they have accepted.
    tickets: Vec<(TicketId, Vec<(Uuid, bool)>)>,
    encoded_match: Bytes,
    opened: Timestamp,
    deadline: Timestamp,
    /// When somebody must look at it.
    due: Timestamp,
    /// When the last player accepted.
    complete: Option<Timestamp>,
    times_taken: u32,
}

/// What is known of a ticket's check.
#[derive(Debug)]
enum Pointer {
    Open(ReadyCheckId),
    Ended { end: Ended, users: Vec<Uuid>, until: Timestamp },
}

/// How a check ended for a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Assigned,
    Released,
    Left(TicketReason),
}

impl MemoryCheck {
    fn players(&self) -> impl Iterator<Item = &(Uuid, bool)> {
        self.tickets.iter().flat_map(|(_, users)| users)
    }

    fn is_complete(&self) -> bool {
        self.players().all(|(_, accepted)| *accepted)
    }

    fn state(&self, id: &ReadyCheckId, answers: &[(Uuid, bool)]) -> ReadyState {
        ReadyState::Open(ReadyCheck {
            id: id.clone(),
            expires_at: self.deadline,
            accepted: self.players().filter(|(_, accepted)| *accepted).count() as u32,
            players: self.players().count() as u32,
            answers: answers.to_vec(),
        })
    }

    /// Returns the states of all tickets.
    fn states(&self, id: &ReadyCheckId) -> Vec<(TicketId, ReadyState)> {
        self.tickets.iter().map(|(ticket, answers)| (ticket.clone(), self.state(id, answers))).collect()
    }
}

impl State {
    fn is_whole(&self, check: &MemoryCheck) -> bool {
        check.tickets.iter().all(|(id, _)| self.is_held(check, id))
    }

    fn is_held(&self, check: &MemoryCheck, id: &TicketId) -> bool {
        self.pending.get(id) == Some(&check.claim) && self.tickets.contains_key(id)
    }
}

impl Memory {
    fn publish_news(&self, state: &mut State, states: Vec<(TicketId, ReadyState)>) {
        state.ready.revision += 1;
        self.publish(TicketEvent::Ready(ReadyStates { revision: state.ready.revision, states }));
    }

    /// Ends a check. A decline cancels the ticket of `decliner`, the end of the time those with a silent player.
    fn end_check(
        &self,
        state: &mut MutexGuard<'_, State>,
        now: Timestamp,
        id: &ReadyCheckId,
        cause: EndCause,
        decliner: Option<&TicketId>,
    ) {
        let Some(check) = state.ready.checks.remove(id) else { return };
        self.metrics.ready_check_ended(cause);
        let (mut news, mut released, mut cancelled) = (Vec::new(), Vec::new(), Vec::new());
        let until = now.after(self.rules.assigned_ttl);
        for (ticket, users) in &check.tickets {
            match state.ready.pointers.get(ticket) {
                Some(Pointer::Open(open)) if open == id => {}
                _ => continue,
            }
            state.ready.pointers.remove(ticket);
            let is_silent = users.iter().any(|(_, accepted)| !accepted);
            let end = if !state.tickets.contains_key(ticket) {
                Some(Ended::Left(TicketReason::Expired))
            } else if state.is_held(&check, ticket) {
                let reason = match cause {
                    _ if decliner == Some(ticket) => Some(TicketReason::Declined),
                    EndCause::NoAnswer if is_silent => Some(TicketReason::NoAnswer),
                    _ => None,
                };
                match reason {
                    Some(reason) => {
                        cancelled.push(ticket);
                        Some(Ended::Left(reason))
                    }
                    None => {
                        released.push(ticket);
                        (cause != EndCause::Settled).then_some(Ended::Released)
                    }
                }
            } else if state.tickets.get(ticket).is_some_and(|stored| stored.assignment.is_some()) {
                Some(Ended::Assigned)
            } else {
                None
            };
            if let Some(end) = end {
                let users = users.iter().map(|(user, _)| *user).collect();
                state.ready.pointers.insert(ticket.clone(), Pointer::Ended { end, users, until });
            }
            // Watchers of an assigned ticket receive the assignment.
            if end != Some(Ended::Assigned) {
                news.push((ticket.clone(), end.map_or(ReadyState::Over(None), Ended::state)));
            }
        }
        // Before the tickets are cancelled, so that their watchers learn the reason first.
        if !news.is_empty() {
            self.publish_news(state, news);
        }
        for ticket in &released {
            state.pending.remove(*ticket);
        }
        state.changed(ChangeKind::Released, released);
        for ticket in cancelled {
            state.forget(ticket);
            self.publish(TicketEvent::Gone(ticket.clone()));
        }
    }

    /// Ends the check of a ticket that was just cancelled.
    pub(super) fn leave_check(&self, state: &mut MutexGuard<'_, State>, now: Timestamp, ticket: &TicketId) {
        let Some(Pointer::Open(id)) = state.ready.pointers.remove(ticket) else { return };
        self.end_check(state, now, &id, EndCause::Lost, None);
    }

    pub(in crate::store) async fn open_ready_checks(
        &self,
        checks: &[NewReadyCheck],
    ) -> Result<Vec<OpenOutcome>, Error> {
        let (mut state, now) = self.state();
        let mut outcomes = Vec::with_capacity(checks.len());
        for NewReadyCheck { id, claim, tickets, time, encoded_match } in checks {
            let obstacle = tickets.iter().find_map(|(id, _)| match state.pending.get(id) {
                _ if !state.is_indexed(id) => Some(OpenOutcome::Refused(id.clone())),
                None => Some(OpenOutcome::Refused(id.clone())),
                Some(held) => (held != claim).then(|| OpenOutcome::Stale(id.clone())),
            });
            if let Some(obstacle) = obstacle {
                outcomes.push(obstacle);
                continue;
            }
            let deadline = now.after(*time);
            let number = state.new_claim(false, now).number();
            let claim = Claim::new(deadline.as_millis() / 1000 + 1, number);
            let expiries = tickets.iter().filter_map(|(id, _)| Some(state.tickets.get(id)?.expiry));
            let expiry = expiries.min().unwrap_or(deadline);
            let is_complete = tickets.iter().all(|(_, users)| users.is_empty());
            let check = MemoryCheck {
                claim,
                tickets: tickets
                    .iter()
                    .map(|(id, users)| (id.clone(), users.iter().map(|user| (*user, false)).collect()))
                    .collect(),
                encoded_match: encoded_match.clone(),
                opened: now,
                deadline,
                due: if is_complete { now } else { deadline.min(expiry) },
                complete: is_complete.then_some(now),
                times_taken: 0,
            };
            for (ticket, _) in tickets {
                state.pending.insert(ticket.clone(), claim);
                state.ready.pointers.insert(ticket.clone(), Pointer::Open(id.clone()));
            }
            state.changed(ChangeKind::Pending(claim.second() * 1000), tickets.iter().map(|(id, _)| id));
            self.publish_news(&mut state, check.states(id));
            state.ready.checks.insert(id.clone(), check);
            outcomes.push(OpenOutcome::Opened);
        }
        Ok(outcomes)
    }

    pub(in crate::store) async fn answer_ready_check(
        &self,
        ticket: &TicketId,
        user: Uuid,
        answer: ReadyAnswer,
    ) -> Result<AnswerOutcome, Error> {
        let (mut state, now) = self.state();
        let id = match state.ready.pointers.get(ticket) {
            None => return Ok(AnswerOutcome::NoCheck),
            Some(Pointer::Ended { end, users, until }) => {
                let is_theirs = users.contains(&user) && *until > now;
                return Ok(match (answer, end) {
                    (ReadyAnswer::Accept, Ended::Assigned) if is_theirs => AnswerOutcome::Assigned,
                    (ReadyAnswer::Decline, Ended::Left(TicketReason::Declined)) if is_theirs => {
                        AnswerOutcome::Left
                    }
                    _ => AnswerOutcome::NoCheck,
                });
            }
            Some(Pointer::Open(id)) => id.clone(),
        };
        let Some(check) = state.ready.checks.get(&id).cloned() else { return Ok(AnswerOutcome::NoCheck) };
        let is_whole = state.is_whole(&check);
        if !is_whole {
            self.end_check(&mut state, now, &id, EndCause::Lost, None);
            return Ok(AnswerOutcome::NoCheck);
        }
        let mut check = check;
        let is_complete = check.is_complete();
        let answers = check.tickets.iter_mut().find(|(id, _)| id == ticket).map(|(_, answers)| answers);
        let player = answers.and_then(|answers| answers.iter_mut().find(|(known, _)| *known == user));
        let Some((_, accepted)) = player else { return Ok(AnswerOutcome::NoCheck) };
        if !is_complete && now >= check.deadline {
            self.end_check(&mut state, now, &id, EndCause::NoAnswer, None);
            return Ok(AnswerOutcome::NoCheck);
        }
        if answer == ReadyAnswer::Decline {
            // Too late once everybody has accepted: the match is being made.
            if is_complete {
                return Ok(AnswerOutcome::NoCheck);
            }
            self.end_check(&mut state, now, &id, EndCause::Declined, Some(ticket));
            return Ok(AnswerOutcome::Left);
        }
        let is_new = !std::mem::replace(accepted, true);
        if is_new && check.is_complete() {
            (check.complete, check.due) = (Some(now), now);
        }
        let states = check.states(&id);
        let own = states.iter().find(|(id, _)| id == ticket).map(|(_, state)| state.clone());
        state.ready.checks.insert(id, check);
        if is_new {
            self.publish_news(&mut state, states);
        }
        match own {
            Some(ReadyState::Open(check)) => Ok(AnswerOutcome::Open(check)),
            _ => Ok(AnswerOutcome::NoCheck),
        }
    }

    pub(in crate::store) async fn due_ready_checks(&self, limit: usize) -> Result<DueChecks, Error> {
        let (mut state, now) = self.state();
        state
            .ready
            .pointers
            .retain(|_, pointer| !matches!(pointer, Pointer::Ended { until, .. } if *until <= now));
        let due = state.ready.checks.iter().filter(|(_, check)| check.due <= now);
        let mut due: Vec<(Timestamp, ReadyCheckId)> =
            due.map(|(id, check)| (check.due, id.clone())).collect();
        due.sort();
        let mut result = DueChecks::default();
        let mut claim = None;
        for (_, id) in due.into_iter().take(limit) {
            let Some(mut check) = state.ready.checks.get(&id).cloned() else { continue };
            if !state.is_whole(&check) {
                let cause = if check.times_taken > 0 { EndCause::Settled } else { EndCause::Lost };
                self.end_check(&mut state, now, &id, cause, None);
                result.ended += 1;
            } else if let Some(complete) = check.complete {
                let claim = *claim.get_or_insert_with(|| state.new_claim(false, now));
                let tickets: Vec<TicketId> = check.tickets.iter().map(|(id, _)| id.clone()).collect();
                state.pending.extend(tickets.iter().map(|id| (id.clone(), claim)));
                state.changed(ChangeKind::Pending(claim.second() * 1000), &tickets);
                (check.claim, check.due) = (claim, now.after(self.rules.ready_check_lease()));
                check.times_taken += 1;
                result.claim = claim;
                result.accepted.push(AcceptedMatch {
                    id: id.clone(),
                    encoded_match: check.encoded_match.clone(),
                    times_taken: check.times_taken,
                    time_to_accept: complete.distance(check.opened),
                    tickets,
                });
                state.ready.checks.insert(id, check);
            } else if now >= check.deadline {
                self.end_check(&mut state, now, &id, EndCause::NoAnswer, None);
                result.ended += 1;
            } else {
                check.due = check.deadline;
                state.ready.checks.insert(id, check);
            }
        }
        result.open = state.ready.checks.len() as u64;
        Ok(result)
    }

    pub(in crate::store) async fn close_ready_checks(
        &self,
        claim: Claim,
        ids: &[ReadyCheckId],
    ) -> Result<(), Error> {
        let (mut state, now) = self.state();
        for id in ids {
            if state.ready.checks.get(id).is_some_and(|check| check.claim == claim) {
                self.end_check(&mut state, now, id, EndCause::Settled, None);
            }
        }
        Ok(())
    }

    pub(in crate::store) async fn ready_states(&self, ids: &[TicketId]) -> Result<ReadyStates, Error> {
        let (state, now) = self.state();
        let known = |ticket: &TicketId| match state.ready.pointers.get(ticket)? {
            Pointer::Ended { end, until, .. } => (*until > now).then(|| end.state()),
            Pointer::Open(id) => {
                let check = state.ready.checks.get(id).filter(|check| state.is_held(check, ticket))?;
                let (_, answers) = check.tickets.iter().find(|(id, _)| id == ticket)?;
                Some(check.state(id, answers))
            }
        };
        let states = ids.iter().filter_map(|id| Some((id.clone(), known(id)?)));
        Ok(ReadyStates { revision: state.ready.revision, states: states.collect() })
    }

    pub(in crate::store) async fn has_ready_checks(&self) -> Result<bool, Error> {
        Ok(!self.state().0.ready.checks.is_empty())
    }
}

impl Ended {
    const fn state(self) -> ReadyState {
        match self {
            Self::Assigned => ReadyState::Assigned,
            Self::Released => ReadyState::Over(Some(TicketReason::NotEveryoneAccepted)),
            Self::Left(reason) => ReadyState::Left(reason),
        }
    }
}
