//! The admin API of entitlements: `/entitlements`.

use account::UserId;
use axum::Json;
use base::Code;
use base::id::Uuid;
use db::RecordedRequest;
use http_server::{JsonBody, Problem, Query};
use screens::{FieldKind, FormField, Operation};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use service::{Open, Operator, OperatorRoute};

use crate::console::EntitlementConsole;
use crate::http::{problem, time};
use crate::model::{Action, Change, Holding};
use crate::response::{EntitlementView, HistoryEntry};
use crate::store::{self, FoundRecord, HistoryCursor, HistoryFilter};
use crate::{Entitlements, Error, ListOptions};

/// The default number of listed items.
const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1_000;

const GRANT: Operation = Operation::new(
    "Grant",
    "The account owns the resource, or more of it, and the player is notified. Revoke it to undo this.",
    "playhouse entitlements grant --account {account_id} --resource {resource} [--quantity {quantity}] \
     [--valid-until {valid_until}] [--reason {reason}] [--idempotency-key {idempotency_key}]",
)
.fields(&[
    ACCOUNT,
    RESOURCE,
    FormField::body("quantity", "Quantity", FieldKind::Number).optional().hint("Only for counted resources"),
    FormField::body("valid_until", "Valid until", FieldKind::Text)
        .optional()
        .hint("2027-01-31T12:00:00Z; empty: it does not end"),
    REASON,
    KEY,
]);

const REVOKE: Operation = Operation::new(
    "Revoke",
    "The account loses the resource, or the given quantity of it, and the player is notified. Grant it again to undo this.",
    "playhouse entitlements revoke --account {account_id} --resource {resource} [--quantity {quantity}] [--reason {reason}] \
     [--idempotency-key {idempotency_key}]",
)
.dangerous()
.fields(&[
    ACCOUNT,
    RESOURCE,
    FormField::body("quantity", "Quantity", FieldKind::Number)
        .optional()
        .hint("Only for counted resources; empty: everything"),
    REASON,
    KEY,
]);

const ACCOUNT: FormField =
    FormField::body("account_id", "Account", FieldKind::Text).hint("The id of the account, a UUID");
const RESOURCE: FormField = FormField::body("resource", "Resource", FieldKind::Text).hint("skin-dragon");
const REASON: FormField = FormField::body("reason", "Reason", FieldKind::Text)
    .optional()
    .hint("The reference in the history, such as a support case");
const KEY: FormField = FormField::body("idempotency_key", "Idempotency key", FieldKind::Hidden).optional();

/// Returns the routes: `/entitlements` (of a user or an account), `/entitlements/history` (their changes) and `/entitlements/request`
/// (the recorded response of an idempotency key) only read. `/entitlements/grant` and `/entitlements/revoke` change.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/entitlements", list),
        OperatorRoute::get("/entitlements/history", history),
        OperatorRoute::get("/entitlements/request", request),
        OperatorRoute::post("/entitlements/grant", grant).operation(GRANT),
        OperatorRoute::post("/entitlements/revoke", revoke).operation(REVOKE),
    ]
}

#[derive(Deserialize)]
struct ListQuery {
    user_id: String,
    account_id: Option<String>,
    /// If `true`, only entitlements that are in force now.
    #[serde(default)]
    in_force: bool,
    /// The `next` of the previous page.
    after: Option<String>,
    limit: Option<u32>,
}

#[derive(Deserialize)]
struct HistoryQuery {
    user_id: Option<String>,
    account_id: Option<String>,
    resource: Option<String>,
    /// The shop's reference of the purchase or the refund.
    reference: Option<String>,
    /// The `next` of the previous page.
    after: Option<String>,
    limit: Option<u32>,
}

#[derive(Deserialize)]
struct RequestQuery {
    caller: String,
    key: String,
}

#[derive(Serialize)]
struct EntitlementPage {
    entitlements: Vec<EntitlementView>,
    /// The `after` of the next page, if there is one.
    next: Option<String>,
}

