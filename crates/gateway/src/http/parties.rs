//! Parties: players who queue together.

use std::collections::BTreeMap;

use ::http::StatusCode;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base::id::Uuid;
use http_server::{JsonBody, Problem};
use matchmaking::{Error, Member, MemberFields, PlayerInvitation, PlayerParties, PlayerParty};
use serde::{Deserialize, Serialize};
use sessions::Caller;
use utoipa::ToSchema;

use super::Segment;
use super::tickets::{TicketAnswer, joined, problem, replaced};
use crate::Gateway;

/// The caller's own search fields. A party's ticket contains those that its queue accepts.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({"numbers": {"skill": 1500}}))]
pub(crate) struct MemberRequest {
    #[serde(default)]
    numbers: BTreeMap<String, f64>,
    #[serde(default)]
    strings: BTreeMap<String, String>,
    #[serde(default)]
    tags: Vec<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({"code": "K7WQ2M"}))]
pub(crate) struct JoinPartyRequest {
    /// The code of the party. Upper and lower case are the same.
    code: String,
    #[serde(default)]
    numbers: BTreeMap<String, f64>,
    #[serde(default)]
    strings: BTreeMap<String, String>,
    #[serde(default)]
    tags: Vec<String>,
}

/// Another player.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({"user_id": "01a1e4c0-0000-7000-8000-000000000001"}))]
pub(crate) struct PlayerRequest {
    user_id: Uuid,
}

/// A request to queue the party.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({"queue": "ranked"}))]
pub(crate) struct PartyTicketRequest {
    /// One of the queues that /v1/client-config lists.
    queue: String,
    /// The party's previous, assigned ticket. Without it, a request soon after a match returns that match again.
    #[serde(default)]
    replaces: Option<String>,
}

/// A party.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct PartyAnswer {
    party_id: String,
    /// Everyone who knows it can join.
    #[schema(example = "K7WQ2M")]
    code: String,
    /// The user id of the leader, who queues the party.
    leader: Uuid,
    /// In the order in which they joined.
    members: Vec<MemberAnswer>,
    /// The user ids of invited players.
    invited: Vec<Uuid>,
    /// Only while the party waits for a match.
    ticket: Option<PartyTicketAnswer>,
    max_members: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct MemberAnswer {
    user_id: Uuid,
    /// The display name when the player joined.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    numbers: BTreeMap<String, f64>,
    strings: BTreeMap<String, String>,
    tags: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PartyTicketAnswer {
    pub(super) ticket_id: String,
    queue: String,
}

/// An invitation of the caller.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct InvitationAnswer {
    party_id: String,
    leader: Uuid,
    /// The display name of the leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader_name: Option<String>,
    /// RFC 3339.
    #[schema(format = DateTime)]
    expires_at: String,
}

/// The caller's party and invitations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct PartiesAnswer {
    /// The party that the caller is in.
    pub(super) party: Option<PartyAnswer>,
    invitations: Vec<InvitationAnswer>,
}

/// Get the caller's party and invitations
#[utoipa::path(
    get, path = "/v1/parties", tag = "parties", operation_id = "get_party",
    responses(
        (status = 200, description = "The party, if there is one, and the invitations", body = PartiesAnswer),
        (status = 400, description = "The version of the client is not valid"),
    )
)]
pub(super) async fn mine(
    State(gateway): State<Gateway>,
    caller: Caller,
) -> Result<Json<PartiesAnswer>, Problem> {
    Ok(Json(PartiesAnswer::read(&gateway, *caller.user().as_uuid()).await.map_err(|error| problem(&error))?))
}

/// Create a party
///
/// The caller leads it. A second request returns the existing party.
#[utoipa::path(
    post, path = "/v1/parties", tag = "parties", operation_id = "create_party",
    request_body = MemberRequest,
    responses(
        (status = 201, description = "A new party", body = PartyAnswer),
        (status = 200, description = "The party that the caller leads", body = PartyAnswer),
        (status = 400, description = "A search field is unknown"),
        (status = 409, description = "The caller is in another party"),
        (status = 413, description = "The body is too large"),
        (status = 415, description = "The body is not JSON"),
    )
)]
pub(super) async fn create(
    State(gateway): State<Gateway>,
    caller: Caller,
    JsonBody(request): JsonBody<MemberRequest>,
) -> Result<Response, Problem> {
    let created = gateway.parties.create(member(&caller, request.into())).await;
    let (party, is_new) = created.map_err(|error| problem(&error))?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(PartyAnswer::of(party))).into_response())
}

/// Join a party by its code
#[utoipa::path(
    post, path = "/v1/parties/join", tag = "parties", operation_id = "join_party",
    request_body = JoinPartyRequest,
    responses(
        (status = 200, description = "The party", body = PartyAnswer),
        (status = 400, description = "A search field is unknown"),
        (status = 404, description = "No party has this code"),
        (status = 409, description = "The party is full or waits for a match, or the caller is in another party"),
        (status = 413, description = "The body is too large"),
        (status = 415, description = "The body is not JSON"),
    )
)]
pub(super) async fn join(
    State(gateway): State<Gateway>,
    caller: Caller,
    JsonBody(request): JsonBody<JoinPartyRequest>,
) -> Result<Json<PartyAnswer>, Problem> {
    let JoinPartyRequest { code, numbers, strings, tags } = request;
    let joined = gateway.parties.join(member(&caller, MemberFields { numbers, strings, tags }), &code).await;
    answer(joined)
}

