//! `/userinfo` and `/end_session`.

use axum::Json;
use axum::extract::{Form, Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use http::header::{AUTHORIZATION, CACHE_CONTROL, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::json;
use url::Url;

use super::{Builtin, page};

/// The parameters of a logout request (OpenID Connect RP-Initiated Logout 1.0).
#[derive(Deserialize)]
pub(super) struct EndSessionParams {
    id_token_hint: Option<String>,
    client_id: Option<String>,
    post_logout_redirect_uri: Option<String>,
    state: Option<String>,
}

/// Returns the user of an access token.
pub(super) async fn userinfo(State(builtin): State<Builtin>, headers: HeaderMap) -> Response {
    let header = headers.get(AUTHORIZATION).and_then(|header| header.to_str().ok());
    let token = header.and_then(|header| header.split_once(' '));
    let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    match token.map(|(_, token)| builtin.bearer(token.trim())) {
        Some(Ok(access)) => {
            let claims =
                json!({ "sub": access.subject, "name": access.name, "preferred_username": access.subject });
            ([(CACHE_CONTROL, "no-store")], Json(claims)).into_response()
        }
        Some(Err(error)) => unauthenticated(&format!(
            "Bearer error=\"invalid_token\", error_description=\"{}\"",
            error.describe()
        )),
        None => unauthenticated("Bearer"),
    }
}

pub(super) async fn end_by_link(
    State(builtin): State<Builtin>,
    Query(params): Query<EndSessionParams>,
) -> Response {
    builtin.end_session(&params)
}

pub(super) async fn end_by_form(
    State(builtin): State<Builtin>,
    Form(params): Form<EndSessionParams>,
) -> Response {
    builtin.end_session(&params)
}

impl Builtin {
    fn end_session(&self, params: &EndSessionParams) -> Response {
        let sid = params.id_token_hint.as_deref().and_then(|hint| self.hinted_session(hint));
        if params.id_token_hint.is_some() && sid.is_none() {
            return page::error("The parameter id_token_hint is not a token of this issuer.");
        }
        let client_id = params.client_id.as_deref().unwrap_or(&self.0.config.client_id);
        if !self.is_client(client_id) {
            return page::error("The parameter client_id is not a client of this issuer.");
        }
        let after = match params.post_logout_redirect_uri.as_deref().map(Url::parse) {
            None => None,
            Some(Ok(url)) if self.may_redirect_to(client_id, &url) => Some(url),
            Some(_) => {
                let rule = self.redirect_rule(client_id);
                return page::error(&format!("The parameter post_logout_redirect_uri must be {rule}."));
            }
        };
        if let Some(sid) = sid {
            self.grants().end(&sid);
        }
        let Some(mut after) = after else { return page::signed_out() };
        if let Some(state) = &params.state {
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
