//! Signs browsers in at the issuer and out again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::http::HeaderMap;
use account::Role;
use base::error::{Coded, chain};
use base::{Clock, Timestamp};
use oidc::{AuthorizationRequest, Pkce, Token, Tokens};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::cookies::Cookies;
use crate::history::SessionStatus;
use crate::origin::Origin;
use crate::refresher::{IssuerTokens, SessionRefresher};
use crate::store::{Group, Session, SessionId, SessionSecret};
use crate::users::{Identity, KnownUser, Users, roles};

/// How long a player may take to sign in at the issuer.
pub const SIGN_IN_TIMEOUT: Duration = Duration::from_secs(600);
/// The timeout for revoking a refresh token. The player waits for it.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(2);
/// How many cookies of sign-in attempts a browser may have.
const MAX_ATTEMPTS: usize = 5;
/// The longest `return_to`. It is stored in a cookie, and a browser has several attempts.
const MAX_RETURN_TO: usize = 1024;

/// The path that the issuer redirects the browser back to.
pub const CALLBACK: &str = "/login/callback";

/// Signs browsers in and out. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct SignInFlow {
    pub(crate) refresher: SessionRefresher,
    pub(crate) users: Users,
    pub(crate) cookies: Cookies,
    /// The URL under which players reach the gateway.
    pub(crate) public_url: Url,
    /// Origins of other pages that a sign-in may return to.
    pub(crate) return_origins: Vec<Origin>,
    pub(crate) lifetime: Duration,
    pub(crate) clock: Clock,
}

/// A sign-in attempt, sealed in a cookie of the browser.
#[derive(Serialize, Deserialize)]
struct Attempt {
    state: String,
    nonce: String,
    verifier: String,
    return_to: String,
    until: i64,
}

/// The query of the issuer's redirect back to [`CALLBACK`].
#[derive(Default, Deserialize)]
pub struct Callback {
    code: Option<String>,
    state: Option<String>,
    error: Option<String>,
    iss: Option<String>,
}

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The code is a secret until it is redeemed.
        f.debug_struct("Callback").field("error", &self.error).field("iss", &self.iss).finish_non_exhaustive()
    }
}

/// A sign-in that was started.
#[derive(Debug)]
pub struct SignInStarted {
    /// The issuer's sign-in page.
    pub url: Url,
    /// The cookie to set.
    pub cookie: AttemptCookie,
    /// The names of cookies to remove, because the browser has too many attempts.
    pub stale_cookies: Vec<String>,
}

/// The cookie that holds a sign-in attempt, sealed.
pub struct AttemptCookie {
    pub name: String,
    pub value: String,
}

impl fmt::Debug for AttemptCookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptCookie").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A player who has signed in, with their new session.
#[derive(Debug)]
pub struct SignedIn {
    pub secret: SessionSecret,
    pub return_to: String,
    pub known: Arc<KnownUser>,
}

/// Why a sign-in or sign-out failed. There is one variant per message to the player.
#[derive(Debug, thiserror::Error)]
pub enum SignInError {
    #[error("the sign-in was not started in this browser")]
    UnknownAttempt,
    #[error("the sign-in took too long")]
    Expired,
    #[error("the sign-in was already completed")]
    AlreadyUsed,
    #[error("the sign-in was cancelled at the issuer")]
    Cancelled,
    #[error("the response is not from the issuer")]
    Forged(&'static str),
    #[error("the issuer rejected the sign-in")]
    Rejected(String),
    #[error("the user is banned")]
    Banned(String),
    #[error("a dependency is unavailable")]
    Unavailable(String),
    #[error("internal error")]
    Internal(String),
}

impl SignInError {
    /// Describes the cause for the log, never for the player.
    pub fn cause(&self) -> String {
        match self {
            Self::Rejected(cause) | Self::Unavailable(cause) | Self::Internal(cause) => {
                format!("{self}: {cause}")
            }
            Self::Forged(cause) => format!("{self}: {cause}"),
            other => other.to_string(),
        }
    }
}

impl From<oidc::Error> for SignInError {
    fn from(error: oidc::Error) -> Self {
        let cause = chain(&error);
        match error {
            error if error.is_transient() => Self::Unavailable(cause),
            oidc::Error::Rejected { .. } => Self::Rejected(cause),
            _ => Self::Internal(cause),
        }
    }
}

impl From<oidc::TokenError> for SignInError {
    fn from(error: oidc::TokenError) -> Self {
        match error {
            oidc::TokenError::Unavailable(error) => error.into(),
            other => Self::Rejected(other.to_string()),
        }
    }
}

impl From<redis_store::Error> for SignInError {
    fn from(error: redis_store::Error) -> Self {
        let cause = chain(&error);
        if error.is_transient() { Self::Unavailable(cause) } else { Self::Internal(cause) }
    }
}

impl From<db::Error> for SignInError {
    fn from(error: db::Error) -> Self {
        let cause = chain(&error);
        if error.is_transient() { Self::Unavailable(cause) } else { Self::Internal(cause) }
    }
}

impl From<account::Error> for SignInError {
    fn from(error: account::Error) -> Self {
        let cause = chain(&error);
        match error {
            account::Error::Banned { reason, .. } => Self::Banned(reason),
            error if error.is_transient() => Self::Unavailable(cause),
            _ => Self::Internal(cause),
        }
    }
}

impl SignInFlow {
    /// Starts a sign-in. Afterwards the browser is sent to `return_to`.
    pub async fn begin(
        &self,
        return_to: Option<&str>,
        headers: &HeaderMap,
    ) -> Result<SignInStarted, SignInError> {
        let (state, nonce, pkce) = (oidc::random_token(), oidc::random_token(), Pkce::generate());
        let redirect_uri = self.url_of(CALLBACK);
        let request = AuthorizationRequest {
            redirect_uri: &redirect_uri,
            state: &state,
            nonce: &nonce,
            challenge: &pkce.challenge,
        };
        let url = self.refresher.provider.authorize_url(&request).await?;
        let return_to = return_to.filter(|target| self.may_return_to(target)).unwrap_or("/").to_owned();
        let name = self.cookies.sign_in(&state);
        let until = self.clock.now().after(SIGN_IN_TIMEOUT).as_millis();
        let attempt = Attempt { state, nonce, verifier: pkce.verifier, return_to, until };
        let text = serde_json::to_string(&attempt).unwrap_or_default();
        let sealed = self
            .refresher
            .sealer
            .seal(&name, &text)
            .map_err(|error| SignInError::Internal(error.to_string()))?;
        let mut stale_cookies = self.cookies.sign_ins(headers);
        stale_cookies.truncate((stale_cookies.len() + 1).saturating_sub(MAX_ATTEMPTS));
        Ok(SignInStarted { url, cookie: AttemptCookie { name, value: sealed }, stale_cookies })
    }

