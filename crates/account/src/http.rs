//! The service API over HTTP, for the gateway and other services: `/internal/v1`.

mod bodies;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use base::error::{Coded, chain};
use http_server::{Caller, JsonBody, Problem, Query, Right};
use utoipa::OpenApi;

pub(crate) use self::bodies::UserPath;
pub use self::bodies::{
    AccountAnswer, AccountRequest, AccountsAnswer, AuditAnswer, AuditRecordAnswer, AuditRequest, BanRequest,
    IdentityRequest, SignInAnswer, SignInRequest, UserAnswer,
};
use crate::wiring::RIGHT;
use crate::{Accounts, Error};

/// The default number of listed audit records.
const DEFAULT_LIMIT: u32 = 100;

/// The OpenAPI document of these routes.
#[derive(Clone, Copy, Debug, OpenApi)]
#[openapi(
    paths(
        sign_in,
        find_user,
        show_user,
        list_accounts,
        create_account,
        link_identity,
        unlink_identity,
        ban_user,
        unban_user,
        end_sessions,
        erase_user,
        list_audit
    ),
    tags((name = "users", description = "Users, their identities, roles and accounts"))
)]
pub struct Api;

/// Returns the routes. The server authenticates callers before these handlers run ([`http_server::Credentials::guard`]).
pub fn routes(accounts: Accounts) -> Router {
    let routes = Router::new()
        .route("/sign-ins", post(sign_in))
        .route("/users", get(find_user))
        .route("/users/{user_id}", get(show_user))
        .route("/users/{user_id}/accounts", get(list_accounts).post(create_account))
        .route("/users/{user_id}/identities", post(link_identity).delete(unlink_identity))
        .route("/users/{user_id}/ban", post(ban_user))
        .route("/users/{user_id}/unban", post(unban_user))
        .route("/users/{user_id}/end-sessions", post(end_sessions))
        .route("/users/{user_id}/erase", post(erase_user))
        .route("/users/{user_id}/audit", get(list_audit));
    Router::new().nest("/internal/v1", routes).with_state(accounts)
}

/// Sign a user in
///
/// The first sign-in of an identity creates the user with a default account. Later sign-ins update the roles and the name.
#[utoipa::path(
    post, path = "/internal/v1/sign-ins", tag = "users", request_body = SignInRequest,
    responses(
        (status = 200, description = "Signed in", body = SignInAnswer),
        (status = 400, description = "A field is missing or breaks its limit"),
        (status = 403, description = "The user is banned, for the reason in `detail`"),
    )
)]
async fn sign_in(
    caller: Caller,
    State(accounts): State<Accounts>,
    JsonBody(request): JsonBody<SignInRequest>,
) -> Result<Json<SignInAnswer>, Problem> {
    caller.require(RIGHT)?;
    let done = accounts.sign_in(&request.into()).await.map_err(problem)?;
    Ok(Json(done.into()))
}

/// Find the user of an identity
#[utoipa::path(
    get, path = "/internal/v1/users", tag = "users", params(IdentityRequest),
    responses(
        (status = 200, description = "The user", body = UserAnswer),
        (status = 404, description = "The identity is not linked to any user"),
    )
)]
async fn find_user(
    caller: Caller,
    State(accounts): State<Accounts>,
    Query(identity): Query<IdentityRequest>,
) -> Result<Json<UserAnswer>, Problem> {
    caller.require(Right::READ)?;
    let user = accounts.find(&identity.issuer, &identity.subject).await.map_err(problem)?;
    Ok(Json(user.into()))
}

/// Show a user
///
/// An erased user is shown without personal data.
#[utoipa::path(
    get, path = "/internal/v1/users/{user_id}", tag = "users", operation_id = "get_user", params(("user_id" = Uuid, Path)),
    responses(
        (status = 200, description = "The user", body = UserAnswer),
        (status = 404, description = "There is no such user"),
    )
)]
async fn show_user(
    caller: Caller,
    State(accounts): State<Accounts>,
    UserPath(user): UserPath,
) -> Result<Json<UserAnswer>, Problem> {
    caller.require(Right::READ)?;
    Ok(Json(accounts.user(user).await.map_err(problem)?.into()))
}

