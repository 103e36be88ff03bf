//! Sign-in and sign-out of browsers, and back-channel logout by the issuer.

use ::http::header::HOST;
use ::http::{HeaderMap, StatusCode};
use account::UserId;
use axum::Json;
use axum::extract::rejection::FormRejection;
use axum::extract::{Extension, Form, State};
use axum::response::{IntoResponse, Redirect, Response};
use base::Code;
use base::html::escape;
use base::id::RequestId;
use http_server::Query;
use serde::Deserialize;
use serde_json::json;
use sessions::{
    Callback, EndCause, SIGN_IN_TIMEOUT, SecurityEvent, SessionId, SignInError, SignInFlow, SignedIn,
};
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
pub(super) struct BackChannelForm {
    logout_token: String,
}

/// Redirects a browser to the issuer.
pub(super) async fn login(
    State(gateway): State<Gateway>,
    Extension(request): Extension<RequestId>,
    Query(query): Query<LoginQuery>,
    headers: HeaderMap,
) -> Response {
    let Some(flow) = gateway.sessions.sign_in() else { return sign_in_not_configured() };
    if let Some(redirect) = redirect_to_public_host(flow, &headers, query.return_to.as_deref()) {
        return redirect;
    }
    match flow.begin(query.return_to.as_deref(), &headers).await {
        Ok(started) => {
            let mut response = Redirect::to(started.url.as_str()).into_response();
            let (headers, cookies) = (response.headers_mut(), gateway.sessions.cookies());
            started.stale_cookies.iter().for_each(|name| cookies.remove(headers, name));
            cookies.set(headers, &started.cookie.name, &started.cookie.value, SIGN_IN_TIMEOUT);
            response
        }
        Err(failure) => error_page(&failure, &request),
    }
}

/// Redirects to the host of the public URL, if both are on loopback. A local gateway has several names and cookies belong to one name,
/// so a sign-in must start and end under the same name.
fn redirect_to_public_host(
    flow: &SignInFlow,
    headers: &HeaderMap,
    return_to: Option<&str>,
) -> Option<Response> {
    let host = headers.get(HOST)?.to_str().ok()?;
    let public_url = flow.public_url();
    if !oidc::is_loopback(public_url) || host == public_url.authority() {
        return None;
    }
    let mut url = flow.url_of("/login");
    if let Some(return_to) = return_to {
        url.query_pairs_mut().append_pair("return_to", return_to);
    }
    Some(Redirect::temporary(url.as_str()).into_response())
}

/// Finishes a sign-in: the issuer redirects the browser here.
pub(super) async fn callback(
    State(gateway): State<Gateway>,
    Extension(request): Extension<RequestId>,
    Extension(Address(address)): Extension<Address>,
    Query(callback): Query<Callback>,
    headers: HeaderMap,
) -> Response {
    let Some(flow) = gateway.sessions.sign_in() else { return sign_in_not_configured() };
    let cookies = gateway.sessions.cookies();
    let mut response = match flow.finish(&callback, &headers).await {
        Ok(SignedIn { secret, return_to, known }) => {
            gateway.audit().record(SecurityEvent::SignedIn, address, Some(known.user.id), "with a session");
            // End the browser's previous session.
            if let Some((id, session)) = gateway.sessions.browser_session(&headers).await {
                gateway.sessions.end(EndCause::Replaced, &id, &session).await;
            }
            let mut response = Redirect::to(&return_to).into_response();
            let life = gateway.config.session.lifetime;
            cookies.set(response.headers_mut(), &cookies.session(), secret.expose(), life);
            response
        }
        Err(failure) => {
            gateway.audit().record(SecurityEvent::SignInFailed, address, None, &failure.cause());
            error_page(&failure, &request)
        }
    };
    if let Some(name) = flow.cookie_name(&callback) {
        cookies.remove(response.headers_mut(), &name);
    }
    response
}

/// Ends the session here and at the issuer. The link must name the session, which pages of other sites do not know.
pub(super) async fn logout(
    State(gateway): State<Gateway>,
    Extension(request): Extension<RequestId>,
    Extension(Address(address)): Extension<Address>,
    Query(query): Query<LogoutQuery>,
    headers: HeaderMap,
) -> Response {
    let Some(flow) = gateway.sessions.sign_in() else { return sign_in_not_configured() };
    let cookies = gateway.sessions.cookies();
    let Some((id, session)) = gateway.sessions.browser_session(&headers).await else {
        let mut response = Page::new("You are signed out").link("/login", "Sign in").into_response();
        cookies.remove(response.headers_mut(), &cookies.session());
        return response;
    };
    if query.session.as_deref() != Some(&logout_proof(&id)) {
        let url = logout_url(&id);
        return Page::new("Sign out?")
            .link(&url, "Sign out")
            .quiet_link("/", "Stay signed in")
            .into_response();
    }
    match flow.sign_out(&id, &session).await {
        Ok(url) => {
            let user = UserId::from_uuid(session.user_id);
            gateway.audit().record(SecurityEvent::SignedOut, address, Some(user), "by the player");
            let mut response = Redirect::to(url.as_str()).into_response();
            cookies.remove(response.headers_mut(), &cookies.session());
            response
        }
        Err(failure) => error_page(&failure, &request),
    }
}

