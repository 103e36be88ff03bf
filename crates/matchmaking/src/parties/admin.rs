//! The admin API's `/parties`: shows parties, and the party of a player. Join codes are left out: they admit everyone who knows them.

use axum::Json;
use axum::extract::{Path, Query};
use base::Timestamp;
use base::id::Uuid;
use http_server::Problem;
use serde::{Deserialize, Serialize};
use service::{Open, OperatorRoute};

use super::model::Invitation;
use super::{Found, Member, MemberFields, decode};
use crate::admin::{MatchmakingAdmin, TicketState, problem};
use crate::error::Error;
use crate::model::{PartyId, TicketId};

/// A party, as operators see it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PartyReport {
    pub(crate) party_id: String,
    pub(crate) leader: Uuid,
    /// In the order in which they joined.
    pub(crate) members: Vec<MemberReport>,
    pub(crate) invitations: Vec<InvitationReport>,
    /// The ticket that the party queued with last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ticket: Option<PartyTicketReport>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct MemberReport {
    pub(crate) user_id: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) fields: MemberFields,
}

/// An invitation that is neither answered nor expired.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct InvitationReport {
    pub(crate) user_id: Uuid,
    pub(crate) expires_at: String,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct PartyTicketReport {
    pub(crate) ticket_id: String,
    pub(crate) queue: String,
    pub(crate) state: TicketState,
}

/// The parties of a player.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct PlayerPartiesReport {
    pub(crate) party: Option<PartyReport>,
    /// The parties that invite the player.
    pub(crate) invited_to: Vec<PartyReport>,
}

impl MatchmakingAdmin {
    /// Returns a party, or none if there is no such party.
    pub(crate) async fn party(&self, id: &PartyId) -> Result<Option<PartyReport>, Error> {
        let Some(stored) = self.store().party(id).await? else { return Ok(None) };
        let Some(Found { party, .. }) = decode(id, &stored) else { return Ok(None) };
        let now = self.clock().now();
        let open = party.invitations.iter().filter(|invitation| invitation.until > now.as_millis());
        let invitation = |invitation: &Invitation| InvitationReport {
            user_id: invitation.user,
            expires_at: Timestamp::from_millis(invitation.until).to_rfc3339(),
        };
        let ticket = match &party.ticket {
            None => None,
            Some(ticket) => match TicketId::parse(&ticket.id) {
                None => None,
                Some(id) => Some(PartyTicketReport {
                    ticket_id: ticket.id.clone(),
                    queue: ticket.queue.clone(),
                    state: TicketState::of(&self.store().status(&id).await?),
                }),
            },
        };
        let invitations = open.map(invitation).collect();
        let member =
            |member: Member| MemberReport { user_id: member.user, name: member.name, fields: member.fields };
        Ok(Some(PartyReport {
            party_id: id.to_string(),
            leader: party.leader,
            invitations,
            ticket,
            members: party.members.into_iter().map(member).collect(),
        }))
    }

    /// Returns the parties that a player is in or invited to.
    pub(crate) async fn parties_of(&self, user: Uuid) -> Result<PlayerPartiesReport, Error> {
        let membership = self.store().membership(user).await?;
        let mut parties = PlayerPartiesReport::default();
        if let Some(id) = membership.party {
            // Membership is derived data: the party's own list counts.
            let is_member = |party: &PartyReport| party.members.iter().any(|member| member.user_id == user);
            parties.party = self.party(&id).await?.filter(is_member);
        }
        for id in membership.invitations {
            let invites =
                |party: &PartyReport| party.invitations.iter().any(|invitation| invitation.user_id == user);
            parties.invited_to.extend(self.party(&id).await?.filter(invites));
        }
        Ok(parties)
    }
}

/// Returns the routes: `/parties` (those of a player) and `/parties/{party_id}`.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![OperatorRoute::get("/parties", list), OperatorRoute::get("/parties/{party_id}", show)]
}

#[derive(Deserialize)]
struct ListQuery {
    /// The player.
    user: Option<String>,
}

async fn list(
    Open(admin): Open<MatchmakingAdmin>,
    Query(query): Query<ListQuery>,
) -> Result<Json<PlayerPartiesReport>, Problem> {
    let user = query.user.as_deref().and_then(|user| Uuid::try_parse(user).ok());
    let user = user.ok_or_else(|| problem(Error::Invalid("user must be the UUID of a player".to_owned())))?;
    admin.parties_of(user).await.map(Json).map_err(problem)
}

async fn show(
    Open(admin): Open<MatchmakingAdmin>,
    Path(name): Path<String>,
) -> Result<Json<PartyReport>, Problem> {
    let unknown = || problem(Error::NoParty(name.clone()));
    let id = PartyId::parse(&name).ok_or_else(unknown)?;
    admin.party(&id).await.map_err(problem)?.map(Json).ok_or_else(unknown)
}
