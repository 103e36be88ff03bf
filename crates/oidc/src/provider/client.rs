//! The requests that a client sends to the issuer: authorization, token, revocation and end of session.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use url::Url;

use super::{AuthorizationRequest, Provider, Tokens};
use crate::error::Error;
use crate::http::Form;
use crate::metadata::Metadata;
use crate::secret::Token;

/// The lifetime of an access token without `expires_in`.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(60);
const DOCUMENT: &str = "the token response";

#[derive(Deserialize)]
struct TokenResponse {
    access_token: String,
    token_type: String,
    expires_in: Option<Value>,
    refresh_token: Option<String>,
    id_token: Option<String>,
}

impl Provider {
    /// Returns the URL that the browser must open to sign in.
    pub async fn authorize_url(&self, request: &AuthorizationRequest<'_>) -> Result<Url, Error> {
        let issuer = self.0.issuer.current().await?;
        let mut url = Url::clone(&issuer.metadata.authorization_endpoint);
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.0.config.client_id)
            .append_pair("redirect_uri", request.redirect_uri.as_str())
            .append_pair("scope", &self.0.config.scopes.join(" "))
            .append_pair("state", request.state)
            .append_pair("nonce", request.nonce)
            .append_pair("code_challenge", request.challenge)
            .append_pair("code_challenge_method", "S256");
        Ok(url)
    }

    /// Checks the `iss` of an authorization response: whether it is from this issuer (RFC 9207).
    pub async fn is_response_of_issuer(&self, iss: Option<&str>) -> Result<bool, Error> {
        let metadata = &self.0.issuer.current().await?.metadata;
        Ok(match iss {
            Some(iss) => iss == metadata.issuer,
            None => !metadata.authorization_response_iss_parameter_supported,
        })
    }

    /// Exchanges a code for tokens. `redirect_uri` must be that of the authorization request.
    pub async fn redeem(&self, code: &str, verifier: &str, redirect_uri: &Url) -> Result<Tokens, Error> {
        let fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect_uri.as_str()),
            ("code_verifier", verifier),
        ];
        self.tokens(fields).await
    }

    /// Refreshes the tokens. If the response has a refresh token, do not use this one again; otherwise it stays valid.
    pub async fn refresh(&self, refresh_token: &str) -> Result<Tokens, Error> {
        self.tokens(vec![("grant_type", "refresh_token"), ("refresh_token", refresh_token)]).await
    }

    /// Revokes a refresh token. Does nothing if the issuer has no revocation endpoint.
    pub async fn revoke(&self, refresh_token: &str) -> Result<(), Error> {
        let issuer = self.0.issuer.current().await?;
        let Some(endpoint) = &issuer.metadata.revocation_endpoint else { return Ok(()) };
        let fields = vec![("token", refresh_token), ("token_type_hint", "refresh_token")];
        let form = self.form(fields, &issuer.metadata);
        self.0.issuer.http.post("revocation", endpoint, &form).await.map(drop)
    }

    /// Returns the URL that signs the browser out at the issuer too, or none if the issuer has no such endpoint. `after` is the
    /// page to which the issuer sends the browser back.
    pub async fn end_session_url(
        &self,
        id_token_hint: Option<&str>,
        after: &Url,
    ) -> Result<Option<Url>, Error> {
        let issuer = self.0.issuer.current().await?;
        let Some(endpoint) = &issuer.metadata.end_session_endpoint else { return Ok(None) };
        let mut url = Url::clone(endpoint);
        url.query_pairs_mut()
            .append_pair("client_id", &self.0.config.client_id)
            .append_pair("post_logout_redirect_uri", after.as_str())
            .extend_pairs(id_token_hint.map(|hint| ("id_token_hint", hint)));
        Ok(Some(url))
    }

    async fn tokens(&self, fields: Vec<(&'static str, &str)>) -> Result<Tokens, Error> {
        let issuer = self.0.issuer.current().await?;
        // Taken before the request: the issuer creates the token later, so it never expires earlier than we assume.
        let requested_at = self.0.clock.now();
        let form = self.form(fields, &issuer.metadata);
        let body = self.0.issuer.http.post("token", &issuer.metadata.token_endpoint, &form).await?;
        // serde's message may quote the body, which holds tokens; report only the column.
        let response: TokenResponse = serde_json::from_slice(&body).map_err(|error| {
            Error::malformed(DOCUMENT, format!("it is not valid at column {}", error.column()))
        })?;
        if !response.token_type.eq_ignore_ascii_case("bearer") {
            return Err(Error::malformed(DOCUMENT, "the token is not a bearer token"));
        }
        Ok(Tokens {
            expires_at: requested_at.after(lifetime(response.expires_in.as_ref())),
            access_token: Token::from(response.access_token),
            refresh_token: response.refresh_token.map(Token::from),
            id_token: response.id_token.map(Token::from),
        })
    }

    /// Adds the client's credentials to a form, in the way that the issuer supports.
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

/// Reads `expires_in`. Some issuers write the number as a string.
fn lifetime(expires_in: Option<&Value>) -> Duration {
    let seconds = match expires_in {
        Some(Value::Number(seconds)) => seconds.as_f64(),
        Some(Value::String(seconds)) => seconds.parse().ok(),
        _ => None,
    };
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(DEFAULT_LIFETIME)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_expires_in_as_number_or_string() {
        for (written, seconds) in [(json!(300), 300), (json!("300"), 300), (json!(-1), 60), (json!([]), 60)] {
            assert_eq!(lifetime(Some(&written)), Duration::from_secs(seconds), "{written}");
        }
        assert_eq!(lifetime(None), DEFAULT_LIFETIME);
    }
}
