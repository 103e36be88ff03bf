//! Asking the issuer: in time, without redirects, and not for more than we can hold.

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

/// The largest answer that is read.
const MAX_ANSWER: usize = 1024 * 1024;
/// How much of an issuer's own words is repeated.
const MAX_WORDS: usize = 200;

/// Speaks to the issuer.
#[derive(Debug)]
pub(crate) struct Http {
    client: Client,
    metrics: Metrics,
}

/// A form to be sent to the issuer.
#[derive(Default)]
pub(crate) struct Form<'a> {
    pub(crate) fields: Vec<(&'static str, &'a str)>,
    /// Id and secret of the client, where they go into a header.
    pub(crate) basic: Option<(&'a str, &'a str)>,
}

#[derive(Deserialize)]
struct OauthError {
    error: String,
    error_description: Option<String>,
}

impl Http {
    pub(crate) fn new(issuer: &Url, timeout: Duration, metrics: Metrics) -> Result<Self, Error> {
        // A redirect would lead secrets to where nobody said that they should go.
        let mut client = Client::builder().timeout(timeout).redirect(reqwest::redirect::Policy::none());
        if is_loopback(issuer) {
            client = client.no_proxy();
        }
        let client = client.build().map_err(|error| Error::Setup(base::error::chain(&error)))?;
        Ok(Self { client, metrics })
    }

    pub(crate) async fn get(&self, what: &'static str, url: &Url) -> Result<Vec<u8>, Error> {
        let request = self.client.get(url.clone()).header(ACCEPT, "application/json");
        self.measured(what, async {
            match answered(request).await? {
                (StatusCode::OK, body) => Ok(body),
                (status, _) => Err(failure(what, status)),
            }
        })
        .await
    }

    /// Sends a form. An answer that is an OAuth error is one here.
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
        self.measured(what, async {
            match answered(request).await? {
                (StatusCode::OK, body) => Ok(body),
                (status, body) => Err(form.rejection(&body).unwrap_or_else(|| failure(what, status))),
            }
        })
        .await
    }

    async fn measured<T>(
        &self,
        what: &'static str,
        asking: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let start = Instant::now();
        let answer = asking.await;
        let outcome = match &answer {
            Ok(_) => "done",
            Err(Error::Rejected { .. }) => "rejected",
            Err(_) => "failed",
        };
        self.metrics.request(what, outcome, start.elapsed().as_secs_f64());
        answer
    }
}

impl Form<'_> {
    /// The OAuth error in an answer, in words that are fit for a log.
    fn rejection(&self, body: &[u8]) -> Option<Error> {
        let theirs: OauthError = serde_json::from_slice(body).ok()?;
        // Some issuers repeat what they were sent.
        let secrets = self.fields.iter().filter(|(name, _)| !matches!(*name, "grant_type" | "client_id"));
        let secrets = secrets.map(|(_, value)| *value).chain(self.basic.map(|(_, secret)| secret));
        let secrets: Vec<&str> = secrets.filter(|value| !value.is_empty()).collect();
        let is_harmless = |text: &String| !secrets.iter().any(|secret| text.contains(secret));
        let printable = |text: String| {
            text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_WORDS).collect::<String>()
        };
        Some(Error::Rejected {
            error: Some(theirs.error).filter(is_harmless).map(printable).unwrap_or_default(),
            description: theirs.error_description.filter(is_harmless).map(printable),
        })
    }
}

async fn answered(request: RequestBuilder) -> Result<(StatusCode, Vec<u8>), Error> {
    let mut answer = request.send().await?;
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        if body.len() + chunk.len() > MAX_ANSWER {
            return Err(Error::malformed("an answer", format!("it is larger than {MAX_ANSWER} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok((answer.status(), body))
}

fn failure(what: &'static str, status: StatusCode) -> Error {
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return Error::Failing { what, status: status.as_u16() };
    }
    Error::malformed(what, format!("it answered with status {}", status.as_u16()))
}

/// RFC 6749, section 2.3.1: both are encoded as in a form before they are put together.
fn basic(id: &str, secret: &str) -> String {
    let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    format!("Basic {}", STANDARD.encode(format!("{}:{}", encoded(id), encoded(secret))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_and_secret_are_encoded_before_they_are_put_together() {
        let header = basic("play:house", "s e%c+ret");
        let decoded = STANDARD.decode(header.strip_prefix("Basic ").unwrap()).unwrap();
        assert_eq!(decoded, b"play%3Ahouse:s+e%25c%2Bret");
    }

    #[test]
    fn what_the_issuer_says_is_made_fit_for_a_log() {
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
        assert_eq!(rejected(&"x".repeat(1_000)).1.unwrap().len(), MAX_WORDS);
        assert!(form.rejection(b"<html>").is_none());
    }
}
