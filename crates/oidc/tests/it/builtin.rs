//! The builtin issuer by itself: its pages, and what it does not do.

use oidc::builtin::Builtin;
use oidc::{Error, Pkce};
use serde_json::Value;
use url::Url;

use crate::config;
use crate::flow::{Stage, location, pairs};

/// The address at which somebody would sign in, with one parameter changed or, without a value, taken out.
fn changed(url: &Url, name: &str, value: Option<&str>) -> Url {
    let mut changed = url.clone();
    let others: Vec<_> = url.query_pairs().filter(|(other, _)| other != name).collect();
    changed.query_pairs_mut().clear().extend_pairs(others).extend_pairs(value.map(|value| (name, value)));
    changed
}

#[tokio::test]
async fn the_page_offers_people_and_needs_no_script() {
    let stage = Stage::start().await;
    let url = changed(&stage.authorize_url(&Pkce::generate()).await, "state", Some("\"><script>"));
    let response = stage.browser.get(url.clone()).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let origin = stage.redirect_uri.origin().ascii_serialization();
    let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'; style-src 'self';"), "{policy}");
    assert!(policy.contains(&format!("form-action 'self' {origin};")), "{policy}");
    assert_eq!(response.headers()["cache-control"], "no-store");
    let page = response.text().await.unwrap();
    for user in ["ada", "grace", "alan"] {
        assert!(page.contains(&format!("name=\"pick\" value=\"{user}\"")), "{page}");
    }
    assert!(!page.contains("<script") && !page.contains("style=") && !page.contains(" on"), "{page}");
    // The form sends the question again, as it was.
    let action = page.split("action=\"").nth(1).unwrap().split('"').next().unwrap().replace("&amp;", "&");
    assert_eq!(url.join(&action).unwrap(), url);

    let style = stage.browser.get(format!("{}/style.css", stage.issuer)).send().await.unwrap();
    assert_eq!(style.headers()["content-type"], "text/css; charset=utf-8");
}

#[tokio::test]
async fn whoever_was_picked_is_offered_first() {
    let stage = Stage::start().await;
    let url = stage.authorize_url(&Pkce::generate()).await;
    let response = stage.post(&url, &[("user", "Bob.the-2nd"), ("role", "player")]).await;
    let cookie = response.headers()["set-cookie"].to_str().unwrap();
    assert!(cookie.ends_with("; Path=/issuer; HttpOnly; SameSite=Lax"), "{cookie}");
    let first = async |cookie: &str| {
        let request = stage.browser.get(url.clone()).header("cookie", format!("a=b; {cookie}"));
        let page = request.send().await.unwrap().text().await.unwrap();
        let first = page.split("name=\"pick\" value=\"").nth(1).unwrap();
        (first.split('"').next().unwrap().to_owned(), page.matches("name=\"pick\"").count())
    };
    assert_eq!(first(cookie.split(';').next().unwrap()).await, ("Bob.the-2nd".to_owned(), 4));
    assert_eq!(first("playhouse_issuer_last=alan").await, ("alan".to_owned(), 3));
    assert_eq!(first("playhouse_issuer_last=<b>").await, ("ada".to_owned(), 3));
}

#[tokio::test]
async fn a_bad_name_or_role_is_asked_for_again() {
    let stage = Stage::start().await;
    let url = stage.authorize_url(&Pkce::generate()).await;
    let long = "x".repeat(65);
    for fields in [
        &[("user", "")][..],
        &[("user", "a b")],
        &[("user", "<script>")],
        &[("user", &long)],
        &[("role", "player")],
        &[("user", "ada"), ("role", "king")],
        &[("user", "ada"), ("user", "eve")],
    ] {
        let response = stage.post(&url, fields).await;
        assert_eq!(response.status(), 200);
        let page = response.text().await.unwrap();
        assert!(page.contains("role=\"alert\"") && !page.contains("<script"), "{fields:?}");
    }
}

#[tokio::test]
async fn the_browser_is_sent_to_our_own_pages_only() {
    let stage = Stage::start().await;
    let url = stage.authorize_url(&Pkce::generate()).await;
    let port = stage.redirect_uri.port().unwrap();
    for wrong in [
        None,
        Some("https://evil.example.org/login/callback".to_owned()),
        Some(format!("http://localhost:{port}/login/callback")),
        Some(format!("http://127.0.0.1:{port}@evil.example.org/")),
        Some(format!("http://me@127.0.0.1:{port}/login/callback")),
        Some(format!("http://127.0.0.1:{port}/login/callback#x")),
        Some("/login/callback".to_owned()),
        Some("javascript:alert(1)".to_owned()),
    ] {
        let url = changed(&url, "redirect_uri", wrong.as_deref());
        for response in
            [stage.browser.get(url.clone()).send().await.unwrap(), stage.post(&url, &[("user", "ada")]).await]
        {
            assert_eq!(response.status(), 400, "{wrong:?}");
            assert!(!response.headers().contains_key("location"));
            assert!(response.text().await.unwrap().contains("redirect_uri must be a URL below"));
        }
    }
    let response = stage.browser.get(changed(&url, "client_id", Some("other"))).send().await.unwrap();
    assert_eq!(response.status(), 400);
    let twice = Url::parse(&format!("{url}&client_id=playhouse")).unwrap();
    assert_eq!(stage.browser.get(twice).send().await.unwrap().status(), 400);
}

