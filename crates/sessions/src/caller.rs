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
use crate::refresher::Current;
use crate::store::{Session, SessionId};
use crate::users::{Identity, KnownUser, roles};

/// How long a caller may take to be authenticated again while their stream is open: nothing is sent meanwhile.
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
    TokenRefused(oidc::Refused),
    /// A part that is needed is away, or the caller is banned.
    Problem(Problem),
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
    /// Authenticates a request. An access token counts before a session, because a client sends one on purpose.
    pub async fn caller(&self, headers: &HeaderMap) -> Result<Caller, NotAuthenticated> {
        let Some(flow) = &self.sign_in else {
            let detail = "Nobody can sign in here: identity.issuer names no issuer.";
            return Err(NotAuthenticated::Problem(Problem::new(Code::Unimplemented).detail(detail)));
        };
        let refresher = &flow.refresher;
        if let Some(token) = bearer_token(headers) {
            let access = match refresher.provider.known(token) {
                Some(access) => access,
                None => {
                    // Boxed, as it is rare and large.
                    let verified = Box::pin(refresher.provider.verify_access(token)).await;
                    verified.map_err(NotAuthenticated::of_refused)?
                }
            };
            let identity = Identity {
                issuer: access.issuer.clone(),
                subject: access.subject.clone(),
                name: access.name.clone(),
                roles: roles(&access),
            };
            let known = self.users.resolve(&identity).await.map_err(NotAuthenticated::of_account)?;
            let (identity, proof) = (Arc::new(identity), Proof::Token { expires_at: access.expires_at });
            return Ok(Caller { identity, known, proof });
        }
        let id = self.cookies.session_id(headers).ok_or(NotAuthenticated::NoCredentials)?;
        let current = Box::pin(refresher.current(&id)).await;
        let session = match current.map_err(|error| NotAuthenticated::of_store(&error))? {
            Current::Session(session) => session,
            Current::Ended => return Err(NotAuthenticated::NoSession),
            Current::EndedWithUser(session) => {
                return Err(Box::pin(self.ended_with_user(&id, &session)).await);
            }
        };
        let identity = Arc::new(Identity::of(&session));
        let known = match self.users.of_session(&identity).await {
            Ok(known) if *known.user.id.as_uuid() == session.user_id => known,
            // Its user was erased, or the identity belongs to another user now.
            Ok(_) | Err(account::Error::UnknownIdentity) => {
                self.end(&id, &session).await;
                return Err(NotAuthenticated::NoSession);
            }
            Err(error) => return Err(NotAuthenticated::of_account(error)),
        };
        Ok(Caller { identity, known, proof: Proof::Session(id, Arc::new(session)) })
    }

    /// Explains why all sessions of a user have ended, so that a ban is not taken for a session that is over.
    async fn ended_with_user(&self, id: &SessionId, session: &Session) -> NotAuthenticated {
        match self.users.check_ban(UserId::from_uuid(session.user_id)).await {
            Ok(()) | Err(account::Error::NotFound(_)) => {
                // Best effort: the verdict stands.
                let _ = self.store.remove(id, session).await;
                NotAuthenticated::NoSession
            }
            Err(error) => NotAuthenticated::of_account(error),
        }
    }

    /// Authenticates the caller of an open stream again: they may have been banned, or the end of their session was missed. Returns true
    /// while it cannot be decided: a part that is away or slow ends no stream.
    pub async fn is_still_signed_in(&self, caller: &Caller) -> bool {
        let recheck = async {
            let session = match (&caller.proof, &self.sign_in) {
                (Proof::Session(id, _), Some(flow)) => flow.refresher.current(id).await,
                _ => return self.users.resolve(&caller.identity).await,
            };
            match session {
                Ok(Current::Session(session)) => self.users.of_session(&Identity::of(&session)).await,
                Ok(Current::Ended | Current::EndedWithUser(_)) => Err(account::Error::UnknownIdentity),
                Err(_) => Ok(caller.known.clone()),
            }
        };
        let checked = tokio::time::timeout(RECHECK_TIMEOUT, recheck).await;
        !matches!(checked, Ok(Err(error)) if !error.is_passing())
    }
}

impl NotAuthenticated {
    fn of_refused(refused: oidc::Refused) -> Self {
        match refused {
            oidc::Refused::Unavailable(error) => {
                tracing::warn!(outage = "issuer", cause = chain(&error), "tokens cannot be checked");
                let detail = "The issuer's keys cannot be had at the moment; try again.";
                Self::Problem(Problem::new(Code::Unavailable).detail(detail))
            }
            other => Self::TokenRefused(other),
        }
    }

    /// Logs what an operator has to know of an error of `account`.
    fn of_account(error: account::Error) -> Self {
        let code = error.code();
        match &error {
            account::Error::Banned { reason, .. } => {
                let detail = format!("This account is banned: {reason}");
                return Self::Problem(Problem::new(code).detail(detail));
            }
            _ if matches!(code, Code::Internal) => {
                tracing::error!(cause = chain(&error), "the accounts failed")
            }
            _ if error.is_passing() => {
                tracing::warn!(outage = "accounts", cause = chain(&error), "the accounts are away")
            }
            _ => {}
        }
        Self::Problem(Problem::new(code).detail(error.to_string()))
    }

    fn of_store(error: &Error) -> Self {
        tracing::warn!(outage = "sessions", cause = chain(error), "sessions cannot be read");
        let detail = "Sessions cannot be read at the moment; try again.";
        Self::Problem(Problem::new(error.code()).detail(detail))
    }

    /// Describes a refused token for the audit log.
    pub fn refusal(&self) -> Option<String> {
        match self {
            Self::TokenRefused(refused) => Some(refused.describe()),
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
                "The session is over; sign in again at /login.".to_owned(),
                "Bearer realm=\"playhouse\"".to_owned(),
            ),
            Self::TokenRefused(refused) => {
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
