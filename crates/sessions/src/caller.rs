//! Authenticates requests: by an access token, or by the session that a cookie names.

use std::sync::Arc;
use std::time::Duration;

use ::http::header::WWW_AUTHENTICATE;
use ::http::request::Parts;
use ::http::{HeaderMap, HeaderValue};
use account::{Role, UserId};
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use base::Code;
use base::error::{Coded, chain};
use http_server::{Problem, bearer_token};

use crate::Sessions;
use crate::error::Error;
use crate::refresher::CurrentSession;
use crate::store::{EndCause, Session, SessionId};
use crate::users::{Identity, KnownUser, roles};

/// The timeout for authenticating the caller of an open stream again. The stream sends nothing meanwhile.
const RECHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// An authenticated caller. The guard of a route attaches it to the request; handlers extract it.
#[derive(Clone, Debug)]
pub struct Caller {
    pub identity: Arc<Identity>,
    pub known: Arc<KnownUser>,
    pub proof: Proof,
}

/// What authenticated a caller.
#[derive(Clone, Debug)]
pub enum Proof {
    Session(SessionId, Arc<Session>),
    /// An access token of the issuer.
    Token {
        expires_at: base::Timestamp,
    },
}

/// Why a request is not authenticated.
#[derive(Debug)]
pub enum NotAuthenticated {
    /// It has neither a token nor a cookie.
    NoCredentials,
    /// Its session has ended or never existed.
    NoSession,
    TokenRefused(oidc::TokenError),
    /// A dependency is unavailable, or the caller is banned.
    Problem(Problem),
}

/// Why the caller of an open stream may not be served any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLost {
    /// The session has ended, or the user was erased.
    SignedOut,
    Banned,
}

impl Caller {
    pub fn user(&self) -> UserId {
        self.known.user.id
    }

    pub fn has(&self, role: Role) -> bool {
        self.known.user.roles.contains(&role)
    }