#[derive(Serialize)]
struct HistoryPage {
    entries: Vec<FoundEntry>,
    /// The `after` of the next page, if there is one.
    next: Option<String>,
}

/// An entry of a history, and its entitlement.
#[derive(Serialize)]
pub(crate) struct FoundEntry {
    user_id: String,
    account_id: String,
    resource: String,
    #[serde(flatten)]
    entry: HistoryEntry,
}

impl Entitlements {
    /// Lists the entitlements of all accounts of a user after an account and resource, by account and resource.
    pub(crate) async fn list_of_user(
        &self,
        user: UserId,
        after: (Uuid, &str),
        limit: u32,
    ) -> Result<Vec<EntitlementView>, Error> {
        let found = self.db().bounded(async {
            let mut connection = self.db().connection().await?;
            store::list_of_user(&mut connection, user, after, limit).await
        });
        let (found, now) = (found.await?, self.now());
        Ok(found.iter().map(|(holding, found)| EntitlementView::new(holding, found, now)).collect())
    }

    /// Lists the changes after a cursor, newest first.
    pub(crate) async fn search(
        &self,
        filter: &HistoryFilter,
        after: &HistoryCursor,
        limit: u32,
    ) -> Result<Vec<FoundRecord>, Error> {
        let found = self.db().bounded(async {
            let mut connection = self.db().connection().await?;
            store::search(&mut connection, filter, after, limit).await
        });
        Ok(found.await?)
    }
}

async fn list(
    Open(entitlements): Open<Entitlements>,
    Query(query): Query<ListQuery>,
) -> Result<Json<EntitlementPage>, Problem> {
    let user: UserId = id("user_id", &query.user_id)?;
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let after: (Uuid, String) = cursor(query.after.as_deref())?.unwrap_or_default();
    let found = match &query.account_id {
        Some(account) => {
            let options = ListOptions { in_force: query.in_force, after: after.1, limit };
            entitlements.list(user, id("account_id", account)?, &options).await
        }
        None => entitlements.list_of_user(user, (after.0, &after.1), limit).await,
    };
    let mut found = found.map_err(problem)?;
    let last = found.last().filter(|_| found.len() as u32 == limit);
    let next = last.map(|last| json!([last.account_id, last.resource]).to_string());
    found.retain(|entitlement| entitlement.in_force || !query.in_force);
    Ok(Json(EntitlementPage { entitlements: found, next }))
}

