//! The pages of the builtin issuer. They have no script, and load nothing but their style.

use axum::body::Body;
use base::html::escaped;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use url::Url;

use super::{PEOPLE, full_name};

/// Who may sign in where, as the page asks it.
pub(super) struct Picker<'a> {
    /// Of the request, sent again with the answer.
    pub(super) query: &'a str,
    pub(super) client_id: &'a str,
    pub(super) redirect_uri: &'a Url,
    /// Who was picked the last time.
    pub(super) last: Option<&'a str>,
    /// What was wrong with the answer before this one.
    pub(super) mistake: Option<&'a str>,
}

impl Picker<'_> {
    pub(super) fn page(&self) -> Response<Body> {
        let others = PEOPLE.iter().map(|(user, _)| *user).filter(|user| Some(*user) != self.last);
        let people: String = self.last.into_iter().chain(others).map(person).collect();
        let mistake =
            self.mistake.map(|text| format!(r#"<p class="mistake" role="alert">{}</p>"#, escaped(text)));
        let body = format!(
            r#"<h1>Who are you?</h1>
<p>This is the issuer for development. Pick somebody, and you are signed in to <b>{client}</b> as them, without a password.</p>
{mistake}
<form method="post" action="authorize?{query}">
<div class="role">
<label for="role">With the role</label>
<select id="role" name="role"><option value="player">Player</option><option value="operator">Operator</option></select>
</div>
<div class="other">
<label for="user">Somebody else</label>
<input id="user" name="user" required maxlength="64" pattern="[A-Za-z0-9._\-]+" autocomplete="off" spellcheck="false">
<button type="submit">Sign in</button>
</div>
<div class="people">
{people}</div>
</form>
"#,
            client = escaped(self.client_id),
            mistake = mistake.unwrap_or_default(),
            query = escaped(self.query),
        );
        // Chromium holds the redirect after a form against this as well.
        let target = self.redirect_uri.origin().ascii_serialization();
        page(StatusCode::OK, "Sign in", &body, &format!("'self' {target}"))
    }
}

/// Says what is wrong, where the browser cannot be sent back.
pub(super) fn mistake(text: &str) -> Response<Body> {
    let body =
        format!("<h1>This cannot be done</h1>\n<p class=\"mistake\" role=\"alert\">{}</p>\n", escaped(text));
    page(StatusCode::BAD_REQUEST, "A mistake", &body, "'none'")
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

/// One of those who can be picked. The name need not be given then.
fn person(user: &str) -> String {
    format!(
        "<button type=\"submit\" name=\"pick\" value=\"{user}\" formnovalidate>{name}</button>\n",
        user = escaped(user),
        name = escaped(full_name(user)),
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
        // Not reached: an origin has no characters that a header cannot have.
        .unwrap_or_default()
}
