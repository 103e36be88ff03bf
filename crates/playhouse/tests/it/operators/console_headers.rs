//! What every answer of the console says to a browser, and what other sites cannot make a browser do.

use reqwest::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use reqwest::{Response, StatusCode};
use service::Credential;

use super::console::Browser;
use super::*;

/// How a browser tells that another site sent the request.
const FOREIGN: [(&str, &str); 4] = [
    ("origin", "https://evil.example"),
    ("origin", "null"),
    ("sec-fetch-site", "cross-site"),
    ("sec-fetch-site", "same-site"),
];

/// Asserts that an answer may not be framed, kept or run as something else.
fn assert_hardened(what: &str, response: &Response) {
    let header = |name: HeaderName| {
        response.headers().get(&name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    let policy = header(CONTENT_SECURITY_POLICY);
    assert!(policy.contains("default-src 'none'"), "{what}: {policy:?}");
    assert!(policy.contains("frame-ancestors 'none'"), "{what}: {policy:?}");
    assert_eq!(header(X_FRAME_OPTIONS), "DENY", "{what}");
    assert_eq!(header(X_CONTENT_TYPE_OPTIONS), "nosniff", "{what}");
    // Assets are the same for everybody.
    let kept = if what.contains("/assets/") { "no-cache" } else { "no-store" };
    assert_eq!(header(CACHE_CONTROL), kept, "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_of_the_console_is_hardened() {
    let process = TestProcess::start().await;
    let user = process.signed_in_user("ada").await;
    let mut browser = Browser::signed_in(&process, OPERATOR_TOKEN).await;
    let mut seen = 0;
    let rows = playhouse::operator_rows();
    let rows = rows.into_iter().filter(|row| row.credential() == Credential::ConsoleSession);
    // Signing out ends the session, so it comes last.
    let (last, rows): (Vec<_>, Vec<_>) = rows.partition(|row| row.path() == "/console/sign-out");
    for row in rows.into_iter().chain(last) {
        let path = row.path().replace("{user_id}", &user).replace("{name}", "console.css");
        let what = format!("{} {path}", row.method());
        let url = process.url("admin", &callers::concrete(&path));
        for signed_in in [true, false] {
            let cookies = if signed_in { None } else { Some(std::mem::take(&mut browser.cookies)) };
            let response = browser.request(row.method().into(), &url).send().await.unwrap();
            assert_hardened(&format!("{what}, signed in: {signed_in}"), &response);
            browser.cookies.extend(cookies.into_iter().flatten());
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen}");
    let mut browser = Browser::signed_in(&process, OPERATOR_TOKEN).await;
    // Errors: an action that does not exist, a player that does not exist, a sign-in that fails.
    let missing = browser.open("/console/players/0198c0de-0000-7000-8000-000000000009").await;
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    assert_hardened("a missing player", &missing);
    assert_hardened("a missing action", &browser.open("/console/action?route=POST%20/nothing").await);
    let refused = browser.post("/console/sign-in/token", &[("token", "ph_wrong")]).await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    assert_hardened("a refused sign-in", &refused);
}

/// Another site cannot sign an operator in, as somebody else, or out.
#[tokio::test(flavor = "multi_thread")]
async fn other_sites_can_neither_sign_in_nor_out() {
    let process = TestProcess::start().await;
    let mut browser = Browser::signed_in(&process, OPERATOR_TOKEN).await;
    for (name, value) in FOREIGN {
        for (path, fields) in
            [("/console/sign-in/token", [("token", READER_TOKEN)]), ("/console/sign-out", [("", "")])]
        {
            let request = browser.request(Method::POST, &process.url("admin", path)).header(name, value);
            let response = form(request, &fields).send().await.unwrap();
            assert_eq!(response.status(), StatusCode::FORBIDDEN, "{path} with {name}: {value}");
            assert!(response.headers().get(SET_COOKIE).is_none(), "{path} with {name}: {value}");
        }
    }
    let page = browser.open("/console").await;
    assert_eq!(page.status(), StatusCode::OK, "the session goes on");
    assert!(page.text().await.unwrap().contains("tester"));
}
