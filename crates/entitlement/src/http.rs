//! The service API of entitlements.

use account::{AccountId, UserId};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use base::error::{Coded, chain};
use base::{Code, Timestamp};
use http_server::{Caller, JsonBody, Problem, Query, Right, idempotency_key, mark_replayed};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, IntoResponses, OpenApi, ToSchema};

use crate::model::{Action, Change, Holding};
use crate::response::{ApplyResponse, ChangeResult, EntitlementView, HistoryEntry};
use crate::wiring::RIGHT;
use crate::{Entitlements, Error, ListOptions};

/// The default number of listed items.
const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1_000;

/// The OpenAPI document of these routes.
#[derive(Debug, OpenApi)]
#[openapi(
    paths(grant, revoke, batch, list, show, history),
    tags((name = "entitlements", description = "The resources that accounts own, granted and revoked by shops."))
)]
pub struct Api;

/// Returns the routes of the service API.
pub fn routes(entitlements: Entitlements) -> Router {
    const OF_ACCOUNT: &str = "/internal/v1/users/{user_id}/accounts/{account_id}/entitlements";
    Router::new()
        .route("/internal/v1/entitlements/grant", post(grant))
        .route("/internal/v1/entitlements/revoke", post(revoke))
        .route("/internal/v1/entitlements/batch", post(batch))
        .route(OF_ACCOUNT, get(list))
        .route(&format!("{OF_ACCOUNT}/{{resource}}"), get(show))
        .route(&format!("{OF_ACCOUNT}/{{resource}}/history"), get(history))
        .with_state(entitlements)
}

/// A grant, for example after a purchase.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Grant {
    #[schema(format = Uuid)]
    user_id: String,
    #[schema(format = Uuid)]
    account_id: String,
    /// The resource to grant; 1 to 255 characters.
    resource: String,
    /// When it happened at the shop, as RFC 3339. If changes arrive out of order, the newest one wins.
    #[schema(format = DateTime)]
    occurred_at: String,
    /// For counted entitlements: the quantity to add.
    #[serde(default)]
    quantity: Option<i64>,
    /// When it ends automatically, as RFC 3339.
    #[serde(default)]
    #[schema(format = DateTime)]
    valid_until: Option<String>,
    /// The shop's reference, such as the number of the order.
    #[serde(default)]
    reference: Option<String>,
}

/// A revoke, for example after a refund.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Revoke {
    #[schema(format = Uuid)]
    user_id: String,
    #[schema(format = Uuid)]
    account_id: String,
    /// The resource to revoke; 1 to 255 characters.
    resource: String,
    /// When it happened at the shop, as RFC 3339.
    #[schema(format = DateTime)]
    occurred_at: String,
    /// For counted entitlements: the quantity to revoke. If absent, everything.
    #[serde(default)]
    quantity: Option<i64>,
    /// The shop's reference, such as the number of the refund.
    #[serde(default)]
    reference: Option<String>,
}

/// Changes that are applied together or not at all.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Batch {
    /// 1 to 100, applied in this order.
    changes: Vec<BatchChange>,
}

/// A grant or a revoke.
// One type for both, because generated clients have no good form for a choice of types.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct BatchChange {
    action: ChangeAction,
    #[schema(format = Uuid)]
    user_id: String,
    #[schema(format = Uuid)]
    account_id: String,
    /// The resource to grant or revoke; 1 to 255 characters.
    resource: String,
    /// When it happened at the shop, as RFC 3339. If changes arrive out of order, the newest one wins.
    #[schema(format = DateTime)]
    occurred_at: String,
    /// For counted entitlements: the quantity to add or revoke. A revoke without it revokes everything.
    #[serde(default)]
    quantity: Option<i64>,
    /// When it ends automatically, as RFC 3339. Only for a grant.
    #[serde(default)]
    #[schema(format = DateTime)]
    valid_until: Option<String>,
    /// The shop's reference, such as the number of the order or of the refund.
    #[serde(default)]
    reference: Option<String>,
}

/// What a change of a batch does.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ChangeAction {
    Grant,
    Revoke,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = BatchResult)]
