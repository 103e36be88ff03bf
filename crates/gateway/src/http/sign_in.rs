//! Signing in and out, for browsers and for the issuer.

use ::http::header::HOST;
use ::http::{HeaderMap, StatusCode};
use account::UserId;
use axum::Json;
use axum::extract::rejection::FormRejection;
use axum::extract::{Extension, Form, State};
use axum::response::{IntoResponse, Redirect, Response};
use base::Code;
use base::html::escaped;
use base::id::RequestId;
use http_server::Query;
use serde::Deserialize;
use serde_json::json;
use sessions::{Callback, SIGN_IN_TIMEOUT, SecurityEvent, SessionId, SignInError, SignInFlow, SignedIn};
use sha2::{Digest, Sha256};

use super::pages::Page;
use crate::Gateway;
use crate::guard::Address;

#[derive(Debug, Deserialize)]
pub(super) struct LoginQuery {
    return_to: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct LogoutQuery {
    session: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct BackChannel {
    logout_token: String,
}

/// Sends a browser to the issuer.
pub(super) async fn login(
    State(gateway): State<Gateway>,
    Extension(request): Extension<RequestId>,
    Query(query): Query<LoginQuery>,
    headers: HeaderMap,
) -> Response {
    let Some(flow) = gateway.sessions.sign_in() else { return nobody_signs_in() };
    if let Some(elsewhere) = elsewhere(flow, &headers, query.return_to.as_deref()) {
        return elsewhere;
    }
    match flow.begin(query.return_to.as_deref(), &headers).await {
        Ok(started) => {
            let mut response = Redirect::to(started.url.as_str()).into_response();
            let (answer, cookies) = (response.headers_mut(), gateway.sessions.cookies());
            started.forget.iter().for_each(|name| cookies.forget(answer, name));
            cookies.set(answer, &started.cookie.name, &started.cookie.value, SIGN_IN_TIMEOUT);
            response
        }
        Err(failure) => explained(&failure, &request),
    }
}

/// On one's own machine the gateway has several names, and a browser keeps cookies apart by name: what begins under one has to end
/// under the same.
fn elsewhere(flow: &SignInFlow, headers: &HeaderMap, return_to: Option<&str>) -> Option<Response> {
    let host = headers.get(HOST)?.to_str().ok()?;
    let ours = flow.public_url();
    if !oidc::is_loopback(ours) || host == ours.authority() {
        return None;
    }
    let mut url = flow.at("/login");
    if let Some(return_to) = return_to {
        url.query_pairs_mut().append_pair("return_to", return_to);
    }
    Some(Redirect::temporary(url.as_str()).into_response())
}

/// Where the issuer sends the browser back to.
pub(super) async fn callback(
    State(gateway): State<Gateway>,
    Extension(request): Extension<RequestId>,
    Extension(Address(address)): Extension<Address>,
    Query(callback): Query<Callback>,
    headers: HeaderMap,
) -> Response {
    let Some(flow) = gateway.sessions.sign_in() else { return nobody_signs_in() };
    let cookies = gateway.sessions.cookies();
    let mut response = match flow.finish(&callback, &headers).await {
        Ok(SignedIn { secret, return_to, known }) => {
            gateway.audit().note(SecurityEvent::SignedIn, address, Some(known.user.id), "with a session");
            // The browser's earlier session ends.
            if let Some((id, session)) = gateway.sessions.of_browser(&headers).await {
                gateway.sessions.end(&id, &session).await;
            }
            let mut response = Redirect::to(&return_to).into_response();
            let life = gateway.config.session.lifetime;
            cookies.set(response.headers_mut(), &cookies.session(), secret.expose(), life);
            response
        }
        Err(failure) => {
            gateway.audit().note(SecurityEvent::SignInFailed, address, None, &failure.cause());
            explained(&failure, &request)
        }
    };
    if let Some(name) = flow.cookie_of(&callback) {
        cookies.forget(response.headers_mut(), &name);
    }
    response
}

/// Ends the session here and at the issuer. Only for a link that names the session: a page of another site does not know it.
pub(super) async fn logout(
    State(gateway): State<Gateway>,
    Extension(request): Extension<RequestId>,
    Extension(Address(address)): Extension<Address>,
    Query(query): Query<LogoutQuery>,
    headers: HeaderMap,
) -> Response {
    let Some(flow) = gateway.sessions.sign_in() else { return nobody_signs_in() };
    let cookies = gateway.sessions.cookies();
    let Some((id, session)) = gateway.sessions.of_browser(&headers).await else {
        let mut response = Page::new("You are signed out").link("/login", "Sign in").into_response();
        cookies.forget(response.headers_mut(), &cookies.session());
        return response;
    };
    if query.session.as_deref() != Some(&word(&id)) {
        let url = logout_url(&id);
        return Page::new("Sign out?").link(&url, "Sign out").quiet_link("/", "Stay").into_response();
    }
    match flow.sign_out(&id, &session).await {
        Ok(url) => {
            let user = UserId::from_uuid(session.user_id);
            gateway.audit().note(SecurityEvent::SignedOut, address, Some(user), "by the player");
            let mut response = Redirect::to(url.as_str()).into_response();
            cookies.forget(response.headers_mut(), &cookies.session());
            response
        }
        Err(failure) => explained(&failure, &request),
    }
}

/// The issuer says that somebody has signed out there.
pub(super) async fn back_channel(
    State(gateway): State<Gateway>,
    Extension(Address(address)): Extension<Address>,
    form: Result<Form<BackChannel>, FormRejection>,
) -> Response {
    let refused = async |why: &str| {
        // The issuer is not limited; who poses as one shall not fill the log.
        if gateway.is_rare(address).await {
            gateway.audit().note(SecurityEvent::BackChannelRefused, address, None, why);
        }
        let answer =
            json!({ "error": "invalid_request", "error_description": "The logout token is not accepted." });
        (status(Code::InvalidArgument), Json(answer)).into_response()
    };
    let (Some(flow), Ok(Form(form))) = (gateway.sessions.sign_in(), form) else {
        return refused("there is no logout token").await;
    };
    match flow.back_channel(&form.logout_token).await {
        Ok(ended) => {
            gateway.audit().note(
                SecurityEvent::BackChannelLogout,
                address,
                None,
                &format!("{ended} sessions ended"),
            );
            ().into_response()
        }
        Err(failure @ (SignInError::Away(_) | SignInError::Internal(_))) => {
            tracing::warn!(
                outage = "sessions",
                cause = failure.cause(),
                "a back-channel logout could not be done"
            );
            let answer = json!({ "error": "temporarily_unavailable" });
            (status(Code::Unavailable), Json(answer)).into_response()
        }
        Err(failure) => refused(&failure.cause()).await,
    }
}

/// Where a session ends.
pub(super) fn logout_url(id: &SessionId) -> String {
    format!("/logout?session={}", word(id))
}

/// What a link has to know to end a session.
fn word(id: &SessionId) -> String {
    let hash = Sha256::new().chain_update("logout:").chain_update(id.as_str()).finalize();
    hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn nobody_signs_in() -> Response {
    let page = Page::new("Nobody can sign in here").text("This server has no identity provider.");
    page.with_status(status(Code::Unimplemented)).into_response()
}

/// A page that a player understands.
fn explained(failure: &SignInError, request: &RequestId) -> Response {
    let (code, title, text) = match failure {
        SignInError::NotBegunHere => (
            Code::InvalidArgument,
            "That sign-in was not begun here",
            "It may have been begun in another browser, or cookies are switched off. Begin again.".to_owned(),
        ),
        SignInError::TooLate => (
            Code::InvalidArgument,
            "That took too long",
            "A sign-in has to be finished within ten minutes. Begin again.".to_owned(),
        ),
        SignInError::Used => (
            Code::InvalidArgument,
            "That sign-in is done already",
            "Each sign-in works once. Begin again if you are not signed in.".to_owned(),
        ),
        SignInError::Cancelled => (
            Code::PermissionDenied,
            "You did not sign in",
            "The sign-in was cancelled. You can try again at any time.".to_owned(),
        ),
        SignInError::Forged(_) | SignInError::Refused(_) => (
            Code::PermissionDenied,
            "The sign-in did not work",
            "Your identity provider did not confirm it. Try again; if it fails again, tell support."
                .to_owned(),
        ),
        SignInError::Banned(reason) => (Code::PermissionDenied, "This account is banned", reason.clone()),
        SignInError::Away(_) => (
            Code::Unavailable,
            "Signing in does not work at the moment",
            "It is not your fault. Try again in a minute.".to_owned(),
        ),
        SignInError::Internal(_) => {
            (Code::Internal, "Something went wrong here", "It is not your fault. Try again later.".to_owned())
        }
    };
    match failure {
        SignInError::Away(_) => {
            tracing::warn!(outage = "sign-in", cause = failure.cause(), "nobody can sign in")
        }
        SignInError::Internal(_) => tracing::error!(cause = failure.cause(), "a sign-in failed"),
        _ => tracing::debug!(cause = failure.cause(), "a sign-in failed"),
    }
    let page =
        Page::new(title).text(&escaped(&text)).link("/login", "Try again").quiet_link("/", "First page");
    let page = page.small(&format!("For support: request {}", escaped(request.as_str())));
    page.with_status(status(code)).into_response()
}

fn status(code: Code) -> StatusCode {
    StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