/// List the accounts of a user
#[utoipa::path(
    get, path = "/internal/v1/users/{user_id}/accounts", tag = "users", params(("user_id" = Uuid, Path)),
    responses(
        (status = 200, description = "The accounts; none if the user was erased", body = AccountsAnswer),
        (status = 404, description = "There is no such user"),
    )
)]
async fn list_accounts(
    caller: Caller,
    State(accounts): State<Accounts>,
    UserPath(user): UserPath,
) -> Result<Json<AccountsAnswer>, Problem> {
    caller.require(Right::READ)?;
    Ok(Json(accounts.accounts(user).await.map_err(problem)?.into()))
}

/// Create an account
///
/// A repeated request returns the same account.
#[utoipa::path(
    post, path = "/internal/v1/users/{user_id}/accounts", tag = "users", params(("user_id" = Uuid, Path)),
    request_body = AccountRequest,
    responses(
        (status = 200, description = "The account of that name", body = AccountAnswer),
        (status = 400, description = "The name is missing or breaks its limit"),
        (status = 403, description = "The user is banned"),
        (status = 404, description = "There is no such user"),
        (status = 409, description = "The user was erased"),
    )
)]
async fn create_account(
    caller: Caller,
    State(accounts): State<Accounts>,
    UserPath(user): UserPath,
    JsonBody(request): JsonBody<AccountRequest>,
) -> Result<Json<AccountAnswer>, Problem> {
    caller.require(RIGHT)?;
    Ok(Json(accounts.create_account(user, &request.name).await.map_err(problem)?.into()))
}

/// Link an identity to a user
///
/// A repeated request changes nothing.
#[utoipa::path(
    post, path = "/internal/v1/users/{user_id}/identities", tag = "users", params(("user_id" = Uuid, Path)),
    request_body = IdentityRequest,
    responses(
        (status = 204, description = "Linked"),
        (status = 400, description = "A field is missing or breaks its limit"),
        (status = 403, description = "The user is banned"),
        (status = 404, description = "There is no such user"),
        (status = 409, description = "The identity belongs to another user, or the user was erased"),
    )
)]
async fn link_identity(
    caller: Caller,
    State(accounts): State<Accounts>,
    UserPath(user): UserPath,
    JsonBody(identity): JsonBody<IdentityRequest>,
) -> Result<StatusCode, Problem> {
    caller.require(RIGHT)?;
    let IdentityRequest { issuer, subject } = identity;
    accounts.link(user, &issuer, &subject, &actor(&caller)).await.map_err(problem)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Unlink an identity from a user
#[utoipa::path(
    delete, path = "/internal/v1/users/{user_id}/identities", tag = "users",
    params(("user_id" = Uuid, Path), IdentityRequest),
    responses(
        (status = 204, description = "Unlinked"),
        (status = 403, description = "The user is banned"),
        (status = 404, description = "There is no such user, or the identity is not linked to them"),
        (status = 409, description = "It is the last identity, or the user was erased"),
    )
)]
async fn unlink_identity(
    caller: Caller,
    State(accounts): State<Accounts>,
    UserPath(user): UserPath,
    Query(identity): Query<IdentityRequest>,
) -> Result<StatusCode, Problem> {
    caller.require(RIGHT)?;
    let IdentityRequest { issuer, subject } = identity;
    accounts.unlink(user, &issuer, &subject, &actor(&caller)).await.map_err(problem)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ban a user
///
/// Ends all sessions of the user. A repeated request changes nothing unless the reason differs.
#[utoipa::path(
    post, path = "/internal/v1/users/{user_id}/ban", tag = "users", params(("user_id" = Uuid, Path)),
    request_body = BanRequest,
    responses(
        (status = 204, description = "Banned"),
        (status = 400, description = "The reason is missing or breaks its limit"),
        (status = 404, description = "There is no such user"),
        (status = 409, description = "The user was erased"),
    )
)]
async fn ban_user(
    caller: Caller,
    State(accounts): State<Accounts>,
    UserPath(user): UserPath,
    JsonBody(request): JsonBody<BanRequest>,
) -> Result<StatusCode, Problem> {
    caller.require(Right::OPERATOR)?;
    accounts.ban(user, &request.reason, &actor(&caller)).await.map_err(problem)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Let a banned user sign in again
#[utoipa::path(
    post, path = "/internal/v1/users/{user_id}/unban", tag = "users", params(("user_id" = Uuid, Path)),
    responses(
        (status = 204, description = "The user is not banned"),
        (status = 404, description = "There is no such user"),
        (status = 409, description = "The user was erased"),
    )
)]
async fn unban_user(
    caller: Caller,
    State(accounts): State<Accounts>,
    UserPath(user): UserPath,
) -> Result<StatusCode, Problem> {
    caller.require(Right::OPERATOR)?;
    accounts.unban(user, &actor(&caller)).await.map_err(problem)?;
    Ok(StatusCode::NO_CONTENT)
}

