//! Keeping sessions alive: the refresh of an access token that has expired, once for all who wait for it.
//!
//! Redeeming a refresh token twice is what issuers take for theft, so it must not happen however many requests of a player
//! arrive at however many processes. In this process they queue for one task; between processes the session's lease decides. The
//! lease is kept for as long as the issuer takes to answer. The task goes on when the request that began it is gone: an answer
//! that nobody wrote down would be a session lost. For the same reason a store that is away at that moment is waited for.
//!
//! A session ends when the issuer says that it has ended, and when it could not be refreshed for too long; not because somebody
//! made a mistake in the settings or changed the issuer's keys.

use std::time::Duration;

use account::UserId;
use base::error::{Coded, chain};
use base::{Clock, Timestamp};
use oidc::{Error as IssuerError, Provider, Refused, Tokens};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::audit::{Audit, Event};
use crate::metrics::Metrics;
use crate::seal::Sealer;
use crate::session::{Claim, Error, Found, Lease, Session, SessionId, Sessions};
use crate::turns::Turns;
use crate::users::roles;

/// How long the right to refresh is held without a word, and how often it is renewed.
const LEASE: Duration = Duration::from_secs(5);
const RENEW: Duration = Duration::from_millis(1_500);
/// Between looks at what another process is doing.
const LOOK: Duration = Duration::from_millis(20);
/// Between attempts to write down what a refresh brought.
const WRITE_AGAIN: Duration = Duration::from_millis(100);
/// How long a request waits for a refresh, whoever does it: longer than it takes to take over from a process that died.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long an issuer that is away is left alone.
const AGAIN: Duration = Duration::from_secs(5);

/// The tokens of a session, as they are sealed.
#[derive(Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) refresh: Option<String>,
    pub(crate) id: Option<String>,
}

/// Reads sessions, and refreshes them when it is time. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Keeper {
    pub(crate) sessions: Sessions,
    pub(crate) provider: Provider,
    pub(crate) sealer: Sealer,
    pub(crate) clock: Clock,
    /// How long a session may be used that cannot be refreshed because the issuer is away.
    pub(crate) grace: Duration,
    pub(crate) metrics: Metrics,
    pub(crate) audit: Audit,
    /// Those who want to refresh the same session in this process, one at a time.
    pub(crate) turns: Turns<SessionId>,
}

impl Keeper {
    /// The session as it is now; none if there is none, or not any more.
    pub(crate) async fn current(&self, id: &SessionId) -> Result<Option<Session>, Error> {
        let session = match self.sessions.read(id).await? {
            Some(found) if self.is_due(&found.session) => found.session,
            found => return Ok(found.map(|found| found.session)),
        };
        let turn = self.turns.of(id);
        let (keeper, id) = (self.clone(), id.clone());
        // A task of its own: it goes on when the caller does not.
        let task = tokio::spawn(async move {
            let _turn = turn.lock().await;
            keeper.refreshed(&id).await
        });
        match tokio::time::timeout(PATIENCE, task).await {
            Ok(Ok(refreshed)) => refreshed,
            // The issuer takes long, or we failed; neither is a reason to turn the player away.
            _ => Ok((session.valid_until > self.now()).then_some(session)),
        }
    }

    fn is_due(&self, session: &Session) -> bool {
        session.refresh_after.is_some_and(|at| at <= self.now())
    }

    fn now(&self) -> i64 {
        self.clock.now().as_millis()
    }

    /// Refreshes, or waits until somebody else has.
    async fn refreshed(&self, id: &SessionId) -> Result<Option<Session>, Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let Some(Found { session, version }) = self.sessions.read(id).await? else { return Ok(None) };
            if !self.is_due(&session) {
                return Ok(Some(session));
            }
            match self.sessions.claim(id, version, LEASE).await? {
                Claim::Yours(lease) => return self.refresh(id, session, &lease).await,
                Claim::Gone => return Ok(None),
                Claim::Moved => {}
                Claim::Busy if Instant::now() < deadline => tokio::time::sleep(LOOK).await,
                // Whoever is at it takes long.
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
        let kept = self.open(id, &session);
        let Some(refresh_token) = kept.as_ref().and_then(|kept| kept.refresh.as_deref()) else {
            // Sealed with a key that we no longer have.
            return self.end(id, &session, "its tokens cannot be opened").await;
        };
        runtime::fault::point("gateway.refresh");
        match self.holding(lease, self.provider.refresh(refresh_token)).await {
            Ok(tokens) => {
                let session = match self.renewed(id, &session, kept.as_ref(), &tokens).await {
                    Ok(session) => session,
                    Err(why) => return self.end(id, &session, &why).await,
                };
                self.metrics.refreshed("refreshed");
                // Lost if the lease was: then another has refreshed it since, or it was ended, and that counts.
                self.write(id, lease, session).await
            }
            // Only the word that the token is no good ends a session.
            Err(error) if !error.is_invalid_grant() && session.valid_until > self.now() => {
                self.not_now(&error);
                let again = self.clock.now().after(AGAIN).as_millis();
                self.write(id, lease, Session { refresh_after: Some(again), ..session }).await
            }
            Err(error) => {
                self.metrics.refreshed("refused");
                // If the lease was lost, another may have refreshed it, and this answer is about a token that is spent.
                if !self.sessions.keep(lease, LEASE).await? {
                    return Ok(self.sessions.read(id).await?.map(|found| found.session));
                }
                self.end(id, &session, &reason(&error)).await
            }
        }
    }

