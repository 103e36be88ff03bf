//! Signing in at the issuer and out again.

use std::time::Duration;

use ::http::HeaderMap;
use account::Role;
use base::Clock;
use base::error::{Coded, chain};
use oidc::{Authorize, Pkce, Token, Tokens};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::cookies::{self, Cookies};
use crate::keeper::{Keeper, Kept};
use crate::origin::Origin;
use crate::session::{Group, Session, SessionId, SessionSecret};
use crate::users::{Identity, Known, Users, roles};

/// How long somebody may take to sign in at the issuer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);
/// How much longer than it is accepted a logout token is remembered, for clocks differ.
const SKEW: Duration = Duration::from_secs(600);
/// How long the issuer may take to forget a refresh token: the player waits.
const REVOKE: Duration = Duration::from_secs(2);
/// How many attempts to sign in a browser remembers.
const ATTEMPTS: usize = 5;

/// The longest place to return to: it goes into a cookie, of which a browser has several.
const MAX_RETURN_TO: usize = 1024;

/// Where the issuer sends the browser back to.
pub(crate) const CALLBACK: &str = "/login/callback";

/// Signs browsers in and out. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct SignIns {
    pub(crate) keeper: Keeper,
    pub(crate) users: Users,
    pub(crate) cookies: Cookies,
    /// Where players find the gateway.
    pub(crate) public: Url,
    /// Whose pages may be returned to, beside our own.
    pub(crate) origins: Vec<Origin>,
    pub(crate) lifetime: Duration,
    pub(crate) clock: Clock,
}

/// What is remembered of an attempt, in the browser and sealed.
#[derive(Serialize, Deserialize)]
struct Attempt {
    state: String,
    nonce: String,
    verifier: String,
    return_to: String,
    until: i64,
}

/// What the issuer sends the browser back with.
#[derive(Default, Deserialize)]
pub(crate) struct Callback {
    code: Option<String>,
    state: Option<String>,
    error: Option<String>,
    iss: Option<String>,
}

/// Where to go to sign in, and the cookie that remembers it.
pub(crate) struct Started {
    pub(crate) url: Url,
    pub(crate) cookie: (String, String),
    /// Cookies of attempts that are too many.
    pub(crate) forget: Vec<String>,
}

/// Somebody has signed in.
pub(crate) struct Finished {
    pub(crate) secret: SessionSecret,
    pub(crate) return_to: String,
    pub(crate) known: std::sync::Arc<Known>,
}

/// Why somebody could not sign in, by what they can do about it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("the sign-in was not begun in this browser")]
    NotBegunHere,
    #[error("the sign-in took too long")]
    TooLate,
    #[error("the issuer says that the sign-in was cancelled")]
    Cancelled,
    #[error("the answer is not from the issuer")]
    Forged(&'static str),
    #[error("the issuer refuses")]
    Refused(String),
    #[error("the user is banned")]
    Banned(String),
    #[error("something that is needed is away")]
    Away(String),
    #[error("something went wrong here")]
    Internal(String),
}

impl Failure {
    /// For the log, never for the player.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Refused(cause) | Self::Away(cause) | Self::Internal(cause) => format!("{self}: {cause}"),
            Self::Forged(cause) => format!("{self}: {cause}"),
            other => other.to_string(),
        }
    }
}

impl From<oidc::Error> for Failure {
    fn from(error: oidc::Error) -> Self {
        let cause = chain(&error);
        match error {
            error if error.is_passing() => Self::Away(cause),
            oidc::Error::Rejected { .. } => Self::Refused(cause),
            _ => Self::Internal(cause),
        }
    }
}

impl From<oidc::Refused> for Failure {
    fn from(refused: oidc::Refused) -> Self {
        match refused {
            oidc::Refused::Unavailable(error) => error.into(),
            other => Self::Refused(other.to_string()),
        }
    }
}

impl From<redis_store::Error> for Failure {
    fn from(error: redis_store::Error) -> Self {
        let cause = chain(&error);
        if error.is_passing() { Self::Away(cause) } else { Self::Internal(cause) }
    }
}

