//! Sign-in at an OpenID Connect issuer, the sessions of browsers, and who sent a request.
//!
//! A browser signs in ([`SignInFlow`]) and gets a cookie. The cookie names a session in the store ([`SessionStore`]), which holds the
//! issuer's tokens, sealed. [`Sessions::caller`] authenticates a request by that cookie or by an access token, and refreshes the
//! session when its access token is about to expire ([`SessionRefresher`]).
//!
//! # Invariants
//! - **Access and refresh tokens never reach a browser.** At sign-out the ID token passes through it, as a hint for the issuer.
//! - **A refresh token is redeemed once**, however many requests need it and in however many processes.
//! - **A session that has ended has ended everywhere**: every request reads the store.
//! - **A session that has ended stays ended** when Redis goes back in time: SQL has the ends ([`SessionHistory`]).
//! - **Logs contain no token, cookie or code**; the audit log has ids and addresses.
//!
//! # Failure modes
//! - The issuer is unreachable: access tokens with known keys are accepted, sessions stay valid for `gateway.session.refresh_grace`,
//!   and no user can sign in.
//! - Redis is unreachable: sessions cannot be read (503); access tokens still work.
//! - The database is unreachable: users who were looked up in the last minute stay signed in.

mod audit;
mod caller;
mod config;
mod cookies;
mod error;
mod history;
mod keyed_mutex;
mod metrics;
mod origin;
mod refresher;
mod seal;
mod sign_in;
mod store;
mod users;

use std::time::Duration;

use ::http::HeaderMap;
use account::Accounts;
use base::Clock;
use futures::StreamExt;
use futures::stream::BoxStream;
use oidc::Provider;
use redis_store::RedisStore;
use url::Url;

use crate::history::SessionStatus;
use crate::users::Users;

pub use audit::{Audit, SecurityEvent};
pub use caller::{AccessLost, Caller, NotAuthenticated, Proof};
pub use config::Config;
pub use cookies::Cookies;
pub use error::Error;
pub use history::{MIGRATIONS, SessionHistory};
pub use metrics::Metrics;
pub use origin::{Origin, PublicUrl};
pub use refresher::{CurrentSession, SessionRefresher};
pub use seal::{CipherFailed, Sealer};
pub use sign_in::{
    AttemptCookie, CALLBACK, Callback, SIGN_IN_TIMEOUT, SignInError, SignInFlow, SignInStarted, SignedIn,
};
pub use store::{
    EndCause, Group, Lease, PublishedEnd, RefreshClaim, Session, SessionId, SessionSecret, SessionStore,
    StoredSession, TRIALS,
};
pub use users::{Identity, KnownUser};

/// The dependencies of [`Sessions`].
#[derive(Debug)]
pub struct Parts<'a> {
    pub config: &'a Config,
    /// The URL under which players reach the gateway.
    pub public_url: &'a Url,
    /// Origins of other pages that a sign-in may return to.
    pub return_origins: Vec<Origin>,
    /// How long a user that was looked up in `account` is cached.
    pub user_cache: Duration,
    /// The issuer; none if sign-in is not configured.
    pub provider: Option<Provider>,
    pub redis_store: &'a RedisStore,
    /// The record of ended sessions, in SQL.
    pub history: SessionHistory,
    pub accounts: Accounts,
    pub clock: Clock,
    pub metrics: Metrics,
}

/// Sign-in and sessions of this process. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Sessions {
    store: SessionStore,
    history: SessionHistory,
    users: Users,
    cookies: Cookies,
    audit: Audit,
    sign_in: Option<SignInFlow>,
}

impl Sessions {
    pub fn new(parts: Parts<'_>) -> Result<Self, CipherFailed> {
        let Parts { config, public_url, clock, metrics, .. } = parts;
        let store = SessionStore::new(parts.redis_store, &config.key_prefix, config.idle, clock.clone());
        let history = parts.history;
        let users = Users::new(parts.accounts, parts.user_cache);
        let cookies = Cookies::new(public_url.scheme() == "https");
        let audit = Audit::new(metrics.clone());
        let sealer = Sealer::new(&config.keys)?;
        let sign_in = parts.provider.map(|provider| SignInFlow {
            refresher: SessionRefresher {
                store: store.clone(),
                history: history.clone(),
                provider,
                sealer,
                clock: clock.clone(),
                grace: config.refresh_grace,
                metrics,
                audit: audit.clone(),
                refreshing: Default::default(),
            },
            users: users.clone(),
            cookies,
            public_url: public_url.clone(),
            return_origins: parts.return_origins,
            lifetime: config.lifetime,
            clock,
        });
        Ok(Self { store, history, users, cookies, audit, sign_in })
    }

    /// Signs browsers in and out; none if no issuer is configured.
    pub const fn sign_in(&self) -> Option<&SignInFlow> {
        self.sign_in.as_ref()
    }

    /// Ends a session permanently: records the end in SQL and removes the session from Redis.
    pub async fn end(&self, cause: EndCause, id: &SessionId, session: &Session) {
        self.history.end(id, session).await;
        // Best effort: the end is recorded in SQL, or will be.
        let _ = self.store.remove_for(cause, id, session).await;
    }

    /// Subscribes to the ends of sessions, so that open streams can be closed. The subscription ends when Redis is lost.
    pub async fn ends(&self) -> Result<BoxStream<'static, PublishedEnd>, Error> {
        let history = self.history.clone();
        Ok(self.store.ends().await?.inspect(move |end| history.drop_cached(&end.id)).boxed())
    }

    pub const fn cookies(&self) -> Cookies {
        self.cookies
    }

    pub const fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Reads the session of a browser, without refreshing it. Returns none if the store cannot be read.
    pub async fn browser_session(&self, headers: &HeaderMap) -> Option<(SessionId, Session)> {
        let id = self.cookies.session_id(headers)?;
        let found = self.store.read(&id).await.ok()??;
        match self.history.status(&id, &found.session).await {
            // Also if SQL cannot be read: signing out must always work.
            Ok(SessionStatus::Alive) | Err(_) => Some((id, found.session)),
            Ok(SessionStatus::Ended | SessionStatus::EndedWithUser) => None,
        }
    }
}