#[test]
fn it_is_for_this_machine_only() {
    let url = |text: &str| Url::parse(text).unwrap();
    let clock = base::Clock::system();
    for remote in ["https://id.example.org/issuer", "http://10.0.0.1/issuer"] {
        let builtin = Builtin::new(&config(), url(remote), url("http://127.0.0.1/"), clock.clone());
        assert!(matches!(builtin, Err(Error::Setup(_))), "{remote}");
    }
    assert!(
        Builtin::new(&config(), url("http://localhost:1/issuer"), url("http://127.0.0.1/"), clock).is_ok()
    );
}

#[tokio::test]
async fn the_client_hears_of_its_mistakes() {
    let stage = Stage::start().await;
    let url = stage.authorize_url(&Pkce::generate()).await;
    for (name, value, error) in [
        ("response_type", Some("token"), "unsupported_response_type"),
        ("response_type", None, "unsupported_response_type"),
        ("response_mode", Some("fragment"), "invalid_request"),
        ("scope", Some("profile"), "invalid_scope"),
        ("scope", None, "invalid_scope"),
        ("code_challenge", None, "invalid_request"),
        ("code_challenge", Some("short"), "invalid_request"),
        ("code_challenge_method", Some("plain"), "invalid_request"),
        ("code_challenge_method", None, "invalid_request"),
        ("prompt", Some("none"), "login_required"),
    ] {
        let url = changed(&url, name, value);
        for response in
            [stage.browser.get(url.clone()).send().await.unwrap(), stage.post(&url, &[("user", "ada")]).await]
        {
            assert_eq!(response.status(), 303, "{name}={value:?}");
            let pairs = pairs(&location(&response));
            assert_eq!(pairs["error"], error, "{name}={value:?}");
            assert_eq!((pairs["state"].as_str(), pairs["iss"].as_str()), ("state-1", stage.issuer.as_str()));
            assert!(!pairs.contains_key("code"));
        }
    }
}

#[tokio::test]
async fn the_token_endpoint_speaks_as_rfc_6749_does() {
    let stage = Stage::start().await;
    let token = Url::parse(&format!("{}/token", stage.issuer)).unwrap();
    for (fields, status, error) in [
        (&[("grant_type", "refresh_token")][..], 401, "invalid_client"),
        (&[("client_id", "playhouse")], 400, "invalid_request"),
        (&[("client_id", "playhouse"), ("grant_type", "password")], 400, "unsupported_grant_type"),
        (&[("client_id", "playhouse"), ("grant_type", "refresh_token")], 400, "invalid_request"),
        (&[("client_id", "playhouse"), ("grant_type", "authorization_code")], 400, "invalid_request"),
    ] {
        let response = stage.post(&token, fields).await;
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["cache-control"], "no-store");
        let body: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
        assert_eq!(body["error"], error);
    }
    let response = stage.browser.post(token).body("{}").send().await.unwrap();
    assert_eq!(response.status(), 400);
}

#[tokio::test]
async fn signing_out_ends_the_session_and_leads_back() {
    let stage = Stage::start().await;
    let tokens = stage.sign_in("ada").await;
    let after = stage.redirect_uri.join("/bye").unwrap();
    let hint = tokens.id_token.as_ref().unwrap().expose();
    let url = stage.provider.end_session_url(Some(hint), &after).await.unwrap().unwrap();

    let foreign = changed(&url, "post_logout_redirect_uri", Some("https://evil.example.org/"));
    for wrong in [foreign, changed(&url, "id_token_hint", Some("x")), changed(&url, "client_id", Some("x"))] {
        let response = stage.browser.get(wrong).send().await.unwrap();
        assert_eq!(response.status(), 400);
    }
    assert_eq!(stage.userinfo(tokens.access_token.expose()).await.status(), 200, "nothing has happened");

    // However old the hint is.
    stage.clock.advance(std::time::Duration::from_secs(600));
    let response = stage.browser.get(changed(&url, "state", Some("s"))).send().await.unwrap();
    assert_eq!(response.status(), 303);
    assert_eq!(location(&response), changed(&after, "state", Some("s")));
    let refresh = stage.provider.refresh(tokens.refresh_token.as_ref().unwrap().expose()).await;
    assert!(refresh.unwrap_err().is_invalid_grant());
    let response = stage.post(&Url::parse(&format!("{}/end_session", stage.issuer)).unwrap(), &[]).await;
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn userinfo_is_for_our_own_tokens() {
    let stage = Stage::start().await;
    let other = Stage::start().await;
    for token in ["x", &other.builtin.token("ada", None).unwrap()] {
        let response = stage.userinfo(token).await;
        assert_eq!(response.status(), 401);
        assert!(response.headers()["www-authenticate"].to_str().unwrap().starts_with("Bearer error="));
    }
    let response = stage.browser.get(format!("{}/userinfo", stage.issuer)).send().await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["www-authenticate"]),
        (401, &"Bearer".parse().unwrap())
    );
}