impl From<account::Error> for Failure {
    fn from(error: account::Error) -> Self {
        let cause = chain(&error);
        match error {
            account::Error::Banned { reason, .. } => Self::Banned(reason),
            error if error.is_passing() => Self::Away(cause),
            _ => Self::Internal(cause),
        }
    }
}

impl SignIns {
    /// Begins a sign-in, which ends at `return_to`.
    pub(crate) async fn begin(
        &self,
        return_to: Option<&str>,
        headers: &HeaderMap,
    ) -> Result<Started, Failure> {
        let (state, nonce, pkce) = (oidc::random_token(), oidc::random_token(), Pkce::generate());
        let redirect_uri = self.at(CALLBACK);
        let ask = Authorize {
            redirect_uri: &redirect_uri,
            state: &state,
            nonce: &nonce,
            challenge: &pkce.challenge,
        };
        let url = self.keeper.provider.authorize_url(&ask).await?;
        let return_to = return_to.filter(|place| self.may_return_to(place)).unwrap_or("/").to_owned();
        let name = self.cookies.sign_in(&state);
        let until = self.clock.now().after(PATIENCE).as_millis();
        let attempt = Attempt { state, nonce, verifier: pkce.verifier, return_to, until };
        let text = serde_json::to_string(&attempt).unwrap_or_default();
        let sealed =
            self.keeper.sealer.seal(&name, &text).map_err(|error| Failure::Internal(error.to_string()))?;
        let mut forget = self.cookies.sign_ins(headers);
        forget.truncate((forget.len() + 1).saturating_sub(ATTEMPTS));
        Ok(Started { url, cookie: (name, sealed), forget })
    }

    /// The name of the cookie that an answer of the issuer belongs to.
    pub(crate) fn cookie_of(&self, callback: &Callback) -> Option<String> {
        callback.state.as_deref().map(|state| self.cookies.sign_in(state))
    }

    /// Ends a sign-in: what the issuer says is checked and exchanged for a session.
    pub(crate) async fn finish(&self, callback: &Callback, headers: &HeaderMap) -> Result<Finished, Failure> {
        let state = callback.state.as_deref().ok_or(Failure::NotBegunHere)?;
        let name = self.cookies.sign_in(state);
        let sealed = cookies::get(headers, &name).ok_or(Failure::NotBegunHere)?;
        let text = self.keeper.sealer.open(&name, sealed).ok_or(Failure::NotBegunHere)?;
        let attempt: Attempt = serde_json::from_str(&text).map_err(|_| Failure::NotBegunHere)?;
        if attempt.state != state {
            return Err(Failure::NotBegunHere);
        }
        if attempt.until <= self.clock.now().as_millis() {
            return Err(Failure::TooLate);
        }
        // Before the code is given to anybody: another issuer may have sent it here to get at it.
        let provider = &self.keeper.provider;
        if !provider.is_answer_of_issuer(callback.iss.as_deref()).await? {
            return Err(Failure::Forged("it does not name our issuer"));
        }
        match (callback.error.as_deref(), callback.code.as_deref()) {
            (Some("access_denied"), _) => Err(Failure::Cancelled),
            (Some("temporarily_unavailable" | "server_error"), _) => {
                Err(Failure::Away("the issuer says so".to_owned()))
            }
            (Some(error), _) => Err(Failure::Refused(error.chars().take(100).collect())),
            (None, None) => Err(Failure::Forged("there is no code")),
            (None, Some(code)) => {
                let tokens = provider.redeem(code, &attempt.verifier, &self.at(CALLBACK)).await?;
                self.open(&tokens, &attempt).await
            }
        }
    }