/// End all sessions of a user
///
/// The user must sign in again in every browser. Access tokens of the issuer stay valid: revoke them there.
#[utoipa::path(
    post, path = "/internal/v1/users/{user_id}/end-sessions", tag = "users", params(("user_id" = Uuid, Path)),
    responses(
        (status = 204, description = "Ended. All processes refuse them within `gateway.user_cache`"),
        (status = 404, description = "There is no such user"),
        (status = 409, description = "The user was erased"),
    )
)]
async fn end_sessions(
    caller: Caller,
    State(accounts): State<Accounts>,
    UserPath(user): UserPath,
) -> Result<StatusCode, Problem> {
    caller.require(Right::OPERATOR)?;
    accounts.end_sessions(user, &actor(&caller)).await.map_err(problem)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Erase a user
///
/// Removes all personal data permanently and revokes all entitlements of the user. A repeated request changes nothing.
#[utoipa::path(
    post, path = "/internal/v1/users/{user_id}/erase", tag = "users", params(("user_id" = Uuid, Path)),
    responses(
        (status = 204, description = "Erased"),
        (status = 404, description = "There is no such user"),
        (status = 504, description = "The user stayed locked by other requests for too long. Nothing was erased; try again"),
    )
)]
async fn erase_user(
    caller: Caller,
    State(accounts): State<Accounts>,
    UserPath(user): UserPath,
) -> Result<StatusCode, Problem> {
    caller.require(Right::OPERATOR)?;
    accounts.erase(user, &actor(&caller)).await.map_err(problem)?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the audit records of a user
#[utoipa::path(
    get, path = "/internal/v1/users/{user_id}/audit", tag = "users", operation_id = "list_audit_records",
    params(("user_id" = Uuid, Path), AuditRequest),
    responses(
        (status = 200, description = "The records, newest first", body = AuditAnswer),
        (status = 404, description = "There is no such user"),
    )
)]
async fn list_audit(
    caller: Caller,
    State(accounts): State<Accounts>,
    UserPath(user): UserPath,
    Query(request): Query<AuditRequest>,
) -> Result<Json<AuditAnswer>, Problem> {
    caller.require(Right::OPERATOR)?;
    let records = accounts.audit(user, request.limit.unwrap_or(DEFAULT_LIMIT)).await.map_err(problem)?;
    Ok(Json(records.into()))
}

/// Returns the name under which the caller is recorded in the audit log.
fn actor(caller: &Caller) -> String {
    format!("service/{}", caller.name())
}

/// Converts an error to the problem that the caller sees. Logs the cause, which callers do not see.
pub(crate) fn problem(error: Error) -> Problem {
    match &error {
        Error::Db(_) | Error::OnErase { .. } | Error::Event(_) if error.is_transient() => {
            tracing::warn!(
                outage = "accounts",
                cause = chain(&error),
                "an account request failed; the caller may retry"
            );
        }
        Error::Db(_) | Error::OnErase { .. } | Error::Event(_) => {
            tracing::error!(cause = chain(&error), "an account request failed");
        }
        _ => {}
    }
    Problem::new(error.code()).detail(error.to_string())
}
