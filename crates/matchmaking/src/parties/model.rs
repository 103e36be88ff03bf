//! What a party is, and what may be done with it. Pure: the store applies the result.

use std::collections::BTreeMap;

use base::id::Uuid;
use base::{Code, Timestamp};
use serde::{Deserialize, Serialize};

use crate::model::TicketId;

/// How many invitations a party may have at once.
pub(super) const MAX_INVITATIONS: usize = 32;

/// Players who want to play together. Always has its leader among its members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Party {
    /// Admits everyone who knows it.
    pub(super) code: String,
    pub(super) leader: Uuid,
    /// In the order in which they joined.
    pub(super) members: Vec<Member>,
    pub(super) invitations: Vec<Invitation>,
    /// The last ticket. The party is queued while it waits.
    pub(super) ticket: Option<PartyTicket>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Member {
    pub user: Uuid,
    pub name: Option<String>,
    pub fields: MemberFields,
}

/// The search fields of a member, for the queues that accept them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberFields {
    pub numbers: BTreeMap<String, f64>,
    pub strings: BTreeMap<String, String>,
    pub tags: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Invitation {
    pub(super) user: Uuid,
    /// Milliseconds since the Unix epoch.
    pub(super) until: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartyTicket {
    pub id: String,
    pub queue: String,
}

/// Why a request about a party is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("you are in no party: create one or join one first")]
    NoParty,
    #[error("only the leader of the party may do this")]
    NotLeader,
    #[error("the party is full: it has {0} members")]
    Full(usize),
    #[error("you are in another party: leave it first")]
    InAnotherParty,
    #[error("no party has this code; it may have changed")]
    WrongCode,
    #[error("you have no invitation to this party; it may have expired")]
    NotInvited,
    #[error("{0} is not in your party")]
    NotMember(Uuid),
    #[error("the party has {0} open invitations: wait until one is answered or expires")]
    TooManyInvitations(usize),
    #[error("the party is queued: join it when it has left the queue")]
    Queued,
    #[error("a party in queue {queue} may have {max} members, and this one has {members}")]
    TooLarge { queue: String, max: usize, members: usize },
    #[error("{user} already waits in queue {queue}: that player must cancel their ticket first")]
    MemberWaitsElsewhere { user: Uuid, queue: String, ticket: TicketId },
}

impl Refusal {
    pub const fn code(&self) -> Code {
        match self {
            Self::NotLeader => Code::PermissionDenied,
            Self::NoParty | Self::WrongCode | Self::NotInvited | Self::NotMember(_) => Code::NotFound,
            Self::InAnotherParty | Self::MemberWaitsElsewhere { .. } => Code::Conflict,
            Self::Full(_) | Self::TooManyInvitations(_) | Self::Queued | Self::TooLarge { .. } => {
                Code::FailedPrecondition
            }
        }
    }
}

impl Party {
    pub(super) fn new(leader: Member, code: String) -> Self {
        Self { code, leader: leader.user, members: vec![leader], invitations: Vec::new(), ticket: None }
    }

    pub(super) fn member(&self, user: Uuid) -> Option<&Member> {
        self.members.iter().find(|member| member.user == user)
    }

    /// Returns the users with an open invitation.
    pub(super) fn users_with_invitations(&self, now: Timestamp) -> Vec<Uuid> {
        let is_open = |invitation: &&Invitation| invitation.until > now.as_millis();
        self.invitations.iter().filter(is_open).map(|invitation| invitation.user).collect()
    }

