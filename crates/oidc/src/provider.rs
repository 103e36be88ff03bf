//! The issuer as a relying party sees it.

mod client;
mod known;

use std::fmt;
use std::sync::Arc;

use base::{Clock, Timestamp};
use known::{Known, Source};
use url::Url;

use crate::claims::{Access, Claims, IdToken, LogoutToken};
use crate::config::{Config, check_issuer};
use crate::error::{Error, Refused};
use crate::http::Http;
use crate::jwt::Jwt;
use crate::metrics::Metrics;
use crate::remembered::{Checked, Remembered, TokenHash};
use crate::secret::Token;

/// The issuer. Clones are the same.
#[derive(Clone)]
pub struct Provider(Arc<Inner>);

struct Inner {
    config: Config,
    clock: Clock,
    metrics: Metrics,
    source: Arc<Source>,
    remembered: Arc<Remembered>,
}

/// How to ask the issuer to sign somebody in.
#[derive(Clone, Copy)]
pub struct Authorize<'a> {
    pub redirect_uri: &'a Url,
    /// Comes back with the answer.
    pub state: &'a str,
    /// Comes back in the ID token.
    pub nonce: &'a str,
    /// Of [`Pkce`](crate::Pkce).
    pub challenge: &'a str,
}

/// What the issuer gives for a code or a refresh token.
#[derive(Clone, Debug)]
pub struct Tokens {
    pub access_token: Token,
    /// If a refresh brings no new one, the old one stays good.
    pub refresh_token: Option<Token>,
    pub id_token: Option<Token>,
    /// When the access token expires.
    pub expires_at: Timestamp,
}

/// What an issuer may be able to do, and need not.
pub(crate) struct Abilities {
    pub(crate) ends_sessions: bool,
    pub(crate) tells_of_ends: bool,
}

impl Provider {
    /// Asks for nothing yet. `issuer` is where the issuer really is, also if it is the builtin one.
    pub fn new(config: &Config, issuer: Url, clock: Clock, metrics: Metrics) -> Result<Self, Error> {
        check_issuer(&issuer).map_err(Error::Setup)?;
        let http = Http::new(&issuer, config.timeout, metrics.clone())?;
        let remembered = Arc::new(Remembered::new());
        let source = Arc::new(Source::new(config, issuer, http, clock.clone(), remembered.clone())?);
        Ok(Self(Arc::new(Inner { config: config.clone(), clock, metrics, source, remembered })))
    }

    /// Whether tokens can be checked: the discovery document and the keys are known. Asks for them if need be.
    pub async fn ready(&self) -> Result<(), Error> {
        self.0.source.known().await.map(drop)
    }

    /// Asks the issuer for its discovery document. Fails if it does not answer; what is known of it stays as it is.
    pub async fn ping(&self) -> Result<(), Error> {
        self.0.source.ping().await
    }

    /// What the issuer can do. Asks for it if need be.
    pub(crate) async fn abilities(&self) -> Result<Abilities, Error> {
        let known = self.0.source.known().await?;
        Ok(Abilities {
            ends_sessions: known.metadata.end_session_endpoint.is_some(),
            tells_of_ends: known.metadata.backchannel_logout_supported,
        })
    }

    /// Whom an access token speaks for, if it was found good before and still is. Never waits.
    pub fn known(&self, token: &str) -> Option<Arc<Access>> {
        self.remembered(TokenHash::of(token))
    }

    /// Whom an access token speaks for.
    pub async fn verify_access(&self, token: &str) -> Result<Arc<Access>, Refused> {
        let hash = TokenHash::of(token);
        if let Some(access) = self.remembered(hash) {
            return Ok(access);
        }
        let verified = self.verify(token, |claims| claims.access()).await;
        let (access, known, key) = self.counted("access", verified)?;
        let access = Arc::new(access);
        let until = access.expires_at.after(self.0.config.clock_skew);
        let checked = Checked { access: access.clone(), key, generation: known.generation, until };
        self.0.remembered.put(hash, checked, self.0.clock.now());
        Ok(access)
    }

    /// Who has signed in. With `nonce` the token must answer the sign-in that had it; after a refresh there is none.
    pub async fn verify_id_token(&self, token: &str, nonce: Option<&str>) -> Result<IdToken, Refused> {
        let verified = self.verify(token, |claims| claims.id_token(nonce)).await;
        self.counted("id", verified).map(|(id_token, ..)| id_token)
    }

    /// Whom the issuer wants to be signed out. The caller remembers `jti`, if it wants to obey only once.
    pub async fn verify_logout_token(&self, token: &str) -> Result<LogoutToken, Refused> {
        let verified = self.verify(token, |claims| claims.logout()).await;
        self.counted("logout", verified).map(|(logout, ..)| logout)
    }

    fn remembered(&self, hash: TokenHash) -> Option<Arc<Access>> {
        let access = self.0.remembered.get(hash, self.0.clock.now())?;
        self.0.metrics.remembered.inc();
        Some(access)
    }

    /// Checks a token; once more with new keys if its own is not known.
    async fn verify<T>(
        &self,
        token: &str,
        read: impl Fn(Claims<'_>) -> Result<T, Refused>,
    ) -> Result<(T, Arc<Known>, [u8; 32]), Refused> {
        let jwt = Jwt::parse(token, &self.0.config.algorithms)?;
        let known = self.0.source.known().await.map_err(Refused::Unavailable)?;
        let found = self.check(&jwt, &known, &read);
        // A token that does not name its key may be signed with a new one that we take for the old.
        let may_be_new = match &found {
            Err(Refused::UnknownKey) => true,
            Err(Refused::BadSignature) => jwt.header.kid.is_none(),
            _ => false,
        };
        let newer = if may_be_new { self.0.source.newer(&known).await } else { None };
        match newer {
            Some(newer) => {
                let found = self.check(&jwt, &newer, &read)?;
                Ok((found.0, newer, found.1))
            }
            None => found.map(|(found, key)| (found, known, key)),
        }
    }

    fn check<T>(
        &self,
        jwt: &Jwt<'_>,
        known: &Known,
        read: impl Fn(Claims<'_>) -> Result<T, Refused>,
    ) -> Result<(T, [u8; 32]), Refused> {
        let key = known.keys.of(jwt)?;
        let claims = Claims {
            map: jwt.claims(key)?,
            header: &jwt.header,
            config: &self.0.config,
            issuer: &known.metadata.issuer,
            now: self.0.clock.now(),
        };
        Ok((read(claims)?, key.fingerprint))
    }

    fn counted<T>(&self, kind: &'static str, verified: Result<T, Refused>) -> Result<T, Refused> {
        self.0.metrics.token(kind, verified.as_ref().map_or_else(Refused::label, |_| "good"));
        verified
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").field("issuer", &self.0.source.issuer().as_str()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Authorize<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorize").field("redirect_uri", &self.redirect_uri.as_str()).finish_non_exhaustive()
    }
}
