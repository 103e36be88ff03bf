//! The gateway's cookies: reads them from a request and writes them into a response.
//!
//! Over https their names begin with `__Host-Http-`: browsers then refuse them unless they are secure, bound to this host and out of
//! reach of scripts. Browsers do not accept such cookies on every loopback address without TLS, so there the names have no prefix.

use std::time::Duration;

use ::http::header::SET_COOKIE;
use ::http::{HeaderMap, HeaderValue};
use http_server::{cookie, cookies};

use crate::store::{SessionId, SessionSecret};

const SESSION: &str = "playhouse";
const SIGN_IN: &str = "playhouse-sign-in-";
const PREFIX: &str = "__Host-Http-";

/// Names, writes and removes the cookies of the gateway.
#[derive(Clone, Copy, Debug)]
pub struct Cookies {
    secure: bool,
}

impl Cookies {
    /// Writes secure cookies, or plain ones for a gateway on loopback without TLS.
    pub(crate) const fn new(secure: bool) -> Self {
        Self { secure }
    }

    /// Returns the name of the session cookie.
    pub fn session(self) -> String {
        self.name(SESSION)
    }

    /// Returns the session that the request's cookie names.
    pub(crate) fn session_id(self, headers: &HeaderMap) -> Option<SessionId> {
        cookie(headers, &self.session()).map(|secret| SessionSecret::from_cookie(secret).id())
    }

    /// Returns the name of the cookie of a sign-in attempt, derived from its state.
    pub(crate) fn sign_in(self, state: &str) -> String {
        let start = state.get(..12).unwrap_or(state);
        format!("{}{start}", self.name(SIGN_IN))
    }

    fn name(self, name: &str) -> String {
        let prefix = if self.secure { PREFIX } else { "" };
        format!("{prefix}{name}")
    }

    /// Returns the names of the cookies of all sign-in attempts in the request.
    pub(crate) fn sign_ins(self, headers: &HeaderMap) -> Vec<String> {
        let start = self.name(SIGN_IN);
        cookies(headers)
            .filter(|(name, _)| name.starts_with(&start))
            .map(|(name, _)| name.to_owned())
            .collect()
    }

    /// Adds a cookie to a response.
    pub fn set(self, headers: &mut HeaderMap, name: &str, value: &str, life: Duration) {
        self.write(headers, name, value, life.as_secs());
    }

    /// Removes a cookie from the browser.
    pub fn remove(self, headers: &mut HeaderMap, name: &str) {
        self.write(headers, name, "", 0);
    }

    fn write(self, headers: &mut HeaderMap, name: &str, value: &str, seconds: u64) {
        let secure = if self.secure { "; Secure" } else { "" };
        // Lax: the issuer's redirect back is a navigation from another site. Requests that change something also need a CSRF header.
        let line = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}");
        if let Ok(mut cookie) = HeaderValue::from_str(&line) {
            cookie.set_sensitive(true);
            headers.append(SET_COOKIE, cookie);
        }
    }
}

#[cfg(test)]
mod tests {
    use ::http::header::COOKIE;

    use super::*;

    #[test]
    fn secure_cookie_is_bound_to_its_host() {
        let write = |secure: bool| {
            let (cookies, mut headers) = (Cookies::new(secure), HeaderMap::new());
            cookies.set(&mut headers, &cookies.session(), "v", Duration::from_secs(60));
            headers[SET_COOKIE].to_str().unwrap().to_owned()
        };
        let secure = "__Host-Http-playhouse=v; Path=/; Max-Age=60; HttpOnly; SameSite=Lax; Secure";
        assert_eq!(write(true), secure);
        assert_eq!(write(false), "playhouse=v; Path=/; Max-Age=60; HttpOnly; SameSite=Lax");
    }

    #[test]
    fn no_cookie_header_makes_the_parser_panic() {
        let samples = [
            "__Host-Http-playhouse=abc; playhouse-sign-in-abcdefghijkl=sealed; a=1; a=2",
            "playhouse=x=y ;b=2;;=;c; \u{e4}=\u{1f984}",
        ];
        let sealer = crate::Sealer::new(&[]).unwrap();
        testkit::fuzz("cookies", &samples, |input| {
            let mut headers = HeaderMap::new();
            for line in input.split(|byte| *byte == b'\n') {
                if let Ok(value) = HeaderValue::from_bytes(line) {
                    headers.append(COOKIE, value);
                }
            }
            let text = String::from_utf8_lossy(input);
            let mut is_found = false;
            for names in [Cookies::new(true), Cookies::new(false)] {
                is_found |= names.session_id(&headers).is_some() | !names.sign_ins(&headers).is_empty();
                // The state comes from the query and selects a cookie.
                is_found |= cookie(&headers, &names.sign_in(&text)).is_some();
            }
            assert!(cookies(&headers).all(|(_, value)| sealer.open("session", value).is_none()));
            is_found
        });
    }
}
