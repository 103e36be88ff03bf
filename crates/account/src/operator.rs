//! What operators see of users: the admin port's `/users`.

use axum::Json;
use base::Code;
use http_server::{Problem, Query};
use serde::{Deserialize, Serialize};
use service::{Open, OperatorRoute};

use crate::http::{AccountsAnswer, AuditAnswer, OfUser, UserAnswer, problem};
use crate::{Accounts, LinkedIdentity, UserId};

/// How many users are listed if nobody says, and at most.
const LISTED: u32 = 100;
const MOST: u32 = 1_000;
/// How much of a user's audit log is shown with them.
const RECORDS: u32 = 20;

/// `/users` (find) and `/users/{user_id}`. Both only read.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![OperatorRoute::get("/users", find), OperatorRoute::get("/users/{user_id}", show)]
}

#[derive(Deserialize)]
struct FindQuery {
    /// A user's id, the id of an account, a subject or a display name.
    find: Option<String>,
    /// The last user of the page before.
    after: Option<String>,
    limit: Option<u32>,
}

#[derive(Serialize)]
struct Found {
    users: Vec<UserAnswer>,
    /// Where the next page begins, if there is one: give it as `after`.
    next: Option<String>,
}

/// A user with everything that accounts know of them.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    user: UserAnswer,
    identities: Vec<IdentityAnswer>,
    #[serde(flatten)]
    accounts: AccountsAnswer,
    /// The last changes.
    audit: AuditAnswer,
}

#[derive(Serialize)]
struct IdentityAnswer {
    issuer: String,
    subject: String,
    linked_at: String,
}

async fn find(
    Open(accounts): Open<Accounts>,
    Query(query): Query<FindQuery>,
) -> Result<Json<Found>, Problem> {
    let text = query.find.as_deref().map(str::trim).filter(|text| !text.is_empty());
    let text = text.ok_or_else(|| {
        invalid("Say which user to find: by a user id, an account id, what the issuer calls them, or a display name.")
    })?;
    let after = query.after.as_deref().map(|after| {
        after.parse::<UserId>().map_err(|_| invalid("after is the `next` of an earlier answer."))
    });
    let limit = query.limit.unwrap_or(LISTED).clamp(1, MOST);
    let users = accounts.search(text, after.transpose()?, limit).await.map_err(problem)?;
    let next = users.last().filter(|_| users.len() as u32 == limit).map(|last| last.id.to_string());
    Ok(Json(Found { users: users.into_iter().map(Into::into).collect(), next }))
}

async fn show(Open(accounts): Open<Accounts>, OfUser(user): OfUser) -> Result<Json<Shown>, Problem> {
    let view = accounts.user(user).await.map_err(problem)?;
    let identities = accounts.identities(user).await.map_err(problem)?;
    let answer = |identity: LinkedIdentity| IdentityAnswer {
        issuer: identity.issuer,
        subject: identity.subject,
        linked_at: identity.linked_at.to_rfc3339(),
    };
    Ok(Json(Shown {
        user: view.into(),
        identities: identities.into_iter().map(answer).collect(),
        accounts: accounts.accounts(user).await.map_err(problem)?.into(),
        audit: accounts.audit(user, RECORDS).await.map_err(problem)?.into(),
    }))
}

fn invalid(detail: &str) -> Problem {
    Problem::new(Code::InvalidArgument).detail(detail)
}
