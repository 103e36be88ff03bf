//! Refreshes sessions whose access token expires, once for all requests that wait for it.
//!
//! Issuers take a refresh token that is redeemed twice for theft. So it must not happen, however many requests of a player arrive at
//! however many processes. Within a process, requests queue for one task; between processes, the session's lease decides. The task
//! renews the lease until the issuer answers. It continues when the request that started it is gone, and it waits for a store that
//! is away: an answer that is not written loses the session.
//!
//! SQL records that a token is presented before it is, so a token that Redis brings back after it went back in time is not presented
//! again: the session ends, and the player signs in again.
//!
//! A session ends when the issuer says so, or when it could not be refreshed for `refresh_grace`. It does not end because of a mistake
//! in the settings or a change of the issuer's keys.

use std::time::Duration;

use account::UserId;
use base::error::{Coded, chain};
use base::{Clock, Timestamp};
use oidc::{Error as IssuerError, Provider, Refused, Tokens};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::audit::{Audit, SecurityEvent};
use crate::error::Error;
use crate::history::{SessionHistory, Verdict};
use crate::keyed_mutex::KeyedMutex;
use crate::metrics::Metrics;
use crate::seal::Sealer;
use crate::store::{Claim, Found, Lease, Session, SessionId, SessionStore};
use crate::users::roles;

/// How long a lease lasts without renewal, and how often it is renewed.
const LEASE: Duration = Duration::from_secs(5);
const RENEW: Duration = Duration::from_millis(1_500);
/// Between two reads of a session that another process refreshes.
const POLL: Duration = Duration::from_millis(20);
/// Between attempts to write a refreshed session.
const WRITE_RETRY: Duration = Duration::from_millis(100);
/// How long a request waits for a refresh: longer than `LEASE`, so that a process can take over from one that died.
const WAIT: Duration = Duration::from_secs(8);
/// How soon a session is refreshed again after the issuer failed.
const RETRY: Duration = Duration::from_secs(5);

/// The issuer's tokens of a session: what is sealed in [`Session::tokens`].
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
    /// How long a session is accepted that cannot be refreshed because the issuer is away.
    pub(crate) grace: Duration,
    pub(crate) metrics: Metrics,
    pub(crate) audit: Audit,
    /// One refresh at a time per session in this process.
    pub(crate) refreshing: KeyedMutex<SessionId>,
}

/// The session that a request names.
#[derive(Debug)]
pub enum Current {
    Session(Session),
    /// It does not exist or has ended.
    Ended,
    /// All sessions of its user were ended.
    EndedWithUser(Session),
}

impl From<Option<Session>> for Current {
    fn from(session: Option<Session>) -> Self {
        session.map_or(Self::Ended, Self::Session)
    }
}

impl SessionRefresher {
    /// Reads a session, and refreshes it first if it is due.
    pub async fn current(&self, id: &SessionId) -> Result<Current, Error> {
        let Some(Found { session, .. }) = self.store.read(id).await? else { return Ok(Current::Ended) };
        match self.history.verdict(id, &session).await? {
            Verdict::Alive => {}
            Verdict::Ended => {
                // Redis went back in time. Best effort: the verdict stands.
                let _ = self.store.remove(id, &session).await;
                return Ok(Current::Ended);
            }
            Verdict::EndedWithUser => return Ok(Current::EndedWithUser(session)),
        }
        if !self.is_due(&session) {
            return Ok(Current::Session(session));
        }
        let mutex = self.refreshing.of(id);
        let (refresher, id) = (self.clone(), id.clone());
        // A task of its own: it continues when the request is dropped.
        let task = tokio::spawn(async move {
            let _turn = mutex.lock().await;
            refresher.refreshed(&id).await
        });
        match tokio::time::timeout(WAIT, task).await {
            Ok(Ok(refreshed)) => refreshed.map(Into::into),
            // The issuer is slow, or the task failed. Neither signs the player out.
            _ => Ok((session.valid_until > self.now()).then_some(session).into()),
        }
    }

    fn is_due(&self, session: &Session) -> bool {
        session.refresh_after.is_some_and(|at| at <= self.now())
    }

    fn now(&self) -> i64 {
        self.clock.now().as_millis()
    }

    /// Refreshes the session, or waits until another process has.
    async fn refreshed(&self, id: &SessionId) -> Result<Option<Session>, Error> {
        let deadline = Instant::now() + WAIT;
        loop {
            let Some(Found { session, version }) = self.store.read(id).await? else { return Ok(None) };
            if !self.is_due(&session) {
                return Ok(Some(session));
            }
            match self.store.claim(id, version, LEASE).await? {
                Claim::Yours(lease) => return self.refresh(id, session, &lease).await,
                Claim::Gone => return Ok(None),
                Claim::Moved => {}
                Claim::Busy if Instant::now() < deadline => tokio::time::sleep(POLL).await,
                // The process that holds the lease is slow.
                Claim::Busy => return Ok((session.valid_until > self.now()).then_some(session)),
            }
        }
    }

