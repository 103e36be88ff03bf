//! The claims of tokens, and the rules that each kind of token must satisfy.
//!
//! The rules keep one kind from passing for another: an ID token authorizes no request, an access token signs no user in, and
//! neither signs a user out.

use base::Timestamp;
use serde_json::{Map, Value};

use crate::config::Config;
use crate::error::TokenError;
use crate::jwt::Header;

/// The event that marks a logout token.
const LOGOUT_EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";
/// How long a logout token without `exp` is valid. Two minutes suffice, since issuers send it at once.
const LOGOUT_AGE_MS: i64 = 120_000;
/// The longest accepted id. OpenID Connect limits `sub` to this length; we apply it to `sid`, `jti` and names too.
const MAX_ID: usize = 255;

/// The claims of a verified access token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessToken {
    /// The issuer, exactly as in `iss`.
    pub issuer: String,
    /// The user's id, unique at the issuer. For a service, the service's own id.
    pub subject: String,
    /// The display name, if the token has one.
    pub name: Option<String>,
    /// All roles, as in the token.
    pub roles: Vec<String>,
    /// Whether the operator role is present.
    pub is_operator: bool,
    /// Whether the read-only operator role is present.
    pub is_readonly_operator: bool,
    /// Whether the service role is present.
    pub is_service: bool,
    /// The rights of a service. Always empty for players.
    pub rights: Vec<String>,
    /// The client that the token was issued to.
    pub client: Option<String>,
    /// The session at the issuer.
    pub sid: Option<String>,
    pub expires_at: Timestamp,
}

/// The claims of a verified ID token: the user who signed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdToken {
    pub issuer: String,
    pub subject: String,
    pub name: Option<String>,
    /// The session at the issuer. Logout tokens refer to it.
    pub sid: Option<String>,
    /// When the user authenticated.
    pub auth_time: Option<Timestamp>,
    pub expires_at: Timestamp,
}

/// The claims of a verified logout token. It ends one session, or all sessions of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogoutToken {
    pub issuer: String,
    pub subject: Option<String>,
    pub sid: Option<String>,
    /// The id of this token, to detect a replay.
    pub jti: String,
    /// Until when `jti` must be remembered.
    pub expires_at: Timestamp,
}

/// The claims of a token with a valid signature, and the values that they are checked against.
pub(crate) struct Claims<'a> {
    pub(crate) map: Map<String, Value>,
    pub(crate) header: &'a Header,
    pub(crate) config: &'a Config,
    pub(crate) issuer: &'a str,
    pub(crate) now: Timestamp,
}

