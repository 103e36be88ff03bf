//! Origins: the gateway's own, and those of other pages that may call it or be the target of a sign-in.

use std::fmt;

use ::config::{InvalidValue, Setting, Value};
use oidc::is_loopback;
use url::Url;

/// An origin as browsers send it: `https://play.example.com`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(String);

impl Origin {
    pub fn from_url(url: &Url) -> Self {
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

/// The URL under which players reach the gateway: an origin without a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicUrl(pub Url);

/// Parses an http(s) URL without path, query and fragment.
fn parse_origin_url(value: &Value) -> Result<Url, InvalidValue> {
    let url =
        Url::parse(&String::parse(value)?).map_err(|error| InvalidValue::with_reason(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(InvalidValue::with_reason("it must begin with https:// or http://"));
    }
    let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    if !is_bare || !url.username().is_empty() {
        return Err(InvalidValue::with_reason("nothing may follow the host and the port"));
    }
    Ok(url)
}

impl Setting for Origin {
    fn expected() -> String {
        "an origin such as \"https://play.example.com\"".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        parse_origin_url(value).map(|url| Self::from_url(&url))
    }

    fn show(&self) -> String {
        format!("{:?}", self.0)
    }
}

impl Setting for PublicUrl {
    fn expected() -> String {
        "a URL such as \"https://play.example.com\"".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        let url = parse_origin_url(value)?;
        if url.scheme() == "http" && !is_loopback(&url) {
            return Err(InvalidValue::with_reason("http:// is for loopback hosts only; use https://"));
        }
        Ok(Self(url))
    }

    fn show(&self) -> String {
        format!("{:?}", Origin::from_url(&self.0).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_is_normalised_as_browsers_send_it() {
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
    fn public_url_is_https_except_on_loopback() {
        let parse = |text: &str| PublicUrl::parse(&Value::Text(text.to_owned())).is_ok();
        for sound in
            ["https://play.example.com", "http://127.0.0.1:8080", "http://localhost", "http://[::1]:80"]
        {
            assert!(parse(sound), "{sound}");
        }
        assert!(!parse("http://play.example.com") && !parse("http://127.0.0.1.example.com"));
    }
}
