//! Parties: players who queue together (docs/adr/0033).
//!
//! Invariants:
//! - a user is in one party at most; every party has a leader, who is a member
//! - a queued party has one ticket, which all members see; they are matched together or not at all
//! - nobody is matched with a party that they have left
//!
//! Failure modes: those of the store. If a process dies before it publishes a change, streams find it at their next
//! heartbeat. A party whose store lost its data is gone; its players form a new one.

mod account_events;
pub(crate) mod admin;
mod model;
mod problem;
mod topic;

use std::collections::BTreeSet;
use std::time::Duration;

use base::id::Uuid;
use base::{Clock, Timestamp};
use bytes::Bytes;
use live::Player;
use runtime::fault;

use crate::error::Error;
use crate::metrics::{JoinLabels, PartyLabels};
use crate::model::{Moment, PartyId, TicketId};
use crate::players::{JoinedTicket, Players, Queue, allowed_queues, unknown_queue};
use crate::store::{
    DeleteOutcome, NewPartyTicket, PartyChange, PartyOutcome, StoredParty, StoredTicket, TicketStep,
    WatchState,
};

use self::model::Party;

pub(crate) use self::account_events::AccountEvents;
pub use self::model::{Member, MemberFields, PartyTicket, Refusal};
pub use self::topic::PartyChanged;

/// The characters of join codes: none can be taken for another.
const CODE_ALPHABET: &[u8; 31] = b"23456789ABCDEFGHJKMNPQRSTUVWXYZ";
const CODE_LENGTH: usize = 6;
/// How often a change is tried while others change the same party.
const ATTEMPTS: u32 = 64;

/// The settings of parties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartyConfig {
    /// How long a party lives without a change.
    pub ttl: Duration,
    pub max_members: usize,
    pub invitation_ttl: Duration,
}

/// A party as its members see it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlayerParty {
    pub id: PartyId,
    pub code: String,
    pub leader: Uuid,
    /// In the order in which they joined.
    pub members: Vec<Member>,
    pub invited: Vec<Uuid>,
    /// The ticket, while it waits.
    pub ticket: Option<PartyTicket>,
    pub max_members: usize,
}

/// An invitation as the invited player sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlayerInvitation {
    pub party: PartyId,
    pub leader: Member,
    pub expires_at: Timestamp,
}

/// The parties of a player.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlayerParties {
    pub party: Option<PlayerParty>,
    pub invitations: Vec<PlayerInvitation>,
}

/// The use cases of parties. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Parties {
    players: Players,
    config: PartyConfig,
    clock: Clock,
}

/// A stored party, decoded.
struct Found {
    id: PartyId,
    version: u64,
    party: Party,
}

/// What an operation does with a party.
enum Change {
    /// Keeps what the operation made of it.
    Keep,
    /// Removes the party.
    Remove,
}

impl Parties {
    pub fn new(players: Players, config: PartyConfig, clock: Clock) -> Self {
        Self { players, config, clock }
    }

    /// Returns the player's party and invitations.
    pub async fn of(&self, user: Uuid) -> Result<PlayerParties, Error> {
        let membership = self.players.frontend.store.membership(user).await?;
        let now = self.clock.now();
        let mut mine = PlayerParties::default();
        if let Some(id) = membership.party
            && let Some(found) = self.find(&id).await?
            && found.party.member(user).is_some()
        {
            mine.party = Some(self.view(found.id, found.party).await?);
        }
        for id in membership.invitations {
            let Some(Found { party, .. }) = self.find(&id).await? else { continue };
            if let (Some(invitation), Some(leader)) =
                (party.invitation(user, now), party.member(party.leader))
            {
                let expires_at = Timestamp::from_millis(invitation.until);
                mine.invitations.push(PlayerInvitation { party: id, leader: leader.clone(), expires_at });
            }
        }
        Ok(mine)
    }

    /// Creates a party. Returns the existing one if the player leads one. The flag says whether it is new.
    pub async fn create(&self, leader: Member) -> Result<(PlayerParty, bool), Error> {
        self.check_fields(&leader.fields)?;
        for _ in 0..ATTEMPTS {
            if let Some(found) = self.find_of(leader.user).await? {
                found.party.require_leader(leader.user).map_err(|_| Refusal::InAnotherParty)?;
                return Ok((self.view(found.id, found.party).await?, false));
            }
            let now = self.clock.now();
            let id = PartyId::generate(Moment::from(now));
            let party = Party::new(leader.clone(), new_code());
            let change = PartyChange {
                version: 0,
                data: Some(encode(&party)?),
                members: vec![leader.user],
                code: party.code.clone(),
                old_code: party.code.clone(),
                ..self.no_change(&id, TicketStep::Keep)
            };
            match self.apply("create", &change).await? {
                PartyOutcome::Changed => {
                    self.publish([leader.user]).await;
                    return Ok((self.view(id, party).await?, true));
                }
                // A lost reply or another request of this player: look again.
                _ => tokio::task::yield_now().await,
            }
        }
        Err(Error::Interrupted)
    }

