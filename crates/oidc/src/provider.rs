//! The relying party's view of the issuer: verifies tokens and caches the result.

mod client;
mod issuer_state;

use std::fmt;
use std::sync::Arc;

use base::{Clock, Timestamp};
use issuer_state::{IssuerCache, IssuerState};
use url::Url;

use crate::claims::{AccessToken, Claims, IdToken, LogoutToken};
use crate::config::{Config, check_issuer};
use crate::error::{Error, TokenError};
use crate::http::Http;
use crate::jwt::Jwt;
use crate::metrics::Metrics;
use crate::secret::Token;
use crate::token_cache::{TokenCache, TokenHash, VerifiedToken};

/// A handle to the issuer. Cheap to clone; clones share state.
#[derive(Clone)]
pub struct Provider(Arc<Inner>);

struct Inner {
    config: Config,
    clock: Clock,
    metrics: Metrics,
    issuer: Arc<IssuerCache>,
    tokens: Arc<TokenCache>,
}

/// The parameters of an authorization request that differ per sign-in.
#[derive(Clone, Copy)]
pub struct AuthorizationRequest<'a> {
    pub redirect_uri: &'a Url,
    /// The issuer returns it with the response.
    pub state: &'a str,
    /// The issuer puts it into the ID token.
    pub nonce: &'a str,
    /// The challenge of [`Pkce`](crate::Pkce).
    pub challenge: &'a str,
}

/// The tokens that the issuer returns for a code or a refresh token.
#[derive(Clone, Debug)]
pub struct Tokens {
    pub access_token: Token,
    /// None after a refresh means that the previous refresh token stays valid.
    pub refresh_token: Option<Token>,
    pub id_token: Option<Token>,
    /// When the access token expires.
    pub expires_at: Timestamp,
}

/// Optional features of an issuer.
pub(crate) struct Capabilities {
    pub(crate) has_end_session: bool,
    pub(crate) has_backchannel_logout: bool,
}

impl Provider {
    /// Creates the handle without contacting the issuer. `issuer` is its actual URL, also for the builtin issuer.
    pub fn new(config: &Config, issuer: Url, clock: Clock, metrics: Metrics) -> Result<Self, Error> {
        check_issuer(&issuer).map_err(Error::Setup)?;
        let http = Http::new(&issuer, config.timeout, metrics.clone())?;
        let tokens = Arc::new(TokenCache::new());
        let issuer = Arc::new(IssuerCache::new(config, issuer, http, clock.clone(), tokens.clone())?);
        Ok(Self(Arc::new(Inner { config: config.clone(), clock, metrics, issuer, tokens })))
    }

    /// Checks that tokens can be verified. Fetches the discovery document and the keys if they are not cached yet.
    pub async fn ready(&self) -> Result<(), Error> {
        self.0.issuer.current().await.map(drop)
    }

    /// Fetches the discovery document and discards it. Fails if the issuer does not answer; the cached state does not change.
    pub async fn ping(&self) -> Result<(), Error> {
        self.0.issuer.ping().await
    }

    /// Returns the optional features of the issuer. Fetches the discovery document if it is not cached yet.
    pub(crate) async fn capabilities(&self) -> Result<Capabilities, Error> {
        let issuer = self.0.issuer.current().await?;
        Ok(Capabilities {
            has_end_session: issuer.metadata.end_session_endpoint.is_some(),
            has_backchannel_logout: issuer.metadata.backchannel_logout_supported,
        })
    }

    /// Returns the claims of an access token that was verified before and has not expired. Never waits.
    pub fn cached(&self, token: &str) -> Option<Arc<AccessToken>> {
        self.cached_by_hash(TokenHash::new(token))
    }

    /// Verifies an access token and caches its claims until it expires.
    pub async fn verify_access(&self, token: &str) -> Result<Arc<AccessToken>, TokenError> {
        let hash = TokenHash::new(token);
        if let Some(access) = self.cached_by_hash(hash) {
            return Ok(access);
        }
        let verified = self.verify(token, |claims| claims.access()).await;
        let (access, issuer, key) = self.counted("access", verified)?;
        let access = Arc::new(access);
        let until = access.expires_at.after(self.0.config.clock_skew);
        let verified = VerifiedToken { access: access.clone(), key, generation: issuer.generation, until };
        self.0.tokens.put(hash, verified, self.0.clock.now());
        Ok(access)
    }

    /// Verifies an ID token. Pass the `nonce` of the sign-in; a refreshed ID token need not have one.
    pub async fn verify_id_token(&self, token: &str, nonce: Option<&str>) -> Result<IdToken, TokenError> {
        let verified = self.verify(token, |claims| claims.id_token(nonce)).await;
        self.counted("id", verified).map(|(id_token, ..)| id_token)
    }

    /// Verifies a back-channel logout token. The caller must remember `jti` to detect a replay.
    pub async fn verify_logout_token(&self, token: &str) -> Result<LogoutToken, TokenError> {
        let verified = self.verify(token, |claims| claims.logout()).await;
        self.counted("logout", verified).map(|(logout, ..)| logout)
    }

    fn cached_by_hash(&self, hash: TokenHash) -> Option<Arc<AccessToken>> {
        let access = self.0.tokens.get(hash, self.0.clock.now())?;
        self.0.metrics.cached.inc();
        Some(access)
    }

    /// Verifies a token. Fetches the keys and tries once more if its key is unknown.
    async fn verify<T>(
        &self,
        token: &str,
        read: impl Fn(Claims<'_>) -> Result<T, TokenError>,
    ) -> Result<(T, Arc<IssuerState>, [u8; 32]), TokenError> {
        let jwt = Jwt::parse(token, &self.0.config.algorithms)?;
        let issuer = self.0.issuer.current().await.map_err(TokenError::Unavailable)?;
        let checked = self.check(&jwt, &issuer, &read);
        // A token without `kid` may be signed with a new key, while we checked it against the old one.
        let may_be_new = match &checked {
            Err(TokenError::UnknownKey) => true,
            Err(TokenError::BadSignature) => jwt.header.kid.is_none(),
            _ => false,
        };
        let newer = if may_be_new { self.0.issuer.newer_than(&issuer).await } else { None };
        match newer {
            Some(newer) => {
                let (claims, key) = self.check(&jwt, &newer, &read)?;
                Ok((claims, newer, key))
            }
            None => checked.map(|(claims, key)| (claims, issuer, key)),
        }
    }

    fn check<T>(
        &self,
        jwt: &Jwt<'_>,
        issuer: &IssuerState,
        read: impl Fn(Claims<'_>) -> Result<T, TokenError>,
    ) -> Result<(T, [u8; 32]), TokenError> {
        let key = issuer.keys.find(jwt)?;
        let claims = Claims {
            map: jwt.claims(key)?,
            header: &jwt.header,
            config: &self.0.config,
            issuer: &issuer.metadata.issuer,
            now: self.0.clock.now(),
        };
        Ok((read(claims)?, key.fingerprint))
    }

    fn counted<T>(&self, kind: &'static str, verified: Result<T, TokenError>) -> Result<T, TokenError> {
        self.0.metrics.token(kind, verified.as_ref().map_or_else(TokenError::label, |_| "valid"));
        verified
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").field("issuer", &self.0.issuer.url().as_str()).finish_non_exhaustive()
    }
}

impl fmt::Debug for AuthorizationRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorizationRequest")
            .field("redirect_uri", &self.redirect_uri.as_str())
            .finish_non_exhaustive()
    }
}