impl Claims<'_> {
    pub(crate) fn access(self) -> Result<AccessToken, TokenError> {
        self.check_access_kind()?;
        let expires_at = self.check_times()?.ok_or(TokenError::Malformed)?;
        self.check_issuer()?;
        let audience = self.audience()?;
        if !audience.iter().any(|one| self.config.audiences.iter().any(|ours| ours == one)) {
            return Err(TokenError::WrongAudience);
        }
        let roles = self.roles();
        let has = |role: &String| roles.contains(role);
        let is_service = has(&self.config.service_role);
        let right = |role: &String| Some(role.strip_prefix(&self.config.right_prefix)?.to_owned());
        Ok(AccessToken {
            issuer: self.issuer.to_owned(),
            subject: self.id("sub")?.ok_or(TokenError::Malformed)?,
            name: self.name(),
            is_operator: has(&self.config.operator_role),
            is_readonly_operator: has(&self.config.readonly_operator_role),
            is_service,
            rights: if is_service { roles.iter().filter_map(right).collect() } else { Vec::new() },
            client: self.id("azp")?.or(self.id("client_id")?),
            sid: self.id("sid")?,
            expires_at,
            roles,
        })
    }

    /// Checks the rules for ID tokens. With a `nonce`, the token must have the same one.
    pub(crate) fn id_token(self, nonce: Option<&str>) -> Result<IdToken, TokenError> {
        let is_other = self.map.contains_key("events")
            || self.text("typ").is_some_and(|kind| kind != "ID")
            || self.header.kind().is_some_and(|kind| kind != "jwt");
        if is_other {
            return Err(TokenError::WrongType);
        }
        let expires_at = self.check_times()?.ok_or(TokenError::Malformed)?;
        self.time("iat")?.ok_or(TokenError::Malformed)?;
        self.check_issuer()?;
        self.check_client_audience()?;
        if nonce.is_some() && self.text("nonce") != nonce {
            return Err(TokenError::WrongNonce);
        }
        Ok(IdToken {
            issuer: self.issuer.to_owned(),
            subject: self.id("sub")?.ok_or(TokenError::Malformed)?,
            name: self.name(),
            sid: self.id("sid")?,
            auth_time: self.time("auth_time")?,
            expires_at,
        })
    }

    /// Checks the rules for logout tokens (OpenID Connect Back-Channel Logout 1.0, section 2.6).
    pub(crate) fn logout(self) -> Result<LogoutToken, TokenError> {
        let is_kind = self.header.kind().is_none_or(|kind| matches!(kind.as_str(), "logout+jwt" | "jwt"));
        let is_event = self.map.get("events").and_then(|events| events.get(LOGOUT_EVENT));
        if !is_kind || !is_event.is_some_and(Value::is_object) || self.map.contains_key("nonce") {
            return Err(TokenError::WrongType);
        }
        let expiry = self.check_times()?;
        let issued_at = self.time("iat")?.ok_or(TokenError::Malformed)?;
        // Older issuers set no `exp`.
        let expires_at = expiry.unwrap_or(Timestamp::from_millis(issued_at.as_millis() + LOGOUT_AGE_MS));
        if self.now >= expires_at.after(self.config.clock_skew) {
            return Err(TokenError::Expired);
        }
        self.check_issuer()?;
        self.check_client_audience()?;
        let (subject, sid) = (self.id("sub")?, self.id("sid")?);
        if subject.is_none() && sid.is_none() {
            return Err(TokenError::Malformed);
        }
        let jti = self.id("jti")?.ok_or(TokenError::Malformed)?;
        let expires_at = expires_at.after(self.config.clock_skew);
        Ok(LogoutToken { issuer: self.issuer.to_owned(), subject, sid, jti, expires_at })
    }

    /// Checks that this is an access token. RFC 9068 marks it in the header and Keycloak in a claim; for other issuers, rule out
    /// the claims of ID tokens.
    fn check_access_kind(&self) -> Result<(), TokenError> {
        let is_good = match (self.header.kind().as_deref(), self.text("typ")) {
            (Some("at+jwt"), _) => true,
            (None | Some("jwt"), Some(kind)) => kind.eq_ignore_ascii_case("bearer"),
            (None | Some("jwt"), None) => {
                let has = |claim: &&str| self.map.contains_key(*claim);
                // The first list appears in ID tokens only, the second in access tokens.
                !["nonce", "at_hash", "c_hash", "s_hash", "auth_time"].iter().any(has)
                    && ["scope", "scp", "client_id"].iter().any(has)
            }
            _ => false,
        };
        if is_good && !self.map.contains_key("events") { Ok(()) } else { Err(TokenError::WrongType) }
    }

    /// Checks `exp`, `nbf` and `iat` against the clock, with `clock_skew` as tolerance. Returns `exp`, if present.
    fn check_times(&self) -> Result<Option<Timestamp>, TokenError> {
        let skew = self.config.clock_skew;
        let expires_at = self.time("exp")?;
        if expires_at.is_some_and(|expiry| self.now >= expiry.after(skew)) {
            return Err(TokenError::Expired);
        }
        for claim in ["nbf", "iat"] {
            if self.time(claim)?.is_some_and(|start| start > self.now.after(skew)) {
                return Err(TokenError::NotYetValid);
            }
        }
        Ok(expires_at)
    }

    fn check_issuer(&self) -> Result<(), TokenError> {
        if self.text("iss") == Some(self.issuer) { Ok(()) } else { Err(TokenError::WrongIssuer) }
    }

    /// Checks that our client is in `aud`. With several audiences, `azp` must be our client too.
    fn check_client_audience(&self) -> Result<(), TokenError> {
        let audience = self.audience()?;
        let ours = self.config.client_id.as_str();
        let party = self.text("azp");
        let is_authorized_party = party.map_or(audience.len() == 1, |party| party == ours);
        if audience.contains(&ours) && is_authorized_party { Ok(()) } else { Err(TokenError::WrongAudience) }
    }

    fn audience(&self) -> Result<Vec<&str>, TokenError> {
        match self.map.get("aud") {
            Some(Value::String(one)) => Ok(vec![one]),
            Some(Value::Array(many)) => {
                many.iter().map(|one| one.as_str().ok_or(TokenError::Malformed)).collect()
            }
            None => Err(TokenError::WrongAudience),
            Some(_) => Err(TokenError::Malformed),
        }
    }

    fn text(&self, claim: &str) -> Option<&str> {
        self.map.get(claim)?.as_str()
    }

    /// Returns a text claim of at most `MAX_ID` bytes.
    fn id(&self, claim: &str) -> Result<Option<String>, TokenError> {
        match self.map.get(claim) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(id)) if (1..=MAX_ID).contains(&id.len()) => Ok(Some(id.clone())),
            Some(_) => Err(TokenError::Malformed),
        }
    }

    /// Returns a time claim. It is in seconds; some issuers send fractions.
    fn time(&self, claim: &str) -> Result<Option<Timestamp>, TokenError> {
        match self.map.get(claim) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Number(seconds)) => {
                let seconds =
                    seconds.as_f64().filter(|seconds| *seconds >= 0.0).ok_or(TokenError::Malformed)?;
                #[expect(clippy::cast_possible_truncation, reason = "the largest time is far enough")]
                Ok(Some(Timestamp::from_millis((seconds * 1_000.0) as i64)))
            }
            Some(_) => Err(TokenError::Malformed),
        }
    }

    fn name(&self) -> Option<String> {
        let name = claim_at(&self.map, &self.config.name_claim).and_then(Value::as_str);
        let name = name.filter(|name| !name.is_empty()).or_else(|| self.text("preferred_username"));
        name.filter(|name| (1..=MAX_ID).contains(&name.len())).map(str::to_owned)
    }

    fn roles(&self) -> Vec<String> {
        match claim_at(&self.map, &self.config.roles_claim) {
            Some(Value::Array(roles)) => {
                roles.iter().filter_map(|role| role.as_str().map(str::to_owned)).collect()
            }
            Some(Value::String(roles)) => roles.split_ascii_whitespace().map(str::to_owned).collect(),
            _ => Vec::new(),
        }
    }
}

/// Returns the claim at a dotted path. A claim's own name may contain dots, for example one that begins with `https://`.
fn claim_at<'a>(map: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    if let Some(value) = map.get(path) {
        return Some(value);
    }
    path.match_indices('.')
        .find_map(|(dot, _)| claim_at(map.get(&path[..dot])?.as_object()?, &path[dot + 1..]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claim_paths_allow_names_with_dots() {
        let claims = json!({
            "roles": 1,
            "realm_access": { "roles": 2 },
            "https://example.org/roles": 3,
            "resource_access": { "play.house": { "roles": 4 } },
        });
        let find = |path: &str| claim_at(claims.as_object().unwrap(), path).and_then(Value::as_i64);
        assert_eq!(find("roles"), Some(1));
        assert_eq!(find("realm_access.roles"), Some(2));
        assert_eq!(find("https://example.org/roles"), Some(3));
        assert_eq!(find("resource_access.play.house.roles"), Some(4));
        for nothing in ["", ".", "roles.roles", "realm_access.", "realm_access.roles.x", "x"] {
            assert_eq!(find(nothing), None, "{nothing}");
        }
    }
}