    /// Returns the name of the cookie that holds the attempt of a callback.
    pub fn cookie_name(&self, callback: &Callback) -> Option<String> {
        callback.state.as_deref().map(|state| self.cookies.sign_in(state))
    }

    /// Finishes a sign-in: checks the callback, redeems its code and opens a session.
    pub async fn finish(&self, callback: &Callback, headers: &HeaderMap) -> Result<SignedIn, SignInError> {
        let state = callback.state.as_deref().ok_or(SignInError::UnknownAttempt)?;
        let name = self.cookies.sign_in(state);
        let sealed = http_server::cookie(headers, &name).ok_or(SignInError::UnknownAttempt)?;
        let text = self.refresher.sealer.open(&name, sealed).ok_or(SignInError::UnknownAttempt)?;
        let attempt: Attempt = serde_json::from_str(&text).map_err(|_| SignInError::UnknownAttempt)?;
        if attempt.state != state {
            return Err(SignInError::UnknownAttempt);
        }
        if attempt.until <= self.clock.now().as_millis() {
            return Err(SignInError::Expired);
        }
        // Before the code is redeemed: another issuer may have sent the browser here to obtain it (mix-up, RFC 9207).
        let provider = &self.refresher.provider;
        if !provider.is_response_of_issuer(callback.iss.as_deref()).await? {
            return Err(SignInError::Forged("it does not name our issuer"));
        }
        match (callback.error.as_deref(), callback.code.as_deref()) {
            (Some("access_denied"), _) => Err(SignInError::Cancelled),
            (Some("temporarily_unavailable" | "server_error"), _) => {
                Err(SignInError::Unavailable("the issuer reports an outage".to_owned()))
            }
            (Some(error), _) => Err(SignInError::Rejected(error.chars().take(100).collect())),
            (None, None) => Err(SignInError::Forged("there is no code")),
            (None, Some(code)) => {
                // Before the code is redeemed: a logout from now on must end this session too.
                let history = &self.refresher.history;
                let began_at = history.consume_state(&attempt.state, SIGN_IN_TIMEOUT).await?;
                let began_at = began_at.ok_or(SignInError::AlreadyUsed)?;
                let tokens = provider.redeem(code, &attempt.verifier, &self.url_of(CALLBACK)).await?;
                self.open(&tokens, &attempt, began_at).await
            }
        }
    }

