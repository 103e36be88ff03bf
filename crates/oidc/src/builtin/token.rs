//! `/token` and `/revoke`: the requests that clients send directly, without a browser.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use axum::extract::State;
use axum::extract::rejection::FormRejection;
use axum::response::{IntoResponse, Response};
use axum::{Form, Json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, CACHE_CONTROL, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::json;

use super::grants::Grant;
use super::signing::TokenSubject;
use super::{Builtin, GAME_CLIENT};
use crate::error::Error;

/// The form fields of both endpoints.
#[derive(Deserialize)]
pub(super) struct Fields {
    grant_type: Option<String>,
    code: Option<String>,
    code_verifier: Option<String>,
    redirect_uri: Option<String>,
    refresh_token: Option<String>,
    client_id: Option<String>,
    client_secret: Option<String>,
    /// The token to revoke.
    token: Option<String>,
}

/// An error response of RFC 6749, section 5.2.
struct OauthError {
    status: StatusCode,
    error: &'static str,
    description: &'static str,
}

type ParsedForm = Result<Form<Fields>, FormRejection>;

/// Exchanges a code or a refresh token for tokens.
pub(super) async fn token(State(builtin): State<Builtin>, headers: HeaderMap, form: ParsedForm) -> Response {
    match builtin.grant(&headers, form) {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

/// Ends the session of a refresh token. Responds in the same way if there is none (RFC 7009).
pub(super) async fn revoke(State(builtin): State<Builtin>, headers: HeaderMap, form: ParsedForm) -> Response {
    match builtin.authenticate(&headers, form) {
        Ok((_, Fields { token: Some(token), .. })) => {
            builtin.grants().revoke(&token);
            StatusCode::OK.into_response()
        }
        Ok(_) => OauthError::request("token is missing").into_response(),
        Err(error) => error.into_response(),
    }
}

impl Builtin {
    fn grant(&self, headers: &HeaderMap, form: ParsedForm) -> Result<Response, OauthError> {
        let (client_id, fields) = self.authenticate(headers, form)?;
        let now = self.0.clock.now();
        let grant = match fields.grant_type.as_deref() {
            Some("authorization_code") => {
                let code = fields.code.ok_or(OauthError::request("code is missing"))?;
                let verifier = fields.code_verifier.ok_or(OauthError::request("code_verifier is missing"))?;
                let redirect_uri =
                    fields.redirect_uri.ok_or(OauthError::request("redirect_uri is missing"))?;
                self.grants().redeem(&client_id, &code, &verifier, &redirect_uri, now)
            }
            Some("refresh_token") => {
                let token = fields.refresh_token.ok_or(OauthError::request("refresh_token is missing"))?;
                self.grants().refresh(&client_id, &token, now)
            }
            Some(_) => {
                return Err(OauthError::new(
                    "unsupported_grant_type",
                    "grant_type must be authorization_code or refresh_token",
                ));
            }
            None => return Err(OauthError::request("grant_type is missing")),
        };
        let grant = grant.ok_or(OauthError::new(
            "invalid_grant",
            "the code or refresh token is spent, expired or of another sign-in",
        ))?;
        self.respond(&grant).map_err(|_| OauthError {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            error: "server_error",
            description: "the tokens could not be signed",
        })
    }

    fn respond(&self, grant: &Grant) -> Result<Response, Error> {
        let session = &grant.session;
        let subject = TokenSubject {
            client_id: &session.client_id,
            user: &session.user,
            roles: &session.roles,
            scope: &session.scope,
            sid: Some(&session.sid),
        };
        let keys = self.keys();
        let body = json!({
            "access_token": keys.sign_access(&self.0, &subject, self.0.access_ttl)?,
            "token_type": "Bearer",
            "expires_in": self.0.access_ttl.as_secs(),
            "refresh_token": grant.refresh_token,
            "id_token": keys.sign_id(&self.0, &subject, session.auth_time, grant.nonce.as_deref())?,
            "scope": session.scope,
        });
        Ok(no_store(Json(body)))
    }

    /// Returns the client and the fields. The gateway's client must send its secret, if one is configured; the game client has none.
    fn authenticate(&self, headers: &HeaderMap, form: ParsedForm) -> Result<(String, Fields), OauthError> {
        let Form(fields) = form.map_err(|_| OauthError::request("the form is not valid"))?;
        let credentials = match headers.get(AUTHORIZATION) {
            Some(header) => basic(header).map(|(id, secret)| (id, Some(secret))),
            None => fields.client_id.clone().map(|id| (id, fields.client_secret.clone())),
        };
        let is_valid = |id: &str, secret: &str| {
            let is_secret = |ours: &config::Secret| {
                verify_slices_are_equal(ours.expose().as_bytes(), secret.as_bytes()).is_ok()
            };
            id == GAME_CLIENT
                || (id == self.0.config.client_id
                    && self.0.config.client_secret.as_ref().is_none_or(is_secret))
        };
        match credentials {
            Some((id, secret)) if is_valid(&id, secret.as_deref().unwrap_or_default()) => Ok((id, fields)),
            _ => Err(OauthError {
                status: StatusCode::UNAUTHORIZED,
                error: "invalid_client",
                description: "the client is unknown or its secret is wrong",
            }),
        }
    }
}

impl OauthError {
    const fn new(error: &'static str, description: &'static str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, error, description }
    }

    const fn request(description: &'static str) -> Self {
        Self::new("invalid_request", description)
    }
}

impl IntoResponse for OauthError {
    fn into_response(self) -> Response {
        let body = Json(json!({ "error": self.error, "error_description": self.description }));
        let mut response = no_store((self.status, body));
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Basic"));
        }
        response
    }
}

/// Forbids caching of a response.
fn no_store(response: impl IntoResponse) -> Response {
    let mut response = response.into_response();
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Parses client id and secret from the header. Each is form-encoded.
fn basic(header: &HeaderValue) -> Option<(String, String)> {
    let (scheme, encoded) = header.to_str().ok()?.split_once(' ')?;
    let encoded = Some(encoded.trim()).filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let pair = String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?;
    let (id, secret) = pair.split_once(':')?;
    let decoded = |text: &str| {
        let spaced = text.replace('+', " ");
        percent_decode_str(&spaced).decode_utf8().ok().map(|text| text.into_owned())
    };
    Some((decoded(id)?, decoded(secret)?))
}