    pub(super) fn users(&self) -> impl Iterator<Item = Uuid> + '_ {
        self.members.iter().map(|member| member.user)
    }

    /// Returns the invitation of a user, unless it has expired.
    pub(super) fn invitation(&self, user: Uuid, now: Timestamp) -> Option<&Invitation> {
        let is_open = |invitation: &&Invitation| invitation.until > now.as_millis();
        self.invitations.iter().filter(is_open).find(|invitation| invitation.user == user)
    }

    /// Removes expired invitations.
    pub(super) fn prune(&mut self, now: Timestamp) {
        self.invitations.retain(|invitation| invitation.until > now.as_millis());
    }

    /// Adds a member. Changes nothing if the user is in the party already.
    pub(super) fn join(&mut self, member: &Member, max: usize) -> Result<(), Refusal> {
        if self.member(member.user).is_some() {
            return Ok(());
        }
        if self.members.len() >= max {
            return Err(Refusal::Full(self.members.len()));
        }
        self.invitations.retain(|invitation| invitation.user != member.user);
        self.members.push(member.clone());
        Ok(())
    }

    /// Adds an invited member.
    pub(super) fn accept(&mut self, member: &Member, max: usize, now: Timestamp) -> Result<(), Refusal> {
        if self.member(member.user).is_none() && self.invitation(member.user, now).is_none() {
            return Err(Refusal::NotInvited);
        }
        self.join(member, max)
    }

    /// Removes a user. The oldest member follows the leader. Returns false if nobody is left.
    pub(super) fn leave(&mut self, user: Uuid) -> bool {
        self.members.retain(|member| member.user != user);
        let Some(oldest) = self.members.first() else { return false };
        if self.leader == user {
            self.leader = oldest.user;
        }
        true
    }

    /// Removes another member, who cannot come back with the old code.
    pub(super) fn kick(&mut self, by: Uuid, user: Uuid, new_code: &str) -> Result<(), Refusal> {
        self.require_leader(by)?;
        if by == user || self.member(user).is_none() {
            return Err(Refusal::NotMember(user));
        }
        self.leave(user);
        new_code.clone_into(&mut self.code);
        Ok(())
    }

    pub(super) fn hand_over(&mut self, by: Uuid, to: Uuid) -> Result<(), Refusal> {
        if self.leader == to && self.member(by).is_some() {
            return Ok(());
        }
        self.require_leader(by)?;
        self.member(to).ok_or(Refusal::NotMember(to))?;
        self.leader = to;
        Ok(())
    }

    /// Invites a user, or extends the invitation. Every member may do so, because every member knows the code.
    pub(super) fn invite(&mut self, by: Uuid, user: Uuid, until: Timestamp) -> Result<(), Refusal> {
        self.require_member(by)?;
        if self.member(user).is_some() {
            return Ok(());
        }
        let until = until.as_millis();
        let count = self.invitations.len();
        match self.invitations.iter_mut().find(|invitation| invitation.user == user) {
            Some(invitation) => invitation.until = until,
            None if count >= MAX_INVITATIONS => return Err(Refusal::TooManyInvitations(count)),
            None => self.invitations.push(Invitation { user, until }),
        }
        Ok(())
    }

    pub(super) fn decline(&mut self, user: Uuid) {
        self.invitations.retain(|invitation| invitation.user != user);
    }

    pub(super) fn set_fields(&mut self, user: Uuid, fields: &MemberFields) -> Result<(), Refusal> {
        let member = self.members.iter_mut().find(|member| member.user == user);
        fields.clone_into(&mut member.ok_or(Refusal::NoParty)?.fields);
        Ok(())
    }

    pub(super) fn require_member(&self, user: Uuid) -> Result<(), Refusal> {
        self.member(user).map(drop).ok_or(Refusal::NoParty)
    }

    pub(super) fn require_leader(&self, user: Uuid) -> Result<(), Refusal> {
        self.require_member(user)?;
        if self.leader == user { Ok(()) } else { Err(Refusal::NotLeader) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 3;

    #[derive(Clone, Debug)]
    enum Step {
        Join(u128),
        Accept(u128),
        Leave(u128),
        Kick(u128, u128),
        HandOver(u128, u128),
        Invite(u128, u128),
        Decline(u128),
        Fields(u128),
        Wait,
    }

    fn user(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn member(number: u128) -> Member {
        Member { user: user(number), ..Member::default() }
    }

    fn at(time: i64) -> Timestamp {
        Timestamp::from_millis(time)
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let one = || 0..5_u128;
        let step = prop_oneof![
            one().prop_map(Step::Join),
            one().prop_map(Step::Accept),
            one().prop_map(Step::Leave),
            (one(), one()).prop_map(|(by, user)| Step::Kick(by, user)),
            (one(), one()).prop_map(|(by, user)| Step::HandOver(by, user)),
            (one(), one()).prop_map(|(by, user)| Step::Invite(by, user)),
            one().prop_map(Step::Decline),
            one().prop_map(Step::Fields),
            Just(Step::Wait),
        ];
        prop::collection::vec(step, 0..40)
    }

    proptest! {
        /// Whatever is asked of a party, it stays one: its leader is a member, nobody is in it twice, it is not over its
        /// size, a refusal changes nothing, and only the leader removes others.
        #[test]
        fn party_stays_sound(steps in steps()) {
            let (mut party, mut now) = (Party::new(member(0), "CODE".to_owned()), 0);
            for step in steps {
                let before = party.clone();
                party.prune(at(now));
                let pruned = party.clone();
                let done = match &step {
                    Step::Join(who) => party.join(&member(*who), MAX),
                    Step::Accept(who) => party.accept(&member(*who), MAX, at(now)),
                    Step::Leave(who) => {
                        if !party.leave(user(*who)) {
                            prop_assert!(before.members.len() == 1 && party.members.is_empty());
                            party = before;
                        }
                        Ok(())
                    }
                    Step::Kick(by, who) => party.kick(user(*by), user(*who), "NEXT"),
                    Step::HandOver(by, to) => party.hand_over(user(*by), user(*to)),
                    Step::Invite(by, who) => party.invite(user(*by), user(*who), at(now + 3)),
                    Step::Decline(who) => {
                        party.decline(user(*who));
                        Ok(())
                    }
                    Step::Fields(who) => {
                        let tags = vec!["tank".to_owned()];
                        party.set_fields(user(*who), &MemberFields { tags, ..MemberFields::default() })
                    }
                    Step::Wait => {
                        now += 1;
                        Ok(())
                    }
                };
                prop_assert!(party.member(party.leader).is_some());
                prop_assert!((1..=MAX).contains(&party.members.len()));
                let mut users: Vec<Uuid> = party.users().collect();
                users.sort_unstable();
                users.dedup();
                prop_assert_eq!(users.len(), party.members.len());
                prop_assert!(party.invitations.iter().all(|invitation| party.member(invitation.user).is_none()));
                if done.is_err() {
                    prop_assert_eq!(&party, &pruned);
                }
                let removed = pruned.users().filter(|user| party.member(*user).is_none()).count();
                match step {
                    Step::Kick(by, _) if done.is_ok() => {
                        prop_assert!(removed == 1 && pruned.leader == user(by) && party.code == "NEXT");
                    }
                    Step::Leave(_) => prop_assert!(removed <= 1),
                    _ => prop_assert_eq!(removed, 0),
                }
            }
        }
    }

    #[test]
    fn oldest_member_follows_the_leader() {
        let mut party = Party::new(member(0), String::new());
        for number in 1..3 {
            party.join(&member(number), MAX).unwrap();
        }
        assert_eq!(party.join(&member(3), MAX), Err(Refusal::Full(3)));
        assert!(party.leave(user(0)));
        assert_eq!(party.leader, user(1));
        assert_eq!(party.kick(user(2), user(1), ""), Err(Refusal::NotLeader));
        assert_eq!(party.kick(user(1), user(1), ""), Err(Refusal::NotMember(user(1))));
        assert_eq!(party.hand_over(user(1), user(3)), Err(Refusal::NotMember(user(3))));
        party.hand_over(user(1), user(2)).unwrap();
        assert!(party.leave(user(1)) && !party.leave(user(2)));
    }

    #[test]
    fn expired_invitation_admits_nobody() {
        let mut party = Party::new(member(0), String::new());
        party.invite(user(0), user(1), at(10)).unwrap();
        assert_eq!(party.invite(user(2), user(3), at(10)), Err(Refusal::NoParty));
        assert_eq!(party.accept(&member(1), MAX, at(10)), Err(Refusal::NotInvited));
        party.invite(user(0), user(1), at(11)).unwrap();
        party.accept(&member(1), MAX, at(10)).unwrap();
        assert!(party.invitations.is_empty());
        party.accept(&member(1), MAX, at(20)).unwrap();
        for number in 10..10 + MAX_INVITATIONS as u128 {
            party.invite(user(0), user(number), at(30)).unwrap();
        }
        assert_eq!(party.invite(user(0), user(9), at(30)), Err(Refusal::TooManyInvitations(MAX_INVITATIONS)));
    }
}
