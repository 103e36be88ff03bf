//! Refreshes sessions whose access token expires. All requests that wait for a session share one refresh.
//!
//! Issuers treat a refresh token that is redeemed twice as stolen. So it is redeemed once, even if many requests of a player arrive at
//! many processes. Within a process, requests wait for one task; between processes, the session's lease decides. The task renews the
//! lease until the issuer answers. It continues if the request that started it is cancelled, and it retries the write while Redis is
//! unreachable: losing the new tokens would lose the session.
//!
//! SQL records a refresh token before it is presented. If Redis loses its last writes and brings an old token back, the token is not
//! presented again: the session ends, and the player signs in again.
//!
//! A session ends when the issuer rejects its refresh token, or when it could not be refreshed for `refresh_grace`. A wrong setting
//! or a key rotation at the issuer does not end it.

use std::time::Duration;

use account::UserId;
use base::error::{Coded, chain};
use base::{Clock, Timestamp};
use oidc::{Error as IssuerError, Provider, TokenError, Tokens};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::audit::{Audit, SecurityEvent};
use crate::error::Error;
use crate::history::{SessionHistory, SessionStatus};
use crate::keyed_mutex::KeyedMutex;
use crate::metrics::Metrics;
use crate::seal::Sealer;
use crate::store::{Lease, RefreshClaim, Session, SessionId, SessionStore, StoredSession};
use crate::users::roles;

/// The length of a lease, and how often it is renewed.
const LEASE: Duration = Duration::from_secs(5);
const RENEW: Duration = Duration::from_millis(1_500);
/// The pause between two reads of a session that another process refreshes.
const POLL: Duration = Duration::from_millis(20);
/// The pause between attempts to write a refreshed session.
const WRITE_RETRY: Duration = Duration::from_millis(100);
/// How long a request waits for a refresh. Longer than `LEASE`, so that a process can take over from one that crashed.
const WAIT: Duration = Duration::from_secs(8);
/// How soon a session is refreshed again after the issuer failed.
const RETRY: Duration = Duration::from_secs(5);

/// The issuer's tokens of a session, the content of [`Session::tokens`].
#[derive(Serialize, Deserialize)]
pub(crate) struct IssuerTokens {
    pub(crate) refresh: Option<String>,
    pub(crate) id: Option<String>,
}

/// Reads sessions and refreshes those that are due. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct SessionRefresher {
    pub(crate) store: SessionStore,
    pub(crate) history: SessionHistory,
    pub(crate) provider: Provider,
    pub(crate) sealer: Sealer,
    pub(crate) clock: Clock,
    /// How long a session stays valid while the issuer is unreachable and cannot refresh it.
    pub(crate) grace: Duration,
    pub(crate) metrics: Metrics,
    pub(crate) audit: Audit,
    /// One refresh at a time per session in this process.
    pub(crate) refreshing: KeyedMutex<SessionId>,
}

/// The session that a request names.
#[derive(Debug)]
pub enum CurrentSession {
    Session(Session),
    /// It does not exist or has ended.
    Ended,
    /// All sessions of its user were ended.
    EndedWithUser(Session),
}

impl From<Option<Session>> for CurrentSession {
    fn from(session: Option<Session>) -> Self {
        session.map_or(Self::Ended, Self::Session)
    }
}

impl SessionRefresher {
    /// Reads a session, and refreshes it first if it is due.
    pub async fn current(&self, id: &SessionId) -> Result<CurrentSession, Error> {
        let Some(StoredSession { session, .. }) = self.store.read(id).await? else {
            return Ok(CurrentSession::Ended);
        };
        match self.history.status(id, &session).await? {
            SessionStatus::Alive => {}
            SessionStatus::Ended => {
                // Redis lost the removal. Best effort: SQL has the end.
                let _ = self.store.remove(id, &session).await;
                return Ok(CurrentSession::Ended);
            }
            SessionStatus::EndedWithUser => return Ok(CurrentSession::EndedWithUser(session)),
        }
        if !self.is_due(&session) {
            return Ok(CurrentSession::Session(session));
        }
        let mutex = self.refreshing.get(id);
        let (refresher, id) = (self.clone(), id.clone());
        // A task of its own: it continues when the request is dropped.
        let task = tokio::spawn(async move {
            let _guard = mutex.lock().await;
            refresher.refreshed(&id).await
        });
        match tokio::time::timeout(WAIT, task).await {
            Ok(Ok(refreshed)) => refreshed.map(Into::into),
            // The issuer is slow, or the task failed. Neither ends the session.
            _ => Ok((session.valid_until > self.now()).then_some(session).into()),
        }
    }

