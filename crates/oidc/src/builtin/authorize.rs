//! `/authorize`: who is it? The answer goes back through the browser.

use axum::Form;
use axum::body::Body;
use axum::extract::rejection::{FormRejection, QueryRejection};
use axum::extract::{Query, RawQuery, State};
use axum::response::{IntoResponse, Redirect, Response};
use http::header::{CACHE_CONTROL, COOKIE, REFERRER_POLICY, SET_COOKIE};
use http::{HeaderMap, HeaderValue};
use serde::Deserialize;
use url::Url;

use super::grants::Asked;
use super::page::{self, Picker};
use super::{Builtin, is_name};

/// Remembers who was picked, so that they are offered first.
const LAST_COOKIE: &str = "playhouse_issuer_last";
/// A SHA-256 in base64url.
const CHALLENGE_LENGTH: usize = 43;
/// The longest state or nonce.
const MAX_ECHO: usize = 1024;

/// What a client asks for.
#[derive(Deserialize)]
pub(super) struct Ask {
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

/// Who was picked: one of those who were offered, or somebody by name.
#[derive(Deserialize)]
pub(super) struct Picked {
    pick: Option<String>,
    user: Option<String>,
    role: Option<String>,
}

type Asking = Result<Query<Ask>, QueryRejection>;

/// Shows who there is to pick.
pub(super) async fn ask(
    State(builtin): State<Builtin>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    asking: Asking,
) -> Response {
    match builtin.check(asking) {
        Ok((_, asked)) => builtin.picker(&query.unwrap_or_default(), &headers, &asked, None),
        Err(refusal) => refusal,
    }
}

/// Signs in whoever was picked, and sends the browser back with a code.
pub(super) async fn pick(
    State(builtin): State<Builtin>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    asking: Asking,
    picked: Result<Form<Picked>, FormRejection>,
) -> Response {
    let (ask, asked) = match builtin.check(asking) {
        Ok(checked) => checked,
        Err(refusal) => return refusal,
    };
    let again = |text| builtin.picker(&query.unwrap_or_default(), &headers, &asked, Some(text));
    let Ok(Form(picked)) = picked else { return again("The form could not be read.") };
    let user = picked.pick.or(picked.user).unwrap_or_default();
    if !is_name(&user) {
        return again("A name is 1 to 64 letters, digits, hyphens, underscores and dots.");
    }
    let role = picked.role.as_deref().unwrap_or("player");
    if !matches!(role, "player" | "operator") {
        return again("There is no such role.");
    }
    let mut back = asked.redirect_uri.clone();
    let now = builtin.0.clock.now();
    let code = builtin.grants().sign_in(&user, builtin.roles(role), &ask.scope, asked, now);
    back.query_pairs_mut().append_pair("code", &code);
    let mut response = builtin.redirect(back, ask.state.as_deref());
    if let Ok(cookie) = HeaderValue::from_str(&builtin.cookie(&user)) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

impl Builtin {
    /// What is asked for, if it can be. Otherwise a page says what is wrong; or the client hears of it, once it is sure that the
    /// redirect leads to it.
    #[expect(clippy::result_large_err, reason = "the answer is made once")]
    fn check(&self, asking: Asking) -> Result<(Ask, Asked), Response> {
        let Ok(Query(ask)) = asking else {
            return Err(page::mistake("The parameters could not be read. None may be there twice."));
        };
        if ask.client_id.as_deref() != Some(&self.0.config.client_id) {
            return Err(page::mistake("The parameter client_id names no client of this issuer."));
        }
        let redirect_uri = ask.redirect_uri.as_deref().and_then(|uri| Url::parse(uri).ok());
        let Some(redirect_uri) = redirect_uri.filter(|uri| self.may_redirect_to(uri)) else {
            let base = &self.0.redirects_under;
            return Err(page::mistake(&format!("The parameter redirect_uri must be a URL below {base}.")));
        };
        match self.fault(&ask) {
            Some((error, description)) => {
                let mut back = redirect_uri;
                back.query_pairs_mut()
                    .append_pair("error", error)
                    .append_pair("error_description", description);
                Err(self.redirect(back, ask.state.as_deref()))
            }
            None => {
                let challenge = ask.code_challenge.clone().unwrap_or_default();
                let nonce = ask.nonce.clone();
                Ok((ask, Asked { redirect_uri, challenge, nonce }))
            }
        }
    }

    /// What is wrong, in the words of RFC 6749 and OpenID Connect.
    fn fault(&self, ask: &Ask) -> Option<(&'static str, &'static str)> {
        let is_long = |text: &Option<String>| text.as_ref().is_some_and(|text| text.len() > MAX_ECHO);
        let has_challenge = ask.code_challenge.as_ref().is_some_and(|text| text.len() == CHALLENGE_LENGTH);
        if ask.response_type.as_deref() != Some("code") {
            Some(("unsupported_response_type", "response_type must be code"))
        } else if ask.response_mode.as_deref().is_some_and(|mode| mode != "query") {
            Some(("invalid_request", "response_mode must be query"))
        } else if !ask.scope.split(' ').any(|scope| scope == "openid") {
            Some(("invalid_scope", "scope must have openid"))
        } else if !has_challenge || ask.code_challenge_method.as_deref() != Some("S256") {
            Some(("invalid_request", "PKCE with S256 is required"))
        } else if is_long(&ask.state) || is_long(&ask.nonce) || ask.scope.len() > MAX_ECHO {
            Some(("invalid_request", "state, nonce or scope is too long"))
        } else if ask.prompt.as_deref() == Some("none") {
            Some(("login_required", "somebody has to be picked"))
        } else {
            None
        }
    }

    fn picker(
        &self,
        query: &str,
        headers: &HeaderMap,
        asked: &Asked,
        mistake: Option<&str>,
    ) -> http::Response<Body> {
        let last = last_picked(headers);
        let client_id = &self.0.config.client_id;
        Picker { query, client_id, redirect_uri: &asked.redirect_uri, last, mistake }.page()
    }

    /// Back to the client. `iss` tells it from whom the answer is (RFC 9207).
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
        format!("{LAST_COOKIE}={user}; Path={}; HttpOnly; SameSite=Lax", self.0.issuer.path())
    }
}

fn last_picked(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|header| header.to_str().ok());
    let mut pairs =
        cookies.flat_map(|header| header.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let (_, user) = pairs.find(|(name, _)| *name == LAST_COOKIE)?;
    Some(user).filter(|user| is_name(user))
}
