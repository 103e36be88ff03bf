//! Who calls, and by what proof.

use std::sync::Arc;

use ::http::header::WWW_AUTHENTICATE;
use ::http::request::Parts;
use ::http::{HeaderMap, HeaderValue};
use account::{Role, UserId};
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use base::Code;
use base::error::{Coded, chain};
use http_server::{Problem, bearer_token};

use crate::Gateway;
use crate::cookies;
use crate::session::{Session, SessionId, SessionSecret};
use crate::users::{Identity, Known, roles};

/// Somebody who has proved who they are. Every request to a route that is not for anyone carries one.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// As the issuer describes them.
    pub(crate) identity: Arc<Identity>,
    pub(crate) known: Arc<Known>,
    pub(crate) proof: Proof,
}

/// By what they proved it.
#[derive(Clone, Debug)]
pub(crate) enum Proof {
    Session(SessionId, Arc<Session>),
    /// The issuer's access token, and until when it is one.
    Token {
        expires_at: base::Timestamp,
    },
}

/// Why nobody is signed in.
#[derive(Debug)]
pub(crate) enum NoCaller {
    /// There is no proof at all.
    Nothing,
    /// The session is over, or never was.
    NoSession,
    /// The token is no good, for this reason.
    Refused(oidc::Refused),
    /// It cannot be told now, or the caller may not come in.
    Problem(Problem),
}

impl Caller {
    pub(crate) fn user(&self) -> UserId {
        self.known.user.id
    }

    pub(crate) fn has(&self, role: Role) -> bool {
        self.known.user.roles.contains(&role)
    }

    pub(crate) const fn session(&self) -> Option<&SessionId> {
        match &self.proof {
            Proof::Session(id, _) => Some(id),
            Proof::Token { .. } => None,
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| Problem::new(Code::Unauthenticated))
    }
}

impl Gateway {
    /// Finds out who calls. A token counts before a session: whoever sends one means it.
    pub(crate) async fn caller(&self, headers: &HeaderMap) -> Result<Caller, NoCaller> {
        let Some(sign_ins) = &self.sign_ins else {
            let detail = "Nobody can sign in here: identity.issuer names no issuer.";
            return Err(NoCaller::Problem(Problem::new(Code::Unimplemented).detail(detail)));
        };
        let keeper = &sign_ins.keeper;
        if let Some(token) = bearer_token(headers) {
            let access = match keeper.provider.known(token) {
                Some(access) => access,
                None => {
                    // Boxed, as it is rare and large.
                    let verified = Box::pin(keeper.provider.verify_access(token)).await;
                    verified.map_err(NoCaller::of_refused)?
                }
            };
            let identity = Identity {
                issuer: access.issuer.clone(),
                subject: access.subject.clone(),
                name: access.name.clone(),
                roles: roles(&access),
            };
            let known =
                self.users.know(&identity).await.map_err(|error| NoCaller::Problem(of_account(error)))?;
            let (identity, proof) = (Arc::new(identity), Proof::Token { expires_at: access.expires_at });
            return Ok(Caller { identity, known, proof });
        }
        let secret = cookies::get(headers, &self.cookies.session()).ok_or(NoCaller::Nothing)?;
        let id = SessionSecret::of_cookie(secret).id();
        let session =
            Box::pin(keeper.current(&id)).await.map_err(|error| NoCaller::Problem(of_store(&error)))?;
        let session = session.ok_or(NoCaller::NoSession)?;
        let identity = Arc::new(Identity::of(&session));
        let known = self.users.know(&identity).await.map_err(|error| NoCaller::Problem(of_account(error)))?;
        Ok(Caller { identity, known, proof: Proof::Session(id, Arc::new(session)) })
    }
}

impl NoCaller {
    fn of_refused(refused: oidc::Refused) -> Self {
        match refused {
            oidc::Refused::Unavailable(error) => {
                tracing::warn!(cause = chain(&error), "tokens cannot be checked");
                let detail = "The issuer's keys cannot be had at the moment; try again.";
                Self::Problem(Problem::new(Code::Unavailable).detail(detail))
            }
            other => Self::Refused(other),
        }
    }

    /// For the audit log.
    pub(crate) fn why(&self) -> Option<String> {
        match self {
            Self::Refused(refused) => Some(refused.describe()),
            Self::Nothing | Self::NoSession | Self::Problem(_) => None,
        }
    }

    /// What the caller is told.
    pub(crate) fn answer(self) -> Response {
        let (detail, challenge) = match self {
            Self::Problem(problem) => return problem.into_response(),
            Self::Nothing => (
                "Sign in at /login, or send an access token: `Authorization: Bearer TOKEN`.".to_owned(),
                "Bearer realm=\"playhouse\"".to_owned(),
            ),
            Self::NoSession => (
                "The session is over; sign in again at /login.".to_owned(),
                "Bearer realm=\"playhouse\"".to_owned(),
            ),
            Self::Refused(refused) => {
                let said = refused.describe();
                let challenge = format!(
                    "Bearer realm=\"playhouse\", error=\"invalid_token\", error_description=\"{said}\""
                );
                (format!("The access token is not accepted: {said}."), challenge)
            }
        };
        let mut response = Problem::new(Code::Unauthenticated).detail(detail).into_response();
        if let Ok(challenge) = HeaderValue::from_str(&challenge) {
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

/// What callers are told of an error of the accounts.
pub(crate) fn of_account(error: account::Error) -> Problem {
    let code = error.code();
    match &error {
        account::Error::Banned { reason, .. } => {
            let detail = format!("This account is banned: {reason}");
            return Problem::new(code).detail(detail);
        }
        _ if matches!(code, Code::Internal) => tracing::error!(cause = chain(&error), "the accounts failed"),
        _ if error.is_passing() => tracing::warn!(cause = chain(&error), "the accounts are away"),
        _ => {}
    }
    Problem::new(code).detail(error.to_string())
}

/// What callers are told of an error of the store of sessions.
pub(crate) fn of_store(error: &redis_store::Error) -> Problem {
    tracing::warn!(cause = chain(error), "sessions cannot be read");
    Problem::new(error.code()).detail("Sessions cannot be read at the moment; try again.")
}