    /// Joins the party with this code.
    pub async fn join(&self, member: Member, code: &str) -> Result<PlayerParty, Error> {
        self.check_fields(&member.fields)?;
        let code = code.trim().to_ascii_uppercase();
        let is_code = code.len() == CODE_LENGTH && code.bytes().all(|byte| CODE_ALPHABET.contains(&byte));
        let id = match is_code {
            true => self.players.frontend.store.party_by_code(&code).await?,
            false => None,
        };
        let id = id.ok_or(Refusal::WrongCode)?;
        let max = self.config.max_members;
        let joined = self.change("join", &id, member.user, |party, _| {
            if party.code != code && party.member(member.user).is_none() {
                return Err(Refusal::WrongCode);
            }
            party.join(&member, max).map(|()| Change::Keep)
        });
        joined.await?.ok_or(Refusal::WrongCode.into())
    }

    /// Invites a user to the player's party.
    pub async fn invite(&self, by: Uuid, user: Uuid) -> Result<PlayerParty, Error> {
        let ttl = self.config.invitation_ttl;
        self.change_own("invite", by, |party, now| party.invite(by, user, now.after(ttl))).await
    }

    /// Joins a party that invites the player.
    pub async fn accept(&self, member: Member, id: &str) -> Result<PlayerParty, Error> {
        self.check_fields(&member.fields)?;
        let id = PartyId::parse(id).ok_or(Refusal::NotInvited)?;
        let max = self.config.max_members;
        let accept = |party: &mut Party, now| party.accept(&member, max, now).map(|()| Change::Keep);
        self.change("accept", &id, member.user, accept).await?.ok_or(Refusal::NotInvited.into())
    }

    /// Declines an invitation. Succeeds if there is none.
    pub async fn decline(&self, user: Uuid, id: &str) -> Result<(), Error> {
        let Some(id) = PartyId::parse(id) else { return Ok(()) };
        let decline = |party: &mut Party, _| {
            party.decline(user);
            Ok(Change::Keep)
        };
        self.change("decline", &id, user, decline).await.map(drop)
    }

    /// Leaves the player's party. Cancels its ticket. Succeeds if the player is in none.
    pub async fn leave(&self, user: Uuid) -> Result<(), Error> {
        let Some(found) = self.find_of(user).await? else { return Ok(()) };
        let leave = |party: &mut Party, _| {
            let is_kept = party.member(user).is_none() || party.leave(user);
            Ok(if is_kept { Change::Keep } else { Change::Remove })
        };
        self.change("leave", &found.id, user, leave).await.map(drop)
    }

    /// Removes another member from the player's party. Cancels its ticket, and changes the code.
    pub async fn kick(&self, by: Uuid, user: Uuid) -> Result<PlayerParty, Error> {
        self.change_own("kick", by, |party, _| party.kick(by, user, &new_code())).await
    }

    /// Makes another member the leader.
    pub async fn hand_over(&self, by: Uuid, to: Uuid) -> Result<PlayerParty, Error> {
        self.change_own("hand_over", by, |party, _| party.hand_over(by, to)).await
    }

    /// Replaces the player's own search fields. A ticket that waits keeps the old ones.
    pub async fn set_fields(&self, user: Uuid, fields: &MemberFields) -> Result<PlayerParty, Error> {
        self.check_fields(fields)?;
        self.change_own("set_fields", user, |party, _| party.set_fields(user, fields)).await
    }

    /// Removes a user from the party and from all invitations, as when the user is banned.
    pub(crate) async fn remove(&self, user: Uuid) -> Result<(), Error> {
        self.leave(user).await?;
        for id in self.players.frontend.store.membership(user).await?.invitations {
            self.decline(user, id.as_str()).await?;
        }
        Ok(())
    }

