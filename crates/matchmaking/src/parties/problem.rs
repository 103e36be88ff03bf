//! The problem types of refused requests about parties.

use super::Refusal;

impl Refusal {
    /// Returns the stable suffix of the problem's `type`.
    pub const fn cause(&self) -> &'static str {
        match self {
            Self::NoParty => "parties:no-party",
            Self::NotLeader => "parties:not-leader",
            Self::Full(_) => "parties:party-full",
            Self::InAnotherParty => "parties:in-another-party",
            Self::WrongCode => "parties:wrong-code",
            Self::NotInvited => "parties:not-invited",
            Self::NotMember(_) => "parties:not-a-member",
            Self::TooManyInvitations(_) => "parties:too-many-invitations",
            Self::Queued => "parties:party-queued",
            Self::TooLarge { .. } => "parties:party-too-large",
            Self::MemberWaitsElsewhere { .. } => "parties:member-waits-elsewhere",
        }
    }
}
