//! The stock endpoint: polling and long polling.

use std::time::Duration;

use ::service::Open;
use axum::{Extension, Json};
use http_server::{Connection, Problem, Query};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use utoipa::{IntoParams, ToSchema};

use super::{PathIds, PlayerApi};
use crate::error::Error;
use crate::problem::problem;
use crate::stock::Snapshot;

/// The longest long poll.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(30);

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct StockQuery {
    /// Wait for a newer version than this one.
    after: Option<i64>,
    /// How many seconds to wait, up to 30. Without it the response is immediate.
    #[param(minimum = 0, maximum = 30)]
    wait: Option<u64>,
}

/// The counts of a drop's stock.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct StockAnswer {
    /// Increases with every change.
    version: i64,
    /// All units.
    total: i64,
    available: i64,
    /// Held for players who have not paid yet. Some of these units become available again.
    reserved: i64,
    sold: i64,
}

impl StockAnswer {
    pub(super) const fn new(snapshot: &Snapshot) -> Self {
        let Snapshot { version, total, available, reserved, sold, .. } = *snapshot;
        Self { version, total, available, reserved, sold }
    }
}

/// The stock
///
/// With `after` and `wait` it is a long poll: the response comes as soon as there is a newer version, or after the wait.
#[utoipa::path(
    get, path = "/v1/drops/{drop_id}/stock", operation_id = "drop_stock", tag = "drops", params(("drop_id" = String, Path), StockQuery),
    responses(
        (status = 200, description = "The newest counts", body = StockAnswer),
        (status = 400, description = "`wait` is more than 30 (`drops:invalid`)"),
        (status = 404, description = "There is no such drop"),
    )
)]
pub(super) async fn stock(
    ids: PathIds,
    Open(api): Open<PlayerApi>,
    Extension(connection): Extension<Connection>,
    Query(query): Query<StockQuery>,
) -> Result<Json<StockAnswer>, Problem> {
    let wait = Duration::from_secs(query.wait.unwrap_or(0));
    if wait > MAX_WAIT {
        let what = format!("must be 0 to {} seconds", MAX_WAIT.as_secs());
        return Err(problem(Error::Invalid { field: "wait", what }));
    }
    let drop = api.visible(&ids).await?;
    let mut watch = api.feed.watch(drop.id).await.map_err(problem)?;
    if let Some(after) = query.after
        && !wait.is_zero()
    {
        tokio::select! {
            _ = timeout(wait, watch.newer_than(after)) => {}
            // The process is stopping: the client polls another one.
            () = connection.drain().requested() => {}
        }
    }
    Ok(Json(StockAnswer::new(&watch.current())))
}
