//! The HTTP client for the issuer: with a timeout, a size limit, and without redirects.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Client, RequestBuilder};
use serde::Deserialize;
use url::{Url, form_urlencoded};

use crate::config::is_loopback;
use crate::error::Error;
use crate::metrics::Metrics;

/// The largest accepted response body.
const MAX_BODY: usize = 1024 * 1024;
/// How many characters of the issuer's error text are kept.
const MAX_ERROR_TEXT: usize = 200;

/// Sends requests to the issuer.
#[derive(Debug)]
pub(crate) struct Http {
    client: Client,
    metrics: Metrics,
}

/// A form to send to the issuer.
#[derive(Default)]
pub(crate) struct Form<'a> {
    pub(crate) fields: Vec<(&'static str, &'a str)>,
    /// Client id and secret, if they are sent in a header.
    pub(crate) basic: Option<(&'a str, &'a str)>,
}

#[derive(Deserialize)]
struct OauthError {
    error: String,
    error_description: Option<String>,
}

impl Http {
    pub(crate) fn new(issuer: &Url, timeout: Duration, metrics: Metrics) -> Result<Self, Error> {
        // A redirect would send secrets to a host that is not configured.
        let mut client = Client::builder().timeout(timeout).redirect(reqwest::redirect::Policy::none());
        if is_loopback(issuer) {
            client = client.no_proxy();
        }
        let client = client.build().map_err(|error| Error::Setup(base::error::chain(&error)))?;
        Ok(Self { client, metrics })
    }

    pub(crate) async fn get(&self, what: &'static str, url: &Url) -> Result<Vec<u8>, Error> {
        let request = self.client.get(url.clone()).header(ACCEPT, "application/json");
        self.timed(what, async {
            match send(request).await? {
                (StatusCode::OK, body) => Ok(body),
                (status, _) => Err(failure(what, status)),
            }
        })
        .await
    }

    /// Sends a form. Returns an OAuth error response as [`Error::Rejected`].
    pub(crate) async fn post(
        &self,
        what: &'static str,
        url: &Url,
        form: &Form<'_>,
    ) -> Result<Vec<u8>, Error> {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(&form.fields).finish();
        let mut request = self
            .client
            .post(url.clone())
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(body);
        if let Some((id, secret)) = form.basic {
            request = request.header(AUTHORIZATION, basic(id, secret));
        }
        self.timed(what, async {
            match send(request).await? {
                (StatusCode::OK, body) => Ok(body),
                (status, body) => Err(form.rejection(&body).unwrap_or_else(|| failure(what, status))),
            }
        })
        .await
    }

    async fn timed<T>(
        &self,
        what: &'static str,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let start = Instant::now();
        let result = request.await;
        let outcome = match &result {
            Ok(_) => "done",
            Err(Error::Rejected { .. }) => "rejected",
            Err(_) => "failed",
        };
        self.metrics.request(what, outcome, start.elapsed().as_secs_f64());
        result
    }
}

impl Form<'_> {
    /// Parses an OAuth error response. The text is safe to log.
    fn rejection(&self, body: &[u8]) -> Option<Error> {
        let theirs: OauthError = serde_json::from_slice(body).ok()?;
        // Some issuers quote the request in their error text. Drop a text that contains a secret.
        let secrets = self.fields.iter().filter(|(name, _)| !matches!(*name, "grant_type" | "client_id"));
        let secrets = secrets.map(|(_, value)| *value).chain(self.basic.map(|(_, secret)| secret));
        let secrets: Vec<&str> = secrets.filter(|value| !value.is_empty()).collect();
        let is_harmless = |text: &String| !secrets.iter().any(|secret| text.contains(secret));
        let printable = |text: String| {
            text.chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .take(MAX_ERROR_TEXT)
                .collect::<String>()
        };
        Some(Error::Rejected {
            error: Some(theirs.error).filter(is_harmless).map(printable).unwrap_or_default(),
            description: theirs.error_description.filter(is_harmless).map(printable),
        })
    }
}

async fn send(request: RequestBuilder) -> Result<(StatusCode, Vec<u8>), Error> {
    let mut response = request.send().await?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > MAX_BODY {
            return Err(Error::malformed("a response", format!("it is larger than {MAX_BODY} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok((response.status(), body))
}

fn failure(what: &'static str, status: StatusCode) -> Error {
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return Error::Failing { what, status: status.as_u16() };
    }
    Error::malformed(what, format!("it responded with status {}", status.as_u16()))
}

/// Builds the header of RFC 6749, section 2.3.1: id and secret are form-encoded before they are joined.
fn basic(id: &str, secret: &str) -> String {
    let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    format!("Basic {}", STANDARD.encode(format!("{}:{}", encoded(id), encoded(secret))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_and_secret_are_encoded_before_they_are_joined() {
        let header = basic("play:house", "s e%c+ret");
        let decoded = STANDARD.decode(header.strip_prefix("Basic ").unwrap()).unwrap();
        assert_eq!(decoded, b"play%3Ahouse:s+e%25c%2Bret");
    }

    #[test]
    fn error_text_of_the_issuer_is_sanitised_for_the_log() {
        let form =
            Form { fields: vec![("grant_type", "code"), ("code", "hush")], basic: Some(("me", "pst")) };
        let rejected = |description: &str| {
            let body = serde_json::json!({ "error": "invalid_grant", "error_description": description });
            match form.rejection(body.to_string().as_bytes()) {
                Some(Error::Rejected { error, description }) => (error, description),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(rejected("no\nsuch code"), ("invalid_grant".to_owned(), Some("no such code".to_owned())));
        assert_eq!(rejected("no code hush"), ("invalid_grant".to_owned(), None));
        assert_eq!(rejected("not pst"), ("invalid_grant".to_owned(), None));
        assert_eq!(rejected(&"x".repeat(1_000)).1.unwrap().len(), MAX_ERROR_TEXT);
        assert!(form.rejection(b"<html>").is_none());
    }
}
