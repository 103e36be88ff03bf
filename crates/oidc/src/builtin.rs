//! A small issuer for development: OpenID Connect with the code flow, signing keys and sessions, but without passwords.
//!
//! Its page lets the visitor sign in as any user, so it must not be reachable from other machines: [`Builtin::new`] refuses an
//! issuer URL that is not on loopback. All state is in memory; a restart signs every user out.
//!
//! It knows two clients. The configured `client_id` is the gateway: it redirects to pages below the public URL. [`GAME_CLIENT`]
//! is a public client for games without a browser session: it redirects to a loopback address on any port (RFC 8252).
//!
//! # Invariants
//! - PKCE with S256 is required.
//! - A code is valid once and for a minute. A second use ends the session that the first use started.
//! - A refresh token is valid once. A second use ends the session, because one of the two holders is not the owner.
//! - Codes and refresh tokens are valid for the client that requested them only.
//! - Retired keys stay published until their tokens have expired.

mod authorize;
mod grants;
mod page;
mod session;
mod signing;
mod token;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use base::Clock;
use serde_json::{Value, json};
use url::{Host, Url};

use crate::claims::{AccessToken, Claims};
use crate::config::{Algorithm, Config, check_issuer, is_loopback};
use crate::error::{Error, TokenError};
use crate::jwt::Jwt;
use grants::Grants;
use signing::{SigningKeys, TokenSubject};

/// The public client for games that run outside a browser. It has no secret and redirects to loopback addresses.
pub const GAME_CLIENT: &str = "playhouse-game";
/// The lifetime of an access token.
const ACCESS_TTL: Duration = Duration::from_secs(300);
/// The lifetime of an access token for scripts. Retired keys stay published for the same time.
const SCRIPT_TTL: Duration = Duration::from_secs(3600);
/// The longest user name.
const MAX_NAME: usize = 64;
/// The users that the page offers: user name and display name.
const SAMPLE_USERS: [(&str, &str); 3] =
    [("ada", "Ada Lovelace"), ("grace", "Grace Hopper"), ("alan", "Alan Turing")];

/// The issuer. Cheap to clone; clones share state.
#[derive(Clone)]
pub struct Builtin(Arc<Inner>);

/// A user of the builtin issuer, who need not have signed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleUser {
    /// The issuer, exactly as in `iss`.
    pub issuer: String,
    pub subject: String,
    /// The display name.
    pub name: String,
}

struct Inner {
    config: Config,
    issuer: Url,
    redirects_under: Vec<Url>,
    clock: Clock,
    access_ttl: Duration,
    keys: Mutex<SigningKeys>,
    grants: Mutex<Grants>,
}

impl Builtin {
    /// Creates the issuer. Serve [`routes`](Self::routes) at the URL `issuer`. The redirects of the gateway and of the console must be
    /// below one of `redirects_under`.
    pub fn new(config: &Config, issuer: Url, redirects_under: Vec<Url>, clock: Clock) -> Result<Self, Error> {
        Self::with_access_ttl(config, issuer, redirects_under, clock, ACCESS_TTL)
    }