    async fn refresh(
        &self,
        id: &SessionId,
        session: Session,
        lease: &Lease,
    ) -> Result<Option<Session>, Error> {
        let held = self.open(id, &session);
        let Some(refresh_token) = held.as_ref().and_then(|held| held.refresh.as_deref()) else {
            // They are sealed with a key that is no longer configured.
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
            Err(error) if error.is_passing() && session.valid_until > self.now() => {
                self.metrics.refreshed("database_away");
                tracing::warn!(cause = chain(&error), "a session cannot be refreshed; it is used as it is");
                return self.write(id, lease, self.later(session)).await;
            }
            Err(error) => return Err(error.into()),
        }
        match self.holding(lease, self.provider.refresh(refresh_token)).await {
            Ok(tokens) => {
                let session = match self.renewed(id, &session, held.as_ref(), &tokens).await {
                    Ok(session) => session,
                    Err(why) => {
                        return self.end(id, &session, SecurityEvent::SessionEndedByIssuer, &why).await;
                    }
                };
                self.metrics.refreshed("refreshed");
                // Not written if the lease was lost: then another process has refreshed or ended the session, and that counts.
                self.write(id, lease, session).await
            }
            // Only `invalid_grant` ends a session.
            Err(error) if !error.is_invalid_grant() && session.valid_until > self.now() => {
                self.not_now(&error);
                self.history.unspend(id, &session).await;
                self.write(id, lease, self.later(session)).await
            }
            Err(error) => {
                self.metrics.refreshed("refused");
                // If the lease was lost, another process may have refreshed it, and the refused token is the spent one.
                if !self.store.keep(lease, LEASE).await? {
                    return Ok(self.store.read(id).await?.map(|found| found.session));
                }
                self.end(id, &session, SecurityEvent::SessionEndedByIssuer, &reason(&error)).await
            }
        }
    }

    /// The session, to be refreshed a little later.
    fn later(&self, session: Session) -> Session {
        Session { refresh_after: Some(self.clock.now().after(RETRY).as_millis()), ..session }
    }

    fn not_now(&self, error: &IssuerError) {
        if error.is_passing() {
            self.metrics.refreshed("issuer_away");
            tracing::warn!(
                outage = "issuer",
                cause = chain(error),
                "a session cannot be refreshed; it is used as it is"
            );
        } else {
            self.metrics.refreshed("failed");
            tracing::error!(
                outage = "issuer",
                cause = chain(error),
                "the issuer refreshes no session; they end soon"
            );
        }
    }

    /// Waits for the issuer and renews the lease meanwhile.
    async fn holding(
        &self,
        lease: &Lease,
        answer: impl Future<Output = Result<Tokens, IssuerError>>,
    ) -> Result<Tokens, IssuerError> {
        tokio::pin!(answer);
        loop {
            tokio::select! {
                answer = &mut answer => return answer,
                () = tokio::time::sleep(RENEW) => {
                    // The answer is awaited even if the lease is lost: the refresh token is spent by then.
                    let _ = self.store.keep(lease, LEASE).await;
                }
            }
        }
    }

    async fn write(&self, id: &SessionId, lease: &Lease, session: Session) -> Result<Option<Session>, Error> {
        let deadline = Instant::now() + LEASE;
        loop {
            match self.store.replace(lease, &session).await {
                Ok(true) => return Ok(Some(session)),
                // Also if an earlier attempt wrote it and its answer was lost.
                Ok(false) => return Ok(self.store.read(id).await?.map(|found| found.session)),
                Err(error) if error.is_passing() && Instant::now() < deadline => {
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
        self.audit.note(event, None, Some(UserId::from_uuid(session.user_id)), why);
        Ok(None)
    }

    /// Returns the session with the new tokens; fails with the reason to end it.
    async fn renewed(
        &self,
        id: &SessionId,
        session: &Session,
        held: Option<&IssuerTokens>,
        tokens: &Tokens,
    ) -> Result<Session, String> {
        let mut renewed = session.clone();
        renewed.generation += 1;
        if let Some(id_token) = &tokens.id_token {
            match self.provider.verify_id_token(id_token.expose(), None).await {
                Ok(claims) if claims.subject != session.subject => {
                    return Err("the issuer refreshed it for somebody else".to_owned());
                }
                Ok(claims) => renewed.name = claims.name.or(renewed.name),
                // The token came from the issuer itself over TLS. A key that cannot be fetched right now must not end the session.
                Err(Refused::UnknownKey | Refused::Unavailable(_)) => {}
                Err(refused) => return Err(refused.to_string()),
            }
        }
        // Access tokens may be opaque; then the roles stay.
        if let Ok(access) = self.provider.verify_access(tokens.access_token.expose()).await
            && access.subject == session.subject
        {
            renewed.roles = roles(&access);
        }
        let before = held.map(|held| (held.refresh.clone(), held.id.clone())).unwrap_or_default();
        let text = |token: &Option<oidc::Token>| token.as_ref().map(|token| token.expose().to_owned());
        let held = IssuerTokens {
            refresh: text(&tokens.refresh_token).or(before.0),
            id: text(&tokens.id_token).or(before.1),
        };
        self.seal(id, &mut renewed, &held, tokens.expires_at);
        Ok(renewed)
    }

    /// Seals tokens into a session and sets when they are refreshed.
    pub(crate) fn seal(
        &self,
        id: &SessionId,
        session: &mut Session,
        tokens: &IssuerTokens,
        expires_at: Timestamp,
    ) {
        let text = serde_json::to_string(tokens).unwrap_or_default();
        session.tokens = self.sealer.seal(&purpose(id), &text).unwrap_or_default();
        session.run_until(self.clock.now(), expires_at, tokens.refresh.is_some(), self.grace);
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

/// Describes an answer for the audit log, by the standard's error word and without text of the issuer's own.
fn reason(error: &IssuerError) -> String {
    match error {
        IssuerError::Rejected { error, .. } => format!("the issuer does not refresh it: {error}"),
        other => other.to_string(),
    }
}
