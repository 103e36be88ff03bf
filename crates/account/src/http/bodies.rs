//! The JSON bodies of requests and responses.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use base::Code;
use base::id::Uuid;
use http_server::Problem;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::{Account, AuditRecord, Role, SignIn, SignInResult, UserId, UserState, UserView};

/// Extracts the user id in the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserPath(pub(crate) UserId);

impl<S: Send + Sync> FromRequestParts<S> for UserPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, state).await.ok();
        let user = path.and_then(|Path(text)| text.parse().ok());
        let detail = "The path must contain the id of a user, which is a UUID.";
        user.map(Self).ok_or_else(|| Problem::new(Code::InvalidArgument).detail(detail))
    }
}

/// The claims of an identity provider about a user who has signed in.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignInRequest {
    #[schema(min_length = 1, max_length = 500, example = "https://id.example.com")]
    issuer: String,
    #[schema(min_length = 1, max_length = 255)]
    subject: String,
    /// If absent, the user's name does not change.
    #[serde(default)]
    #[schema(max_length = 100)]
    display_name: Option<String>,
    /// The roles in the claims. An empty list means `player`.
    #[serde(default)]
    roles: Vec<Role>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SignInResult)]
pub struct SignInAnswer {
    user: UserAnswer,
    /// Whether this was the first sign-in, which created the user.
    created: bool,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = User)]
pub struct UserAnswer {
    user_id: Uuid,
    state: UserState,
    #[schema(required = true)]
    display_name: Option<String>,
    roles: Vec<Role>,
    /// Not null only while the user is banned.
    #[schema(required = true)]
    ban_reason: Option<String>,
    /// RFC 3339.
    #[schema(format = DateTime)]
    created_at: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AccountRequest {
    /// The name of a title or a persona. If the user has an account with this name, that one is returned.
    #[schema(min_length = 1, max_length = 100)]
    pub(super) name: String,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Account)]
pub struct AccountAnswer {
    account_id: Uuid,
    user_id: Uuid,
    name: String,
    /// RFC 3339.
    #[schema(format = DateTime)]
    created_at: String,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AccountList)]
pub struct AccountsAnswer {
    /// Oldest first.
    accounts: Vec<AccountAnswer>,
}

/// An identity with which a user signs in.
#[derive(Debug, Deserialize, ToSchema, IntoParams)]
#[schema(as = Identity)]
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
    pub(crate) reason: String,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct AuditRequest {
    /// The maximum number of records: 1 to 1000, 100 by default.
    pub(super) limit: Option<u32>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditRecord)]
pub struct AuditRecordAnswer {
    audit_id: Uuid,
    user_id: Uuid,
    /// RFC 3339.
    #[schema(format = DateTime)]
    at: String,
    actor: String,
    #[schema(example = "user.banned")]
    action: String,
    /// Contains no personal data.
    #[schema(value_type = BTreeMap<String, Value>)]
    detail: Value,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditRecordList)]
pub struct AuditAnswer {
    /// Newest first.
    records: Vec<AuditRecordAnswer>,
}

impl From<SignInRequest> for SignIn {
    fn from(request: SignInRequest) -> Self {
        let SignInRequest { issuer, subject, display_name, roles } = request;
        Self { issuer, subject, display_name, roles }
    }
}

impl From<SignInResult> for SignInAnswer {
    fn from(result: SignInResult) -> Self {
        Self { user: result.user.into(), created: result.created }
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