/// Invite a player
///
/// Every member may invite. A repeated invitation lasts longer.
#[utoipa::path(
    post, path = "/v1/parties/invitations", tag = "parties", operation_id = "invite_to_party",
    request_body = PlayerRequest,
    responses(
        (status = 200, description = "The party", body = PartyAnswer),
        (status = 400, description = "The id is not valid"),
        (status = 404, description = "The caller is in no party"),
        (status = 409, description = "The party has too many open invitations"),
        (status = 413, description = "The body is too large"),
        (status = 415, description = "The body is not JSON"),
    )
)]
pub(super) async fn invite(
    State(gateway): State<Gateway>,
    caller: Caller,
    JsonBody(request): JsonBody<PlayerRequest>,
) -> Result<Json<PartyAnswer>, Problem> {
    answer(gateway.parties.invite(*caller.user().as_uuid(), request.user_id).await)
}

/// Accept an invitation
#[utoipa::path(
    post, path = "/v1/parties/invitations/{party_id}/accept", tag = "parties",
    operation_id = "accept_party_invitation",
    params(("party_id" = String, Path)),
    request_body = MemberRequest,
    responses(
        (status = 200, description = "The party", body = PartyAnswer),
        (status = 400, description = "A search field is unknown"),
        (status = 404, description = "There is no such invitation"),
        (status = 409, description = "The party is full or waits for a match, or the caller is in another party"),
        (status = 413, description = "The body is too large"),
        (status = 415, description = "The body is not JSON"),
    )
)]
pub(super) async fn accept(
    State(gateway): State<Gateway>,
    caller: Caller,
    Segment(id): Segment,
    JsonBody(request): JsonBody<MemberRequest>,
) -> Result<Json<PartyAnswer>, Problem> {
    answer(gateway.parties.accept(member(&caller, request.into()), &id).await)
}

/// Decline an invitation
///
/// Also succeeds without an invitation.
#[utoipa::path(
    post, path = "/v1/parties/invitations/{party_id}/decline", tag = "parties",
    operation_id = "decline_party_invitation",
    params(("party_id" = String, Path)),
    responses(
        (status = 204, description = "The invitation is gone"),
        (status = 400, description = "The id is not valid"),
    )
)]
pub(super) async fn decline(
    State(gateway): State<Gateway>,
    caller: Caller,
    Segment(id): Segment,
) -> Result<StatusCode, Problem> {
    done(gateway.parties.decline(*caller.user().as_uuid(), &id).await)
}

/// Leave the party
///
/// Cancels the party's ticket. The oldest member follows a leader who leaves. Also succeeds for a caller in no party.
#[utoipa::path(
    post, path = "/v1/parties/leave", tag = "parties", operation_id = "leave_party",
    responses(
        (status = 204, description = "The caller is in no party"),
        (status = 400, description = "The version of the client is not valid"),
    )
)]
pub(super) async fn leave(State(gateway): State<Gateway>, caller: Caller) -> Result<StatusCode, Problem> {
    done(gateway.parties.leave(*caller.user().as_uuid()).await)
}

/// Remove a member
///
/// Only for the leader. Cancels the party's ticket, and changes the code.
#[utoipa::path(
    post, path = "/v1/parties/kick", tag = "parties", operation_id = "kick_from_party",
    request_body = PlayerRequest,
    responses(
        (status = 200, description = "The party", body = PartyAnswer),
        (status = 400, description = "The id is not valid"),
        (status = 403, description = "The caller does not lead the party"),
        (status = 404, description = "The caller is in no party, or the player is not in it"),
        (status = 413, description = "The body is too large"),
        (status = 415, description = "The body is not JSON"),
    )
)]
pub(super) async fn kick(
    State(gateway): State<Gateway>,
    caller: Caller,
    JsonBody(request): JsonBody<PlayerRequest>,
) -> Result<Json<PartyAnswer>, Problem> {
    answer(gateway.parties.kick(*caller.user().as_uuid(), request.user_id).await)
}

/// Make another member the leader
#[utoipa::path(
    post, path = "/v1/parties/leader", tag = "parties", operation_id = "hand_over_party",
    request_body = PlayerRequest,
    responses(
        (status = 200, description = "The party", body = PartyAnswer),
        (status = 400, description = "The id is not valid"),
        (status = 403, description = "The caller does not lead the party"),
        (status = 404, description = "The caller is in no party, or the player is not in it"),
        (status = 413, description = "The body is too large"),
        (status = 415, description = "The body is not JSON"),
    )
)]
pub(super) async fn hand_over(
    State(gateway): State<Gateway>,
    caller: Caller,
    JsonBody(request): JsonBody<PlayerRequest>,
) -> Result<Json<PartyAnswer>, Problem> {
    answer(gateway.parties.hand_over(*caller.user().as_uuid(), request.user_id).await)
}

