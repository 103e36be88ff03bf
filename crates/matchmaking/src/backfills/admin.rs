//! The admin API's `/backfills`: shows backfills and the tickets that wait for their game servers.

use axum::Json;
use axum::extract::{Path, Query};
use base::Timestamp;
use http_server::Problem;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use service::{Open, OperatorRoute};

use super::{not_found, parse};
use crate::admin::{MatchmakingAdmin, problem};
use crate::error::Error;
use crate::model::BackfillId;
use crate::store::{BackfillStatus, Room};
use crate::wire;

/// The default number of listed backfills.
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1_000;

/// A backfill, as operators see it.
#[derive(Clone, Debug, Serialize)]
struct BackfillReport {
    id: String,
    state: BackfillState,
    generation: i64,
    /// Seconds since the last acknowledgement of its game server.
    #[serde(skip_serializing_if = "Option::is_none")]
    acknowledged_seconds_ago: Option<f64>,
    /// The tickets that wait for the game server.
    waiting: Vec<String>,
    /// The profile that fills it, and how many more players it takes. Absent from backfills of Directors.
    #[serde(skip_serializing_if = "Option::is_none")]
    match_profile: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    open: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backfill: Option<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum BackfillState {
    Live,
    /// The game server did not acknowledge it in time. The next clean-up deletes it.
    Expired,
}

impl BackfillReport {
    fn new(id: &BackfillId, status: BackfillStatus, now: Timestamp) -> Self {
        let room = status.data.room.as_deref();
        let ago = |at: Timestamp| now.distance(at).as_secs_f64();
        Self {
            id: id.to_string(),
            state: if status.is_expired { BackfillState::Expired } else { BackfillState::Live },
            generation: status.data.generation,
            acknowledged_seconds_ago: status.acknowledged_at.map(ago),
            waiting: status.waiting.iter().map(ToString::to_string).collect(),
            match_profile: room.map(|room| room.origin.profile.clone()),
            open: room.map(Room::open),
            backfill: wire::backfill_from_parts(&status.data)
                .and_then(|backfill| serde_json::to_value(backfill).ok()),
        }
    }
}

/// Returns the routes: `/backfills` (list) and `/backfills/{backfill_id}`.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![OperatorRoute::get("/backfills", list), OperatorRoute::get("/backfills/{backfill_id}", show)]
}

#[derive(Deserialize)]
struct ListQuery {
    limit: Option<usize>,
}

async fn list(
    Open(admin): Open<MatchmakingAdmin>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Value>, Problem> {
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let (ids, count) = admin.store().list_backfills(limit).await.map_err(problem)?;
    let mut backfills = Vec::new();
    for id in &ids {
        if let Some(report) = find(&admin, id).await.map_err(problem)? {
            backfills.push(BackfillReport { backfill: None, ..report });
        }
    }
    Ok(Json(json!({ "backfills": backfills, "count": count })))
}

async fn show(
    Open(admin): Open<MatchmakingAdmin>,
    Path(id): Path<String>,
) -> Result<Json<BackfillReport>, Problem> {
    let id = parse(&id).map_err(problem)?;
    let report = find(&admin, &id).await.map_err(problem)?;
    report.map(Json).ok_or_else(|| problem(not_found(&id)))
}

async fn find(admin: &MatchmakingAdmin, id: &BackfillId) -> Result<Option<BackfillReport>, Error> {
    let status = admin.store().backfill_status(id).await?;
    Ok(status.map(|status| BackfillReport::new(id, status, admin.clock().now())))
}