    pub const fn session(&self) -> Option<&SessionId> {
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

impl Sessions {
    /// Authenticates a request. An access token takes precedence over a session, because a client sends it on purpose.
    pub async fn caller(&self, headers: &HeaderMap) -> Result<Caller, NotAuthenticated> {
        let Some(flow) = &self.sign_in else {
            let detail = "Sign-in is not configured: identity.issuer is \"none:\".";
            return Err(NotAuthenticated::Problem(Problem::new(Code::Unimplemented).detail(detail)));
        };
        let refresher = &flow.refresher;
        if let Some(token) = bearer_token(headers) {
            let access = match refresher.provider.cached(token) {
                Some(access) => access,
                None => {
                    // Boxed, as it is rare and large.
                    let verified = Box::pin(refresher.provider.verify_access(token)).await;
                    verified.map_err(NotAuthenticated::from_token_error)?
                }
            };
            let identity = Identity {
                issuer: access.issuer.clone(),
                subject: access.subject.clone(),
                name: access.name.clone(),
                roles: roles(&access),
            };
            let known = self.users.resolve(&identity).await.map_err(NotAuthenticated::from_account_error)?;
            let (identity, proof) = (Arc::new(identity), Proof::Token { expires_at: access.expires_at });
            return Ok(Caller { identity, known, proof });
        }
        let id = self.cookies.session_id(headers).ok_or(NotAuthenticated::NoCredentials)?;
        let current = Box::pin(refresher.current(&id)).await;
        let session = match current.map_err(|error| NotAuthenticated::from_store_error(&error))? {
            CurrentSession::Session(session) => session,
            CurrentSession::Ended => return Err(NotAuthenticated::NoSession),
            CurrentSession::EndedWithUser(session) => {
                return Err(Box::pin(self.ended_with_user(&id, &session)).await);
            }
        };
        let identity = Arc::new(Identity::from_session(&session));
        let known = match self.users.resolve_session(&identity).await {
            Ok(known) if *known.user.id.as_uuid() == session.user_id => known,
            // Its user was erased, or the identity belongs to another user now.
            Ok(_) | Err(account::Error::UnknownIdentity) => {
                self.end(EndCause::Ended, &id, &session).await;
                return Err(NotAuthenticated::NoSession);
            }
            Err(error) => return Err(NotAuthenticated::from_account_error(error)),
        };
        Ok(Caller { identity, known, proof: Proof::Session(id, Arc::new(session)) })
    }

    /// Returns why all sessions of a user have ended, so that a banned player is not asked to sign in again.
    async fn ended_with_user(&self, id: &SessionId, session: &Session) -> NotAuthenticated {
        match self.users.check_ban(UserId::from_uuid(session.user_id)).await {
            Ok(()) | Err(account::Error::NotFound(_)) => {
                // Best effort: SQL has the end.
                let _ = self.store.remove(id, session).await;
                NotAuthenticated::NoSession
            }
            Err(error) => NotAuthenticated::from_account_error(error),
        }
    }

    /// Authenticates the caller of an open stream again: the player may have been banned, or the message that the session ended was
    /// lost. Succeeds while a dependency is unavailable or slow, because an outage must not end streams.
    pub async fn recheck(&self, caller: &Caller) -> Result<(), AccessLost> {
        let checked = tokio::time::timeout(RECHECK_TIMEOUT, self.look_up_again(caller)).await;
        match checked {
            Ok(Err(account::Error::Banned { .. })) => Err(AccessLost::Banned),
            Ok(Err(error)) if !error.is_transient() => Err(AccessLost::SignedOut),
            _ => Ok(()),
        }
    }

    async fn look_up_again(&self, caller: &Caller) -> Result<(), account::Error> {
        let session = match (&caller.proof, &self.sign_in) {
            (Proof::Session(id, _), Some(flow)) => flow.refresher.current(id).await,
            _ => return self.users.resolve(&caller.identity).await.map(drop),
        };
        match session {
            Ok(CurrentSession::Session(session)) => {
                self.users.resolve_session(&Identity::from_session(&session)).await.map(drop)
            }
            Ok(CurrentSession::EndedWithUser(session)) => {
                // The session has ended in any case; the ban only says why.
                match self.users.check_ban(UserId::from_uuid(session.user_id)).await {
                    Err(banned @ account::Error::Banned { .. }) => Err(banned),
                    _ => Err(account::Error::UnknownIdentity),
                }
            }
            Ok(CurrentSession::Ended) => Err(account::Error::UnknownIdentity),
            Err(_) => Ok(()),
        }
    }
}

impl NotAuthenticated {
    fn from_token_error(error: oidc::TokenError) -> Self {
        match error {
            oidc::TokenError::Unavailable(error) => {
                tracing::warn!(
                    outage = "issuer",
                    cause = chain(&error),
                    "cannot verify access tokens: the issuer does not answer"
                );
                let detail = "The issuer does not answer, so the token cannot be verified. Try again later.";
                Self::Problem(Problem::new(Code::Unavailable).detail(detail))
            }
            other => Self::TokenRefused(other),
        }
    }

    /// Logs an error of `account` that an operator must know about, and maps it to a response.
    fn from_account_error(error: account::Error) -> Self {
        let code = error.code();
        match &error {
            account::Error::Banned { reason, .. } => {
                let detail = format!("This account is banned: {reason}");
                return Self::Problem(Problem::new(code).detail(detail));
            }
            _ if matches!(code, Code::Internal) => {
                tracing::error!(cause = chain(&error), "looking up a user failed")
            }
            _ if error.is_transient() => {
                tracing::warn!(
                    outage = "accounts",
                    cause = chain(&error),
                    "cannot look up users: the database does not answer"
                )
            }
            _ => {}
        }
        Self::Problem(Problem::new(code).detail(error.to_string()))
    }

    fn from_store_error(error: &Error) -> Self {
        tracing::warn!(outage = "sessions", cause = chain(error), "cannot read sessions");
        let detail = "The session cannot be read at the moment. Try again later.";
        Self::Problem(Problem::new(error.code()).detail(detail))
    }

    /// Describes a refused token for the audit log.
    pub fn refusal(&self) -> Option<String> {
        match self {
            Self::TokenRefused(error) => Some(error.describe()),
            Self::NoCredentials | Self::NoSession | Self::Problem(_) => None,
        }
    }
}

impl IntoResponse for NotAuthenticated {
    fn into_response(self) -> Response {
        let (detail, challenge) = match self {
            Self::Problem(problem) => return problem.into_response(),
            Self::NoCredentials => (
                "Sign in at /login, or send an access token: `Authorization: Bearer TOKEN`.".to_owned(),
                "Bearer realm=\"playhouse\"".to_owned(),
            ),
            Self::NoSession => (
                "The session has ended. Sign in again at /login.".to_owned(),
                "Bearer realm=\"playhouse\"".to_owned(),
            ),
            Self::TokenRefused(error) => {
                let reason = error.describe();
                let challenge = format!(
                    "Bearer realm=\"playhouse\", error=\"invalid_token\", error_description=\"{reason}\""
                );
                (format!("The access token is not accepted: {reason}."), challenge)
            }
        };
        let mut response = Problem::new(Code::Unauthenticated).detail(detail).into_response();
        if let Ok(challenge) = HeaderValue::from_str(&challenge) {
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        response
    }
}