/// Ends the sessions of a user who has signed out at the issuer (OpenID Connect Back-Channel Logout).
pub(super) async fn back_channel(
    State(gateway): State<Gateway>,
    Extension(Address(address)): Extension<Address>,
    form: Result<Form<BackChannelForm>, FormRejection>,
) -> Response {
    let refused = async |reason: &str| {
        // This route has no rate limit, so a forger could otherwise fill the log.
        if gateway.should_log_refusal(address).await {
            gateway.audit().record(SecurityEvent::BackChannelRefused, address, None, reason);
        }
        let body =
            json!({ "error": "invalid_request", "error_description": "The logout token is not accepted." });
        (status(Code::InvalidArgument), Json(body)).into_response()
    };
    let (Some(flow), Ok(Form(form))) = (gateway.sessions.sign_in(), form) else {
        return refused("there is no logout token").await;
    };
    match flow.back_channel(&form.logout_token).await {
        Ok(ended) => {
            gateway.audit().record(
                SecurityEvent::BackChannelLogout,
                address,
                None,
                &format!("{ended} sessions ended"),
            );
            ().into_response()
        }
        Err(failure @ (SignInError::Unavailable(_) | SignInError::Internal(_))) => {
            tracing::warn!(outage = "sessions", cause = failure.cause(), "a back-channel logout failed");
            let body = json!({ "error": "temporarily_unavailable" });
            (status(Code::Unavailable), Json(body)).into_response()
        }
        Err(failure) => refused(&failure.cause()).await,
    }
}

/// Returns the link that ends a session.
pub(super) fn logout_url(id: &SessionId) -> String {
    format!("/logout?session={}", logout_proof(id))
}

/// Derives the value that a link must contain to end a session.
fn logout_proof(id: &SessionId) -> String {
    let hash = Sha256::new().chain_update("logout:").chain_update(id.as_str()).finalize();
    hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn sign_in_not_configured() -> Response {
    let page = Page::new("Sign-in is not configured").text("This server has no identity provider.");
    page.with_status(status(Code::Unimplemented)).into_response()
}

/// Renders a failed sign-in as a page for the player.
fn error_page(failure: &SignInError, request: &RequestId) -> Response {
    let (code, title, text) = match failure {
        SignInError::UnknownAttempt => (
            Code::InvalidArgument,
            "This sign-in did not start here",
            "It may have started in another browser, or cookies are disabled. Sign in again.".to_owned(),
        ),
        SignInError::Expired => (
            Code::InvalidArgument,
            "The sign-in took too long",
            "Finish a sign-in within ten minutes. Sign in again.".to_owned(),
        ),
        SignInError::AlreadyUsed => (
            Code::InvalidArgument,
            "This sign-in was already used",
            "Each sign-in works once. Sign in again if you are not signed in.".to_owned(),
        ),
        SignInError::Cancelled => (
            Code::PermissionDenied,
            "You did not sign in",
            "The sign-in was cancelled. You can try again at any time.".to_owned(),
        ),
        SignInError::Forged(_) | SignInError::Rejected(_) => (
            Code::PermissionDenied,
            "The sign-in failed",
            "Your identity provider did not confirm it. Try again; if it fails again, contact support."
                .to_owned(),
        ),
        SignInError::Banned(reason) => (Code::PermissionDenied, "This account is banned", reason.clone()),
        SignInError::Unavailable(_) => (
            Code::Unavailable,
            "Sign-in does not work at the moment",
            "It is not your fault. Try again in a minute.".to_owned(),
        ),
        SignInError::Internal(_) => {
            (Code::Internal, "Something went wrong", "It is not your fault. Try again later.".to_owned())
        }
    };
    match failure {
        SignInError::Unavailable(_) => {
            tracing::warn!(outage = "sign-in", cause = failure.cause(), "players cannot sign in")
        }
        SignInError::Internal(_) => tracing::error!(cause = failure.cause(), "a sign-in failed"),
        _ => tracing::debug!(cause = failure.cause(), "a sign-in failed"),
    }
    let page = Page::new(title).text(&escape(&text)).link("/login", "Try again").quiet_link("/", "Home page");
    let page = page.small(&format!("For support: request {}", escape(request.as_str())));
    page.with_status(status(code)).into_response()
}

fn status(code: Code) -> StatusCode {
    StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
