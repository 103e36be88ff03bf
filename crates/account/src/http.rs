//! The service API over HTTP, for the gateway and other services: `/internal/v1`.

mod shape;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use base::error::{Coded, chain};
use http_server::{Body, Caller, Problem, Query, Right};
use utoipa::OpenApi;

pub(crate) use self::shape::OfUser;
pub use self::shape::{
    AccountAnswer, AccountRequest, AccountsAnswer, AuditAnswer, AuditRecordAnswer, AuditRequest, BanRequest,
    IdentityRequest, SignInAnswer, SignInRequest, UserAnswer,
};
use crate::wiring::RIGHT;
use crate::{Accounts, Error};

/// How many records are listed if nobody says.
const LISTED: u32 = 100;

/// What is served here, as an OpenAPI document.
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
    tags((name = "account", description = "Users, their identities, roles and accounts"))
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
/// The first sign-in of an identity makes the user, with a default account. Later ones bring the roles and the name up to date.
#[utoipa::path(
    post, path = "/internal/v1/sign-ins", tag = "account", request_body = SignInRequest,
    responses(
        (status = 200, description = "Signed in", body = SignInAnswer),
        (status = 400, description = "A field is missing or breaks its limit"),
        (status = 403, description = "The user is banned, for the reason in `detail`"),
    )
)]
async fn sign_in(
    caller: Caller,
    State(accounts): State<Accounts>,
    Body(request): Body<SignInRequest>,
) -> Result<Json<SignInAnswer>, Problem> {
    caller.require(RIGHT)?;
    let done = accounts.sign_in(&request.into()).await.map_err(problem)?;
    Ok(Json(done.into()))
}

/// Find the user of an identity
#[utoipa::path(
    get, path = "/internal/v1/users", tag = "account", params(IdentityRequest),
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
/// One who was erased is shown without anything personal.
#[utoipa::path(
    get, path = "/internal/v1/users/{user_id}", tag = "account", params(("user_id" = Uuid, Path)),
    responses(
        (status = 200, description = "The user", body = UserAnswer),
        (status = 404, description = "There is no such user"),
    )
)]
async fn show_user(
    caller: Caller,
    State(accounts): State<Accounts>,
    OfUser(user): OfUser,
) -> Result<Json<UserAnswer>, Problem> {
    caller.require(Right::READ)?;
    Ok(Json(accounts.user(user).await.map_err(problem)?.into()))
}

/// List the accounts of a user
#[utoipa::path(
    get, path = "/internal/v1/users/{user_id}/accounts", tag = "account", params(("user_id" = Uuid, Path)),
    responses(
        (status = 200, description = "The accounts; none if the user was erased", body = AccountsAnswer),
        (status = 404, description = "There is no such user"),
    )
)]
async fn list_accounts(
    caller: Caller,
    State(accounts): State<Accounts>,
    OfUser(user): OfUser,
) -> Result<Json<AccountsAnswer>, Problem> {
    caller.require(Right::READ)?;
    Ok(Json(accounts.accounts(user).await.map_err(problem)?.into()))
}

/// Make an account
///
/// Done again it returns the same account.
#[utoipa::path(
    post, path = "/internal/v1/users/{user_id}/accounts", tag = "account", params(("user_id" = Uuid, Path)),
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
    OfUser(user): OfUser,
    Body(request): Body<AccountRequest>,
) -> Result<Json<AccountAnswer>, Problem> {
    caller.require(RIGHT)?;
    Ok(Json(accounts.create_account(user, &request.name).await.map_err(problem)?.into()))
}

