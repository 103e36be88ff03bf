//! Origins: the gateway's own, and those of other pages that may call it and that a sign-in may return to.

use std::fmt;

use ::config::{Rejected, Setting, Value};
use oidc::is_loopback;
use url::Url;

/// An origin as a browser writes it: `https://play.example.com`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(String);

impl Origin {
    pub fn of(url: &Url) -> Self {
        Self(url.origin().ascii_serialization())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The URL under which players reach the gateway: an origin, with nothing after the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicUrl(pub Url);

/// Parses an http(s) URL with nothing after its port.
fn bare(value: &Value) -> Result<Url, Rejected> {
    let url = Url::parse(&String::parse(value)?).map_err(|error| Rejected::because(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(Rejected::because("it begins with neither https:// nor http://"));
    }
    let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    if !is_bare || !url.username().is_empty() {
        return Err(Rejected::because("nothing may follow the host and the port"));
    }
    Ok(url)
}

impl Setting for Origin {
    fn expected() -> String {
        "an origin such as \"https://play.example.com\"".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, Rejected> {
        bare(value).map(|url| Self::of(&url))
    }

    fn show(&self) -> String {
        format!("{:?}", self.0)
    }
}

impl Setting for PublicUrl {
    fn expected() -> String {
        "a URL such as \"https://play.example.com\"".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, Rejected> {
        let url = bare(value)?;
        if url.scheme() == "http" && !is_loopback(&url) {
            return Err(Rejected::because("http:// is for this machine alone: players need https://"));
        }
        Ok(Self(url))
    }

    fn show(&self) -> String {
        format!("{:?}", Origin::of(&self.0).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_what_a_browser_sends() {
        let parse = |text: &str| Origin::parse(&Value::Text(text.to_owned())).map(|origin| origin.0);
        assert_eq!(parse("https://Play.example.com:443/").unwrap(), "https://play.example.com");
        assert_eq!(parse("http://localhost:5173").unwrap(), "http://localhost:5173");
        for wrong in
            ["", "*", "null", "play.example.com", "https://a/b", "https://a?b", "https://u@a", "file:///a"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn players_come_by_https_except_on_this_machine() {
        let parse = |text: &str| PublicUrl::parse(&Value::Text(text.to_owned())).is_ok();
        for sound in
            ["https://play.example.com", "http://127.0.0.1:8080", "http://localhost", "http://[::1]:80"]
        {
            assert!(parse(sound), "{sound}");
        }
        assert!(!parse("http://play.example.com") && !parse("http://127.0.0.1.example.com"));
    }
}
