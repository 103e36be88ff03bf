//! The REST mapping of Open Match's HTTP gateway.

use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base::Code;
use base::error::Coded;
use buffa::Message;
use futures::StreamExt;
use http::header::CONTENT_TYPE;
use http_server::{Connection, Problem};
use proto::openmatch;
use serde_json::{Value, json};

use super::Frontend;
use super::grpc::BACKFILL;
use crate::error::Error;

pub(super) fn routes(frontend: Frontend) -> Router {
    let backfill = || async { Err::<(), _>(BACKFILL) };
    Router::new()
        .route("/v1/frontendservice/tickets", post(create))
        .route("/v1/frontendservice/tickets/{ticket_id}", get(read).delete(delete))
        .route("/v1/frontendservice/tickets/{ticket_id}/assignments", get(watch))
        .route("/v1/frontendservice/backfills", post(backfill).patch(backfill))
        .route("/v1/frontendservice/backfills/{backfill_id}", get(backfill).delete(backfill))
        .route("/v1/frontendservice/backfills/{backfill_id}/acknowledge", post(backfill))
        .with_state(frontend)
}

async fn create(State(frontend): State<Frontend>, body: Bytes) -> Result<Json<Value>, Error> {
    let request: openmatch::CreateTicketRequest = serde_json::from_slice(&body)
        .map_err(|error| Error::Invalid(format!("the body is not a CreateTicketRequest in JSON: {error}")))?;
    let data = frontend.create(request.ticket.into_option()).await?;
    to_json(&openmatch::Ticket::decode_from_slice(&data).unwrap_or_default()).map(Json)
}

async fn read(State(frontend): State<Frontend>, Path(id): Path<String>) -> Result<Json<Value>, Error> {
    to_json(&frontend.get(&id).await?).map(Json)
}

async fn delete(State(frontend): State<Frontend>, Path(id): Path<String>) -> Result<Json<Value>, Error> {
    frontend.delete(&id).await?;
    Ok(Json(json!({})))
}

/// Streams one JSON object per line: `{"result": …}`, and at the end `{"error": …}`.
async fn watch(
    State(frontend): State<Frontend>,
    Path(id): Path<String>,
    Extension(connection): Extension<Connection>,
) -> Result<Response, Error> {
    let assignments = frontend.watch(&id, &connection).await?;
    let lines = assignments.map(|assignment| {
        let line = match assignment {
            Ok(data) => {
                let result =
                    openmatch::WatchAssignmentsResponse::decode_from_slice(&data).unwrap_or_default();
                let result = to_json(&result);
                result.map_or_else(|error| failure(&error), |result| json!({ "result": result }))
            }
            Err(error) => {
                error.log();
                failure(&error)
            }
        };
        Ok::<_, std::convert::Infallible>(format!("{line}\n"))
    });
    Ok(([(CONTENT_TYPE, "application/json")], Body::from_stream(lines)).into_response())
}

/// Fails if an extension's value does not have the type that it claims.
fn to_json(message: &impl serde::Serialize) -> Result<Value, Error> {
    let not_json =
        |error| Error::Invalid(format!("this ticket cannot be shown as JSON; read it over gRPC: {error}"));
    serde_json::to_value(message).map_err(not_json)
}

fn failure(error: &Error) -> Value {
    json!({ "error": { "code": error.code().grpc_status(), "message": error.to_string() } })
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        self.log();
        Problem::new(self.code()).detail(self.to_string()).into_response()
    }
}

impl Error {
    /// Logs the cause of server-side errors. Mistakes of the caller are not logged.
    pub(crate) fn log(&self) {
        if self.code() == Code::Internal {
            tracing::error!(cause = base::error::chain(self), "A matchmaking request failed");
        } else if let Self::Store(_) = self {
            tracing::warn!(
                outage = "tickets",
                cause = base::error::chain(self),
                "The store of tickets does not answer"
            );
        }
    }
}
