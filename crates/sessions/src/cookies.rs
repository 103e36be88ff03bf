//! Cookies: read from a request, written into a response.
//!
//! Over https their names begin with `__Host-Http-`: browsers then refuse them unless they are secure, bound to this host and out of
//! reach of scripts. Browsers do not accept such cookies on every loopback address without TLS. Only there the names are plain.

use std::time::Duration;

use ::http::header::{COOKIE, SET_COOKIE};
use ::http::{HeaderMap, HeaderValue};

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
    /// Makes secure cookies, or plain ones for a gateway on loopback without TLS.
    pub(crate) const fn new(secure: bool) -> Self {
        Self { secure }
    }

    /// The name of the session cookie.
    pub fn session(self) -> String {
        self.name(SESSION)
    }

    /// The session that the request's cookie names, if it has one.
    pub(crate) fn session_id(self, headers: &HeaderMap) -> Option<SessionId> {
        get(headers, &self.session()).map(|secret| SessionSecret::of_cookie(secret).id())
    }

    /// The name of the cookie of one sign-in attempt, found by its state.
    pub(crate) fn sign_in(self, state: &str) -> String {
        let start = state.get(..12).unwrap_or(state);
        format!("{}{start}", self.name(SIGN_IN))
    }

    fn name(self, name: &str) -> String {
        let prefix = if self.secure { PREFIX } else { "" };
        format!("{prefix}{name}")
    }

    /// The names of the cookies of all sign-in attempts in the request.
    pub(crate) fn sign_ins(self, headers: &HeaderMap) -> Vec<String> {
        let start = self.name(SIGN_IN);
        pairs(headers).filter(|(name, _)| name.starts_with(&start)).map(|(name, _)| name.to_owned()).collect()
    }

    /// Adds a cookie to a response.
    pub fn set(self, headers: &mut HeaderMap, name: &str, value: &str, life: Duration) {
        self.write(headers, name, value, life.as_secs());
    }

    /// Removes a cookie from the browser.
    pub fn forget(self, headers: &mut HeaderMap, name: &str) {
        self.write(headers, name, "", 0);
    }

    fn write(self, headers: &mut HeaderMap, name: &str, value: &str, seconds: u64) {
        let secure = if self.secure { "; Secure" } else { "" };
        // Lax: the issuer's redirect back is a navigation from another site. Requests that change something need a header as well.
        let cookie = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}");
        if let Ok(mut cookie) = HeaderValue::from_str(&cookie) {
            cookie.set_sensitive(true);
            headers.append(SET_COOKIE, cookie);
        }
    }
}

/// Returns the value of a cookie. Returns none if there are several of that name: one of them may have been planted.
pub(crate) fn get<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut found = pairs(headers).filter(|(found, _)| *found == name).map(|(_, value)| value);
    found.next().filter(|value| !value.is_empty() && found.next().is_none())
}

fn pairs(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_by_its_whole_name() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, HeaderValue::from_static("a=1; playhouse=x=y ;b=2"));
        headers.append(COOKIE, HeaderValue::from_static("c=3; c=4; d="));
        assert_eq!(get(&headers, "playhouse"), Some("x=y"));
        assert_eq!(get(&headers, "b"), Some("2"));
        for none in ["play", "c", "d", "e", ""] {
            assert_eq!(get(&headers, none), None, "{none}");
        }
    }

    #[test]
    fn a_secure_cookie_is_bound_to_its_host() {
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
    fn no_header_breaks_the_reading_of_cookies() {
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
            for cookies in [Cookies::new(true), Cookies::new(false)] {
                is_found |= cookies.session_id(&headers).is_some() | !cookies.sign_ins(&headers).is_empty();
                // The state comes from the query, and names a cookie.
                is_found |= get(&headers, &cookies.sign_in(&text)).is_some();
            }
            assert!(pairs(&headers).all(|(_, value)| sealer.open("session", value).is_none()));
            is_found
        });
    }
}
