//! `/token` and `/revoke`: what clients ask without a browser.

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

use super::Builtin;
use super::grants::Granted;
use super::signing::Said;
use crate::error::Error;

/// What a client sends to either.
#[derive(Deserialize)]
pub(super) struct Fields {
    grant_type: Option<String>,
    code: Option<String>,
    code_verifier: Option<String>,
    redirect_uri: Option<String>,
    refresh_token: Option<String>,
    client_id: Option<String>,
    client_secret: Option<String>,
    /// To be revoked.
    token: Option<String>,
}

/// An error of RFC 6749, section 5.2.
struct Fault {
    status: StatusCode,
    error: &'static str,
    description: &'static str,
}

type Sent = Result<Form<Fields>, FormRejection>;

/// Gives tokens for a code or a refresh token.
pub(super) async fn token(State(builtin): State<Builtin>, headers: HeaderMap, sent: Sent) -> Response {
    match builtin.grant(&headers, sent) {
        Ok(response) => response,
        Err(fault) => fault.into_response(),
    }
}

/// Ends the session of a refresh token. Says the same whether there was one (RFC 7009).
pub(super) async fn revoke(State(builtin): State<Builtin>, headers: HeaderMap, sent: Sent) -> Response {
    match builtin.authenticated(&headers, sent) {
        Ok(Fields { token: Some(token), .. }) => {
            builtin.grants().revoke(&token);
            StatusCode::OK.into_response()
        }
        Ok(_) => Fault::request("token is missing").into_response(),
        Err(fault) => fault.into_response(),
    }
}

impl Builtin {
    fn grant(&self, headers: &HeaderMap, sent: Sent) -> Result<Response, Fault> {
        let fields = self.authenticated(headers, sent)?;
        let now = self.0.clock.now();
        let granted = match fields.grant_type.as_deref() {
            Some("authorization_code") => {
                let code = fields.code.ok_or(Fault::request("code is missing"))?;
                let verifier = fields.code_verifier.ok_or(Fault::request("code_verifier is missing"))?;
                let redirect_uri = fields.redirect_uri.ok_or(Fault::request("redirect_uri is missing"))?;
                self.grants().redeem(&code, &verifier, &redirect_uri, now)
            }
            Some("refresh_token") => {
                let token = fields.refresh_token.ok_or(Fault::request("refresh_token is missing"))?;
                self.grants().refresh(&token, now)
            }
            Some(_) => return Err(Fault::new("unsupported_grant_type", "there is no such grant here")),
            None => return Err(Fault::request("grant_type is missing")),
        };
        let granted =
            granted.ok_or(Fault::new("invalid_grant", "it is spent, expired or of another sign-in"))?;
        self.answer(&granted).map_err(|_| Fault {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            error: "server_error",
            description: "the tokens could not be signed",
        })
    }

    fn answer(&self, granted: &Granted) -> Result<Response, Error> {
        let session = &granted.session;
        let said = Said {
            user: &session.user,
            roles: &session.roles,
            scope: &session.scope,
            sid: Some(&session.sid),
        };
        let keys = self.keys();
        let answer = json!({
            "access_token": keys.sign_access(&self.0, &said, self.0.access_ttl)?,
            "token_type": "Bearer",
            "expires_in": self.0.access_ttl.as_secs(),
            "refresh_token": granted.refresh_token,
            "id_token": keys.sign_id(&self.0, &said, session.auth_time, granted.nonce.as_deref())?,
            "scope": session.scope,
        });
        Ok(unstored(Json(answer)))
    }

    /// The fields, if they are from our client. Where a secret is configured, it has to know that.
    fn authenticated(&self, headers: &HeaderMap, sent: Sent) -> Result<Fields, Fault> {
        let Form(fields) = sent.map_err(|_| Fault::request("the form could not be read"))?;
        let shown = match headers.get(AUTHORIZATION) {
            Some(header) => basic(header).map(|(id, secret)| (id, Some(secret))),
            None => fields.client_id.clone().map(|id| (id, fields.client_secret.clone())),
        };
        let is_known = shown.is_some_and(|(id, secret)| {
            let secret = secret.unwrap_or_default();
            let is_secret = |ours: &config::Secret| {
                verify_slices_are_equal(ours.expose().as_bytes(), secret.as_bytes()).is_ok()
            };
            id == self.0.config.client_id && self.0.config.client_secret.as_ref().is_none_or(is_secret)
        });
        let status = StatusCode::UNAUTHORIZED;
        let refusal = Fault { status, error: "invalid_client", description: "it is not known here" };
        if is_known { Ok(fields) } else { Err(refusal) }
    }
}

impl Fault {
    const fn new(error: &'static str, description: &'static str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, error, description }
    }

    const fn request(description: &'static str) -> Self {
        Self::new("invalid_request", description)
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let body = Json(json!({ "error": self.error, "error_description": self.description }));
        let mut response = unstored((self.status, body));
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Basic"));
        }
        response
    }
}

/// An answer that nobody keeps.
fn unstored(answer: impl IntoResponse) -> Response {
    let mut response = answer.into_response();
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Id and secret from the header, each encoded as in a form.
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
