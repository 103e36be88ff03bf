//! Endpoints of the line: join, place, leave, and the keys that verify admissions.

use ::service::{Open, SignedInPlayer};
use account::AccountId;
use axum::Json;
use axum::response::IntoResponse;
use base::Code;
use base::id::Uuid;
use http::StatusCode;
use http::header::CACHE_CONTROL;
use http_server::{Problem, Query};
use serde::Deserialize;
use utoipa::IntoParams;

use super::answer::PlaceAnswer;
use super::{PathIds, PlayerApi, user_of};
use crate::model::DropRecord;
use crate::problem::problem;
use crate::token::JsonWebKeys;
use crate::{Admission, Error, Join, PlayerStatus};

/// How long verifiers may cache the keys. A new key signs as soon as a process has it, so verifiers fetch the keys again at an unknown
/// `kid`.
const KEYS_CACHE: &str = "public, max-age=300";

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct JoinQuery {
    /// Which of the caller's accounts buys; the oldest by default.
    account_id: Option<Uuid>,
}

impl PlayerApi {
    /// Reads a player's place, with the token of an admission.
    pub(super) async fn read_place(
        &self,
        drop: &DropRecord,
        player: &SignedInPlayer,
    ) -> Result<PlaceAnswer, Error> {
        let status = self.room.status(drop.id, user_of(player)).await?;
        Ok(self.place_of(drop, &status))
    }

    /// Builds the place response, with the token of an admission.
    pub(super) fn place_of(&self, drop: &DropRecord, status: &PlayerStatus) -> PlaceAnswer {
        let now = self.clock.now();
        let sign = |admission: &Admission| self.tokens.sign(admission, now);
        PlaceAnswer::new(status, drop.terms.message.as_deref(), sign)
    }
}

/// Join the line
///
/// Once per player: joining again changes nothing while the player waits or is inside.
#[utoipa::path(
    post, path = "/v1/drops/{drop_id}/join", operation_id = "join_drop", tag = "drops", params(("drop_id" = String, Path), JoinQuery),
    responses(
        (status = 200, description = "The player's place", body = PlaceAnswer),
        (status = 403, description = "The drop is not open to this player (`drops:not-eligible`)"),
        (status = 404, description = "There is no such drop, or the caller has no such account"),
        (status = 409, description = "The drop has ended (`drops:not-joinable`)"),
    )
)]
pub(super) async fn join(
    ids: PathIds,
    player: SignedInPlayer,
    Open(api): Open<PlayerApi>,
    Query(query): Query<JoinQuery>,
) -> Result<Json<PlaceAnswer>, Problem> {
    let drop = api.visible(&ids).await?;
    let wanted = |account: &&Uuid| query.account_id.is_none_or(|id| id == **account);
    let account = player.accounts.iter().find(wanted).ok_or_else(|| {
        Problem::new(Code::NotFound).detail("You have no such account; /v1/accounts lists yours.")
    })?;
    let account = AccountId::from_uuid(*account);
    let eligibility = api.eligibility(&drop.terms, &player, account).await.map_err(problem)?;
    let join = Join { user: user_of(&player), account, eligibility };
    api.room.join(drop.id, join).await.map_err(problem)?;
    api.read_place(&drop, &player).await.map(Json).map_err(problem)
}

/// The player's place
///
/// A position that is unknown for the moment is missing; the place is kept. The drop's stream also sends it with `place=true`, whenever it
/// changes; a client without streams polls every few seconds.
#[utoipa::path(
    get, path = "/v1/drops/{drop_id}/place", operation_id = "drop_place", tag = "drops", params(("drop_id" = String, Path)),
    responses(
        (status = 200, description = "The player's place", body = PlaceAnswer),
        (status = 404, description = "There is no such drop"),
    )
)]
pub(super) async fn place(
    ids: PathIds,
    player: SignedInPlayer,
    Open(api): Open<PlayerApi>,
) -> Result<Json<PlaceAnswer>, Problem> {
    let drop = api.visible(&ids).await?;
    api.read_place(&drop, &player).await.map(Json).map_err(problem)
}

/// Leave the line, or the drop
///
/// Joining again puts the player at the end of the line.
#[utoipa::path(
    post, path = "/v1/drops/{drop_id}/leave", operation_id = "leave_drop", tag = "drops", params(("drop_id" = String, Path)),
    responses(
        (status = 204, description = "The player has left"),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "The player is neither in the line nor inside (`drops:not-in-line`)"),
    )
)]
pub(super) async fn leave(
    ids: PathIds,
    player: SignedInPlayer,
    Open(api): Open<PlayerApi>,
) -> Result<StatusCode, Problem> {
    let drop = api.visible(&ids).await?;
    api.room.leave(drop.id, user_of(&player)).await.map_err(problem)?;
    Ok(StatusCode::NO_CONTENT)
}

/// The keys that verify admission tokens
///
/// A JWKS (RFC 7517) for a game's own shop, which must verify `alg` EdDSA, `typ` admission+jwt, `aud` (the drop), `sub` (the player) and `exp`.
/// Fetch it again at an unknown `kid`.
#[utoipa::path(
    get, path = "/v1/drops/jwks", operation_id = "drop_keys", tag = "drops", security(()),
    responses((status = 200, description = "The keys, the newest first", body = JsonWebKeys))
)]
pub(super) async fn keys(Open(api): Open<PlayerApi>) -> impl IntoResponse {
    ([(CACHE_CONTROL, KEYS_CACHE)], Json(api.tokens.public_keys()))
}
