//! The settings of section `identity`.

use std::fmt;
use std::time::Duration;

use ::config::{Choice, InvalidValue, Reader, Secret, Section, Setting, Value};
use url::{Host, Url};

/// The settings of section `identity`.
#[derive(Clone, Debug)]
pub struct Config {
    pub issuer: IssuerUrl,
    /// Our client id at the issuer.
    pub client_id: String,
    /// With a secret we are a confidential client, without one a public client.
    pub client_secret: Option<Secret>,
    /// The scopes that a sign-in requests.
    pub scopes: Vec<String>,
    /// The accepted audiences. `aud` of an access token must contain one of them.
    pub audiences: Vec<String>,
    /// The accepted signature algorithms.
    pub algorithms: Vec<Algorithm>,
    /// The tolerated difference between our clock and the issuer's.
    pub clock_skew: Duration,
    /// The timeout of one request to the issuer.
    pub timeout: Duration,
    /// The pause before tokens with unknown keys cause another fetch of the keys.
    pub keys_cooldown: Duration,
    /// The age at which cached keys are fetched again.
    pub keys_max_age: Duration,
    /// The claim that holds the roles: its name, or a dotted path to it.
    pub roles_claim: String,
    /// The role of operators.
    pub operator_role: String,
    /// The role of read-only operators.
    pub readonly_operator_role: String,
    /// The role of services.
    pub service_role: String,
    /// The prefix of the roles that give a service its rights.
    pub right_prefix: String,
    /// The claim that holds the display name. `preferred_username` is the fallback.
    pub name_claim: String,
}

impl Section for Config {
    fn read(reader: &mut Reader<'_>) -> Self {
        const SECOND: Duration = Duration::from_secs(1);
        const HOUR: Duration = Duration::from_secs(3600);
        let config = Self {
            issuer: reader.get("issuer"),
            client_id: reader.get("client_id"),
            client_secret: reader.optional("client_secret"),
            scopes: reader.get("scopes"),
            audiences: reader.get("audiences"),
            algorithms: reader.get("algorithms"),
            clock_skew: reader.get_within("clock_skew", Duration::ZERO..=300 * SECOND),
            timeout: reader.get_within("timeout", SECOND / 10..=60 * SECOND),
            keys_cooldown: reader.get_within("keys_cooldown", SECOND..=HOUR),
            keys_max_age: reader.get_within("keys_max_age", 10 * SECOND..=24 * HOUR),
            roles_claim: reader.get("roles_claim"),
            operator_role: reader.get("operator_role"),
            readonly_operator_role: reader.get("readonly_operator_role"),
            service_role: reader.get("service_role"),
            right_prefix: reader.get("right_prefix"),
            name_claim: reader.get("name_claim"),
        };
        config.check(reader);
        config
    }
}

impl Config {
    fn check(&self, reader: &mut Reader<'_>) {
        for (name, value) in [
            ("client_id", &self.client_id),
            ("roles_claim", &self.roles_claim),
            ("operator_role", &self.operator_role),
            ("readonly_operator_role", &self.readonly_operator_role),
            ("service_role", &self.service_role),
            ("right_prefix", &self.right_prefix),
            ("name_claim", &self.name_claim),
        ] {
            reader.check(&[name], !value.is_empty(), || "must not be empty".to_owned());
        }
        reader.check(&["scopes"], self.scopes.iter().any(|scope| scope == "openid"), || {
            "must contain \"openid\": without it there is no ID token".to_owned()
        });
        let is_scope = |scope: &String| !scope.is_empty() && scope.bytes().all(|c| c.is_ascii_graphic());
        reader.check(&["scopes"], self.scopes.iter().all(is_scope), || {
            "a scope is a word without spaces".to_owned()
        });
        let has_audience = !self.audiences.is_empty() && !self.audiences.iter().any(String::is_empty);
        reader.check(&["audiences"], has_audience, || {
            "must name at least one audience, and no empty one".to_owned()
        });
        reader.check(&["algorithms"], !self.algorithms.is_empty(), || {
            "must name at least one algorithm".to_owned()
        });
        reader.check(&["operator_role", "service_role"], self.operator_role != self.service_role, || {
            "operators and services must have different roles".to_owned()
        });
        let is_own = self.readonly_operator_role != self.operator_role
            && self.readonly_operator_role != self.service_role;
        reader.check(&["readonly_operator_role"], is_own, || {
            "read-only operators must have a role of their own".to_owned()
        });
        reader.check(&["keys_cooldown", "keys_max_age"], self.keys_cooldown <= self.keys_max_age, || {
            "keys_cooldown must be at most keys_max_age".to_owned()
        });
    }
}

/// The issuer: the builtin one for development, an external one, or none if sign-in is disabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IssuerUrl {
    None,
    Builtin,
    Url(Url),
}

impl IssuerUrl {
    pub const fn is_builtin(&self) -> bool {
        matches!(self, Self::Builtin)
    }
}

impl fmt::Display for IssuerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none:"),
            Self::Builtin => f.write_str("builtin:"),
            Self::Url(url) => url.fmt(f),
        }
    }
}

