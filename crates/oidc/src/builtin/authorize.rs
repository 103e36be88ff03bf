//! `/authorize`: shows the users to pick from and sends the browser back with a code.

use axum::Form;
use axum::body::Body;
use axum::extract::rejection::{FormRejection, QueryRejection};
use axum::extract::{Query, RawQuery, State};
use axum::response::{IntoResponse, Redirect, Response};
use http::header::{CACHE_CONTROL, COOKIE, REFERRER_POLICY, SET_COOKIE};
use http::{HeaderMap, HeaderValue};
use serde::Deserialize;
use url::Url;

use super::grants::PendingCode;
use super::page::{self, PickerPage};
use super::{Builtin, is_name};

/// Remembers the last user, so that the page offers it first.
const LAST_USER_COOKIE: &str = "playhouse_issuer_last";
/// The length of a SHA-256 in base64url.
const CHALLENGE_LENGTH: usize = 43;
/// The longest state, nonce or scope.
const MAX_PARAM: usize = 1024;

/// The parameters of an authorization request.
#[derive(Deserialize)]
pub(super) struct AuthorizeParams {
    response_type: Option<String>,
    response_mode: Option<String>,
    client_id: Option<String>,
    redirect_uri: Option<String>,
    #[serde(default)]
    scope: String,
    state: Option<String>,
    nonce: Option<String>,
    code_challenge: Option<String>,
    code_challenge_method: Option<String>,
    prompt: Option<String>,
}

/// The submitted form: one of the offered users, or a user name that was typed in.
#[derive(Deserialize)]
pub(super) struct PickerForm {
    pick: Option<String>,
    user: Option<String>,
    role: Option<String>,
}

type ParsedParams = Result<Query<AuthorizeParams>, QueryRejection>;

/// Shows the page with the users to pick from.
pub(super) async fn show_picker(
    State(builtin): State<Builtin>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    params: ParsedParams,
) -> Response {
    match builtin.check(params) {
        Ok((_, pending)) => builtin.picker(&query.unwrap_or_default(), &headers, &pending, None),
        Err(response) => response,
    }
}

/// Signs the picked user in and sends the browser back with a code.
pub(super) async fn sign_in(
    State(builtin): State<Builtin>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    params: ParsedParams,
    form: Result<Form<PickerForm>, FormRejection>,
) -> Response {
    let (params, pending) = match builtin.check(params) {
        Ok(checked) => checked,
        Err(response) => return response,
    };
    let again = |text| builtin.picker(&query.unwrap_or_default(), &headers, &pending, Some(text));
    let Ok(Form(form)) = form else { return again("The form is not valid. Submit it again.") };
    let user = form.pick.or(form.user).unwrap_or_default();
    if !is_name(&user) {
        return again("A user name has 1 to 64 letters, digits, hyphens, underscores and dots.");
    }
    let role = form.role.as_deref().unwrap_or("player");
    if !matches!(role, "player" | "operator") {
        return again("The role must be player or operator.");
    }
    let mut back = pending.redirect_uri.clone();
    let now = builtin.0.clock.now();
    let code = builtin.grants().sign_in(&user, builtin.roles(role), &params.scope, pending, now);
    back.query_pairs_mut().append_pair("code", &code);
    let mut response = builtin.redirect(back, params.state.as_deref());
    if let Ok(cookie) = HeaderValue::from_str(&builtin.cookie(&user)) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

impl Builtin {
    /// Checks an authorization request. An invalid client or redirect URI gets an error page; other errors are sent to the client
    /// through the redirect.
    #[expect(clippy::result_large_err, reason = "called once per request")]
    fn check(&self, params: ParsedParams) -> Result<(AuthorizeParams, PendingCode), Response> {
        let Ok(Query(params)) = params else {
            return Err(page::error("The parameters are not valid. Each may appear only once."));
        };
        let client_id = params.client_id.clone().filter(|id| self.is_client(id));
        let Some(client_id) = client_id else {
            return Err(page::error("The parameter client_id is not a client of this issuer."));
        };
        let redirect_uri = params.redirect_uri.as_deref().and_then(|uri| Url::parse(uri).ok());
        let Some(redirect_uri) = redirect_uri.filter(|uri| self.may_redirect_to(&client_id, uri)) else {
            let rule = self.redirect_rule(&client_id);
            return Err(page::error(&format!("The parameter redirect_uri must be {rule}.")));
        };
        match request_error(&params) {
            Some((error, description)) => {
                let mut back = redirect_uri;
                back.query_pairs_mut()
                    .append_pair("error", error)
                    .append_pair("error_description", description);
                Err(self.redirect(back, params.state.as_deref()))
            }
            None => {
                let challenge = params.code_challenge.clone().unwrap_or_default();
                let nonce = params.nonce.clone();
                Ok((params, PendingCode { client_id, redirect_uri, challenge, nonce }))
            }
        }
    }

    fn picker(
        &self,
        query: &str,
        headers: &HeaderMap,
        pending: &PendingCode,
        error: Option<&str>,
    ) -> http::Response<Body> {
        let last = last_user(headers);
        let PendingCode { client_id, redirect_uri, .. } = pending;
        PickerPage { query, client_id, redirect_uri, last, error }.response()
    }

    /// Redirects the browser back to the client. `iss` identifies this issuer (RFC 9207).
    fn redirect(&self, mut back: Url, state: Option<&str>) -> Response {
        back.query_pairs_mut()
            .extend_pairs(state.map(|state| ("state", state)))
            .append_pair("iss", self.0.issuer.as_str());
        let mut response = Redirect::to(back.as_str()).into_response();
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        response
    }

    fn cookie(&self, user: &str) -> String {
        format!("{LAST_USER_COOKIE}={user}; Path={}; HttpOnly; SameSite=Lax", self.0.issuer.path())
    }
}

/// Returns the error code of RFC 6749 or OpenID Connect for an invalid request, with a description.
fn request_error(params: &AuthorizeParams) -> Option<(&'static str, &'static str)> {
    let is_long = |text: &Option<String>| text.as_ref().is_some_and(|text| text.len() > MAX_PARAM);
    let has_challenge = params.code_challenge.as_ref().is_some_and(|text| text.len() == CHALLENGE_LENGTH);
    if params.response_type.as_deref() != Some("code") {
        Some(("unsupported_response_type", "response_type must be code"))
    } else if params.response_mode.as_deref().is_some_and(|mode| mode != "query") {
        Some(("invalid_request", "response_mode must be query"))
    } else if !params.scope.split(' ').any(|scope| scope == "openid") {
        Some(("invalid_scope", "scope must include openid"))
    } else if !has_challenge || params.code_challenge_method.as_deref() != Some("S256") {
        Some(("invalid_request", "PKCE with S256 is required"))
    } else if is_long(&params.state) || is_long(&params.nonce) || params.scope.len() > MAX_PARAM {
        Some(("invalid_request", "state, nonce or scope is too long"))
    } else if params.prompt.as_deref() == Some("none") {
        Some(("login_required", "the user must pick an account on the page"))
    } else {
        None
    }
}

fn last_user(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|header| header.to_str().ok());
    let mut pairs =
        cookies.flat_map(|header| header.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let (_, user) = pairs.find(|(name, _)| *name == LAST_USER_COOKIE)?;
    Some(user).filter(|user| is_name(user))
}
