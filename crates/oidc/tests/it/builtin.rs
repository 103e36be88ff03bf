//! The builtin issuer's endpoints: its pages, and the requests that it refuses.

use oidc::builtin::{Builtin, GAME_CLIENT};
use oidc::{Error, Pkce};
use serde_json::Value;
use url::Url;

use crate::flow::{BuiltinFixture, location, pairs};
use crate::{config, secret};

/// Replaces one query parameter of a URL. Without a value, removes it.
fn changed(url: &Url, name: &str, value: Option<&str>) -> Url {
    let mut changed = url.clone();
    let others: Vec<_> = url.query_pairs().filter(|(other, _)| other != name).collect();
    changed.query_pairs_mut().clear().extend_pairs(others).extend_pairs(value.map(|value| (name, value)));
    changed
}

#[tokio::test]
async fn page_offers_users_without_scripts() {
    let fixture = BuiltinFixture::start().await;
    let url = changed(&fixture.authorize_url(&Pkce::generate()).await, "state", Some("\"><script>"));
    let response = fixture.browser.get(url.clone()).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let origin = fixture.redirect_uri.origin().ascii_serialization();
    let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'; style-src 'self';"), "{policy}");
    assert!(policy.contains(&format!("form-action 'self' {origin};")), "{policy}");
    assert_eq!(response.headers()["cache-control"], "no-store");
    let page = response.text().await.unwrap();
    for user in ["ada", "grace", "alan"] {
        assert!(page.contains(&format!("name=\"pick\" value=\"{user}\"")), "{page}");
    }
    assert!(!page.contains("<script") && !page.contains("style=") && !page.contains(" on"), "{page}");
    // The form submits the request's query again.
    let action = page.split("action=\"").nth(1).unwrap().split('"').next().unwrap().replace("&amp;", "&");
    assert_eq!(url.join(&action).unwrap(), url);

    let style = fixture.browser.get(format!("{}/style.css", fixture.issuer)).send().await.unwrap();
    assert_eq!(style.headers()["content-type"], "text/css; charset=utf-8");
}

#[tokio::test]
async fn last_user_is_offered_first() {
    let fixture = BuiltinFixture::start().await;
    let url = fixture.authorize_url(&Pkce::generate()).await;
    let response = fixture.post(&url, &[("user", "Bob.the-2nd"), ("role", "player")]).await;
    let cookie = response.headers()["set-cookie"].to_str().unwrap();
    assert!(cookie.ends_with("; Path=/issuer; HttpOnly; SameSite=Lax"), "{cookie}");
    let first = async |cookie: &str| {
        let request = fixture.browser.get(url.clone()).header("cookie", format!("a=b; {cookie}"));
        let page = request.send().await.unwrap().text().await.unwrap();
        let first = page.split("name=\"pick\" value=\"").nth(1).unwrap();
        (first.split('"').next().unwrap().to_owned(), page.matches("name=\"pick\"").count())
    };
    assert_eq!(first(cookie.split(';').next().unwrap()).await, ("Bob.the-2nd".to_owned(), 4));
    assert_eq!(first("playhouse_issuer_last=alan").await, ("alan".to_owned(), 3));
    assert_eq!(first("playhouse_issuer_last=<b>").await, ("ada".to_owned(), 3));
}

#[tokio::test]
async fn invalid_user_name_or_role_shows_the_page_again() {
    let fixture = BuiltinFixture::start().await;
    let url = fixture.authorize_url(&Pkce::generate()).await;
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
        let response = fixture.post(&url, fields).await;
        assert_eq!(response.status(), 200);
        let page = response.text().await.unwrap();
        assert!(page.contains("role=\"alert\"") && !page.contains("<script"), "{fields:?}");
    }
}

#[tokio::test]
async fn redirects_outside_the_public_url_are_refused() {
    let fixture = BuiltinFixture::start().await;
    let url = fixture.authorize_url(&Pkce::generate()).await;
    let port = fixture.redirect_uri.port().unwrap();
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
        for response in [
            fixture.browser.get(url.clone()).send().await.unwrap(),
            fixture.post(&url, &[("user", "ada")]).await,
        ] {
            assert_eq!(response.status(), 400, "{wrong:?}");
            assert!(!response.headers().contains_key("location"));
            assert!(response.text().await.unwrap().contains("redirect_uri must be a URL below"));
        }
    }
    let response = fixture.browser.get(changed(&url, "client_id", Some("other"))).send().await.unwrap();
    assert_eq!(response.status(), 400);
    let twice = Url::parse(&format!("{url}&client_id=playhouse")).unwrap();
    assert_eq!(fixture.browser.get(twice).send().await.unwrap().status(), 400);
}