    /// Like [`new`](Self::new), with another lifetime for access tokens.
    pub fn with_access_ttl(
        config: &Config,
        issuer: Url,
        redirects_under: Vec<Url>,
        clock: Clock,
        access_ttl: Duration,
    ) -> Result<Self, Error> {
        check_issuer(&issuer).map_err(Error::Setup)?;
        if !is_loopback(&issuer) {
            let why = format!("the builtin issuer must be on a loopback host, not at {issuer}");
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

    /// Returns the routes, relative to the issuer's path.
    pub fn routes(&self) -> Router {
        Router::new()
            .route("/.well-known/openid-configuration", get(discovery))
            .route("/jwks", get(jwks))
            .route("/style.css", get(page::style))
            .route("/authorize", get(authorize::show_picker).post(authorize::sign_in))
            .route("/token", post(token::token))
            .route("/revoke", post(token::revoke))
            .route("/userinfo", get(session::userinfo).post(session::userinfo))
            .route("/end_session", get(session::end_by_link).post(session::end_by_form))
            .with_state(self.clone())
    }

    /// Signs an access token for scripts, valid for an hour. `roles` are separated by spaces: `player`, `operator`,
    /// `operator-readonly`, `service`, or any role as in tokens, such as `playhouse-may-entitlements`.
    pub fn token(&self, user: &str, roles: Option<&str>) -> Result<String, Error> {
        if !is_name(user) {
            return Err(Error::UserName(user.to_owned()));
        }
        let roles = self.roles(roles.unwrap_or("player"));
        let client_id = &self.0.config.client_id;
        let subject = TokenSubject { client_id, user, roles: &roles, scope: "openid profile", sid: None };
        self.keys().sign_access(&self.0, &subject, SCRIPT_TTL)
    }

    /// Returns what the tokens of a user say about them. Fails if nobody can have this name.
    pub fn sample_user(&self, user: &str) -> Result<SampleUser, Error> {
        if !is_name(user) {
            return Err(Error::UserName(user.to_owned()));
        }
        let (issuer, name) = (self.0.issuer.as_str().to_owned(), full_name(user).to_owned());
        Ok(SampleUser { issuer, subject: user.to_owned(), name })
    }

    /// Starts to sign with a new key. The old one stays published until its tokens have expired.
    pub fn rotate_keys(&self) -> Result<(), Error> {
        self.keys().rotate(self.0.clock.now())
    }

    fn keys(&self) -> MutexGuard<'_, SigningKeys> {
        self.0.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grants(&self) -> MutexGuard<'_, Grants> {
        self.0.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps our role words to the roles in tokens.
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

    /// Verifies one of our access tokens. Refuses it if its session has ended.
    fn bearer(&self, token: &str) -> Result<AccessToken, TokenError> {
        let now = self.0.clock.now();
        let jwt = Jwt::parse(token, &[Algorithm::Es256])?;
        let keys = self.keys().published(now).map_err(TokenError::Unavailable)?;
        let map = jwt.claims(keys.find(&jwt)?)?;
        let (config, issuer) = (&self.0.config, self.0.issuer.as_str());
        let access = Claims { map, header: &jwt.header, config, issuer, now }.access()?;
        let is_over = access.sid.as_ref().is_some_and(|sid| !self.grants().is_open(sid, now));
        if is_over { Err(TokenError::Expired) } else { Ok(access) }
    }

    /// Returns the session of one of our ID tokens, even if the token has expired.
    fn hinted_session(&self, id_token: &str) -> Option<String> {
        let jwt = Jwt::parse(id_token, &[Algorithm::Es256]).ok()?;
        let keys = self.keys().published(self.0.clock.now()).ok()?;
        let claims = jwt.claims(keys.find(&jwt).ok()?).ok()?;
        Some(claims.get("sid")?.as_str()?.to_owned())
    }

    /// Returns whether a client of this id exists.
    fn is_client(&self, client_id: &str) -> bool {
        client_id == self.0.config.client_id || client_id == GAME_CLIENT
    }

    /// Returns whether a client may send the browser to this URL.
    fn may_redirect_to(&self, client_id: &str, url: &Url) -> bool {
        let is_plain = url.fragment().is_none() && url.username().is_empty() && url.password().is_none();
        is_plain
            && if client_id == self.0.config.client_id {
                self.0.redirects_under.iter().any(|base| is_below(url, base))
            } else {
                is_loopback_redirect(url)
            }
    }

    /// Describes the URLs that a client may redirect to, for error pages.
    fn redirect_rule(&self, client_id: &str) -> String {
        if client_id == self.0.config.client_id {
            let urls: Vec<&str> = self.0.redirects_under.iter().map(Url::as_str).collect();
            format!("a URL below {}", urls.join(" or "))
        } else {
            "a URL on http://127.0.0.1 or http://[::1], with any port and path".to_owned()
        }
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
        Some(_) => json!(["client_secret_basic", "client_secret_post", "none"]),
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

/// Returns whether a URL is that of a folder or below it.
fn is_below(url: &Url, base: &Url) -> bool {
    let folder = base.path().trim_end_matches('/');
    let is_below =
        url.path().strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    url.origin() == base.origin() && is_below
}

/// Returns whether a native app may listen at this URL for its code: `http`, a loopback IP address, any port and path (RFC 8252,
/// section 7.3). The name `localhost` is refused because it may resolve to another interface (section 8.3).
fn is_loopback_redirect(url: &Url) -> bool {
    let is_loopback_ip = match url.host() {
        Some(Host::Ipv4(address)) => address == Ipv4Addr::LOCALHOST,
        Some(Host::Ipv6(address)) => address == Ipv6Addr::LOCALHOST,
        Some(Host::Domain(_)) | None => false,
    };
    url.scheme() == "http" && is_loopback_ip
}

/// Returns whether the page accepts this user name.
fn is_name(name: &str) -> bool {
    let is_allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// Returns the display name of a user.
fn full_name(user: &str) -> &str {
    SAMPLE_USERS.iter().find(|(name, _)| *name == user).map_or(user, |(_, full)| full)
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
    fn sample_user_is_as_in_the_tokens() {
        let config = load::<All>(Layers::new(crate::config::REFERENCE)).unwrap().config.0;
        let url = Url::parse("http://127.0.0.1:1/issuer").unwrap();
        let builtin = Builtin::new(&config, url.clone(), vec![url], Clock::system()).unwrap();
        for user in ["ada", "bob"] {
            let SampleUser { issuer, subject, name } = builtin.sample_user(user).unwrap();
            let access = builtin.bearer(&builtin.token(user, None).unwrap()).unwrap();
            assert_eq!((issuer, subject, Some(name)), (access.issuer, access.subject, access.name));
        }
        assert!(matches!(builtin.sample_user("a b"), Err(Error::UserName(_))));
    }

    #[test]
    fn gateway_redirects_stay_below_the_public_url() {
        let config = load::<All>(Layers::new(crate::config::REFERENCE)).unwrap().config.0;
        let url = |text: &str| Url::parse(text).unwrap();
        let may = |base: &str, target: &str| {
            let issuer = url("http://127.0.0.1:1/issuer");
            let builtin = Builtin::new(&config, issuer, vec![url(base)], Clock::system()).unwrap();
            builtin.may_redirect_to(&config.client_id, &url(target))
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
    fn game_redirects_are_loopback_addresses_with_any_port_and_path() {
        let config = load::<All>(Layers::new(crate::config::REFERENCE)).unwrap().config.0;
        let url = |text: &str| Url::parse(text).unwrap();
        let public = url("http://127.0.0.1:1/games");
        let builtin =
            Builtin::new(&config, public.join("/issuer").unwrap(), vec![public], Clock::system()).unwrap();
        for right in [
            "http://127.0.0.1:53124/",
            "http://127.0.0.1:53124",
            "http://127.0.0.1/callback",
            "http://127.0.0.1:9/any/path?x=1",
            "http://[::1]:53124/callback",
        ] {
            assert!(builtin.may_redirect_to(GAME_CLIENT, &url(right)), "{right}");
            assert!(!builtin.may_redirect_to(&config.client_id, &url(right)), "the gateway at {right}");
        }
        for wrong in [
            "https://127.0.0.1:53124/",
            "http://localhost:53124/",
            "http://127.0.0.2:53124/",
            "http://10.0.0.1:53124/",
            "http://127.0.0.1.example.org/",
            "http://me@127.0.0.1:53124/",
            "http://127.0.0.1:53124/#x",
            "http://[::2]:53124/",
            "game://callback",
            "javascript:alert(1)",
        ] {
            assert!(!builtin.may_redirect_to(GAME_CLIENT, &url(wrong)), "{wrong}");
        }
    }

    #[test]
    fn user_names_are_plain_ascii() {
        for right in ["a", "Ada.Lovelace_1-2", &"x".repeat(64)] {
            assert!(is_name(right), "{right}");
        }
        for wrong in ["", " ", "a b", "a;b", "ä", "a/b", "a\n", &"x".repeat(65)] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