    fn not_now(&self, error: &IssuerError) {
        if error.is_passing() {
            self.metrics.refreshed("issuer_away");
            tracing::warn!(cause = chain(error), "a session cannot be refreshed; it is used as it is");
        } else {
            self.metrics.refreshed("failed");
            tracing::error!(cause = chain(error), "the issuer refreshes no session; they end soon");
        }
    }

    /// Waits for the issuer, and holds the lease meanwhile.
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
                    // If it is lost the answer will not be written; but it has to be waited for all the same.
                    let _ = self.sessions.keep(lease, LEASE).await;
                }
            }
        }
    }

    async fn write(&self, id: &SessionId, lease: &Lease, session: Session) -> Result<Option<Session>, Error> {
        let deadline = Instant::now() + LEASE;
        loop {
            match self.sessions.replace(lease, &session).await {
                Ok(true) => return Ok(Some(session)),
                // Also if it was written, and only the answer was lost.
                Ok(false) => return Ok(self.sessions.read(id).await?.map(|found| found.session)),
                Err(error) if error.is_passing() && Instant::now() < deadline => {
                    tokio::time::sleep(WRITE_AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn end(&self, id: &SessionId, session: &Session, why: &str) -> Result<Option<Session>, Error> {
        self.sessions.remove(id, session).await?;
        let user = UserId::from_uuid(session.user_id);
        self.audit.note(Event::SessionEndedByIssuer, None, Some(user), why);
        Ok(None)
    }

    /// The session with what a refresh brought.
    async fn renewed(
        &self,
        id: &SessionId,
        session: &Session,
        kept: Option<&Kept>,
        tokens: &Tokens,
    ) -> Result<Session, String> {
        let mut renewed = session.clone();
        if let Some(id_token) = &tokens.id_token {
            match self.provider.verify_id_token(id_token.expose(), None).await {
                Ok(claims) if claims.subject != session.subject => {
                    return Err("the issuer refreshed it for somebody else".to_owned());
                }
                Ok(claims) => renewed.name = claims.name.or(renewed.name),
                // The issuer itself has just given it to us. That its key is not to be had at the moment costs nobody the session.
                Err(Refused::UnknownKey | Refused::Unavailable(_)) => {}
                Err(refused) => return Err(refused.to_string()),
            }
        }
        // One that we cannot read is nobody's mistake; then the roles stay.
        if let Ok(access) = self.provider.verify_access(tokens.access_token.expose()).await
            && access.subject == session.subject
        {
            renewed.roles = roles(&access);
        }
        let before = kept.map(|kept| (kept.refresh.clone(), kept.id.clone())).unwrap_or_default();
        let text = |token: &Option<oidc::Token>| token.as_ref().map(|token| token.expose().to_owned());
        let kept = Kept {
            refresh: text(&tokens.refresh_token).or(before.0),
            id: text(&tokens.id_token).or(before.1),
        };
        self.keep(id, &mut renewed, &kept, tokens.expires_at);
        Ok(renewed)
    }

    /// Writes tokens into a session, and when they are to be refreshed.
    pub(crate) fn keep(&self, id: &SessionId, session: &mut Session, kept: &Kept, expires_at: Timestamp) {
        let text = serde_json::to_string(kept).unwrap_or_default();
        session.tokens = self.sealer.seal(&purpose(id), &text).unwrap_or_default();
        session.run_until(self.clock.now(), expires_at, kept.refresh.is_some(), self.grace);
    }

    /// The tokens of a session.
    pub(crate) fn open(&self, id: &SessionId, session: &Session) -> Option<Kept> {
        let text = self.sealer.open(&purpose(id), &session.tokens)?;
        serde_json::from_str(&text).ok()
    }
}

fn purpose(id: &SessionId) -> String {
    format!("session:{}", id.as_str())
}

/// What the audit log says of an answer: an error word of the standard, and nothing that somebody made up.
fn reason(error: &IssuerError) -> String {
    match error {
        IssuerError::Rejected { error, .. } => format!("the issuer does not refresh it: {error}"),
        other => other.to_string(),
    }
}