    async fn open(
        &self,
        tokens: &Tokens,
        attempt: &Attempt,
        began_at: Timestamp,
    ) -> Result<SignedIn, SignInError> {
        let provider = &self.refresher.provider;
        let id_token = tokens
            .id_token
            .as_ref()
            .ok_or_else(|| SignInError::Rejected("there is no ID token".to_owned()))?;
        let claims = provider.verify_id_token(id_token.expose(), Some(&attempt.nonce)).await?;
        // The access token has the roles. With an opaque one, the user is a player.
        let access = provider.verify_access(tokens.access_token.expose()).await.ok();
        let access = access.filter(|access| access.subject == claims.subject);
        let identity = Identity {
            issuer: claims.issuer,
            subject: claims.subject,
            name: claims.name,
            roles: access.map_or_else(|| vec![Role::Player], |access| roles(&access)),
        };
        let known = self.users.resolve(&identity).await?;
        let secret = SessionSecret::generate();
        let now = self.clock.now();
        let mut session = Session {
            user_id: *known.user.id.as_uuid(),
            issuer: identity.issuer,
            subject: identity.subject,
            sid: claims.sid,
            name: identity.name,
            roles: identity.roles,
            tokens: String::new(),
            refresh_after: None,
            valid_until: 0,
            ends_at: now.after(self.lifetime).as_millis(),
            began_at: began_at.as_millis(),
            generation: 0,
        };
        let text = |token: &Token| token.expose().to_owned();
        let issuer_tokens =
            IssuerTokens { refresh: tokens.refresh_token.as_ref().map(text), id: Some(text(id_token)) };
        self.refresher.seal(&secret.id(), &mut session, &issuer_tokens, tokens.expires_at);
        let (id, refresher) = (secret.id(), &self.refresher);
        refresher.store.insert(&id, &session).await?;
        // Checked after the insert: a logout before it found no session to remove.
        if refresher.history.status(&id, &session).await? != SessionStatus::Alive {
            refresher.store.remove(&id, &session).await?;
            return Err(SignInError::Rejected("a logout ended it before it started".to_owned()));
        }
        Ok(SignedIn { secret, return_to: attempt.return_to.clone(), known })
    }

    /// Ends a session. Returns the URL that signs the player out at the issuer.
    pub async fn sign_out(&self, id: &SessionId, session: &Session) -> Result<Url, SignInError> {
        let tokens = self.refresher.open(id, session);
        self.refresher.history.end(id, session).await;
        self.refresher.store.remove(id, session).await?;
        let home = self.url_of("/");
        if let Some(refresh) = tokens.as_ref().and_then(|tokens| tokens.refresh.as_deref()) {
            // Best effort: the issuer's end-session page follows anyway.
            let revoked = tokio::time::timeout(REVOKE_TIMEOUT, self.refresher.provider.revoke(refresh)).await;
            if !matches!(revoked, Ok(Ok(()))) {
                tracing::warn!(outage = "issuer", "the issuer did not revoke a refresh token in time");
            }
        }
        let hint = tokens.as_ref().and_then(|tokens| tokens.id.as_deref());
        let end_session_url = self.refresher.provider.end_session_url(hint, &home).await;
        Ok(end_session_url.ok().flatten().unwrap_or(home))
    }

    /// Ends the sessions that a logout token names. Returns how many there were.
    pub async fn back_channel(&self, logout_token: &str) -> Result<usize, SignInError> {
        let token = self.refresher.provider.verify_logout_token(logout_token).await?;
        let groups = match (&token.sid, &token.subject) {
            (Some(sid), subject) => {
                // The session may have started without a `sid`.
                let without_sid =
                    subject.as_deref().map(|subject| Group::without_sid(&token.issuer, subject));
                [Some(Group::of_sid(&token.issuer, sid)), without_sid]
            }
            (None, Some(subject)) => [Some(Group::of_subject(&token.issuer, subject)), None],
            (None, None) => {
                return Err(SignInError::Rejected("the logout token has neither sid nor sub".to_owned()));
            }
        };
        let groups: Vec<Group> = groups.into_iter().flatten().collect();
        let user = match &token.subject {
            Some(subject) => self.users.find(&token.issuer, subject).await?,
            None => None,
        };
        let SessionRefresher { history, store, .. } = &self.refresher;
        if !history.back_channel(&token.jti, token.expires_at, &groups, user).await? {
            return Err(SignInError::Rejected("the logout token was already used".to_owned()));
        }
        let mut ended = 0;
        for group in &groups {
            match store.remove_group(group).await {
                Ok(count) => ended += count,
                // SQL has the end, so the sessions have ended whatever Redis returns.
                Err(error) => tracing::warn!(
                    cause = chain(&error),
                    "cannot remove ended sessions from Redis; they are refused nevertheless"
                ),
            }
        }
        Ok(ended)
    }

    pub const fn public_url(&self) -> &Url {
        &self.public_url
    }

    /// Returns the public URL of one of the gateway's paths.
    pub fn url_of(&self, path: &str) -> Url {
        let mut url = self.public_url.clone();
        url.set_path(path);
        url
    }

    /// Allows our own paths and pages of configured origins, so that a link to us cannot redirect anywhere else.
    fn may_return_to(&self, target: &str) -> bool {
        let is_allowed = |c: char| c.is_ascii_graphic() && c != '\\';
        if target.len() > MAX_RETURN_TO || !target.chars().all(is_allowed) {
            return false;
        }
        if target.starts_with('/') {
            return !target.starts_with("//");
        }
        Url::parse(target).is_ok_and(|url| {
            matches!(url.scheme(), "http" | "https") && self.return_origins.contains(&Origin::from_url(&url))
        })
    }
}
