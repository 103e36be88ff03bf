//! The pages of the builtin issuer. They have no scripts and load only their stylesheet.

use axum::body::Body;
use base::html::escape;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use url::{Host, Url};

use super::{SAMPLE_USERS, full_name};

/// The page on which the user picks an account.
pub(super) struct PickerPage<'a> {
    /// The query of the authorization request. The form submits it again.
    pub(super) query: &'a str,
    pub(super) client_id: &'a str,
    pub(super) redirect_uri: &'a Url,
    /// The user who signed in last.
    pub(super) last: Option<&'a str>,
    /// Why the submitted form was refused.
    pub(super) error: Option<&'a str>,
}

impl PickerPage<'_> {
    pub(super) fn response(&self) -> Response<Body> {
        let others = SAMPLE_USERS.iter().map(|(user, _)| *user).filter(|user| Some(*user) != self.last);
        let users: String = self.last.into_iter().chain(others).map(user_button).collect();
        let error = self.error.map(|text| format!(r#"<p class="error" role="alert">{}</p>"#, escape(text)));
        let body = format!(
            r#"<h1>Choose a user</h1>
<p>This is the development issuer. Choose a user to sign in to <b>{client}</b>. No password is needed.</p>
{error}
<form method="post" action="authorize?{query}">
<div class="role">
<label for="role">Role</label>
<select id="role" name="role"><option value="player">Player</option><option value="operator"{is_operator}>Operator</option></select>
</div>
<div class="other">
<label for="user">Another user name</label>
<input id="user" name="user" required maxlength="64" pattern="[A-Za-z0-9._\-]+" autocomplete="off" spellcheck="false">
<button type="submit">Sign in</button>
</div>
<div class="users">
{users}</div>
</form>
"#,
            client = escape(self.client_id),
            // The console is for operators.
            is_operator = if self.redirect_uri.path().starts_with("/console/") { " selected" } else { "" },
            error = error.unwrap_or_default(),
            query = escape(self.query),
        );
        // Chromium applies `form-action` to the redirect after the form too. A CSP source cannot be an IPv6 address, so allow the
        // scheme then.
        let target = match self.redirect_uri.host() {
            Some(Host::Ipv6(_)) => format!("{}:", self.redirect_uri.scheme()),
            _ => self.redirect_uri.origin().ascii_serialization(),
        };
        page(StatusCode::OK, "Sign in", &body, &format!("'self' {target}"))
    }
}

/// Shows an error when the browser cannot be redirected to the client.
pub(super) fn error(text: &str) -> Response<Body> {
    let body = format!(
        "<h1>The request is not valid</h1>\n<p class=\"error\" role=\"alert\">{}</p>\n",
        escape(text)
    );
    page(StatusCode::BAD_REQUEST, "Invalid request", &body, "'none'")
}

pub(super) fn signed_out() -> Response<Body> {
    page(StatusCode::OK, "Signed out", "<h1>You are signed out</h1>\n", "'none'")
}

pub(super) async fn style() -> ([(http::HeaderName, &'static str); 3], &'static str) {
    let headers = [
        (CONTENT_TYPE, "text/css; charset=utf-8"),
        (CACHE_CONTROL, "no-cache"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, include_str!("style.css"))
}

/// Renders the button for a user. It skips the validation of the text field.
fn user_button(user: &str) -> String {
    format!(
        "<button type=\"submit\" name=\"pick\" value=\"{user}\" formnovalidate>{name}</button>\n",
        user = escape(user),
        name = escape(full_name(user)),
    )
}

fn page(status: StatusCode, title: &str, body: &str, form_action: &str) -> Response<Body> {
    let html = format!(
        r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="style.css">
</head>
<body>
<main>
{body}</main>
</body>
</html>
"#
    );
    let policy = format!(
        "default-src 'none'; style-src 'self'; form-action {form_action}; base-uri 'none'; frame-ancestors 'none'"
    );
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, "text/html; charset=utf-8")
        .header(CONTENT_SECURITY_POLICY, policy)
        .header(CACHE_CONTROL, "no-store")
        .header(REFERRER_POLICY, "no-referrer")
        .header(X_CONTENT_TYPE_OPTIONS, "nosniff")
        .body(Body::from(html))
        // Never happens: an origin has only characters that are valid in a header.
        .unwrap_or_default()
}
