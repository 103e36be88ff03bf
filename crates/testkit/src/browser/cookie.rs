//! Cookies in the browser.

use serde_json::Value;

/// A cookie in the browser, with all its attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cookie {
    pub name: String,
    pub value: String,
    /// The host. Begins with a dot if the cookie is also sent to subdomains.
    pub domain: String,
    /// The path prefix of the requests that carry the cookie.
    pub path: String,
    /// Sent over TLS only.
    pub secure: bool,
    /// Hidden from scripts.
    pub http_only: bool,
    /// `Strict`, `Lax` or `None`. The browser's default if the server did not set it.
    pub same_site: String,
    /// Seconds since 1970. `None` for a session cookie.
    pub expires: Option<u64>,
}

impl Cookie {
    pub(super) fn parse(cookie: &Value) -> Self {
        let text = |field: &str| cookie[field].as_str().unwrap_or_default().to_owned();
        Self {
            name: text("name"),
            value: text("value"),
            domain: text("domain"),
            path: text("path"),
            secure: cookie["secure"] == true,
            http_only: cookie["httpOnly"] == true,
            same_site: text("sameSite"),
            expires: cookie["expiry"].as_u64(),
        }
    }
}
