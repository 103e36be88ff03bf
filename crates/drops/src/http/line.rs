//! Endpoints of the line of a drop.

use axum::Json;
use axum::extract::Path;
use base::page::{next_page, rows_to_read};
use http_server::{Problem, Query};
use serde::{Deserialize, Serialize};
use service::Open;
use utoipa::{IntoParams, ToSchema};

use super::actor::Actor;
use super::views::EntryView;
use super::{id, limit, store};
use crate::error::Error;
use crate::problem::problem;
use crate::room::Room;
use crate::service::Drops;

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct EntriesQuery {
    /// Entries of users after this one.
    #[param(value_type = Option<Uuid>)]
    after: Option<String>,
    /// How many at most; 100 by default, 1,000 at most.
    limit: Option<u32>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = DropEntryList)]
pub(super) struct EntryList {
    entries: Vec<EntryView>,
    /// The start of the next page, if there is one: pass it as `after`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = Uuid)]
    next: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = RebuiltLine)]
pub(super) struct Rebuilt {
    /// How many players wait. Null while another process fills the line.
    #[schema(required = true)]
    waiting: Option<u64>,
}

/// List the entries of a drop, with the join numbers and places from which its order can be verified.
#[utoipa::path(
    get, path = "/internal/v1/drops/{drop_id}/entries", tag = "drops", operation_id = "list_drop_entries",
    params(("drop_id" = Uuid, Path), EntriesQuery),
    responses((status = 200, description = "A page of entries, in the order of their user ids", body = EntryList), (status = 404, description = "There is no such drop"))
)]
pub(super) async fn entries(
    Open(drops): Open<Drops>,
    _: Actor,
    Path(drop): Path<String>,
    Query(query): Query<EntriesQuery>,
) -> Result<Json<EntryList>, Problem> {
    let drop = drops.get(id("drop_id", &drop)?).await.map_err(problem)?;
    let after = query.after.as_deref().map(|user| id("after", user)).transpose()?;
    let limit = limit(query.limit);
    let found = store::entries(&drops.db, drop.id, after, rows_to_read(limit)).await;
    let mut found = found.map_err(|error| problem(Error::Db(error)))?;
    let next = next_page(&mut found, limit, |last| last.user.to_string());
    Ok(Json(EntryList { entries: found.iter().map(EntryView::from).collect(), next }))
}

/// Rebuild the line in Redis from the database, in order.
#[utoipa::path(
    post, path = "/internal/v1/drops/{drop_id}/rebuild", tag = "drops", operation_id = "rebuild_line",
    params(("drop_id" = Uuid, Path)),
    responses((status = 200, description = "The line is rebuilt, or another process is rebuilding it", body = Rebuilt), (status = 404, description = "There is no such drop"))
)]
pub(super) async fn rebuild(
    Open(room): Open<Room>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
) -> Result<Json<Rebuilt>, Problem> {
    let drop = id("drop_id", &drop)?;
    let waiting = room.rebuild(drop).await.map_err(problem)?;
    tracing::warn!(%drop, actor, waiting, "rebuilt the line");
    Ok(Json(Rebuilt { waiting }))
}
