//! Sessions of operators at the console.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ::config::Network;
use axum::http::StatusCode;
use axum::http::request::Parts;
use base::id::RequestId;
use db::{Db, Error};
use http_server::TokenHash;
use runtime::lifecycle::{Drain, LoopError};
use service::{Operator, Proof};

use crate::audit_log::{Actor, Attempt, AuditLog};
use crate::config::Config;
use crate::guard::{ADMIN, address};
use crate::store::sessions as store;

/// The action of sign-ins in the audit log.
const SIGN_IN: &str = "sign in at the console";

/// The cookie that holds the secret of a session.
pub const COOKIE: &str = "playhouse_console";

/// How often expired sessions are removed.
const CLEAN_INTERVAL: Duration = Duration::from_secs(600);

/// The operators with a configured token, by the hash of their token.
pub(crate) type ConfiguredOperators = Arc<HashMap<TokenHash, Operator>>;

/// Reads the operators with a token from the configuration.
pub(crate) fn configured_operators(config: &Config) -> ConfiguredOperators {
    let operators = config.operators.iter().map(|(name, operator)| {
        let known =
            Operator { name: name.clone(), proof: Proof::ConfiguredToken, read_only: operator.read_only };
        (operator.token_hash, known)
    });
    Arc::new(operators.collect())
}

/// The sessions of operators at the console, in SQL: every process accepts them, and an ended session has ended everywhere. Cheap to
/// clone; clones share state.
#[derive(Clone, Debug)]
pub struct ConsoleSessions {
    db: Db,
    configured: ConfiguredOperators,
    log: AuditLog,
    trusted: Arc<[Network]>,
}

/// A session as it is stored.
#[derive(Debug)]
pub(crate) struct StoredSession {
    pub(crate) operator: String,
    /// The hash of the configured token that the operator signed in with.
    pub(crate) token_hash: Option<String>,
    /// The subject of an operator that the issuer authenticated.
    pub(crate) subject: Option<String>,
    pub(crate) read_only: bool,
}

/// A session that is about to begin.
#[derive(Clone, Copy, Debug)]
pub struct NewSession<'a> {
    pub secret: &'a str,
    pub lifetime: Duration,
    /// The request that signs the operator in, for the audit log.
    pub request: &'a Parts,
}

impl ConsoleSessions {
    pub(crate) fn new(db: Db, config: &Config, log: AuditLog, trusted: &[Network]) -> Self {
        Self { db, configured: configured_operators(config), log, trusted: trusted.into() }
    }

    /// Starts the session of the operator with a configured token. Returns none if no operator has this token.
    pub async fn begin_with_token(
        &self,
        new: NewSession<'_>,
        token: &str,
    ) -> Result<Option<Operator>, Error> {
        let hash = TokenHash::of(token);
        let Some(operator) = self.configured.get(&hash) else { return Ok(None) };
        self.begin_as(new, operator, Some(hash.to_string())).await?;
        Ok(Some(operator.clone()))
    }

    /// Starts the session of an operator that the issuer has authenticated.
    pub async fn begin(&self, new: NewSession<'_>, operator: &Operator) -> Result<(), Error> {
        self.begin_as(new, operator, None).await
    }

    /// Starts a session and records the sign-in. Without the record there is no session.
    async fn begin_as(
        &self,
        new: NewSession<'_>,
        operator: &Operator,
        token_hash: Option<String>,
    ) -> Result<(), Error> {
        let subject = operator.subject().map(str::to_owned);
        let session = StoredSession {
            operator: operator.name.clone(),
            token_hash,
            subject,
            read_only: operator.read_only,
        };
        let entry = self.log.begin(&self.attempt(Actor::operator(operator), new.request)).await?;
        let secret_hash = TokenHash::of(new.secret).to_string();
        entry.marking(store::insert(&self.db, &secret_hash, &session, new.lifetime)).await?;
        self.log.finish(&entry, StatusCode::SEE_OTHER.as_u16(), false).await
    }

    /// Records that a user of the issuer who is not an operator tried to sign in.
    pub async fn record_refusal(&self, user: &Operator, request: &Parts) -> Result<(), Error> {
        let attempt = self.attempt(Actor::user(user), request);
        self.log.record_refusal(&attempt, StatusCode::FORBIDDEN.as_u16()).await
    }

    fn attempt(&self, actor: Actor, request: &Parts) -> Attempt {
        Attempt {
            listener: ADMIN,
            actor,
            action: SIGN_IN.to_owned(),
            // Without the query, which may have the code of the issuer.
            target: request.uri.path().to_owned(),
            address: address(&request.headers, &request.extensions, &self.trusted),
            request_id: request.extensions.get::<RequestId>().map(|id| id.as_str().to_owned()),
            note: None,
        }
    }

    /// Returns the operator of a session. Returns none if it has ended, or if its token is no longer configured.
    pub async fn find(&self, secret: &str) -> Result<Option<Operator>, Error> {
        let session = store::find(&self.db, &TokenHash::of(secret).to_string()).await?;
        Ok(session.and_then(|session| self.operator(session)))
    }

    fn operator(&self, session: StoredSession) -> Option<Operator> {
        match (session.token_hash, session.subject) {
            // The configuration decides: it may have changed since the sign-in.
            (Some(hash), _) => self.configured.get(&hash.parse().ok()?).cloned(),
            (None, Some(subject)) => Some(Operator {
                name: session.operator,
                proof: Proof::IssuedToken { subject },
                read_only: session.read_only,
            }),
            (None, None) => None,
        }
    }

    /// Ends a session.
    pub async fn end(&self, secret: &str) -> Result<(), Error> {
        store::remove(&self.db, &TokenHash::of(secret).to_string()).await
    }

    /// Removes a batch of expired sessions. Returns how many.
    pub(crate) async fn tick(&self) -> Result<u64, Error> {
        store::remove_expired(&self.db).await
    }

    /// Removes expired sessions until the process stops.
    pub(crate) async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            while self.tick().await? > 0 && !drain.is_requested() {}
            if !drain.sleep(CLEAN_INTERVAL).await {
                return Ok(());
            }
        }
    }
}
