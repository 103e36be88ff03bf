//! A small issuer for development: real OpenID Connect with a code flow, keys and sessions, and no passwords.
//!
//! Whoever opens the page picks who they are, so it must be reachable from this machine only: [`Builtin::new`] refuses an issuer
//! that is not on loopback. Everything is in memory; a restart signs everybody out.
//!
//! # Invariants
//! - PKCE with S256 is required, and redirects lead to below the public URL only.
//! - A code is good once and for a minute. If it comes twice, what was given for it is taken back.
//! - A refresh token is good once. If it comes twice, the session ends: one of the two is not who it should be.
//! - Keys that do not sign any more are published for as long as their tokens may live.

mod authorize;
mod grants;
mod page;
mod session;
mod signing;
mod token;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use base::Clock;
use serde_json::{Value, json};
use url::Url;

use crate::claims::{Access, Claims};
use crate::config::{Algorithm, Config, check_issuer, is_loopback};
use crate::error::{Error, Refused};
use crate::jwt::Jwt;
use grants::Grants;
use signing::{Said, SigningKeys};

/// How long an access token is good.
const ACCESS_TTL: Duration = Duration::from_secs(300);
/// How long an access token for a script is good. Also, for how long an old key is published.
const SCRIPT_TTL: Duration = Duration::from_secs(3600);
/// The longest name of a user.
const MAX_NAME: usize = 64;
/// Those whom the page offers, and what they are called.
const PEOPLE: [(&str, &str); 3] =
    [("ada", "Ada Lovelace"), ("grace", "Grace Hopper"), ("alan", "Alan Turing")];

/// The issuer. Clones are the same.
#[derive(Clone)]
pub struct Builtin(Arc<Inner>);

struct Inner {
    config: Config,
    issuer: Url,
    redirects_under: Url,
    clock: Clock,
    access_ttl: Duration,
    keys: Mutex<SigningKeys>,
    grants: Mutex<Grants>,
}

impl Builtin {
    /// `issuer` is where [`routes`](Self::routes) will be found; redirects lead to below `redirects_under` only.
    pub fn new(config: &Config, issuer: Url, redirects_under: Url, clock: Clock) -> Result<Self, Error> {
        Self::with_access_ttl(config, issuer, redirects_under, clock, ACCESS_TTL)
    }

    /// As [`new`](Self::new), with access tokens that are good for another time.
    pub fn with_access_ttl(
        config: &Config,
        issuer: Url,
        redirects_under: Url,
        clock: Clock,
        access_ttl: Duration,
    ) -> Result<Self, Error> {
        check_issuer(&issuer).map_err(Error::Setup)?;
        if !is_loopback(&issuer) {
            let why = format!("the builtin issuer is for loopback hosts only, not for {issuer}");
            return Err(Error::Setup(why));
        }
        Ok(Self(Arc::new(Inner {
            config: config.clone(),
            issuer,
            redirects_under,
            clock,
            access_ttl,
            keys: Mutex::new(SigningKeys::generate()?),
            grants: Mutex::default(),
        })))
    }

    /// Everything below the issuer's path.
    pub fn routes(&self) -> Router {
        Router::new()
            .route("/.well-known/openid-configuration", get(discovery))
            .route("/jwks", get(jwks))
            .route("/style.css", get(page::style))
            .route("/authorize", get(authorize::ask).post(authorize::pick))
            .route("/token", post(token::token))
            .route("/revoke", post(token::revoke))
            .route("/userinfo", get(session::userinfo).post(session::userinfo))
            .route("/end_session", get(session::end_by_link).post(session::end_by_form))
            .with_state(self.clone())
    }

    /// An access token for scripts, good for an hour. `roles` are words with spaces in between: `player`, `operator`, `operator-readonly`, `service`,
    /// or any role as it stands in tokens, such as `playhouse-may-entitlements`.
    pub fn token(&self, user: &str, roles: Option<&str>) -> Result<String, Error> {
        if !is_name(user) {
            return Err(Error::Setup(format!("{user:?} cannot be the name of a user")));
        }
        let roles = self.roles(roles.unwrap_or("player"));
        let said = Said { user, roles: &roles, scope: "openid profile", sid: None };
        self.keys().sign_access(&self.0, &said, SCRIPT_TTL)
    }

    /// From now on a new key signs. The old one stays published for as long as its tokens may live.
    pub fn rotate_keys(&self) -> Result<(), Error> {
        self.keys().rotate(self.0.clock.now())
    }

    fn keys(&self) -> MutexGuard<'_, SigningKeys> {
        self.0.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grants(&self) -> MutexGuard<'_, Grants> {
        self.0.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The roles that stand in tokens for our words.
    fn roles(&self, words: &str) -> Vec<String> {
        let config = &self.0.config;
        let role = |word| match word {
            "player" => None,
            "operator" => Some(config.operator_role.clone()),
            "operator-readonly" => Some(config.readonly_operator_role.clone()),
            "service" => Some(config.service_role.clone()),
            other => Some(other.to_owned()),
        };
        words.split_ascii_whitespace().filter_map(role).collect()
    }

