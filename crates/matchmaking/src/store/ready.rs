//! Ready checks: what the store keeps about a match whose players are asked first (docs/adr/0032).
//!
//! A ticket is in a check only while it is pending under the claim that the check knows.

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use bytes::Bytes;

use super::{Claim, Rules};
use crate::model::{ReadyCheckId, TicketId};

/// A match whose players are to be asked.
#[derive(Clone, Debug)]
pub struct NewReadyCheck {
    pub id: ReadyCheckId,
    /// The claim of the engine that holds the tickets.
    pub claim: Claim,
    /// The tickets, each with the players who are asked.
    pub tickets: Vec<(TicketId, Vec<Uuid>)>,
    /// How long players have to answer.
    pub time: Duration,
    /// The match, for the engine that makes it. The store does not read it.
    pub encoded_match: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenOutcome {
    Opened,
    /// This ticket is gone or has left matchmaking. Nothing was written.
    Refused(TicketId),
    /// Another claim holds this ticket: ours has expired. Nothing was written.
    Stale(TicketId),
}

/// A player's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadyAnswer {
    Accept,
    Decline,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerOutcome {
    /// The player has accepted. The check as it is now.
    Open(ReadyCheck),
    /// The player had accepted, and the match has been assigned since.
    Assigned,
    /// The player has declined. The ticket is cancelled.
    Left,
    /// The ticket is in no check, the check has ended, or its match is already being made.
    NoCheck,
}

/// An open ready check, as the players of one ticket see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyCheck {
    pub id: ReadyCheckId,
    /// When silent players lose their place, by the clock of the store.
    pub expires_at: Timestamp,
    /// How many players have accepted.
    pub accepted: u32,
    /// How many players are asked.
    pub players: u32,
    /// The players of the ticket, each with whether they have accepted.
    pub answers: Vec<(Uuid, bool)>,
}

/// Why a ticket is no longer in a ready check, or no longer in matchmaking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketReason {
    Cancelled,
    Declined,
    NoAnswer,
    Expired,
    NotEveryoneAccepted,
}

impl TicketReason {
    const ALL: [Self; 5] =
        [Self::Cancelled, Self::Declined, Self::NoAnswer, Self::Expired, Self::NotEveryoneAccepted];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Declined => "declined",
            Self::NoAnswer => "no-answer",
            Self::Expired => "expired",
            Self::NotEveryoneAccepted => "not-everyone-accepted",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.word() == word)
    }
}

/// What is known of the ready check of a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadyState {
    Open(ReadyCheck),
    /// The check has ended, and the ticket was assigned.
    Assigned,
    /// The check has ended, and the ticket was released. The reason is missing if nobody is to blame.
    Over(Option<TicketReason>),
    /// The check has ended, and the ticket was cancelled.
    Left(TicketReason),
}

/// The ready checks of tickets. A higher revision is newer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadyStates {
    pub revision: i64,
    pub states: Vec<(TicketId, ReadyState)>,
}

/// A match that all its players have accepted, taken by an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedMatch {
    pub id: ReadyCheckId,
    pub encoded_match: Bytes,
    /// How often it was taken, including now. An engine that died may have requested a server for it.
    pub times_taken: u32,
    /// From the opening of the check to the last acceptance.
    pub time_to_accept: Duration,
    pub tickets: Vec<TicketId>,
}

/// The checks that were due.
#[derive(Clone, Debug, Default)]
pub struct DueChecks {
    /// The claim on the tickets of the accepted matches.
    pub claim: Claim,
    pub accepted: Vec<AcceptedMatch>,
    /// How many others have ended.
    pub ended: usize,
    /// How many checks are open, including the accepted ones.
    pub open: u64,
}

/// Why a check has ended, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndCause {
    Declined,
    NoAnswer,
    /// A ticket was cancelled, expired, or was released by an operator or a Director.
    Lost,
    /// Its match was assigned, or got no server.
    Settled,
}

impl Rules {
    /// Returns for how long an accepted match is taken: shorter than its tickets stay pending, so that they are still pending
    /// when the next engine takes it.
    pub(super) fn ready_check_lease(&self) -> Duration {
        self.pending_timeout / 5 * 4
    }
}

impl EndCause {
    pub(super) fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "declined" => Self::Declined,
            "no-answer" => Self::NoAnswer,
            "lost" => Self::Lost,
            "settled" => Self::Settled,
            _ => return None,
        })
    }
}

impl ReadyStates {
    /// Reads a message of the store.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (revision, rest) = text.split_once(' ')?;
        let mut words = rest.split(' ');
        let counts: Vec<&str> = words.by_ref().take(4).collect();
        let states = words.filter_map(|word| {
            let at = word.find([':', '!'])?;
            let (ticket, state) = word.split_at(at);
            Some((TicketId::parse(ticket)?, ReadyState::parse(&counts, state)?))
        });
        Some(Self { revision: revision.parse().ok()?, states: states.collect() })
    }
}

impl ReadyState {
    /// Reads the state of a ticket: `!` and a reason, or `:` and its players with their answers. `counts` are the id,
    /// deadline, number of acceptances and number of players of the check.
    pub(super) fn parse(counts: &[&str], state: &str) -> Option<Self> {
        if let Some(reason) = state.strip_prefix('!') {
            let word = reason.split(' ').next().unwrap_or_default();
            if word == "accepted" {
                return Some(Self::Assigned);
            }
            let reason = TicketReason::parse(word);
            return Some(match reason {
                None | Some(TicketReason::NotEveryoneAccepted) => Self::Over(reason),
                Some(reason) => Self::Left(reason),
            });
        }
        let [id, deadline, accepted, players] = counts else { return None };
        let answer = |text: &str| {
            let (user, answer) = text.split_once('=')?;
            Some((user.parse().ok()?, answer == "1"))
        };
        Some(Self::Open(ReadyCheck {
            id: ReadyCheckId::stored(id),
            expires_at: Timestamp::from_millis(deadline.parse().ok()?),
            accepted: accepted.parse().ok()?,
            players: players.parse().ok()?,
            answers: state.strip_prefix(':')?.split(',').filter_map(answer).collect(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_of_the_store_is_read() {
        let user = Uuid::from_u128(7);
        let id = |text| TicketId::parse(text).unwrap();
        let text = format!("17 check 1000 1 2 a:{user}=1 b-1_!no-answer c!not-everyone-accepted d! ? e:");
        let ReadyStates { revision, states } = ReadyStates::parse(&text).unwrap();
        let check = |answers| ReadyCheck {
            id: ReadyCheckId::stored("check"),
            expires_at: Timestamp::from_millis(1000),
            accepted: 1,
            players: 2,
            answers,
        };
        assert_eq!(revision, 17);
        let expected = [
            (id("a"), ReadyState::Open(check(vec![(user, true)]))),
            (id("b-1_"), ReadyState::Left(TicketReason::NoAnswer)),
            (id("c"), ReadyState::Over(Some(TicketReason::NotEveryoneAccepted))),
            (id("d"), ReadyState::Over(None)),
            (id("e"), ReadyState::Open(check(Vec::new()))),
        ];
        assert_eq!(states, expected);
        for unreadable in ["", "x", "x y", "9223372036854775808 check 1 1 1 a:"] {
            assert_eq!(ReadyStates::parse(unreadable), None, "{unreadable:?}");
        }
    }
}
