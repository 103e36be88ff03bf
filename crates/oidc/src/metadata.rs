//! The issuer's discovery document (OpenID Connect Discovery 1.0).

use std::ops::Deref;

use serde::Deserialize;
use url::Url;

use crate::config::check_endpoint;
use crate::error::Error;

const DOCUMENT: &str = "the discovery document";

/// The fields of the discovery document that we use.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Metadata {
    /// Exactly as in the `iss` of tokens.
    pub(crate) issuer: String,
    pub(crate) authorization_endpoint: Endpoint,
    pub(crate) token_endpoint: Endpoint,
    pub(crate) jwks_uri: Endpoint,
    pub(crate) revocation_endpoint: Option<Endpoint>,
    pub(crate) end_session_endpoint: Option<Endpoint>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    /// Whether authorization responses always have `iss` (RFC 9207).
    #[serde(default)]
    pub(crate) authorization_response_iss_parameter_supported: bool,
    /// Whether the issuer notifies us when a session ends there.
    #[serde(default)]
    pub(crate) backchannel_logout_supported: bool,
}

/// An endpoint URL that cannot be spoofed on the network: HTTPS or loopback.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Endpoint(Url);

impl Deref for Endpoint {
    type Target = Url;

    fn deref(&self) -> &Url {
        &self.0
    }
}

impl TryFrom<String> for Endpoint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let url = Url::parse(&text).map_err(|error| format!("{text:?} is not a URL: {error}"))?;
        check_endpoint(&url).map_err(|why| format!("{url} cannot be used: {why}"))?;
        Ok(Self(url))
    }
}

impl Metadata {
    /// Returns the URL of an issuer's discovery document.
    pub(crate) fn discovery_url(issuer: &Url) -> Result<Url, Error> {
        let text = format!("{}/.well-known/openid-configuration", issuer.as_str().trim_end_matches('/'));
        Url::parse(&text).map_err(|error| Error::Setup(error.to_string()))
    }

    /// Parses the document. Fails if it belongs to another issuer.
    pub(crate) fn parse(json: &[u8], issuer: &Url) -> Result<Self, Error> {
        let this: Self =
            serde_json::from_slice(json).map_err(|error| Error::malformed(DOCUMENT, error.to_string()))?;
        // Compared as URLs: the parsed configuration cannot tell whether a bare host had a trailing slash.
        if Url::parse(&this.issuer).ok().as_ref() != Some(issuer) {
            return Err(Error::malformed(DOCUMENT, format!("it belongs to another issuer than {issuer}")));
        }
        Ok(this)
    }

    /// Returns whether the client secret must be sent in the form. By default it is sent in a header.
    pub(crate) fn wants_secret_in_form(&self) -> bool {
        let Some(methods) = &self.token_endpoint_auth_methods_supported else { return false };
        let has = |method: &str| methods.iter().any(|supported| supported == method);
        has("client_secret_post") && !has("client_secret_basic")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn document(issuer: &str) -> Value {
        json!({
            "issuer": issuer,
            "authorization_endpoint": "https://id.example.org/authorize",
            "token_endpoint": "https://id.example.org/token",
            "jwks_uri": "https://keys.example.org/jwks",
        })
    }

    fn parse(document: &Value, issuer: &str) -> Result<Metadata, Error> {
        Metadata::parse(document.to_string().as_bytes(), &Url::parse(issuer).unwrap())
    }

    #[test]
    fn document_of_another_issuer_is_refused() {
        for (theirs, ours) in [
            ("https://id.example.org", "https://id.example.org"),
            ("https://id.example.org", "https://id.example.org/"),
            ("https://id.example.org/", "https://id.example.org"),
            ("https://id.example.org/realms/x", "https://id.example.org/realms/x"),
        ] {
            assert_eq!(parse(&document(theirs), ours).unwrap().issuer, theirs, "kept as it is");
        }
        for (theirs, ours) in [
            ("https://id.example.org/realms/x/", "https://id.example.org/realms/x"),
            ("https://id.example.org/realms/y", "https://id.example.org/realms/x"),
            ("https://evil.example.org", "https://id.example.org"),
            ("http://id.example.org", "https://id.example.org"),
            ("nonsense", "https://id.example.org"),
        ] {
            assert!(parse(&document(theirs), ours).is_err(), "{theirs} for {ours}");
        }
    }

    #[test]
    fn endpoints_without_tls_are_refused() {
        let issuer = "https://id.example.org";
        for endpoint in ["token_endpoint", "jwks_uri", "end_session_endpoint", "revocation_endpoint"] {
            let mut document = document(issuer);
            document[endpoint] = "http://id.example.org/x".into();
            assert!(parse(&document, issuer).is_err(), "{endpoint}");
            document[endpoint] = "http://127.0.0.1:1/x".into();
            assert!(parse(&document, issuer).is_ok(), "{endpoint}");
        }
    }

    #[test]
    fn secret_is_sent_in_the_form_only_if_headers_are_unsupported() {
        let issuer = "https://id.example.org";
        let wants = |methods: Value| {
            let mut document = document(issuer);
            document["token_endpoint_auth_methods_supported"] = methods;
            parse(&document, issuer).unwrap().wants_secret_in_form()
        };
        assert!(!wants(Value::Null));
        assert!(!wants(json!(["client_secret_post", "client_secret_basic"])));
        assert!(!wants(json!(["private_key_jwt"])));
        assert!(wants(json!(["private_key_jwt", "client_secret_post"])));
    }

    #[test]
    fn discovery_url_is_below_the_issuer() {
        let discovery_url =
            |issuer: &str| Metadata::discovery_url(&Url::parse(issuer).unwrap()).unwrap().to_string();
        assert_eq!(discovery_url("https://h"), "https://h/.well-known/openid-configuration");
        assert_eq!(discovery_url("https://h/a/b"), "https://h/a/b/.well-known/openid-configuration");
        assert_eq!(discovery_url("https://h/a/"), "https://h/a/.well-known/openid-configuration");
    }

    #[test]
    fn no_discovery_document_makes_the_parser_panic() {
        let issuer = Url::parse("https://id.example.org").unwrap();
        let samples = [document("https://id.example.org").to_string()];
        testkit::fuzz("discovery", &samples, |input| Metadata::parse(input, &issuer).is_ok());
    }
}
