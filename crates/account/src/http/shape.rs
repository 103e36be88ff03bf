//! What is sent and answered, as JSON.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use base::Code;
use base::id::Uuid;
use http_server::Problem;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::{Account, AuditRecord, Role, SignIn, SignedIn, UserId, UserState, UserView};

/// The user whom the path names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfUser(pub(crate) UserId);

impl<S: Send + Sync> FromRequestParts<S> for OfUser {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let named = Path::<String>::from_request_parts(parts, state).await.ok();
        let user = named.and_then(|Path(text)| text.parse().ok());
        let detail = "The path must name a user by their id, which is a UUID.";
        user.map(Self).ok_or_else(|| Problem::new(Code::InvalidArgument).detail(detail))
    }
}

/// What an identity provider says of somebody who has just signed in.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignInRequest {
    #[schema(min_length = 1, max_length = 500, example = "https://id.example.com")]
    issuer: String,
    #[schema(min_length = 1, max_length = 255)]
    subject: String,
    /// Without it the user's name stays as it is.
    #[serde(default)]
    #[schema(max_length = 100)]
    display_name: Option<String>,
    /// Those that the claims give; none makes a player.
    #[serde(default)]
    roles: Vec<Role>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct SignInAnswer {
    user: UserAnswer,
    /// Whether it was the first sign-in, which made the user.
    created: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct UserAnswer {
    user_id: Uuid,
    state: UserState,
    display_name: Option<String>,
    roles: Vec<Role>,
    /// Only while the user is banned.
    ban_reason: Option<String>,
    /// RFC 3339.
    #[schema(format = DateTime)]
    created_at: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AccountRequest {
    /// Of the title or the persona. The user's account of this name is returned if there is one.
    #[schema(min_length = 1, max_length = 100)]
    pub(super) name: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct AccountAnswer {
    account_id: Uuid,
    user_id: Uuid,
    name: String,
    /// RFC 3339.
    #[schema(format = DateTime)]
    created_at: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct AccountsAnswer {
    /// The oldest first.
    accounts: Vec<AccountAnswer>,
}

/// By what somebody signs in.
#[derive(Debug, Deserialize, ToSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct IdentityRequest {
    #[schema(min_length = 1, max_length = 500)]
    #[param(min_length = 1, max_length = 500)]
    pub(super) issuer: String,
    #[schema(min_length = 1, max_length = 255)]
    #[param(min_length = 1, max_length = 255)]
    pub(super) subject: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BanRequest {
    /// Shown to the user at every sign-in.
    #[schema(min_length = 1, max_length = 500)]
    pub(super) reason: String,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct AuditRequest {
    /// How many records at the most: 1 to 1000, else 100.
    pub(super) limit: Option<u32>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct AuditRecordAnswer {
    audit_id: Uuid,
    user_id: Uuid,
    /// RFC 3339.
    #[schema(format = DateTime)]
    at: String,
    actor: String,
    #[schema(example = "user.banned")]
    action: String,
    /// Nothing personal.
    #[schema(value_type = Object)]
    detail: Value,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct AuditAnswer {
    /// The last first.
    records: Vec<AuditRecordAnswer>,
}

impl From<SignInRequest> for SignIn {
    fn from(request: SignInRequest) -> Self {
        let SignInRequest { issuer, subject, display_name, roles } = request;
        Self { issuer, subject, display_name, roles }
    }
}

impl From<SignedIn> for SignInAnswer {
    fn from(done: SignedIn) -> Self {
        Self { user: done.user.into(), created: done.created }
    }
}

impl From<UserView> for UserAnswer {
    fn from(user: UserView) -> Self {
        Self {
            user_id: *user.id.as_uuid(),
            state: user.state,
            display_name: user.display_name,
            roles: user.roles,
            ban_reason: user.ban_reason,
            created_at: user.created_at.to_rfc3339(),
        }
    }
}

impl From<Account> for AccountAnswer {
    fn from(account: Account) -> Self {
        Self {
            account_id: *account.id.as_uuid(),
            user_id: *account.user.as_uuid(),
            name: account.name,
            created_at: account.created_at.to_rfc3339(),
        }
    }
}

impl From<Vec<Account>> for AccountsAnswer {
    fn from(accounts: Vec<Account>) -> Self {
        Self { accounts: accounts.into_iter().map(Into::into).collect() }
    }
}

impl From<Vec<AuditRecord>> for AuditAnswer {
    fn from(records: Vec<AuditRecord>) -> Self {
        let answer = |record: AuditRecord| AuditRecordAnswer {
            audit_id: *record.id.as_uuid(),
            user_id: *record.user.as_uuid(),
            at: record.at.to_rfc3339(),
            actor: record.actor,
            action: record.action,
            detail: record.detail,
        };
        Self { records: records.into_iter().map(answer).collect() }
    }
}