struct BatchResponse {
    /// One result per change, in the same order.
    results: Vec<ChangeResult>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
struct EntitlementList {
    entitlements: Vec<EntitlementView>,
    /// The `after` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = EntitlementHistory)]
struct History {
    entries: Vec<HistoryEntry>,
    /// The `before` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<i64>,
}

/// The refusals of changes.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "used only for the OpenAPI document")]
enum Refusal {
    /// The request is not valid
    #[response(status = 400)]
    Invalid,
    /// There is no such account
    #[response(status = 404)]
    NoAccount,
    /// Another change is still in progress, or a counted and an uncounted change do not mix
    #[response(status = 409)]
    StillRunning,
    /// The key was used for another request
    #[response(status = 422)]
    KeyReused,
}

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// If `true`, only entitlements that are in force now.
    #[serde(default)]
    in_force: bool,
    /// List resources after this one.
    #[serde(default)]
    after: String,
    /// How many at most; 100 if not given, 1,000 at most.
    limit: Option<u32>,
}

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct HistoryQuery {
    /// List entries before this one.
    before: Option<i64>,
    /// How many at most; 100 if not given, 1,000 at most.
    limit: Option<u32>,
}

/// Grant a resource to an account.
#[utoipa::path(
    post, path = "/internal/v1/entitlements/grant", tag = "entitlements", operation_id = "grant_entitlement",
    params(("Idempotency-Key" = String, Header, description = "A unique key of the request, such as the id of the purchase. A \
        repeated request with the same key gets the recorded response and changes nothing.")),
    request_body = Grant,
    responses(
        (status = 200, description = "Applied, or the recorded response", body = ChangeResult),
        Refusal,
    )
)]
async fn grant(
    State(entitlements): State<Entitlements>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(grant): JsonBody<Grant>,
) -> Result<Response, Problem> {
    let response = apply(&entitlements, &caller, &headers, vec![grant.change()?]).await?;
    single(&response)
}

/// Revoke a resource from an account. A grant that is older but arrives later has no effect.
#[utoipa::path(
    post, path = "/internal/v1/entitlements/revoke", tag = "entitlements", operation_id = "revoke_entitlement",
    params(("Idempotency-Key" = String, Header, description = "A unique key of the request, such as the id of the refund.")),
    request_body = Revoke,
    responses(
        (status = 200, description = "Applied, or the recorded response", body = ChangeResult),
        Refusal,
    )
)]
async fn revoke(
    State(entitlements): State<Entitlements>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(revoke): JsonBody<Revoke>,
) -> Result<Response, Problem> {
    let response = apply(&entitlements, &caller, &headers, vec![revoke.change()?]).await?;
    single(&response)
}

/// Grant and revoke several resources, all or nothing.
#[utoipa::path(
    post, path = "/internal/v1/entitlements/batch", tag = "entitlements", operation_id = "change_entitlements",
    params(("Idempotency-Key" = String, Header, description = "A unique key of the request, for all its changes.")),
    request_body = Batch,
    responses(
        (status = 200, description = "Applied, or the recorded response", body = BatchResponse),
        Refusal,
    )
)]
async fn batch(
    State(entitlements): State<Entitlements>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(batch): JsonBody<Batch>,
) -> Result<Response, Problem> {
    let changes = batch.changes.into_iter().map(BatchChange::change).collect::<Result<_, _>>()?;
    let response = apply(&entitlements, &caller, &headers, changes).await?;
    Ok(json(&response, format!("{{\"results\":{}}}", response.text())))
}

/// List the entitlements of an account, past ones included.
#[utoipa::path(
    get, path = "/internal/v1/users/{user_id}/accounts/{account_id}/entitlements", tag = "entitlements",
    operation_id = "list_entitlements",
    params(("user_id" = Uuid, Path), ("account_id" = Uuid, Path), ListQuery),
    responses((status = 200, description = "Ordered by resource", body = EntitlementList))
)]
async fn list(
    State(entitlements): State<Entitlements>,
    caller: Caller,
    Path((user, account)): Path<(String, String)>,
    Query(query): Query<ListQuery>,
) -> Result<Json<EntitlementList>, Problem> {
    caller.require(Right::READ)?;
    let (user, account) = ids(&user, &account)?;
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let options = ListOptions { in_force: query.in_force, after: query.after, limit };
    let found = entitlements.list(user, account, &options).await.map_err(problem)?;
    let next = found.last().filter(|_| found.len() as u32 == limit).map(|last| last.resource.clone());
    Ok(Json(EntitlementList { entitlements: found, next }))
}

/// Show one entitlement.
#[utoipa::path(
    get, path = "/internal/v1/users/{user_id}/accounts/{account_id}/entitlements/{resource}", tag = "entitlements",
    operation_id = "get_entitlement",
    params(("user_id" = Uuid, Path), ("account_id" = Uuid, Path), ("resource" = String, Path)),
    responses(
        (status = 200, description = "The current state", body = EntitlementView),
        (status = 404, description = "The account has never owned it"),
    )
)]
async fn show(
    State(entitlements): State<Entitlements>,
    caller: Caller,
    Path((user, account, resource)): Path<(String, String, String)>,
) -> Result<Json<EntitlementView>, Problem> {
    caller.require(Right::READ)?;
    let (user, account) = ids(&user, &account)?;
    let holding = Holding { user, account, resource };
    entitlements.get(&holding).await.map(Json).map_err(problem)
}

