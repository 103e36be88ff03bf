//! What operators see of entitlements: the admin port's `/entitlements`.

use account::{AccountId, UserId};
use axum::Json;
use base::id::Uuid;
use base::{Code, Timestamp};
use db::RecordedRequest;
use http_server::{Problem, Query};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use service::{Open, OperatorRoute};

use crate::answer::{EntitlementView, HistoryEntry};
use crate::http::problem;
use crate::model::Holding;
use crate::store::{self, Found, Place, Which};
use crate::{Entitlements, Error, ListOptions};

/// How many are listed if nobody says, and at most.
const LISTED: u32 = 100;
const MOST: u32 = 1_000;

/// `/entitlements` (what a user or an account has), `/entitlements/history` (what happened) and `/entitlements/request` (what became of
/// the request with an idempotency key). All of them only read.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/entitlements", list),
        OperatorRoute::get("/entitlements/history", history),
        OperatorRoute::get("/entitlements/request", request),
    ]
}

#[derive(Deserialize)]
struct ListQuery {
    user_id: String,
    account_id: Option<String>,
    /// Only what the account has now.
    #[serde(default)]
    in_force: bool,
    /// The `next` of the page before.
    after: Option<String>,
    limit: Option<u32>,
}

#[derive(Deserialize)]
struct HistoryQuery {
    user_id: Option<String>,
    account_id: Option<String>,
    resource: Option<String>,
    /// What the shop calls the purchase or the refund.
    reference: Option<String>,
    /// The `next` of the page before.
    after: Option<String>,
    limit: Option<u32>,
}

#[derive(Deserialize)]
struct RequestQuery {
    caller: String,
    key: String,
}

#[derive(Serialize)]
struct Listed {
    entitlements: Vec<EntitlementView>,
    /// Where the next page begins, if there is one: give it as `after`.
    next: Option<String>,
}

#[derive(Serialize)]
struct Entries {
    entries: Vec<FoundEntry>,
    /// Where the next page begins, if there is one: give it as `after`.
    next: Option<String>,
}

/// An entry of a history, and whose it is.
#[derive(Serialize)]
struct FoundEntry {
    user_id: String,
    account_id: String,
    resource: String,
    #[serde(flatten)]
    entry: HistoryEntry,
}

impl Entitlements {
    /// What all accounts of a user have or had, in the order of accounts and resources, from behind one of them.
    async fn list_of_user(
        &self,
        user: UserId,
        behind: (Uuid, &str),
        limit: u32,
    ) -> Result<Vec<EntitlementView>, Error> {
        let found = self.db().bounded(async {
            let mut connection = self.db().connection().await?;
            store::list_of_user(&mut connection, user, behind, limit).await
        });
        let (found, now) = (found.await?, self.now());
        Ok(found.iter().map(|(holding, found)| EntitlementView::new(holding, found, now)).collect())
    }

    /// What happened, the newest first, behind a place.
    async fn search(&self, which: &Which, behind: &Place, limit: u32) -> Result<Vec<Found>, Error> {
        let found = self.db().bounded(async {
            let mut connection = self.db().connection().await?;
            store::search(&mut connection, which, behind, limit).await
        });
        Ok(found.await?)
    }
}

async fn list(
    Open(entitlements): Open<Entitlements>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Listed>, Problem> {
    let user: UserId = id("user_id", &query.user_id)?;
    let limit = query.limit.unwrap_or(LISTED).clamp(1, MOST);
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
    Ok(Json(Listed { entitlements: found, next }))
}

async fn history(
    Open(entitlements): Open<Entitlements>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<Entries>, Problem> {
    let which = which(&query)?;
    let behind = match cursor::<(i64, Uuid, Uuid, String, i64)>(query.after.as_deref())? {
        None => Place::first(),
        Some((recorded_at, user, account, resource, entry)) => {
            let (user, account) = (UserId::from_uuid(user), AccountId::from_uuid(account));
            let holding = Holding { user, account, resource };
            Place { recorded_at: Timestamp::from_millis(recorded_at), holding, entry }
        }
    };
    let limit = query.limit.unwrap_or(LISTED).clamp(1, MOST);
    let found = entitlements.search(&which, &behind, limit).await.map_err(problem)?;
    let next = found.last().filter(|_| found.len() as u32 == limit).map(|Found { holding, entry }| {
        let (user, account) = (holding.user.to_string(), holding.account.to_string());
        json!([entry.recorded_at.as_millis(), user, account, holding.resource, entry.entry]).to_string()
    });
    let entry = |Found { holding, entry }| FoundEntry {
        user_id: holding.user.to_string(),
        account_id: holding.account.to_string(),
        resource: holding.resource,
        entry: HistoryEntry::new(entry),
    };
    Ok(Json(Entries { entries: found.into_iter().map(entry).collect(), next }))
}

fn which(query: &HistoryQuery) -> Result<Which, Problem> {
    let user = query.user_id.as_deref().map(|user| id("user_id", user)).transpose()?;
    let account = query.account_id.as_deref().map(|account| id("account_id", account)).transpose()?;
    match (user, account, query.resource.clone(), query.reference.clone()) {
        (None, None, None, Some(reference)) => Ok(Which::Reference(reference)),
        (Some(user), None, None, None) => Ok(Which::User(user)),
        (Some(user), Some(account), None, None) => Ok(Which::Account(user, account)),
        (Some(user), Some(account), Some(resource), None) => {
            Ok(Which::Resource(Holding { user, account, resource }))
        }
        _ => Err(invalid(
            "Say which history: that of a user_id, of one account_id of theirs, of one resource in it, or only the reference of a purchase.",
        )),
    }
}

async fn request(
    Open(entitlements): Open<Entitlements>,
    Query(RequestQuery { caller, key }): Query<RequestQuery>,
) -> Result<Json<Value>, Problem> {
    let found = entitlements.db().recorded_request(&caller, &key).await;
    let found = found.map_err(|error| problem(error.into()))?;
    let Some(RecordedRequest { user, answer, recorded_at }) = found else {
        let detail = format!(
            "No request of {caller} with this key was done: it never arrived, was refused, or is older than \
             entitlement.idempotency_retention."
        );
        return Err(Problem::new(Code::NotFound).detail(detail));
    };
    let results = serde_json::from_str::<Value>(&answer).ok();
    Ok(Json(json!({
        "caller": caller, "key": key, "user_id": user.to_string(), "recorded_at": recorded_at.to_rfc3339(), "results": results,
    })))
}

/// Reads where a page begins: the `next` of the page before.
fn cursor<T: for<'de> Deserialize<'de>>(text: Option<&str>) -> Result<Option<T>, Problem> {
    let bad = |_| invalid("after is the `next` of an earlier answer.");
    text.map(|text| serde_json::from_str(text).map_err(bad)).transpose()
}

fn id<T: std::str::FromStr>(field: &str, text: &str) -> Result<T, Problem> {
    text.parse().map_err(|_| invalid(format!("{field} is not an id of ours: a UUID is expected.")))
}

fn invalid(detail: impl Into<String>) -> Problem {
    Problem::new(Code::InvalidArgument).detail(detail)
}