async fn history(
    Open(entitlements): Open<Entitlements>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<HistoryPage>, Problem> {
    let filter = filter(&query)?;
    let after = cursor(query.after.as_deref())?.map_or_else(HistoryCursor::first, HistoryCursor::from_parts);
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let found = entitlements.search(&filter, &after, limit).await.map_err(problem)?;
    let next = next_of(&found, limit);
    Ok(Json(HistoryPage { entries: found.into_iter().map(FoundEntry::new).collect(), next }))
}

/// Returns the `after` of the next page, if there is one.
pub(crate) fn next_of(page: &[FoundRecord], limit: u32) -> Option<String> {
    page.last().filter(|_| page.len() as u32 == limit).map(|FoundRecord { holding, record }| {
        let (user, account) = (holding.user.to_string(), holding.account.to_string());
        json!([record.recorded_at.as_millis(), user, account, holding.resource, record.entry]).to_string()
    })
}

impl FoundEntry {
    pub(crate) fn new(FoundRecord { holding, record }: FoundRecord) -> Self {
        Self {
            user_id: holding.user.to_string(),
            account_id: holding.account.to_string(),
            resource: holding.resource,
            entry: HistoryEntry::new(record),
        }
    }
}

fn filter(query: &HistoryQuery) -> Result<HistoryFilter, Problem> {
    let user = query.user_id.as_deref().map(|user| id("user_id", user)).transpose()?;
    let account = query.account_id.as_deref().map(|account| id("account_id", account)).transpose()?;
    match (user, account, query.resource.clone(), query.reference.clone()) {
        (None, None, None, Some(reference)) => Ok(HistoryFilter::Reference(reference)),
        (Some(user), None, None, None) => Ok(HistoryFilter::User(user)),
        (Some(user), Some(account), None, None) => Ok(HistoryFilter::Account(user, account)),
        (Some(user), Some(account), Some(resource), None) => {
            Ok(HistoryFilter::Resource(Holding { user, account, resource }))
        }
        _ => Err(invalid("Set user_id, optionally with account_id and resource, or set only reference.")),
    }
}

async fn request(
    Open(entitlements): Open<Entitlements>,
    Query(RequestQuery { caller, key }): Query<RequestQuery>,
) -> Result<Json<Value>, Problem> {
    let found = entitlements.db().recorded_request(&caller, &key).await;
    let found = found.map_err(|error| problem(error.into()))?;
    let Some(RecordedRequest { user, response, recorded_at }) = found else {
        let detail = format!(
            "{caller} has applied no request with this key: it never arrived, was refused, or is older than \
             service_api.idempotency_retention."
        );
        return Err(Problem::new(Code::NotFound).detail(detail));
    };
    let results = serde_json::from_str::<Value>(&response).ok();
    Ok(Json(json!({
        "caller": caller, "key": key, "user_id": user.to_string(), "recorded_at": recorded_at.to_rfc3339(), "results": results,
    })))
}

/// A grant or revoke by an operator.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeRequest {
    account_id: String,
    resource: String,
    #[serde(default)]
    quantity: Option<i64>,
    /// Only for a grant.
    #[serde(default)]
    valid_until: Option<String>,
    /// The reference in the history.
    #[serde(default)]
    reason: Option<String>,
    /// A repeated request with the same key is refused or gets the recorded response. If absent, each request is applied.
    #[serde(default)]
    idempotency_key: Option<String>,
}

async fn grant(
    operator: Operator,
    Open(console): Open<EntitlementConsole>,
    JsonBody(request): JsonBody<ChangeRequest>,
) -> Result<Json<Value>, Problem> {
    let valid_until = request.valid_until.as_deref().map(|text| time("valid_until", text)).transpose()?;
    let action = Action::Grant { quantity: request.quantity, valid_until };
    apply(&operator, &console, action, request).await
}

async fn revoke(
    operator: Operator,
    Open(console): Open<EntitlementConsole>,
    JsonBody(request): JsonBody<ChangeRequest>,
) -> Result<Json<Value>, Problem> {
    if request.valid_until.is_some() {
        return Err(invalid("valid_until is only for a grant."));
    }
    let action = Action::Revoke { quantity: request.quantity };
    apply(&operator, &console, action, request).await
}

async fn apply(
    operator: &Operator,
    console: &EntitlementConsole,
    action: Action,
    request: ChangeRequest,
) -> Result<Json<Value>, Problem> {
    let (user, account) = console.owner(&request.account_id).await?;
    let holding = Holding { user, account, resource: request.resource };
    let entitlements = &console.entitlements;
    let change = Change { holding, action, occurred_at: entitlements.now(), reference: request.reason };
    let caller = format!("operator/{}", operator.name);
    let key = request.idempotency_key.unwrap_or_else(|| Uuid::now_v7().to_string());
    let response = entitlements.apply(&caller, &key, &[change]).await.map_err(problem)?;
    let results = response.results().map_err(|error| problem(error.into()))?;
    Ok(Json(results.into_iter().next().unwrap_or_default()))
}

/// Parses the `after` of a page: the `next` of the previous page.
pub(crate) fn cursor<T: for<'de> Deserialize<'de>>(text: Option<&str>) -> Result<Option<T>, Problem> {
    let bad = |_| invalid("after must be the `next` of an earlier response.");
    text.map(|text| serde_json::from_str(text).map_err(bad)).transpose()
}

fn id<T: std::str::FromStr>(field: &str, text: &str) -> Result<T, Problem> {
    text.parse().map_err(|_| invalid(format!("{field} must be a UUID.")))
}

fn invalid(detail: impl Into<String>) -> Problem {
    Problem::new(Code::InvalidArgument).detail(detail)
}