    /// Queues the player's party. Returns the existing ticket if the party waits in the queue already, or if its match can
    /// still be read and `replaces` does not name its ticket.
    pub async fn queue(
        &self,
        user: Uuid,
        name: &str,
        replaces: Option<TicketId>,
    ) -> Result<JoinedTicket, Error> {
        let players = &self.players;
        let queues = players.queues();
        let (name, queue) = queues.get_key_value(name).ok_or_else(|| unknown_queue(&queues, name))?;
        for _ in 0..ATTEMPTS {
            let found = self.find_of(user).await?.ok_or(Refusal::NoParty)?;
            found.party.require_leader(user)?;
            let members = found.party.members.len();
            if members > queue.max_party {
                return Err(Refusal::TooLarge { queue: name.clone(), max: queue.max_party, members }.into());
            }
            let ticket = players.frontend.prepare(queue.party_ticket(name, &found.party.members, user)?)?;
            let refused = players.check_matchable(&ticket);
            // A party that is queued again gets the existing ticket, whatever the fields.
            if refused.is_err() && !self.is_queued(&found.party, name, replaces.as_ref()).await? {
                refused?;
            }
            let (id, ttl, data) = (ticket.id.clone(), ticket.ttl, ticket.data.clone());
            let new = NewPartyTicket {
                queue: name.clone(),
                ticket,
                allowed_queues: allowed_queues(&queues, queue),
                replaces: replaces.clone(),
                cancel_when_gone: queue.cancel_when_gone,
            };
            let mut after = found.party.clone();
            after.ticket = Some(PartyTicket { id: id.to_string(), queue: name.clone() });
            let change = self.change_of(&found, Some(&after), TicketStep::Create(new))?;
            // Subscribe before it can be matched.
            players.frontend.hub.ticket_created(id.clone(), ttl);
            let outcome = self.apply("queue", &change).await;
            if !matches!(outcome, Ok(PartyOutcome::Changed)) {
                players.frontend.hub.ticket_not_created(&id);
            }
            let joined = |outcome| {
                players.metrics.joins.get_or_create(&JoinLabels { queue: name.clone(), outcome }).inc();
            };
            match outcome? {
                PartyOutcome::Changed => {
                    joined("created");
                    for user in after.users() {
                        players.publish_created(user).await;
                    }
                    self.publish(after.users()).await;
                    let found = StoredTicket { data: Some(data), assignment: None };
                    return self.joined_ticket(user, &id, &found, true).await;
                }
                PartyOutcome::Ticket { id, found } => {
                    joined("existing");
                    return self.joined_ticket(user, &id, &found, false).await;
                }
                PartyOutcome::MemberWaits { user, queue, ticket } => {
                    joined("refused");
                    return Err(Refusal::MemberWaitsElsewhere { user, queue, ticket }.into());
                }
                _ => tokio::task::yield_now().await,
            }
        }
        Err(Error::Interrupted)
    }

    /// Returns whether the party has a ticket in this queue that can still be read and is not to be replaced.
    async fn is_queued(
        &self,
        party: &Party,
        queue: &str,
        replaces: Option<&TicketId>,
    ) -> Result<bool, Error> {
        let ticket = party.ticket.as_ref().filter(|ticket| ticket.queue == queue);
        let id = ticket.and_then(|ticket| TicketId::parse(&ticket.id)).filter(|id| Some(id) != replaces);
        let Some(id) = id else { return Ok(false) };
        Ok(self.players.frontend.store.find(&id).await?.data.is_some())
    }

    /// Cancels the ticket of the player's party. Every member may do so. Succeeds if the party is not queued.
    pub async fn cancel(&self, user: Uuid) -> Result<(), Error> {
        let found = self.find_of(user).await?.ok_or(Refusal::NoParty)?;
        let ticket = found.party.ticket.as_ref().and_then(|ticket| TicketId::parse(&ticket.id));
        let Some(ticket) = ticket else { return Ok(()) };
        match self.players.frontend.store.delete(&ticket).await? {
            DeleteOutcome::AlreadyAssigned => return Err(Error::AlreadyAssigned(ticket)),
            DeleteOutcome::Deleted => self.publish(found.party.users()).await,
            DeleteOutcome::NotFound => {}
        }
        Ok(())
    }

    /// Changes the player's own party.
    async fn change_own(
        &self,
        name: &'static str,
        user: Uuid,
        operation: impl Fn(&mut Party, Timestamp) -> Result<(), Refusal>,
    ) -> Result<PlayerParty, Error> {
        let found = self.find_of(user).await?.ok_or(Refusal::NoParty)?;
        let operation = |party: &mut Party, now| {
            party.require_member(user)?;
            operation(party, now).map(|()| Change::Keep)
        };
        self.change(name, &found.id, user, operation).await?.ok_or(Refusal::NoParty.into())
    }

