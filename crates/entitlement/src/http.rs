//! The service API of entitlements.

use account::{AccountId, UserId};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use base::error::{Coded, chain};
use base::{Code, Timestamp};
use http_server::{Body, Caller, Problem, Query, Right, answered_before, idempotency_key};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, IntoResponses, OpenApi, ToSchema};

use crate::answer::{Answer, Applied, EntitlementView, HistoryEntry};
use crate::model::{Action, Change, Holding};
use crate::wiring::RIGHT;
use crate::{Entitlements, Error, ListOptions};

const LISTED: u32 = 100;
const MOST: u32 = 1_000;

/// The description of these routes.
#[derive(Debug, OpenApi)]
#[openapi(
    paths(grant, revoke, batch, list, show, history),
    tags((name = "entitlements", description = "What accounts own: granted and revoked by shops."))
)]
pub struct Api;

/// Everything below `/internal/v1`.
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

/// A purchase, or another reason to have something.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Grant {
    user_id: String,
    account_id: String,
    /// What is granted; 1 to 255 characters.
    resource: String,
    /// When it happened at the shop, as RFC 3339. Of changes that arrive in the wrong order, the newest one counts.
    occurred_at: String,
    /// For what is counted: how many are added.
    #[serde(default)]
    quantity: Option<i64>,
    /// When it ends by itself, as RFC 3339.
    #[serde(default)]
    valid_until: Option<String>,
    /// What it is called at the shop.
    #[serde(default)]
    reference: Option<String>,
}

/// A refund, or another reason to have something no longer.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Revoke {
    user_id: String,
    account_id: String,
    /// What is revoked; 1 to 255 characters.
    resource: String,
    /// When it happened at the shop, as RFC 3339.
    occurred_at: String,
    /// For what is counted: how many are taken back. Without it, all.
    #[serde(default)]
    quantity: Option<i64>,
    /// What it is called at the shop.
    #[serde(default)]
    reference: Option<String>,
}

/// Changes that are made together, or not at all.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Batch {
    /// 1 to 100, applied in this order.
    changes: Vec<BatchChange>,
}

#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(tag = "action", rename_all = "snake_case")]
enum BatchChange {
    Grant(Grant),
    Revoke(Revoke),
}

#[derive(Clone, Debug, Serialize, ToSchema)]
struct BatchAnswer {
    /// One per change, in their order.
    results: Vec<Applied>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
struct EntitlementList {
    entitlements: Vec<EntitlementView>,
    /// Where the next page begins, if there is one: give it as `after`.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
struct History {
    entries: Vec<HistoryEntry>,
    /// Where the next page begins, if there is one: give it as `before`.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<i64>,
}

/// Why changes are not made.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "it is for the description only")]
enum Refusal {
    /// The request is not valid
    #[response(status = 400)]
    Invalid,
    /// There is no such account
    #[response(status = 404)]
    NoAccount,
    /// The same or another change is still being made; or counted and uncounted do not mix
    #[response(status = 409)]
    StillRunning,
    /// The key was used for another request
    #[response(status = 422)]
    KeyReused,
}

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// `true`: only what the account has now.
    #[serde(default)]
    in_force: bool,
    /// From behind this resource.
    #[serde(default)]
    after: String,
    /// How many at most; 100 if not given, 1,000 at most.
    limit: Option<u32>,
}

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct HistoryQuery {
    /// From before this entry.
    before: Option<i64>,
    /// How many at most; 100 if not given, 1,000 at most.
    limit: Option<u32>,
}

/// Grant something to an account.
#[utoipa::path(
    post, path = "/internal/v1/entitlements/grant", tag = "entitlements",
    params(("Idempotency-Key" = String, Header, description = "The request's own key, such as the id of the purchase. The same \
        request sent again under it is answered as before and does nothing.")),
    request_body = Grant,
    responses(
        (status = 200, description = "Done, or answered as before", body = Applied),
        Refusal,
    )
)]
async fn grant(
    State(entitlements): State<Entitlements>,
    caller: Caller,
    headers: HeaderMap,
    Body(grant): Body<Grant>,
) -> Result<Response, Problem> {
    let answer = apply(&entitlements, &caller, &headers, vec![grant.change()?]).await?;
    one(&answer)
}

/// Revoke something that an account has, or may come to have by a grant that is older.
#[utoipa::path(
    post, path = "/internal/v1/entitlements/revoke", tag = "entitlements",
    params(("Idempotency-Key" = String, Header, description = "The request's own key, such as the id of the refund.")),
    request_body = Revoke,
    responses(
        (status = 200, description = "Done, or answered as before", body = Applied),
        Refusal,
    )
)]
async fn revoke(
    State(entitlements): State<Entitlements>,
    caller: Caller,
    headers: HeaderMap,
    Body(revoke): Body<Revoke>,
) -> Result<Response, Problem> {
    let answer = apply(&entitlements, &caller, &headers, vec![revoke.change()?]).await?;
    one(&answer)
}

