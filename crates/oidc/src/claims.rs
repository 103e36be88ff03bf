//! What tokens say, and what they must say to be believed.
//!
//! Each kind of token has its rules, so that none passes for another: an ID token opens no door, an access token signs nobody
//! in, and neither signs anybody out.

use base::Timestamp;
use serde_json::{Map, Value};

use crate::config::Config;
use crate::error::Refused;
use crate::jwt::Header;

/// What a logout token is recognised by.
const LOGOUT_EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";
/// How long a logout token is good for: it is sent at once.
const LOGOUT_AGE_MS: i64 = 120_000;
/// OpenID Connect promises that subjects are no longer; the others come from the same hands.
const MAX_ID: usize = 255;

/// Whom an access token speaks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Exactly as the issuer calls itself.
    pub issuer: String,
    /// Who it is, unique at the issuer. For a service it is the service itself.
    pub subject: String,
    /// How they want to be called, if the issuer says.
    pub name: Option<String>,
    /// All roles, as the issuer gives them.
    pub roles: Vec<String>,
    /// Whether they have the role of operators.
    pub is_operator: bool,
    /// Whether they have the role of operators who may only read.
    pub is_readonly_operator: bool,
    /// Whether this is a service, not a player.
    pub is_service: bool,
    /// What a service may do. Players have none.
    pub rights: Vec<String>,
    /// The client that the token was given to.
    pub client: Option<String>,
    /// The session at the issuer.
    pub sid: Option<String>,
    pub expires_at: Timestamp,
}

/// Who has signed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdToken {
    pub issuer: String,
    pub subject: String,
    pub name: Option<String>,
    /// The session at the issuer, by which it will sign the user out.
    pub sid: Option<String>,
    /// When they proved who they are.
    pub auth_time: Option<Timestamp>,
    pub expires_at: Timestamp,
}

/// Who has to be signed out: a session, or a user with all their sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogoutToken {
    pub issuer: String,
    pub subject: Option<String>,
    pub sid: Option<String>,
    /// Of this token. A token that was seen before should not be obeyed again.
    pub jti: String,
    /// How long `jti` has to be remembered.
    pub expires_at: Timestamp,
}

/// The claims of a token with a good signature, and what they are held against.
pub(crate) struct Claims<'a> {
    pub(crate) map: Map<String, Value>,
    pub(crate) header: &'a Header,
    pub(crate) config: &'a Config,
    pub(crate) issuer: &'a str,
    pub(crate) now: Timestamp,
}