    fn is_due(&self, session: &Session) -> bool {
        session.refresh_after.is_some_and(|at| at <= self.now())
    }

    fn now(&self) -> i64 {
        self.clock.now().as_millis()
    }

    /// Refreshes the session, or waits until another process has refreshed it.
    async fn refreshed(&self, id: &SessionId) -> Result<Option<Session>, Error> {
        let deadline = Instant::now() + WAIT;
        loop {
            let Some(StoredSession { session, version }) = self.store.read(id).await? else {
                return Ok(None);
            };
            if !self.is_due(&session) {
                return Ok(Some(session));
            }
            match self.store.claim(id, version, LEASE).await? {
                RefreshClaim::Granted(lease) => return self.refresh(id, session, &lease).await,
                RefreshClaim::Gone => return Ok(None),
                RefreshClaim::Replaced => {}
                RefreshClaim::Busy if Instant::now() < deadline => tokio::time::sleep(POLL).await,
                // The process that holds the lease is slow.
                RefreshClaim::Busy => return Ok((session.valid_until > self.now()).then_some(session)),
            }
        }
    }

    async fn refresh(
        &self,
        id: &SessionId,
        session: Session,
        lease: &Lease,
    ) -> Result<Option<Session>, Error> {
        let old_tokens = self.open(id, &session);
        let Some(refresh_token) = old_tokens.as_ref().and_then(|tokens| tokens.refresh.as_deref()) else {
            // They were sealed with a key that is no longer configured.
            return self
                .end(id, &session, SecurityEvent::SessionEndedByIssuer, "its tokens cannot be opened")
                .await;
        };
        runtime::fault::point("gateway.refresh");
        match self.history.spend(id, &session).await {
            Ok(true) => {}
            Ok(false) => {
                self.metrics.refreshed("reverted");
                let why = "its refresh token was presented before";
                return self.end(id, &session, SecurityEvent::SessionReverted, why).await;
            }
            Err(error) if error.is_transient() && session.valid_until > self.now() => {
                self.metrics.refreshed("database_away");
                tracing::warn!(
                    cause = chain(&error),
                    "cannot record a session refresh in SQL; the session is used unrefreshed and tried again soon"
                );
                return self.write(id, lease, self.postponed(session)).await;
            }
            Err(error) => return Err(error.into()),
        }
        match self.with_lease(lease, self.provider.refresh(refresh_token)).await {
            Ok(tokens) => {
                let session = match self.renewed(id, &session, old_tokens.as_ref(), &tokens).await {
                    Ok(session) => session,
                    Err(why) => {
                        return self.end(id, &session, SecurityEvent::SessionEndedByIssuer, &why).await;
                    }
                };
                self.metrics.refreshed("refreshed");
                // Not written if the lease was lost: another process has refreshed or ended the session.
                self.write(id, lease, session).await
            }
            // Only `invalid_grant` ends a session.
            Err(error) if !error.is_invalid_grant() && session.valid_until > self.now() => {
                self.log_failure(&error);
                self.history.undo_spend(id, &session).await;
                self.write(id, lease, self.postponed(session)).await
            }
            Err(error) => {
                self.metrics.refreshed("refused");
                // If the lease was lost, another process may have refreshed the session and spent this token.
                if !self.store.renew(lease, LEASE).await? {
                    return Ok(self.store.read(id).await?.map(|found| found.session));
                }
                self.end(id, &session, SecurityEvent::SessionEndedByIssuer, &reason(&error)).await
            }
        }
    }

    /// Postpones the next refresh of a session by `RETRY`.
    fn postponed(&self, session: Session) -> Session {
        Session { refresh_after: Some(self.clock.now().after(RETRY).as_millis()), ..session }
    }

    fn log_failure(&self, error: &IssuerError) {
        if error.is_transient() {
            self.metrics.refreshed("issuer_away");
            tracing::warn!(
                outage = "issuer",
                cause = chain(error),
                "the issuer is unreachable; a session is used unrefreshed and tried again soon"
            );
        } else {
            self.metrics.refreshed("failed");
            tracing::error!(
                outage = "issuer",
                cause = chain(error),
                "the issuer rejects refresh requests; check the identity settings, or sessions will end soon"
            );
        }
    }