impl Setting for IssuerUrl {
    fn expected() -> String {
        "\"builtin:\" (for development), \"https://HOST/PATH\", or \"none:\"".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        let text = String::parse(value)?;
        match text.as_str() {
            "none:" => return Ok(Self::None),
            "builtin:" => return Ok(Self::Builtin),
            _ => {}
        }
        let url = Url::parse(&text).map_err(|error| InvalidValue::with_reason(error.to_string()))?;
        check_issuer(&url).map_err(InvalidValue::with_reason)?;
        Ok(Self::Url(url))
    }

    fn show(&self) -> String {
        format!("{:?}", self.to_string())
    }
}

/// A signature algorithm. None is symmetric: a party that can verify a token must not be able to sign one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

impl Choice for Algorithm {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("RS256", Self::Rs256),
        ("RS384", Self::Rs384),
        ("RS512", Self::Rs512),
        ("PS256", Self::Ps256),
        ("PS384", Self::Ps384),
        ("PS512", Self::Ps512),
        ("ES256", Self::Es256),
        ("ES384", Self::Es384),
        ("EdDSA", Self::EdDsa),
    ];
}

/// Returns whether a URL points to this machine, so that no network is in between.
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Refuses a URL that is not a valid issuer or could be spoofed on the network.
pub(crate) fn check_issuer(url: &Url) -> Result<(), String> {
    check_endpoint(url)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err("an issuer has neither query nor fragment".to_owned());
    }
    Ok(())
}

/// Refuses an endpoint that could be spoofed on the network: it must be HTTPS or on loopback.
pub(crate) fn check_endpoint(url: &Url) -> Result<(), String> {
    if url.scheme() != "https" && !(url.scheme() == "http" && is_loopback(url)) {
        return Err("it must be https://; http:// is for loopback hosts only".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("it must not contain a user name or a password".to_owned());
    }
    Ok(())
}

/// The defaults, as in the program's reference configuration.
#[cfg(test)]
pub(crate) const REFERENCE: &str = r#"
    [identity]
    issuer = "builtin:"
    client_id = "playhouse"
    # client_secret = "secret"
    scopes = ["openid", "profile"]
    audiences = ["playhouse"]
    algorithms = ["RS256", "PS256", "ES256", "EdDSA"]
    clock_skew = "30s"
    timeout = "5s"
    keys_cooldown = "10s"
    keys_max_age = "1h"
    roles_claim = "realm_access.roles"
    operator_role = "playhouse-operator"
    readonly_operator_role = "playhouse-operator-readonly"
    service_role = "playhouse-service"
    right_prefix = "playhouse-may-"
    name_claim = "name"
"#;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ::config::{Layers, load};

    use super::*;

    struct All {
        identity: Config,
    }

    impl Section for All {
        fn read(reader: &mut Reader<'_>) -> Self {
            Self { identity: reader.section("identity") }
        }
    }

    fn read(text: &str) -> Result<Config, String> {
        let layers = Layers::new(REFERENCE)
            .with_file_text(Path::new("playhouse.toml"), &format!("[identity]\n{text}"));
        let loaded = load::<All>(layers);
        loaded.map(|loaded| loaded.config.identity).map_err(|problems| problems.to_string())
    }

    #[test]
    fn issuer_is_builtin_or_https_or_loopback() {
        assert!(read("").unwrap().issuer.is_builtin());
        for right in [
            "https://id.example.org/realms/games",
            "http://localhost:8080/realms/games",
            "http://127.0.0.1:1",
            "http://[::1]:1",
        ] {
            let config = read(&format!("issuer = {right:?}")).unwrap();
            assert_eq!(config.issuer, IssuerUrl::Url(Url::parse(right).unwrap()));
        }
        for wrong in [
            "builtin",
            "",
            "http://id.example.org",
            "http://localhost.example.org",
            "ftp://localhost",
            "https://id.example.org?x=1",
            "https://me:secret@id.example.org",
        ] {
            assert!(read(&format!("issuer = {wrong:?}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn symmetric_algorithms_cannot_be_configured() {
        assert_eq!(read("algorithms = [\"ES384\"]").unwrap().algorithms, [Algorithm::Es384]);
        for wrong in ["HS256", "none", "rs256", ""] {
            assert!(read(&format!("algorithms = [{wrong:?}]")).is_err(), "{wrong}");
        }
        assert!(read("algorithms = []").is_err());
    }

    #[test]
    fn contradictory_settings_are_refused() {
        for wrong in [
            "scopes = [\"profile\"]",
            "scopes = [\"openid profile\", \"openid\"]",
            "audiences = []",
            "client_id = \"\"",
            "operator_role = \"playhouse-service\"",
            "readonly_operator_role = \"playhouse-operator\"",
            "keys_max_age = \"10s\"\nkeys_cooldown = \"20s\"",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn client_secret_is_redacted_in_debug_output() {
        let config = read("client_secret = \"hush\"").unwrap();
        assert_eq!(config.client_secret.as_ref().unwrap().expose(), "hush");
        assert!(!format!("{config:?}").contains("hush"));
    }
}