/// List all changes of one entitlement, newest first.
#[utoipa::path(
    get, path = "/internal/v1/users/{user_id}/accounts/{account_id}/entitlements/{resource}/history", tag = "entitlements",
    operation_id = "list_entitlement_history",
    params(("user_id" = Uuid, Path), ("account_id" = Uuid, Path), ("resource" = String, Path), HistoryQuery),
    responses((status = 200, description = "Applied and superseded changes", body = History))
)]
async fn history(
    State(entitlements): State<Entitlements>,
    caller: Caller,
    Path((user, account, resource)): Path<(String, String, String)>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<History>, Problem> {
    caller.require(Right::READ)?;
    let holding = holding(&user, &account, resource)?;
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let before = query.before.unwrap_or(i64::MAX);
    let entries = entitlements.history(&holding, before, limit).await.map_err(problem)?;
    let next = entries.last().filter(|_| entries.len() as u32 == limit).map(|last| last.entry);
    Ok(Json(History { entries, next }))
}

impl Grant {
    fn change(self) -> Result<Change, Problem> {
        let valid_until = self.valid_until.as_deref().map(|text| time("valid_until", text)).transpose()?;
        let action = Action::Grant { quantity: self.quantity, valid_until };
        let holding = holding(&self.user_id, &self.account_id, self.resource)?;
        let occurred_at = time("occurred_at", &self.occurred_at)?;
        Ok(Change { holding, action, occurred_at, reference: self.reference })
    }
}

impl Revoke {
    fn change(self) -> Result<Change, Problem> {
        let action = Action::Revoke { quantity: self.quantity };
        let holding = holding(&self.user_id, &self.account_id, self.resource)?;
        let occurred_at = time("occurred_at", &self.occurred_at)?;
        Ok(Change { holding, action, occurred_at, reference: self.reference })
    }
}

impl BatchChange {
    fn change(self) -> Result<Change, Problem> {
        let Self { action, user_id, account_id, resource, occurred_at, quantity, valid_until, reference } =
            self;
        match action {
            ChangeAction::Grant => {
                Grant { user_id, account_id, resource, occurred_at, quantity, valid_until, reference }
                    .change()
            }
            ChangeAction::Revoke if valid_until.is_some() => {
                let detail = "valid_until is only for a grant: leave it out of a revoke.";
                Err(Problem::new(Code::InvalidArgument).detail(detail))
            }
            ChangeAction::Revoke => {
                Revoke { user_id, account_id, resource, occurred_at, quantity, reference }.change()
            }
        }
    }
}

fn holding(user: &str, account: &str, resource: String) -> Result<Holding, Problem> {
    let (user, account) = ids(user, account)?;
    Ok(Holding { user, account, resource })
}

async fn apply(
    entitlements: &Entitlements,
    caller: &Caller,
    headers: &HeaderMap,
    changes: Vec<Change>,
) -> Result<ApplyResponse, Problem> {
    caller.require(RIGHT)?;
    let key = idempotency_key(headers)?;
    entitlements.apply(caller.name(), key, &changes).await.map_err(problem)
}

/// Builds the HTTP response to a request with one change.
fn single(response: &ApplyResponse) -> Result<Response, Problem> {
    let results = response.results().map_err(|error| problem(error.into()))?;
    let text = results.first().map(ToString::to_string).unwrap_or_default();
    Ok(json(response, text))
}

fn json(response: &ApplyResponse, text: String) -> Response {
    let body = ([(header::CONTENT_TYPE, "application/json")], text).into_response();
    mark_replayed(body, response.is_replayed())
}

fn ids(user: &str, account: &str) -> Result<(UserId, AccountId), Problem> {
    let bad = |field: &str| Problem::new(Code::InvalidArgument).detail(format!("{field} must be a UUID."));
    Ok((user.parse().map_err(|_| bad("user_id"))?, account.parse().map_err(|_| bad("account_id"))?))
}

pub(crate) fn time(field: &str, text: &str) -> Result<Timestamp, Problem> {
    text.parse().map_err(|error: base::InvalidTime| {
        Problem::new(Code::InvalidArgument).detail(format!("{field} is {error}."))
    })
}

/// Converts an error to the problem that the caller sees. Logs internal causes, which callers do not see.
pub(crate) fn problem(error: Error) -> Problem {
    let code = error.code();
    match code {
        Code::Internal => {
            tracing::error!(cause = chain(&error), "cannot read or change an entitlement");
            Problem::new(code)
        }
        Code::Unavailable | Code::Timeout => {
            tracing::warn!(
                outage = "entitlements",
                cause = chain(&error),
                "cannot read or change an entitlement"
            );
            Problem::new(code)
        }
        _ => Problem::new(code).detail(error.to_string()),
    }
}