/// Link an identity to a user
///
/// Done again it changes nothing.
#[utoipa::path(
    post, path = "/internal/v1/users/{user_id}/identities", tag = "account", params(("user_id" = Uuid, Path)),
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
    OfUser(user): OfUser,
    Body(identity): Body<IdentityRequest>,
) -> Result<StatusCode, Problem> {
    caller.require(RIGHT)?;
    let IdentityRequest { issuer, subject } = identity;
    accounts.link(user, &issuer, &subject, &actor(&caller)).await.map_err(problem)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Unlink an identity from a user
#[utoipa::path(
    delete, path = "/internal/v1/users/{user_id}/identities", tag = "account",
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
    OfUser(user): OfUser,
    Query(identity): Query<IdentityRequest>,
) -> Result<StatusCode, Problem> {
    caller.require(RIGHT)?;
    let IdentityRequest { issuer, subject } = identity;
    accounts.unlink(user, &issuer, &subject, &actor(&caller)).await.map_err(problem)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ban a user
///
/// Ends the user's sessions for good. Done again it changes nothing, unless it is for another reason.
#[utoipa::path(
    post, path = "/internal/v1/users/{user_id}/ban", tag = "account", params(("user_id" = Uuid, Path)),
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
    OfUser(user): OfUser,
    Body(request): Body<BanRequest>,
) -> Result<StatusCode, Problem> {
    caller.require(Right::OPERATOR)?;
    accounts.ban(user, &request.reason, &actor(&caller)).await.map_err(problem)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Let a banned user sign in again
#[utoipa::path(
    post, path = "/internal/v1/users/{user_id}/unban", tag = "account", params(("user_id" = Uuid, Path)),
    responses(
        (status = 204, description = "Not banned, or not any more"),
        (status = 404, description = "There is no such user"),
        (status = 409, description = "The user was erased"),
    )
)]
async fn unban_user(
    caller: Caller,
    State(accounts): State<Accounts>,
    OfUser(user): OfUser,
) -> Result<StatusCode, Problem> {
    caller.require(Right::OPERATOR)?;
    accounts.unban(user, &actor(&caller)).await.map_err(problem)?;
    Ok(StatusCode::NO_CONTENT)
}

/// End all sessions of a user
///
/// Every browser of the user has to sign in again. Access tokens of the issuer are not ended: revoke them there.
#[utoipa::path(
    post, path = "/internal/v1/users/{user_id}/end-sessions", tag = "account", params(("user_id" = Uuid, Path)),
    responses(
        (status = 204, description = "Ended: within `gateway.user_cache` no process accepts them"),
        (status = 404, description = "There is no such user"),
        (status = 409, description = "The user was erased"),
    )
)]
async fn end_sessions(
    caller: Caller,
    State(accounts): State<Accounts>,
    OfUser(user): OfUser,
) -> Result<StatusCode, Problem> {
    caller.require(Right::OPERATOR)?;
    accounts.end_sessions(user, &actor(&caller)).await.map_err(problem)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Erase a user
///
/// Removes everything personal for good and revokes what the user owns. Done again it changes nothing.
#[utoipa::path(
    post, path = "/internal/v1/users/{user_id}/erase", tag = "account", params(("user_id" = Uuid, Path)),
    responses(
        (status = 204, description = "Erased"),
        (status = 404, description = "There is no such user"),
        (status = 504, description = "The user is in use for too long; nothing was erased, try again"),
    )
)]
async fn erase_user(
    caller: Caller,
    State(accounts): State<Accounts>,
    OfUser(user): OfUser,
) -> Result<StatusCode, Problem> {
    caller.require(Right::OPERATOR)?;
    accounts.erase(user, &actor(&caller)).await.map_err(problem)?;
    Ok(StatusCode::NO_CONTENT)
}

/// List what was done to a user
#[utoipa::path(
    get, path = "/internal/v1/users/{user_id}/audit", tag = "account",
    params(("user_id" = Uuid, Path), AuditRequest),
    responses(
        (status = 200, description = "The records, the last first", body = AuditAnswer),
        (status = 404, description = "There is no such user"),
    )
)]
async fn list_audit(
    caller: Caller,
    State(accounts): State<Accounts>,
    OfUser(user): OfUser,
    Query(request): Query<AuditRequest>,
) -> Result<Json<AuditAnswer>, Problem> {
    caller.require(Right::OPERATOR)?;
    let records = accounts.audit(user, request.limit.unwrap_or(LISTED)).await.map_err(problem)?;
    Ok(Json(records.into()))
}

/// Who is written down as having done it.
fn actor(caller: &Caller) -> String {
    format!("service/{}", caller.name())
}

/// What the caller is told. The cause, if there is one, is for the log.
pub(crate) fn problem(error: Error) -> Problem {
    match &error {
        Error::Db(_) | Error::OnErase { .. } | Error::Event(_) if error.is_passing() => {
            tracing::warn!(
                outage = "accounts",
                cause = chain(&error),
                "a call to the accounts failed, and may be tried again"
            );
        }
        Error::Db(_) | Error::OnErase { .. } | Error::Event(_) => {
            tracing::error!(cause = chain(&error), "a call to the accounts failed");
        }
        _ => {}
    }
    Problem::new(error.code()).detail(error.to_string())
}
