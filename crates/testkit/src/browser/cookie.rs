//! Cookies as the browser keeps them.

use serde_json::Value;

/// A cookie as the browser keeps it, with all that the server has said about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// The host it belongs to; begins with a dot if it is sent to hosts below too.
    pub domain: String,
    /// The path below which it is sent.
    pub path: String,
    /// Sent over TLS only.
    pub secure: bool,
    /// Hidden from scripts.
    pub http_only: bool,
    /// `Strict`, `Lax` or `None`; what the browser assumes where the server has not said it.
    pub same_site: String,
    /// Seconds since 1970; `None` for the life of the browser.
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
