//! `/userinfo` and `/end_session`: what there is to know of a session, and its end.

use axum::Json;
use axum::extract::{Form, Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use http::header::{AUTHORIZATION, CACHE_CONTROL, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::json;
use url::Url;

use super::{Builtin, page};

/// How a client asks for the end of a session (OpenID Connect RP-Initiated Logout 1.0).
#[derive(Deserialize)]
pub(super) struct End {
    id_token_hint: Option<String>,
    client_id: Option<String>,
    post_logout_redirect_uri: Option<String>,
    state: Option<String>,
}

/// Says who has an access token.
pub(super) async fn userinfo(State(builtin): State<Builtin>, headers: HeaderMap) -> Response {
    let header = headers.get(AUTHORIZATION).and_then(|header| header.to_str().ok());
    let token = header.and_then(|header| header.split_once(' '));
    let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    match token.map(|(_, token)| builtin.bearer(token.trim())) {
        Some(Ok(access)) => {
            let who =
                json!({ "sub": access.subject, "name": access.name, "preferred_username": access.subject });
            ([(CACHE_CONTROL, "no-store")], Json(who)).into_response()
        }
        Some(Err(refused)) => unauthenticated(&format!(
            "Bearer error=\"invalid_token\", error_description=\"{}\"",
            refused.describe()
        )),
        None => unauthenticated("Bearer"),
    }
}

pub(super) async fn end_by_link(State(builtin): State<Builtin>, Query(end): Query<End>) -> Response {
    builtin.end_session(&end)
}

pub(super) async fn end_by_form(State(builtin): State<Builtin>, Form(end): Form<End>) -> Response {
    builtin.end_session(&end)
}

impl Builtin {
    fn end_session(&self, end: &End) -> Response {
        let sid = end.id_token_hint.as_deref().and_then(|hint| self.hinted_session(hint));
        if end.id_token_hint.is_some() && sid.is_none() {
            return page::mistake("The parameter id_token_hint is no token of this issuer.");
        }
        if end.client_id.as_ref().is_some_and(|id| *id != self.0.config.client_id) {
            return page::mistake("The parameter client_id names no client of this issuer.");
        }
        let after = match end.post_logout_redirect_uri.as_deref().map(Url::parse) {
            None => None,
            Some(Ok(url)) if self.may_redirect_to(&url) => Some(url),
            Some(_) => {
                let base = &self.0.redirects_under;
                let text = format!("The parameter post_logout_redirect_uri must be a URL below {base}.");
                return page::mistake(&text);
            }
        };
        if let Some(sid) = sid {
            self.grants().end(&sid);
        }
        let Some(mut after) = after else { return page::signed_out() };
        if let Some(state) = &end.state {
            after.query_pairs_mut().append_pair("state", state);
        }
        Redirect::to(after.as_str()).into_response()
    }
}

fn unauthenticated(challenge: &str) -> Response {
    let mut response = StatusCode::UNAUTHORIZED.into_response();
    if let Ok(challenge) = HeaderValue::from_str(challenge) {
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    response
}