#[test]
fn issuer_must_be_on_loopback() {
    let url = |text: &str| Url::parse(text).unwrap();
    let clock = base::Clock::system();
    for remote in ["https://id.example.org/issuer", "http://10.0.0.1/issuer"] {
        let builtin = Builtin::new(&config(), url(remote), vec![url("http://127.0.0.1/")], clock.clone());
        assert!(matches!(builtin, Err(Error::Setup(_))), "{remote}");
    }
    assert!(
        Builtin::new(&config(), url("http://localhost:1/issuer"), vec![url("http://127.0.0.1/")], clock)
            .is_ok()
    );
}

#[tokio::test]
async fn request_errors_are_sent_to_the_client() {
    let fixture = BuiltinFixture::start().await;
    let url = fixture.authorize_url(&Pkce::generate()).await;
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
        for response in [
            fixture.browser.get(url.clone()).send().await.unwrap(),
            fixture.post(&url, &[("user", "ada")]).await,
        ] {
            assert_eq!(response.status(), 303, "{name}={value:?}");
            let pairs = pairs(&location(&response));
            assert_eq!(pairs["error"], error, "{name}={value:?}");
            assert_eq!(
                (pairs["state"].as_str(), pairs["iss"].as_str()),
                ("state-1", fixture.issuer.as_str())
            );
            assert!(!pairs.contains_key("code"));
        }
    }
}

#[tokio::test]
async fn token_endpoint_responds_with_errors_of_rfc_6749() {
    let fixture = BuiltinFixture::start().await;
    let token = Url::parse(&format!("{}/token", fixture.issuer)).unwrap();
    for (fields, status, error) in [
        (&[("grant_type", "refresh_token")][..], 401, "invalid_client"),
        (&[("client_id", "playhouse")], 400, "invalid_request"),
        (&[("client_id", "playhouse"), ("grant_type", "password")], 400, "unsupported_grant_type"),
        (&[("client_id", "playhouse"), ("grant_type", "refresh_token")], 400, "invalid_request"),
        (&[("client_id", "playhouse"), ("grant_type", "authorization_code")], 400, "invalid_request"),
    ] {
        let response = fixture.post(&token, fields).await;
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["cache-control"], "no-store");
        let body: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
        assert_eq!(body["error"], error);
    }
    let response = fixture.browser.post(token).body("{}").send().await.unwrap();
    assert_eq!(response.status(), 400);
}

#[tokio::test]
async fn sign_out_ends_the_session_and_redirects_back() {
    let fixture = BuiltinFixture::start().await;
    let tokens = fixture.sign_in("ada").await;
    let after = fixture.redirect_uri.join("/bye").unwrap();
    let hint = tokens.id_token.as_ref().unwrap().expose();
    let url = fixture.provider.end_session_url(Some(hint), &after).await.unwrap().unwrap();

    let foreign = changed(&url, "post_logout_redirect_uri", Some("https://evil.example.org/"));
    for wrong in [foreign, changed(&url, "id_token_hint", Some("x")), changed(&url, "client_id", Some("x"))] {
        let response = fixture.browser.get(wrong).send().await.unwrap();
        assert_eq!(response.status(), 400);
    }
    assert_eq!(
        fixture.userinfo(tokens.access_token.expose()).await.status(),
        200,
        "the session is still open"
    );

    // An expired hint is accepted too.
    fixture.clock.advance(std::time::Duration::from_secs(600));
    let response = fixture.browser.get(changed(&url, "state", Some("s"))).send().await.unwrap();
    assert_eq!(response.status(), 303);
    assert_eq!(location(&response), changed(&after, "state", Some("s")));
    let refresh = fixture.provider.refresh(tokens.refresh_token.as_ref().unwrap().expose()).await;
    assert!(refresh.unwrap_err().is_invalid_grant());
    let response = fixture.post(&Url::parse(&format!("{}/end_session", fixture.issuer)).unwrap(), &[]).await;
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn userinfo_accepts_own_tokens_only() {
    let fixture = BuiltinFixture::start().await;
    let other = BuiltinFixture::start().await;
    for token in ["x", &other.builtin.token("ada", None).unwrap()] {
        let response = fixture.userinfo(token).await;
        assert_eq!(response.status(), 401);
        assert!(response.headers()["www-authenticate"].to_str().unwrap().starts_with("Bearer error="));
    }
    let response = fixture.browser.get(format!("{}/userinfo", fixture.issuer)).send().await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["www-authenticate"]),
        (401, &"Bearer".parse().unwrap())
    );
}

/// Picks `ada` for the game client at a loopback redirect URI. Returns the redirect and the verifier.
async fn authorize_game(fixture: &BuiltinFixture, redirect_uri: &str) -> (Url, String) {
    let pkce = Pkce::generate();
    let url = changed(&fixture.authorize_url(&pkce).await, "client_id", Some(GAME_CLIENT));
    let url = changed(&url, "redirect_uri", Some(redirect_uri));
    assert_eq!(fixture.browser.get(url.clone()).send().await.unwrap().status(), 200, "{redirect_uri}");
    let response = fixture.post(&url, &[("pick", "ada")]).await;
    assert_eq!(response.status(), 303, "{redirect_uri}");
    (location(&response), pkce.verifier)
}