/// Grant and revoke several things, all or nothing.
#[utoipa::path(
    post, path = "/internal/v1/entitlements/batch", tag = "entitlements",
    params(("Idempotency-Key" = String, Header, description = "The request's own key; one for all its changes.")),
    request_body = Batch,
    responses(
        (status = 200, description = "Done, or answered as before", body = BatchAnswer),
        Refusal,
    )
)]
async fn batch(
    State(entitlements): State<Entitlements>,
    caller: Caller,
    headers: HeaderMap,
    Body(batch): Body<Batch>,
) -> Result<Response, Problem> {
    let change = |change: BatchChange| match change {
        BatchChange::Grant(grant) => grant.change(),
        BatchChange::Revoke(revoke) => revoke.change(),
    };
    let changes = batch.changes.into_iter().map(change).collect::<Result<_, _>>()?;
    let answer = apply(&entitlements, &caller, &headers, changes).await?;
    Ok(json(&answer, format!("{{\"results\":{}}}", answer.text())))
}

/// What an account has, or had.
#[utoipa::path(
    get, path = "/internal/v1/users/{user_id}/accounts/{account_id}/entitlements", tag = "entitlements",
    params(("user_id" = String, Path), ("account_id" = String, Path), ListQuery),
    responses((status = 200, description = "In the order of their resources", body = EntitlementList))
)]
async fn list(
    State(entitlements): State<Entitlements>,
    caller: Caller,
    Path((user, account)): Path<(String, String)>,
    Query(query): Query<ListQuery>,
) -> Result<Json<EntitlementList>, Problem> {
    caller.require(Right::READ)?;
    let (user, account) = ids(&user, &account)?;
    let limit = query.limit.unwrap_or(LISTED).clamp(1, MOST);
    let options = ListOptions { in_force: query.in_force, after: query.after, limit };
    let found = entitlements.list(user, account, &options).await.map_err(problem)?;
    let next = found.last().filter(|_| found.len() as u32 == limit).map(|last| last.resource.clone());
    Ok(Json(EntitlementList { entitlements: found, next }))
}

/// One entitlement.
#[utoipa::path(
    get, path = "/internal/v1/users/{user_id}/accounts/{account_id}/entitlements/{resource}", tag = "entitlements",
    params(("user_id" = String, Path), ("account_id" = String, Path), ("resource" = String, Path)),
    responses(
        (status = 200, description = "As it is", body = EntitlementView),
        (status = 404, description = "The account never had it"),
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

/// Everything that was sent about one entitlement, the newest first.
#[utoipa::path(
    get, path = "/internal/v1/users/{user_id}/accounts/{account_id}/entitlements/{resource}/history", tag = "entitlements",
    params(("user_id" = String, Path), ("account_id" = String, Path), ("resource" = String, Path), HistoryQuery),
    responses((status = 200, description = "What was applied, and what was superseded", body = History))
)]
async fn history(
    State(entitlements): State<Entitlements>,
    caller: Caller,
    Path((user, account, resource)): Path<(String, String, String)>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<History>, Problem> {
    caller.require(Right::READ)?;
    let holding = holding(&user, &account, resource)?;
    let limit = query.limit.unwrap_or(LISTED).clamp(1, MOST);
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

fn holding(user: &str, account: &str, resource: String) -> Result<Holding, Problem> {
    let (user, account) = ids(user, account)?;
    Ok(Holding { user, account, resource })
}

async fn apply(
    entitlements: &Entitlements,
    caller: &Caller,
    headers: &HeaderMap,
    changes: Vec<Change>,
) -> Result<Answer, Problem> {
    caller.require(RIGHT)?;
    let key = idempotency_key(headers)?;
    entitlements.apply(caller.name(), key, &changes).await.map_err(problem)
}

/// The answer to a request with one change.
fn one(answer: &Answer) -> Result<Response, Problem> {
    let results = answer.results().map_err(|error| problem(error.into()))?;
    let text = results.first().map(ToString::to_string).unwrap_or_default();
    Ok(json(answer, text))
}

fn json(answer: &Answer, text: String) -> Response {
    let response = ([(header::CONTENT_TYPE, "application/json")], text).into_response();
    answered_before(response, answer.is_replayed())
}

fn ids(user: &str, account: &str) -> Result<(UserId, AccountId), Problem> {
    let bad = |field: &str| {
        Problem::new(Code::InvalidArgument)
            .detail(format!("{field} is not an id of ours: a UUID is expected."))
    };
    Ok((user.parse().map_err(|_| bad("user_id"))?, account.parse().map_err(|_| bad("account_id"))?))
}

fn time(field: &str, text: &str) -> Result<Timestamp, Problem> {
    text.parse().map_err(|error: base::NotATime| {
        Problem::new(Code::InvalidArgument).detail(format!("{field} is {error}."))
    })
}

/// What a caller is told. What happened inside is logged here, once.
pub(crate) fn problem(error: Error) -> Problem {
    let code = error.code();
    match code {
        Code::Internal => {
            tracing::error!(cause = chain(&error), "an entitlement could not be read or changed");
            Problem::new(code)
        }
        Code::Unavailable | Code::Timeout => {
            tracing::warn!(
                outage = "entitlements",
                cause = chain(&error),
                "an entitlement could not be read or changed"
            );
            Problem::new(code)
        }
        _ => Problem::new(code).detail(error.to_string()),
    }
}