    /// Waits for the issuer's response and renews the lease meanwhile.
    async fn with_lease(
        &self,
        lease: &Lease,
        response: impl Future<Output = Result<Tokens, IssuerError>>,
    ) -> Result<Tokens, IssuerError> {
        tokio::pin!(response);
        loop {
            tokio::select! {
                result = &mut response => return result,
                () = tokio::time::sleep(RENEW) => {
                    // Keep waiting even if the lease is lost: the refresh token is spent by then.
                    let _ = self.store.renew(lease, LEASE).await;
                }
            }
        }
    }

    async fn write(&self, id: &SessionId, lease: &Lease, session: Session) -> Result<Option<Session>, Error> {
        let deadline = Instant::now() + LEASE;
        loop {
            match self.store.replace(lease, &session).await {
                Ok(true) => return Ok(Some(session)),
                // Also if an earlier attempt wrote it and its reply was lost.
                Ok(false) => return Ok(self.store.read(id).await?.map(|found| found.session)),
                Err(error) if error.is_transient() && Instant::now() < deadline => {
                    tokio::time::sleep(WRITE_RETRY).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn end(
        &self,
        id: &SessionId,
        session: &Session,
        event: SecurityEvent,
        why: &str,
    ) -> Result<Option<Session>, Error> {
        self.history.end(id, session).await;
        self.store.remove(id, session).await?;
        self.audit.record(event, None, Some(UserId::from_uuid(session.user_id)), why);
        Ok(None)
    }

    /// Returns the session with the new tokens. Fails with the reason if the session must end.
    async fn renewed(
        &self,
        id: &SessionId,
        session: &Session,
        old_tokens: Option<&IssuerTokens>,
        tokens: &Tokens,
    ) -> Result<Session, String> {
        let mut renewed = session.clone();
        renewed.generation += 1;
        if let Some(id_token) = &tokens.id_token {
            match self.provider.verify_id_token(id_token.expose(), None).await {
                Ok(claims) if claims.subject != session.subject => {
                    return Err("the issuer returned tokens of another user".to_owned());
                }
                Ok(claims) => renewed.name = claims.name.or(renewed.name),
                // The token came from the issuer itself over TLS. A key that cannot be fetched now must not end the session.
                Err(TokenError::UnknownKey | TokenError::Unavailable(_)) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        // An opaque access token has no roles; keep the old ones.
        if let Ok(access) = self.provider.verify_access(tokens.access_token.expose()).await
            && access.subject == session.subject
        {
            renewed.roles = roles(&access);
        }
        let before = old_tokens.map(|old| (old.refresh.clone(), old.id.clone())).unwrap_or_default();
        let text = |token: &Option<oidc::Token>| token.as_ref().map(|token| token.expose().to_owned());
        let new_tokens = IssuerTokens {
            refresh: text(&tokens.refresh_token).or(before.0),
            id: text(&tokens.id_token).or(before.1),
        };
        self.seal(id, &mut renewed, &new_tokens, tokens.expires_at);
        Ok(renewed)
    }

    /// Seals tokens into a session and sets when it is refreshed next.
    pub(crate) fn seal(
        &self,
        id: &SessionId,
        session: &mut Session,
        tokens: &IssuerTokens,
        expires_at: Timestamp,
    ) {
        let text = serde_json::to_string(tokens).unwrap_or_default();
        session.tokens = self.sealer.seal(&purpose(id), &text).unwrap_or_default();
        session.set_expiry(self.clock.now(), expires_at, tokens.refresh.is_some(), self.grace);
    }

    /// Opens the tokens of a session. Returns none if their key is no longer configured.
    pub(crate) fn open(&self, id: &SessionId, session: &Session) -> Option<IssuerTokens> {
        let text = self.sealer.open(&purpose(id), &session.tokens)?;
        serde_json::from_str(&text).ok()
    }
}

fn purpose(id: &SessionId) -> String {
    format!("session:{}", id.as_str())
}

/// Describes an error for the audit log: the standard's error code, without the issuer's own text.
fn reason(error: &IssuerError) -> String {
    match error {
        IssuerError::Rejected { error, .. } => format!("the issuer rejected the refresh token: {error}"),
        other => other.to_string(),
    }
}
