//! The caller, their accounts and their entitlements.

use account::{Account, Role};
use axum::Json;
use axum::extract::State;
use base::Code;
use base::id::Uuid;
use entitlement::{EntitlementView, ListOptions};
use http_server::{Problem, Query};
use serde::{Deserialize, Serialize};
use sessions::{Caller, Proof};
use utoipa::{IntoParams, ToSchema};

use super::sign_in::logout_url;
use super::{DEFAULT_LIMIT, MAX_LIMIT, failed};
use crate::Gateway;

/// The signed-in user.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Me {
    user_id: Uuid,
    #[schema(example = "Ada")]
    display_name: Option<String>,
    roles: Vec<Role>,
    /// Sorted by age, the oldest first.
    accounts: Vec<PlayerAccount>,
    /// Only for browsers.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<SessionAnswer>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionAnswer {
    /// When the session expires; RFC 3339.
    #[schema(format = DateTime)]
    ends_at: String,
    /// The link that ends this session, and only this one.
    #[schema(example = "/logout?session=0123456789abcdef")]
    logout_url: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PlayerAccount {
    account_id: Uuid,
    #[schema(example = "default")]
    name: String,
    /// RFC 3339.
    #[schema(format = DateTime)]
    created_at: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PlayerAccounts {
    /// Sorted by age, the oldest first.
    accounts: Vec<PlayerAccount>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PlayerEntitlements {
    account_id: Uuid,
    /// Sorted by resource.
    entitlements: Vec<EntitlementView>,
    /// The start of the next page, if there is one: send it as `after`.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EntitlementsQuery {
    /// One of the caller's accounts; the oldest one by default.
    account_id: Option<Uuid>,
    /// Includes expired and revoked entitlements.
    #[serde(default)]
    #[param(required = false)]
    all: bool,
    /// Returns entitlements after this resource.
    #[serde(default)]
    #[param(max_length = 255, required = false)]
    after: String,
    /// The most entitlements to return: 1 to 1000, 100 by default.
    limit: Option<u32>,
}

/// Get the signed-in user
///
/// The first request of a user creates the user and a default account.
#[utoipa::path(
    get, path = "/v1/me", tag = "player",
    responses(
        (status = 200, description = "The caller", body = Me),
        (status = 400, description = "The version of the client is not valid"),
    )
)]
pub(super) async fn me(caller: Caller) -> Json<Me> {
    Json(Me::of(&caller))
}

/// List the caller's accounts
#[utoipa::path(
    get, path = "/v1/accounts", tag = "player",
    responses(
        (status = 200, description = "The accounts", body = PlayerAccounts),
        (status = 400, description = "The version of the client is not valid"),
    )
)]
pub(super) async fn accounts(caller: Caller) -> Json<PlayerAccounts> {
    Json(PlayerAccounts { accounts: caller.known.accounts.iter().map(PlayerAccount::of).collect() })
}

/// List the entitlements of an account
#[utoipa::path(
    get, path = "/v1/entitlements", tag = "player", params(EntitlementsQuery),
    responses(
        (status = 200, description = "A page of entitlements", body = PlayerEntitlements),
        (status = 400, description = "The query is not valid"),
        (status = 404, description = "The caller has no such account"),
    )
)]
pub(super) async fn entitlements(
    State(gateway): State<Gateway>,
    caller: Caller,
    Query(query): Query<EntitlementsQuery>,
) -> Result<Json<PlayerEntitlements>, Problem> {
    let wanted = |account: &&Account| query.account_id.is_none_or(|id| id == *account.id.as_uuid());
    let account = caller.known.accounts.iter().find(wanted).ok_or_else(|| {
        Problem::new(Code::NotFound).detail("You have no such account; /v1/accounts lists yours.")
    })?;
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let options = ListOptions { in_force: !query.all, after: query.after, limit };
    PlayerEntitlements::list(&gateway, &caller, account, &options).await.map(Json)
}

impl Me {
    pub(super) fn of(caller: &Caller) -> Self {
        let user = &caller.known.user;
        let session = match &caller.proof {
            Proof::Token { .. } => None,
            Proof::Session(id, session) => {
                Some(SessionAnswer { ends_at: session.ends_at().to_rfc3339(), logout_url: logout_url(id) })
            }
        };
        Self {
            user_id: *user.id.as_uuid(),
            display_name: user.display_name.clone(),
            roles: user.roles.clone(),
            accounts: caller.known.accounts.iter().map(PlayerAccount::of).collect(),
            session,
        }
    }
}

impl PlayerAccount {
    fn of(account: &Account) -> Self {
        Self {
            account_id: *account.id.as_uuid(),
            name: account.name.clone(),
            created_at: account.created_at.to_rfc3339(),
        }
    }
}

impl PlayerEntitlements {
    pub(super) async fn list(
        gateway: &Gateway,
        caller: &Caller,
        account: &Account,
        options: &ListOptions,
    ) -> Result<Self, Problem> {
        let found = gateway.entitlements.list(caller.user(), account.id, options).await;
        let found = found.map_err(|error| failed("entitlements", &error))?;
        let next =
            found.last().filter(|_| found.len() as u32 == options.limit).map(|last| last.resource.clone());
        Ok(Self { account_id: *account.id.as_uuid(), entitlements: found, next })
    }
}