    /// Whom one of our access tokens speaks for, if their session has not ended.
    fn bearer(&self, token: &str) -> Result<Access, Refused> {
        let now = self.0.clock.now();
        let jwt = Jwt::parse(token, &[Algorithm::Es256])?;
        let keys = self.keys().published(now).map_err(Refused::Unavailable)?;
        let map = jwt.claims(keys.of(&jwt)?)?;
        let (config, issuer) = (&self.0.config, self.0.issuer.as_str());
        let access = Claims { map, header: &jwt.header, config, issuer, now }.access()?;
        let is_over = access.sid.as_ref().is_some_and(|sid| !self.grants().is_open(sid, now));
        if is_over { Err(Refused::Expired) } else { Ok(access) }
    }

    /// The session that one of our ID tokens is of, however old it is.
    fn hinted_session(&self, id_token: &str) -> Option<String> {
        let jwt = Jwt::parse(id_token, &[Algorithm::Es256]).ok()?;
        let keys = self.keys().published(self.0.clock.now()).ok()?;
        let claims = jwt.claims(keys.of(&jwt).ok()?).ok()?;
        Some(claims.get("sid")?.as_str()?.to_owned())
    }

    /// Whether a browser may be sent there.
    fn may_redirect_to(&self, url: &Url) -> bool {
        let base = &self.0.redirects_under;
        let folder = base.path().trim_end_matches('/');
        let is_below =
            url.path().strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let is_plain = url.fragment().is_none() && url.username().is_empty() && url.password().is_none();
        url.origin() == base.origin() && is_below && is_plain
    }
}

impl Inner {
    fn endpoint(&self, name: &str) -> String {
        format!("{}/{name}", self.issuer.as_str().trim_end_matches('/'))
    }
}

impl fmt::Debug for Builtin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builtin").field("issuer", &self.0.issuer.as_str()).finish_non_exhaustive()
    }
}

async fn discovery(State(builtin): State<Builtin>) -> Json<Value> {
    let this = &builtin.0;
    let methods = match this.config.client_secret {
        Some(_) => json!(["client_secret_basic", "client_secret_post"]),
        None => json!(["none"]),
    };
    Json(json!({
        "issuer": this.issuer.as_str(),
        "authorization_endpoint": this.endpoint("authorize"),
        "token_endpoint": this.endpoint("token"),
        "jwks_uri": this.endpoint("jwks"),
        "userinfo_endpoint": this.endpoint("userinfo"),
        "revocation_endpoint": this.endpoint("revoke"),
        "end_session_endpoint": this.endpoint("end_session"),
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "code_challenge_methods_supported": ["S256"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
        "scopes_supported": ["openid", "profile", "offline_access"],
        "token_endpoint_auth_methods_supported": methods.clone(),
        "revocation_endpoint_auth_methods_supported": methods,
        "authorization_response_iss_parameter_supported": true,
    }))
}

async fn jwks(State(builtin): State<Builtin>) -> Json<Value> {
    let now = builtin.0.clock.now();
    Json(builtin.keys().key_set(now))
}

/// What the page takes for the name of a user.
fn is_name(name: &str) -> bool {
    let is_sound = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_sound)
}

/// What a user is called.
fn full_name(user: &str) -> &str {
    PEOPLE.iter().find(|(name, _)| *name == user).map_or(user, |(_, full)| full)
}

#[cfg(test)]
mod tests {
    use ::config::{Layers, Reader, Section, load};

    use super::*;

    struct All(Config);

    impl Section for All {
        fn read(reader: &mut Reader<'_>) -> Self {
            Self(reader.section("identity"))
        }
    }

    #[test]
    fn redirects_stay_below_the_folder_of_the_public_url() {
        let config = load::<All>(Layers::new(crate::config::REFERENCE)).unwrap().config.0;
        let url = |text: &str| Url::parse(text).unwrap();
        let may = |base: &str, target: &str| {
            let issuer = url("http://127.0.0.1:1/issuer");
            let builtin = Builtin::new(&config, issuer, url(base), Clock::system()).unwrap();
            builtin.may_redirect_to(&url(target))
        };
        for (base, right) in [
            ("http://127.0.0.1:1", "http://127.0.0.1:1/login/callback?x=1"),
            ("http://127.0.0.1:1/games", "http://127.0.0.1:1/games"),
            ("http://127.0.0.1:1/games", "http://127.0.0.1:1/games/login"),
            ("http://127.0.0.1:1/games/", "http://127.0.0.1:1/games/login"),
        ] {
            assert!(may(base, right), "{right} below {base}");
        }
        for (base, wrong) in [
            ("http://127.0.0.1:1/games", "http://127.0.0.1:1/"),
            ("http://127.0.0.1:1/games", "http://127.0.0.1:1/games-of-others/login"),
            ("http://127.0.0.1:1/games", "http://127.0.0.1:1/games/../login"),
            ("http://127.0.0.1:1/games", "http://127.0.0.1:1/games/%2e%2e/login"),
            ("http://127.0.0.1:1", "http://127.0.0.1:2/"),
            ("http://127.0.0.1:1", "https://127.0.0.1:1/"),
            ("http://127.0.0.1:1", "http://127.0.0.1:1/#x"),
            ("http://127.0.0.1:1", "http://me:pw@127.0.0.1:1/"),
        ] {
            assert!(!may(base, wrong), "{wrong} below {base}");
        }
    }

    #[test]
    fn names_are_plain() {
        for right in ["a", "Ada.Lovelace_1-2", &"x".repeat(64)] {
            assert!(is_name(right), "{right}");
        }
        for wrong in ["", " ", "a b", "a;b", "ä", "a/b", "a\n", &"x".repeat(65)] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