impl Claims<'_> {
    pub(crate) fn access(self) -> Result<Access, Refused> {
        self.check_access_kind()?;
        let expires_at = self.check_times()?.ok_or(Refused::Malformed)?;
        self.check_issuer()?;
        let audience = self.audience()?;
        if !audience.iter().any(|one| self.config.audiences.iter().any(|ours| ours == one)) {
            return Err(Refused::WrongAudience);
        }
        let roles = self.roles();
        let has = |role: &String| roles.contains(role);
        let is_service = has(&self.config.service_role);
        let right = |role: &String| Some(role.strip_prefix(&self.config.right_prefix)?.to_owned());
        Ok(Access {
            issuer: self.issuer.to_owned(),
            subject: self.id("sub")?.ok_or(Refused::Malformed)?,
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

    /// With `nonce`, it must answer the sign-in that had it. A refreshed ID token need not have one.
    pub(crate) fn id_token(self, nonce: Option<&str>) -> Result<IdToken, Refused> {
        let is_other = self.map.contains_key("events")
            || self.text("typ").is_some_and(|kind| kind != "ID")
            || self.header.kind().is_some_and(|kind| kind != "jwt");
        if is_other {
            return Err(Refused::WrongType);
        }
        let expires_at = self.check_times()?.ok_or(Refused::Malformed)?;
        self.time("iat")?.ok_or(Refused::Malformed)?;
        self.check_issuer()?;
        self.check_ours()?;
        if nonce.is_some() && self.text("nonce") != nonce {
            return Err(Refused::WrongNonce);
        }
        Ok(IdToken {
            issuer: self.issuer.to_owned(),
            subject: self.id("sub")?.ok_or(Refused::Malformed)?,
            name: self.name(),
            sid: self.id("sid")?,
            auth_time: self.time("auth_time")?,
            expires_at,
        })
    }

    /// The rules of OpenID Connect Back-Channel Logout 1.0, section 2.6.
    pub(crate) fn logout(self) -> Result<LogoutToken, Refused> {
        let is_kind = self.header.kind().is_none_or(|kind| matches!(kind.as_str(), "logout+jwt" | "jwt"));
        let is_event = self.map.get("events").and_then(|events| events.get(LOGOUT_EVENT));
        if !is_kind || !is_event.is_some_and(Value::is_object) || self.map.contains_key("nonce") {
            return Err(Refused::WrongType);
        }
        let expiry = self.check_times()?;
        let issued_at = self.time("iat")?.ok_or(Refused::Malformed)?;
        // Older issuers set no expiry; then it is as old as it may get.
        let expires_at = expiry.unwrap_or(Timestamp::from_millis(issued_at.as_millis() + LOGOUT_AGE_MS));
        if self.now >= expires_at.after(self.config.clock_skew) {
            return Err(Refused::Expired);
        }
        self.check_issuer()?;
        self.check_ours()?;
        let (subject, sid) = (self.id("sub")?, self.id("sid")?);
        if subject.is_none() && sid.is_none() {
            return Err(Refused::Malformed);
        }
        let jti = self.id("jti")?.ok_or(Refused::Malformed)?;
        let expires_at = expires_at.after(self.config.clock_skew);
        Ok(LogoutToken { issuer: self.issuer.to_owned(), subject, sid, jti, expires_at })
    }

    /// RFC 9068 marks access tokens in the header, Keycloak in a claim. Of others we know only what they are not.
    fn check_access_kind(&self) -> Result<(), Refused> {
        let is_good = match (self.header.kind().as_deref(), self.text("typ")) {
            (Some("at+jwt"), _) => true,
            (None | Some("jwt"), Some(kind)) => kind.eq_ignore_ascii_case("bearer"),
            (None | Some("jwt"), None) => {
                let has = |claim: &&str| self.map.contains_key(*claim);
                // An ID token says how somebody signed in; an access token what somebody may do, and for whom.
                !["nonce", "at_hash", "c_hash", "s_hash", "auth_time"].iter().any(has)
                    && ["scope", "scp", "client_id"].iter().any(has)
            }
            _ => false,
        };
        if is_good && !self.map.contains_key("events") { Ok(()) } else { Err(Refused::WrongType) }
    }

    /// Returns when the token expires, if it says so. By then, and by our clock and the skew, it has not.
    fn check_times(&self) -> Result<Option<Timestamp>, Refused> {
        let skew = self.config.clock_skew;
        let expires_at = self.time("exp")?;
        if expires_at.is_some_and(|expiry| self.now >= expiry.after(skew)) {
            return Err(Refused::Expired);
        }
        for claim in ["nbf", "iat"] {
            if self.time(claim)?.is_some_and(|start| start > self.now.after(skew)) {
                return Err(Refused::NotYetValid);
            }
        }
        Ok(expires_at)
    }

    fn check_issuer(&self) -> Result<(), Refused> {
        if self.text("iss") == Some(self.issuer) { Ok(()) } else { Err(Refused::WrongIssuer) }
    }

    /// Whether the token is for us as a client. If it is for others as well, it must have been given to us.
    fn check_ours(&self) -> Result<(), Refused> {
        let audience = self.audience()?;
        let ours = self.config.client_id.as_str();
        let party = self.text("azp");
        let is_given_to_us = party.map_or(audience.len() == 1, |party| party == ours);
        if audience.contains(&ours) && is_given_to_us { Ok(()) } else { Err(Refused::WrongAudience) }
    }

    fn audience(&self) -> Result<Vec<&str>, Refused> {
        match self.map.get("aud") {
            Some(Value::String(one)) => Ok(vec![one]),
            Some(Value::Array(many)) => {
                many.iter().map(|one| one.as_str().ok_or(Refused::Malformed)).collect()
            }
            None => Err(Refused::WrongAudience),
            Some(_) => Err(Refused::Malformed),
        }
    }

    fn text(&self, claim: &str) -> Option<&str> {
        self.map.get(claim)?.as_str()
    }

    /// A text that we may keep as a key.
    fn id(&self, claim: &str) -> Result<Option<String>, Refused> {
        match self.map.get(claim) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(id)) if (1..=MAX_ID).contains(&id.len()) => Ok(Some(id.clone())),
            Some(_) => Err(Refused::Malformed),
        }
    }

    /// A time in seconds, of which some issuers give fractions.
    fn time(&self, claim: &str) -> Result<Option<Timestamp>, Refused> {
        match self.map.get(claim) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Number(seconds)) => {
                let seconds = seconds.as_f64().filter(|seconds| *seconds >= 0.0).ok_or(Refused::Malformed)?;
                #[expect(clippy::cast_possible_truncation, reason = "the largest time is far enough")]
                Ok(Some(Timestamp::from_millis((seconds * 1_000.0) as i64)))
            }
            Some(_) => Err(Refused::Malformed),
        }
    }

    fn name(&self) -> Option<String> {
        let name = at(&self.map, &self.config.name_claim).and_then(Value::as_str);
        let name = name.filter(|name| !name.is_empty()).or_else(|| self.text("preferred_username"));
        name.filter(|name| (1..=MAX_ID).contains(&name.len())).map(str::to_owned)
    }

    fn roles(&self) -> Vec<String> {
        match at(&self.map, &self.config.roles_claim) {
            Some(Value::Array(roles)) => {
                roles.iter().filter_map(|role| role.as_str().map(str::to_owned)).collect()
            }
            Some(Value::String(roles)) => roles.split_ascii_whitespace().map(str::to_owned).collect(),
            _ => Vec::new(),
        }
    }
}

/// What is at a path of claims. Names may have dots themselves, as those that begin with `https://` do.
fn at<'a>(map: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    if let Some(value) = map.get(path) {
        return Some(value);
    }
    path.match_indices('.').find_map(|(dot, _)| at(map.get(&path[..dot])?.as_object()?, &path[dot + 1..]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_leads_through_claims_whose_names_may_have_dots() {
        let claims = json!({
            "roles": 1,
            "realm_access": { "roles": 2 },
            "https://example.org/roles": 3,
            "resource_access": { "play.house": { "roles": 4 } },
        });
        let find = |path: &str| at(claims.as_object().unwrap(), path).and_then(Value::as_i64);
        assert_eq!(find("roles"), Some(1));
        assert_eq!(find("realm_access.roles"), Some(2));
        assert_eq!(find("https://example.org/roles"), Some(3));
        assert_eq!(find("resource_access.play.house.roles"), Some(4));
        for nothing in ["", ".", "roles.roles", "realm_access.", "realm_access.roles.x", "x"] {
            assert_eq!(find(nothing), None, "{nothing}");
        }
    }
}