    async fn open(&self, tokens: &Tokens, attempt: &Attempt) -> Result<Finished, Failure> {
        let provider = &self.keeper.provider;
        let id_token =
            tokens.id_token.as_ref().ok_or_else(|| Failure::Refused("there is no ID token".to_owned()))?;
        let claims = provider.verify_id_token(id_token.expose(), Some(&attempt.nonce)).await?;
        // Roles are in the access token. One that we cannot read makes a player.
        let access = provider.verify_access(tokens.access_token.expose()).await.ok();
        let access = access.filter(|access| access.subject == claims.subject);
        let identity = Identity {
            issuer: claims.issuer,
            subject: claims.subject,
            name: claims.name,
            roles: access.map_or_else(|| vec![Role::Player], |access| roles(&access)),
        };
        let known = self.users.know(&identity).await?;
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
        };
        let text = |token: &Token| token.expose().to_owned();
        let kept = Kept { refresh: tokens.refresh_token.as_ref().map(text), id: Some(text(id_token)) };
        self.keeper.keep(&secret.id(), &mut session, &kept, tokens.expires_at);
        self.keeper.sessions.insert(&secret.id(), &session).await?;
        Ok(Finished { secret, return_to: attempt.return_to.clone(), known })
    }

    /// Ends a session here, and says where it is ended at the issuer.
    pub(crate) async fn sign_out(&self, id: &SessionId, session: &Session) -> Result<Url, Failure> {
        let kept = self.keeper.open(id, session);
        self.keeper.sessions.remove(id, session).await?;
        let home = self.at("/");
        if let Some(refresh) = kept.as_ref().and_then(|kept| kept.refresh.as_deref()) {
            // As a courtesy: the issuer ends the session with the next step anyway.
            let revoked = tokio::time::timeout(REVOKE, self.keeper.provider.revoke(refresh)).await;
            if !matches!(revoked, Ok(Ok(()))) {
                tracing::warn!("the issuer did not revoke a refresh token in time");
            }
        }
        let hint = kept.as_ref().and_then(|kept| kept.id.as_deref());
        let there = self.keeper.provider.end_session_url(hint, &home).await;
        Ok(there.ok().flatten().unwrap_or(home))
    }

    /// Ends what the issuer says has ended. Returns how many sessions that were.
    pub(crate) async fn back_channel(&self, logout_token: &str) -> Result<usize, Failure> {
        let token = self.keeper.provider.verify_logout_token(logout_token).await?;
        if self.keeper.sessions.is_used_up(&token.jti).await? {
            return Err(Failure::Refused("the logout token has been used".to_owned()));
        }
        let groups = match (&token.sid, &token.subject) {
            (Some(sid), subject) => {
                // The session may have begun without the issuer telling its name.
                let nameless = subject.as_deref().map(|subject| Group::without_sid(&token.issuer, subject));
                [Some(Group::of_sid(&token.issuer, sid)), nameless]
            }
            (None, Some(subject)) => [Some(Group::of_subject(&token.issuer, subject)), None],
            (None, None) => return Err(Failure::Refused("it names nobody".to_owned())),
        };
        let mut ended = 0;
        for group in groups.into_iter().flatten() {
            ended += self.keeper.sessions.remove_group(&group).await?;
        }
        // Only now: if it fails before, the issuer sends the same token again.
        let left = token.expires_at.distance(self.clock.now()) + SKEW;
        self.keeper.sessions.use_up(&token.jti, left).await?;
        Ok(ended)
    }

    /// A place of ours.
    pub(crate) fn at(&self, path: &str) -> Url {
        let mut url = self.public.clone();
        url.set_path(path);
        url
    }

    /// Only to ourselves, or to pages that may call us: else a link to us could lead anywhere.
    fn may_return_to(&self, place: &str) -> bool {
        let sound = |c: char| c.is_ascii_graphic() && c != '\\';
        if place.len() > MAX_RETURN_TO || !place.chars().all(sound) {
            return false;
        }
        if place.starts_with('/') {
            return !place.starts_with("//");
        }
        Url::parse(place).is_ok_and(|url| {
            matches!(url.scheme(), "http" | "https") && self.origins.contains(&Origin::of(&url))
        })
    }
}