#[tokio::test]
async fn game_signs_in_through_a_loopback_redirect() {
    // The game client has no secret, even if the gateway has one.
    let config = oidc::Config { client_secret: Some(secret("hush")), ..config() };
    let fixture = BuiltinFixture::with(&config).await;
    let token_url = Url::parse(&format!("{}/token", fixture.issuer)).unwrap();
    for redirect_uri in ["http://127.0.0.1:53124/callback", "http://127.0.0.1:53125", "http://[::1]:53126/"] {
        let (back, verifier) = authorize_game(&fixture, redirect_uri).await;
        assert!(back.as_str().starts_with(redirect_uri), "{back}");
        let code = pairs(&back)["code"].clone();
        let fields = [
            ("grant_type", "authorization_code"),
            ("client_id", GAME_CLIENT),
            ("code", &code),
            ("code_verifier", &verifier),
            ("redirect_uri", redirect_uri),
        ];
        let response = fixture.post(&token_url, &fields).await;
        assert_eq!(response.status(), 200, "{redirect_uri}");
        let tokens: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
        let access = fixture.provider.verify_access(tokens["access_token"].as_str().unwrap()).await.unwrap();
        assert_eq!((access.subject.as_str(), access.client.as_deref()), ("ada", Some(GAME_CLIENT)));

        let refresh_token = tokens["refresh_token"].as_str().unwrap();
        let fields =
            [("grant_type", "refresh_token"), ("client_id", GAME_CLIENT), ("refresh_token", refresh_token)];
        assert_eq!(fixture.post(&token_url, &fields).await.status(), 200);
        let id_token = tokens["id_token"].as_str().unwrap();
        let refused = fixture.provider.verify_id_token(id_token, None).await;
        assert!(
            matches!(refused, Err(oidc::TokenError::WrongAudience)),
            "it is for the game, not the gateway"
        );
    }
}

#[tokio::test]
async fn page_policy_allows_the_game_redirect() {
    let fixture = BuiltinFixture::start().await;
    for (redirect_uri, source) in
        [("http://127.0.0.1:53124/", "http://127.0.0.1:53124"), ("http://[::1]:53124/", "http:")]
    {
        let url = changed(&fixture.authorize_url(&Pkce::generate()).await, "client_id", Some(GAME_CLIENT));
        let url = changed(&url, "redirect_uri", Some(redirect_uri));
        let response = fixture.browser.get(url).send().await.unwrap();
        let policy = response.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.contains(&format!("form-action 'self' {source};")), "{policy}");
    }
}

#[tokio::test]
async fn game_redirects_elsewhere_are_refused() {
    let fixture = BuiltinFixture::start().await;
    let url = changed(&fixture.authorize_url(&Pkce::generate()).await, "client_id", Some(GAME_CLIENT));
    for wrong in
        ["http://localhost:53124/", "https://127.0.0.1:53124/", "http://evil.example.org/", "game://x"]
    {
        let url = changed(&url, "redirect_uri", Some(wrong));
        let response = fixture.browser.get(url).send().await.unwrap();
        assert_eq!(response.status(), 400, "{wrong}");
        assert!(response.text().await.unwrap().contains("redirect_uri must be a URL on http://127.0.0.1"));
    }
    let without_pkce = changed(&url, "redirect_uri", Some("http://127.0.0.1:53124/"));
    let without_pkce = changed(&without_pkce, "code_challenge", None);
    let response = fixture.browser.get(without_pkce).send().await.unwrap();
    assert_eq!(pairs(&location(&response))["error"], "invalid_request", "PKCE is required");
}

#[tokio::test]
async fn code_of_the_game_is_worthless_to_another_client() {
    let fixture = BuiltinFixture::start().await;
    let redirect_uri = "http://127.0.0.1:53124/callback";
    let (back, verifier) = authorize_game(&fixture, redirect_uri).await;
    let code = pairs(&back)["code"].clone();
    let redeemed = fixture.provider.redeem(&code, &verifier, &Url::parse(redirect_uri).unwrap()).await;
    assert!(redeemed.unwrap_err().is_invalid_grant());
    let tokens = fixture.sign_in("ada").await;
    let token_url = Url::parse(&format!("{}/token", fixture.issuer)).unwrap();
    let refresh_token = tokens.refresh_token.as_ref().unwrap().expose();
    let fields =
        [("grant_type", "refresh_token"), ("client_id", GAME_CLIENT), ("refresh_token", refresh_token)];
    assert_eq!(fixture.post(&token_url, &fields).await.status(), 400);
}
