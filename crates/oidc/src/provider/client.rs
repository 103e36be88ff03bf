//! What we ask of the issuer as its client.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use url::Url;

use super::{Authorize, Provider, Tokens};
use crate::error::Error;
use crate::http::Form;
use crate::metadata::Metadata;
use crate::secret::Token;

/// For how long an access token is taken to be good if the issuer does not say.
const UNSAID_LIFETIME: Duration = Duration::from_secs(60);
const WHAT: &str = "the token answer";

#[derive(Deserialize)]
struct Answer {
    access_token: String,
    token_type: String,
    expires_in: Option<Value>,
    refresh_token: Option<String>,
    id_token: Option<String>,
}

impl Provider {
    /// Where to send the browser to sign in.
    pub async fn authorize_url(&self, ask: &Authorize<'_>) -> Result<Url, Error> {
        let known = self.0.source.known().await?;
        let mut url = Url::clone(&known.metadata.authorization_endpoint);
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.0.config.client_id)
            .append_pair("redirect_uri", ask.redirect_uri.as_str())
            .append_pair("scope", &self.0.config.scopes.join(" "))
            .append_pair("state", ask.state)
            .append_pair("nonce", ask.nonce)
            .append_pair("code_challenge", ask.challenge)
            .append_pair("code_challenge_method", "S256");
        Ok(url)
    }

    /// Whether the browser comes back from this issuer: what `iss` of the answer must be (RFC 9207).
    pub async fn is_answer_of_issuer(&self, iss: Option<&str>) -> Result<bool, Error> {
        let metadata = &self.0.source.known().await?.metadata;
        Ok(match iss {
            Some(iss) => iss == metadata.issuer,
            None => !metadata.authorization_response_iss_parameter_supported,
        })
    }

    /// Tokens for the code that the browser brought. `redirect_uri` is where it came back to.
    pub async fn redeem(&self, code: &str, verifier: &str, redirect_uri: &Url) -> Result<Tokens, Error> {
        let fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect_uri.as_str()),
            ("code_verifier", verifier),
        ];
        self.tokens(fields).await
    }

    /// New tokens. If the answer has no refresh token, this one stays good; if it has, this one must not be used again.
    pub async fn refresh(&self, refresh_token: &str) -> Result<Tokens, Error> {
        self.tokens(vec![("grant_type", "refresh_token"), ("refresh_token", refresh_token)]).await
    }

    /// Makes a refresh token worthless. An issuer that cannot do that is not asked.
    pub async fn revoke(&self, refresh_token: &str) -> Result<(), Error> {
        let known = self.0.source.known().await?;
        let Some(endpoint) = &known.metadata.revocation_endpoint else { return Ok(()) };
        let fields = vec![("token", refresh_token), ("token_type_hint", "refresh_token")];
        let form = self.form(fields, &known.metadata);
        self.0.source.http.post("revocation", endpoint, &form).await.map(drop)
    }

    /// Where to send the browser to sign out at the issuer too, if that can be done. `after` is where it comes back to.
    pub async fn end_session_url(
        &self,
        id_token_hint: Option<&str>,
        after: &Url,
    ) -> Result<Option<Url>, Error> {
        let known = self.0.source.known().await?;
        let Some(endpoint) = &known.metadata.end_session_endpoint else { return Ok(None) };
        let mut url = Url::clone(endpoint);
        url.query_pairs_mut()
            .append_pair("client_id", &self.0.config.client_id)
            .append_pair("post_logout_redirect_uri", after.as_str())
            .extend_pairs(id_token_hint.map(|hint| ("id_token_hint", hint)));
        Ok(Some(url))
    }

    async fn tokens(&self, fields: Vec<(&'static str, &str)>) -> Result<Tokens, Error> {
        let known = self.0.source.known().await?;
        // The lifetime counts from when the issuer made the token, which was not before we asked.
        let asked_at = self.0.clock.now();
        let form = self.form(fields, &known.metadata);
        let body = self.0.source.http.post("token", &known.metadata.token_endpoint, &form).await?;
        // What serde says of a mistake may repeat what it found.
        let answer: Answer = serde_json::from_slice(&body).map_err(|error| {
            Error::malformed(WHAT, format!("it cannot be read at column {}", error.column()))
        })?;
        if !answer.token_type.eq_ignore_ascii_case("bearer") {
            return Err(Error::malformed(WHAT, "the token is not a bearer token"));
        }
        Ok(Tokens {
            expires_at: asked_at.after(lifetime(answer.expires_in.as_ref())),
            access_token: Token::from(answer.access_token),
            refresh_token: answer.refresh_token.map(Token::from),
            id_token: answer.id_token.map(Token::from),
        })
    }

    /// A form that says who we are.
    fn form<'a>(&'a self, mut fields: Vec<(&'static str, &'a str)>, metadata: &Metadata) -> Form<'a> {
        let id = self.0.config.client_id.as_str();
        let secret = self.0.config.client_secret.as_ref().map(config::Secret::expose);
        match secret {
            Some(secret) if metadata.wants_secret_in_form() => {
                fields.extend([("client_id", id), ("client_secret", secret)]);
                Form { fields, basic: None }
            }
            Some(secret) => Form { fields, basic: Some((id, secret)) },
            None => {
                fields.push(("client_id", id));
                Form { fields, basic: None }
            }
        }
    }
}

/// Some issuers write the number as a text.
fn lifetime(expires_in: Option<&Value>) -> Duration {
    let seconds = match expires_in {
        Some(Value::Number(seconds)) => seconds.as_f64(),
        Some(Value::String(seconds)) => seconds.parse().ok(),
        _ => None,
    };
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(UNSAID_LIFETIME)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lifetimes_are_read_as_issuers_write_them() {
        for (written, seconds) in [(json!(300), 300), (json!("300"), 300), (json!(-1), 60), (json!([]), 60)] {
            assert_eq!(lifetime(Some(&written)), Duration::from_secs(seconds), "{written}");
        }
        assert_eq!(lifetime(None), UNSAID_LIFETIME);
    }
}