/// Set the caller's own search fields
///
/// Replaces all of them. A ticket that waits keeps the old ones.
#[utoipa::path(
    post, path = "/v1/parties/member", tag = "parties", operation_id = "set_party_member",
    request_body = MemberRequest,
    responses(
        (status = 200, description = "The party", body = PartyAnswer),
        (status = 400, description = "A search field is unknown"),
        (status = 404, description = "The caller is in no party"),
        (status = 413, description = "The body is too large"),
        (status = 415, description = "The body is not JSON"),
    )
)]
pub(super) async fn set_fields(
    State(gateway): State<Gateway>,
    caller: Caller,
    JsonBody(request): JsonBody<MemberRequest>,
) -> Result<Json<PartyAnswer>, Problem> {
    answer(gateway.parties.set_fields(*caller.user().as_uuid(), &request.into()).await)
}

/// Queue the party
///
/// Only for the leader. All members see the ticket and get its match. A second request returns the existing ticket.
#[utoipa::path(
    post, path = "/v1/parties/ticket", tag = "parties", operation_id = "queue_party",
    request_body = PartyTicketRequest,
    responses(
        (status = 201, description = "A new ticket", body = TicketAnswer),
        (status = 200, description = "The existing ticket", body = TicketAnswer),
        (status = 400, description = "The queue is unknown"),
        (status = 403, description = "The caller does not lead the party"),
        (status = 404, description = "The caller is in no party"),
        (status = 409, description = "A member waits elsewhere, or the party is too large for the queue"),
        (status = 413, description = "The body is too large"),
        (status = 415, description = "The body is not JSON"),
    )
)]
pub(super) async fn queue(
    State(gateway): State<Gateway>,
    caller: Caller,
    JsonBody(request): JsonBody<PartyTicketRequest>,
) -> Result<Response, Problem> {
    let PartyTicketRequest { queue, replaces } = request;
    joined(gateway.parties.queue(*caller.user().as_uuid(), &queue, replaced(replaces)?).await)
}

/// Cancel the party's ticket
///
/// Every member may do so. Also succeeds if the party does not wait.
#[utoipa::path(
    delete, path = "/v1/parties/ticket", tag = "parties", operation_id = "cancel_party_ticket",
    responses(
        (status = 204, description = "The party does not wait"),
        (status = 400, description = "The version of the client is not valid"),
        (status = 404, description = "The caller is in no party"),
        (status = 409, description = "Too late: the ticket is already assigned"),
    )
)]
pub(super) async fn cancel(State(gateway): State<Gateway>, caller: Caller) -> Result<StatusCode, Problem> {
    done(gateway.parties.cancel(*caller.user().as_uuid()).await)
}

impl PartiesAnswer {
    /// Reads the party and the invitations of a player.
    pub(super) async fn read(gateway: &Gateway, user: Uuid) -> Result<Self, Error> {
        let PlayerParties { party, invitations } = gateway.parties.of(user).await?;
        let invitations = invitations.into_iter().map(InvitationAnswer::of).collect();
        Ok(Self { party: party.map(PartyAnswer::of), invitations })
    }

    pub(super) fn ticket_id(&self) -> Option<&str> {
        Some(&self.party.as_ref()?.ticket.as_ref()?.ticket_id)
    }
}

impl PartyAnswer {
    fn of(party: PlayerParty) -> Self {
        let ticket = |ticket: matchmaking::PartyTicket| PartyTicketAnswer {
            ticket_id: ticket.id,
            queue: ticket.queue,
        };
        Self {
            party_id: party.id.to_string(),
            code: party.code,
            leader: party.leader,
            members: party.members.into_iter().map(MemberAnswer::of).collect(),
            invited: party.invited,
            ticket: party.ticket.map(ticket),
            max_members: party.max_members,
        }
    }
}

impl MemberAnswer {
    fn of(member: Member) -> Self {
        let Member { user, name, fields: MemberFields { numbers, strings, tags } } = member;
        Self { user_id: user, name, numbers, strings, tags }
    }
}

impl InvitationAnswer {
    fn of(invitation: PlayerInvitation) -> Self {
        Self {
            party_id: invitation.party.to_string(),
            leader: invitation.leader.user,
            leader_name: invitation.leader.name,
            expires_at: invitation.expires_at.to_rfc3339(),
        }
    }
}

impl From<MemberRequest> for MemberFields {
    fn from(request: MemberRequest) -> Self {
        Self { numbers: request.numbers, strings: request.strings, tags: request.tags }
    }
}

/// Returns the caller as a member of a party.
fn member(caller: &Caller, fields: MemberFields) -> Member {
    let user = &caller.known.user;
    Member { user: *caller.user().as_uuid(), name: user.display_name.clone(), fields }
}

fn answer(party: Result<PlayerParty, Error>) -> Result<Json<PartyAnswer>, Problem> {
    party.map(|party| Json(PartyAnswer::of(party))).map_err(|error| problem(&error))
}

fn done(result: Result<(), Error>) -> Result<StatusCode, Problem> {
    result.map(|()| StatusCode::NO_CONTENT).map_err(|error| problem(&error))
}