    /// Applies an operation of this user until no other change comes in between. Returns the party afterwards, or `None` if
    /// there is no such party.
    async fn change(
        &self,
        name: &'static str,
        id: &PartyId,
        by: Uuid,
        operation: impl Fn(&mut Party, Timestamp) -> Result<Change, Refusal>,
    ) -> Result<Option<PlayerParty>, Error> {
        for _ in 0..ATTEMPTS {
            let Some(found) = self.find(id).await? else { return Ok(None) };
            let mut after = found.party.clone();
            let now = self.clock.now();
            let is_removed = matches!(operation(&mut after, now)?, Change::Remove);
            if after == found.party && !is_removed {
                return Ok(Some(self.view(found.id, after).await?));
            }
            after.prune(now);
            let has_left = found.party.users().any(|user| after.member(user).is_none());
            let has_joined = after.users().any(|user| found.party.member(user).is_none());
            let step = match (has_left, has_joined) {
                (true, _) => TicketStep::Cancel,
                (false, true) => TicketStep::RequireIdle,
                (false, false) => TicketStep::Keep,
            };
            if has_left || has_joined {
                after.ticket = None;
            }
            let change = self.change_of(&found, (!is_removed).then_some(&after), step)?;
            match self.apply(name, &change).await? {
                PartyOutcome::Changed => {
                    let invited = |party: &Party| -> Vec<Uuid> {
                        party.invitations.iter().map(|invitation| invitation.user).collect()
                    };
                    let concerned = found.party.users().chain(after.users());
                    let concerned = concerned.chain(invited(&found.party)).chain(invited(&after));
                    self.publish(concerned).await;
                    return if is_removed { Ok(None) } else { Ok(Some(self.view(found.id, after).await?)) };
                }
                PartyOutcome::InAnotherParty { user, .. } if user == by => {
                    return Err(Refusal::InAnotherParty.into());
                }
                PartyOutcome::Queued => return Err(Refusal::Queued.into()),
                _ => tokio::task::yield_now().await,
            }
        }
        Err(Error::Interrupted)
    }

    /// Describes a change for the store.
    fn change_of(
        &self,
        found: &Found,
        after: Option<&Party>,
        step: TicketStep,
    ) -> Result<PartyChange, Error> {
        let before = &found.party;
        let members: Vec<Uuid> = after.into_iter().flat_map(Party::users).collect();
        let invited = after.into_iter().flat_map(|party| &party.invitations);
        let invited: Vec<Uuid> = invited.map(|invitation| invitation.user).collect();
        let uninvited = before.invitations.iter().map(|invitation| invitation.user);
        Ok(PartyChange {
            version: found.version,
            data: after.map(encode).transpose()?,
            left: before.users().filter(|user| !members.contains(user)).collect(),
            uninvited: uninvited.filter(|user| !invited.contains(user)).collect(),
            members,
            invited,
            code: after.unwrap_or(before).code.clone(),
            old_code: before.code.clone(),
            ticket: before.ticket.as_ref().and_then(|ticket| TicketId::parse(&ticket.id)),
            ..self.no_change(&found.id, step)
        })
    }

    fn no_change(&self, id: &PartyId, step: TicketStep) -> PartyChange {
        PartyChange {
            id: id.clone(),
            version: 0,
            data: None,
            ttl: self.config.ttl,
            members: Vec::new(),
            left: Vec::new(),
            invited: Vec::new(),
            uninvited: Vec::new(),
            code: String::new(),
            old_code: String::new(),
            ticket: None,
            step,
        }
    }

    async fn apply(&self, change: &'static str, request: &PartyChange) -> Result<PartyOutcome, Error> {
        let outcome = self.players.frontend.store.change_party(request).await?;
        fault::point("matchmaking.party.changed");
        let word = match outcome {
            PartyOutcome::Changed => "changed",
            PartyOutcome::Stale | PartyOutcome::CodeTaken => "repeated",
            PartyOutcome::Ticket { .. } => "existing",
            PartyOutcome::InAnotherParty { .. } | PartyOutcome::Queued | PartyOutcome::MemberWaits { .. } => {
                "refused"
            }
        };
        self.players.metrics.party_changes.get_or_create(&PartyLabels { change, outcome: word }).inc();
        Ok(outcome)
    }

    async fn find(&self, id: &PartyId) -> Result<Option<Found>, Error> {
        let stored = self.players.frontend.store.party(id).await?;
        Ok(stored.and_then(|stored| decode(id, &stored)))
    }

    /// Returns the party that a user is in.
    async fn find_of(&self, user: Uuid) -> Result<Option<Found>, Error> {
        let Some(id) = self.players.frontend.store.membership(user).await?.party else { return Ok(None) };
        Ok(self.find(&id).await?.filter(|found| found.party.member(user).is_some()))
    }

    async fn view(&self, id: PartyId, party: Party) -> Result<PlayerParty, Error> {
        let now = self.clock.now();
        let invited = party.users_with_invitations(now);
        let ticket = match party.ticket.as_ref().and_then(|ticket| TicketId::parse(&ticket.id)) {
            None => None,
            Some(id) => {
                let states = self.players.frontend.store.watch_states(&[id]).await?;
                party.ticket.filter(|_| states.first() == Some(&WatchState::Waiting))
            }
        };
        let Party { code, leader, members, .. } = party;
        Ok(PlayerParty { id, code, leader, members, invited, ticket, max_members: self.config.max_members })
    }

    /// Refuses fields that no queue accepts.
    fn check_fields(&self, fields: &MemberFields) -> Result<(), Error> {
        let queues = self.players.queues();
        let queues = queues.values();
        let all = Queue {
            numbers: queues.clone().flat_map(|queue| queue.numbers.clone()).collect(),
            strings: queues.clone().flat_map(|queue| queue.strings.clone()).collect(),
            tags: queues.flat_map(|queue| queue.tags.clone()).collect(),
            ..Queue::default()
        };
        let MemberFields { numbers, strings, tags } = fields.clone();
        all.check_fields(["no queue accepts", "accepted are"], numbers.keys(), strings.keys(), &tags)?;
        if let Some((field, _)) = numbers.iter().find(|(_, value)| !value.is_finite()) {
            return Err(Error::Invalid(format!("{field} must be a number")));
        }
        Ok(())
    }

    /// Makes the streams of these users read their party.
    async fn publish(&self, users: impl IntoIterator<Item = Uuid>) {
        let users: BTreeSet<Uuid> = users.into_iter().collect();
        let messages = users.into_iter().map(|user| (Player(user), ())).collect();
        // If this fails, streams find the change at their next heartbeat.
        let _ = self.players.live.publish_all::<PartyChanged>(messages).await;
    }

    async fn joined_ticket(
        &self,
        user: Uuid,
        id: &TicketId,
        found: &StoredTicket,
        is_new: bool,
    ) -> Result<JoinedTicket, Error> {
        let ticket = self.players.decode(user, id, found).ok_or_else(|| Error::NotFound(id.to_string()))?;
        if !is_new && let Some(ticket) = self.players.with_ready(user, vec![ticket.clone()]).await?.pop() {
            return Ok(JoinedTicket { ticket, is_new });
        }
        Ok(JoinedTicket { ticket, is_new })
    }
}

/// Generates a join code. Nobody can guess one: there are 31⁶ = 887 million, and requests are limited.
fn new_code() -> String {
    // These bits of a version 4 UUID are random.
    let mut bits = uuid::Uuid::new_v4().as_u128() & ((1 << 62) - 1);
    let mut digit = || {
        let digit = bits % CODE_ALPHABET.len() as u128;
        bits /= CODE_ALPHABET.len() as u128;
        char::from(CODE_ALPHABET[usize::try_from(digit).unwrap_or_default()])
    };
    (0..CODE_LENGTH).map(|_| digit()).collect()
}

fn encode(party: &Party) -> Result<Bytes, Error> {
    let data = serde_json::to_vec(party);
    data.map(Bytes::from).map_err(|error| Error::Invalid(format!("the party cannot be stored: {error}")))
}

/// Decodes a party. An unreadable one counts as none, and is logged.
fn decode(id: &PartyId, stored: &StoredParty) -> Option<Found> {
    match serde_json::from_slice(&stored.data) {
        Ok(party) => Some(Found { id: id.clone(), version: stored.version, party }),
        Err(error) => {
            tracing::error!(party = %id, %error, "Ignored an unreadable party");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_short_unambiguous_and_differ() {
        let codes: BTreeSet<String> = (0..1000).map(|_| new_code()).collect();
        assert!(codes.len() > 990);
        for code in codes {
            assert!(code.len() == CODE_LENGTH && code.bytes().all(|byte| CODE_ALPHABET.contains(&byte)));
            assert!(!code.contains(['0', 'O', '1', 'I']), "{code}");
        }
    }
}
