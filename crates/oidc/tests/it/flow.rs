//! Complete sign-ins at the builtin issuer on a real socket, and their failures.

use std::collections::HashMap;
use std::time::Duration;

use axum::Router;
use base::Clock;
use oidc::builtin::Builtin;
use oidc::{AuthorizationRequest, Config, Error, Pkce, Provider, Tokens};
use reqwest::redirect::Policy;
use tokio::net::TcpListener;
use url::{Url, form_urlencoded};

use crate::{NOW, config, provider, secret};

/// The builtin issuer, a provider for it, and a browser.
pub(crate) struct BuiltinFixture {
    pub(crate) builtin: Builtin,
    pub(crate) provider: Provider,
    pub(crate) clock: Clock,
    pub(crate) issuer: Url,
    pub(crate) redirect_uri: Url,
    pub(crate) browser: reqwest::Client,
}

impl BuiltinFixture {
    pub(crate) async fn start() -> Self {
        Self::with(&config()).await
    }

    pub(crate) async fn with(config: &Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let public = Url::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let issuer = public.join("issuer").unwrap();
        let clock = Clock::manual(NOW);
        let builtin = Builtin::new(config, issuer.clone(), vec![public.clone()], clock.clone()).unwrap();
        let app = Router::new().nest("/issuer", builtin.routes());
        tokio::spawn(async move { axum::serve(listener, app).await });
        let browser = reqwest::Client::builder().redirect(Policy::none()).no_proxy().build().unwrap();
        let redirect_uri = public.join("login/callback").unwrap();
        Self { provider: provider(config, &issuer, &clock), builtin, clock, issuer, redirect_uri, browser }
    }

    pub(crate) async fn authorize_url(&self, pkce: &Pkce) -> Url {
        let request = AuthorizationRequest {
            redirect_uri: &self.redirect_uri,
            state: "state-1",
            nonce: "nonce-1",
            challenge: &pkce.challenge,
        };
        self.provider.authorize_url(&request).await.unwrap()
    }

    pub(crate) async fn post(&self, url: &Url, fields: &[(&str, &str)]) -> reqwest::Response {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self.browser.post(url.clone()).body(body);
        request.header("content-type", "application/x-www-form-urlencoded").send().await.unwrap()
    }

    /// Picks a user on the page. Returns the code.
    pub(crate) async fn pick(&self, pkce: &Pkce, fields: &[(&str, &str)]) -> String {
        let response = self.post(&self.authorize_url(pkce).await, fields).await;
        assert_eq!(response.status(), 303, "{}", response.text().await.unwrap());
        let back = location(&response);
        assert!(back.as_str().starts_with(self.redirect_uri.as_str()));
        let pairs = pairs(&back);
        assert_eq!(pairs["state"], "state-1");
        assert_eq!(pairs["iss"], self.issuer.as_str());
        pairs["code"].clone()
    }

    pub(crate) async fn sign_in(&self, user: &str) -> Tokens {
        let pkce = Pkce::generate();
        let code = self.pick(&pkce, &[("user", user)]).await;
        self.provider.redeem(&code, &pkce.verifier, &self.redirect_uri).await.unwrap()
    }

    pub(crate) async fn userinfo(&self, token: &str) -> reqwest::Response {
        let request = self.browser.get(format!("{}/userinfo", self.issuer));
        request.header("authorization", format!("Bearer {token}")).send().await.unwrap()
    }

    async fn is_spent(&self, refresh_token: &str) -> bool {
        self.provider.refresh(refresh_token).await.unwrap_err().is_invalid_grant()
    }
}

pub(crate) fn location(response: &reqwest::Response) -> Url {
    Url::parse(response.headers()["location"].to_str().unwrap()).unwrap()
}

pub(crate) fn pairs(url: &Url) -> HashMap<String, String> {
    url.query_pairs().into_owned().collect()
}

fn refresh_token(tokens: &Tokens) -> &str {
    tokens.refresh_token.as_ref().unwrap().expose()
}

#[tokio::test]
async fn user_signs_in() {
    let fixture = BuiltinFixture::start().await;
    let pkce = Pkce::generate();
    let code = fixture.pick(&pkce, &[("pick", "ada"), ("user", ""), ("role", "operator")]).await;
    assert!(fixture.provider.is_response_of_issuer(Some(fixture.issuer.as_str())).await.unwrap());
    let tokens = fixture.provider.redeem(&code, &pkce.verifier, &fixture.redirect_uri).await.unwrap();
    assert_eq!(tokens.expires_at, NOW.after(Duration::from_secs(300)));

    let id_token = tokens.id_token.as_ref().unwrap().expose();
    let id = fixture.provider.verify_id_token(id_token, Some("nonce-1")).await.unwrap();
    assert_eq!((id.subject.as_str(), id.name.as_deref()), ("ada", Some("Ada Lovelace")));
    assert_eq!(id.auth_time, Some(NOW));

    let access = fixture.provider.verify_access(tokens.access_token.expose()).await.unwrap();
    assert_eq!(access.subject, "ada");
    assert_eq!(access.client.as_deref(), Some("playhouse"));
    assert!(access.is_operator);
    assert!(access.sid.is_some() && access.sid == id.sid);
    assert!(fixture.provider.verify_access(id_token).await.is_err(), "an ID token is no access token");
    assert!(fixture.provider.verify_id_token(tokens.access_token.expose(), None).await.is_err());

    let user: serde_json::Value = {
        let response = fixture.userinfo(tokens.access_token.expose()).await;
        serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
    };
    assert_eq!((user["sub"].as_str(), user["name"].as_str()), (Some("ada"), Some("Ada Lovelace")));
}

#[tokio::test]
async fn refresh_extends_the_session() {
    let fixture = BuiltinFixture::start().await;
    let first = fixture.sign_in("grace").await;
    fixture.clock.advance(Duration::from_secs(11 * 3600));
    let second = fixture.provider.refresh(refresh_token(&first)).await.unwrap();
    let access = fixture.provider.verify_access(second.access_token.expose()).await.unwrap();
    assert_eq!(access.subject, "grace");
    let id_token = second.id_token.as_ref().unwrap().expose();
    let id = fixture.provider.verify_id_token(id_token, None).await.unwrap();
    assert_eq!(id.sid, access.sid, "the same session");
    assert_eq!(id.auth_time, Some(NOW), "the user authenticated only once");
    // It expires twelve hours after the last refresh.
    fixture.clock.advance(Duration::from_secs(11 * 3600));
    let third = fixture.provider.refresh(refresh_token(&second)).await.unwrap();
    fixture.clock.advance(Duration::from_secs(12 * 3600));
    assert!(fixture.is_spent(refresh_token(&third)).await);
}

#[tokio::test]
async fn reused_refresh_token_ends_the_session() {
    let fixture = BuiltinFixture::start().await;
    let first = fixture.sign_in("ada").await;
    let bystander = fixture.sign_in("ada").await;
    let second = fixture.provider.refresh(refresh_token(&first)).await.unwrap();
    assert_eq!(fixture.userinfo(second.access_token.expose()).await.status(), 200);
    assert!(fixture.is_spent(refresh_token(&first)).await);
    assert!(fixture.is_spent(refresh_token(&second)).await, "the newer token is void too");
    assert_eq!(fixture.userinfo(second.access_token.expose()).await.status(), 401);
    assert!(fixture.provider.refresh(refresh_token(&bystander)).await.is_ok(), "another session");
}

#[tokio::test]
async fn revocation_ends_the_session() {
    let fixture = BuiltinFixture::start().await;
    let tokens = fixture.sign_in("ada").await;
    fixture.provider.revoke(refresh_token(&tokens)).await.unwrap();
    assert!(fixture.is_spent(refresh_token(&tokens)).await);
    assert_eq!(fixture.userinfo(tokens.access_token.expose()).await.status(), 401);
    fixture.provider.revoke("no such token").await.unwrap();
}

#[tokio::test]
async fn code_is_valid_once_and_for_a_minute() {
    let fixture = BuiltinFixture::start().await;
    let pkce = Pkce::generate();
    let code = fixture.pick(&pkce, &[("user", "ada")]).await;
    let redeem =
        async |code: &str| fixture.provider.redeem(code, &pkce.verifier, &fixture.redirect_uri).await;
    let tokens = redeem(&code).await.unwrap();
    assert!(redeem(&code).await.unwrap_err().is_invalid_grant());
    assert!(fixture.is_spent(refresh_token(&tokens)).await, "its tokens are void");
    assert!(redeem("made-up").await.unwrap_err().is_invalid_grant());

    let late = fixture.pick(&pkce, &[("user", "ada")]).await;
    fixture.clock.advance(Duration::from_secs(60));
    assert!(redeem(&late).await.unwrap_err().is_invalid_grant());
}

#[tokio::test]
async fn code_is_bound_to_verifier_and_redirect_uri() {
    let fixture = BuiltinFixture::start().await;
    let pkce = Pkce::generate();
    let code = fixture.pick(&pkce, &[("user", "ada")]).await;
    let thief = fixture.provider.redeem(&code, &Pkce::generate().verifier, &fixture.redirect_uri).await;
    assert!(thief.unwrap_err().is_invalid_grant());
    let owner = fixture.provider.redeem(&code, &pkce.verifier, &fixture.redirect_uri).await;
    assert!(owner.unwrap_err().is_invalid_grant(), "the code is spent");

    let code = fixture.pick(&pkce, &[("user", "ada")]).await;
    let elsewhere = fixture.redirect_uri.join("elsewhere").unwrap();
    let result = fixture.provider.redeem(&code, &pkce.verifier, &elsewhere).await;
    assert!(result.unwrap_err().is_invalid_grant());
}

#[tokio::test]
async fn client_secret_is_required_if_configured() {
    let right = Config { client_secret: Some(secret("hu:sh +")), ..config() };
    let fixture = BuiltinFixture::with(&right).await;
    assert!(fixture.provider.refresh("made-up").await.unwrap_err().is_invalid_grant());
    fixture.sign_in("ada").await;
    for wrong in [
        Config { client_secret: Some(secret("other")), ..right.clone() },
        Config { client_secret: None, ..right.clone() },
        Config { client_id: "other".to_owned(), ..right.clone() },
    ] {
        let error = provider(&wrong, &fixture.issuer, &fixture.clock).refresh("made-up").await.unwrap_err();
        assert!(matches!(&error, Error::Rejected { error, .. } if error == "invalid_client"), "{error:?}");
    }
}

#[tokio::test]
async fn scripts_get_tokens_without_a_browser() {
    let fixture = BuiltinFixture::start().await;
    let access = async |user: &str, roles: Option<&str>| {
        fixture.provider.verify_access(&fixture.builtin.token(user, roles).unwrap()).await.unwrap()
    };
    let player = access("bot-1", None).await;
    assert_eq!((player.subject.as_str(), player.roles.len(), player.sid.as_ref()), ("bot-1", 0, None));
    assert_eq!(player.expires_at, NOW.after(Duration::from_secs(3600)));
    assert!(access("ada", Some("operator")).await.is_operator);
    let service = access("shop", Some("service playhouse-may-entitlements")).await;
    assert!(service.is_service);
    assert_eq!(service.rights, ["entitlements"]);
    assert_eq!(fixture.userinfo(&fixture.builtin.token("ada", None).unwrap()).await.status(), 200);
    assert!(fixture.builtin.token("no name", None).is_err());
}

#[tokio::test]
async fn key_rotation_keeps_old_tokens_valid() {
    let fixture = BuiltinFixture::start().await;
    let before = fixture.builtin.token("ada", None).unwrap();
    fixture.provider.verify_access(&before).await.unwrap();
    fixture.builtin.rotate_keys().unwrap();
    fixture.clock.advance(Duration::from_secs(10));
    let after = fixture.builtin.token("grace", None).unwrap();
    assert_eq!(fixture.provider.verify_access(&after).await.unwrap().subject, "grace");
    assert!(fixture.provider.cached(&before).is_some(), "the old key is still published");
    // It is withdrawn when all of its tokens have expired.
    fixture.clock.advance(Duration::from_secs(3600));
    let keys = fixture.browser.get(format!("{}/jwks", fixture.issuer)).send().await.unwrap();
    let keys: serde_json::Value = serde_json::from_slice(&keys.bytes().await.unwrap()).unwrap();
    assert_eq!(keys["keys"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn claims_are_placed_at_the_configured_paths() {
    for (roles_claim, name_claim) in [("https://games.example.org/roles", "nickname"), ("a.b.c", "a.name")] {
        let config = Config {
            roles_claim: roles_claim.to_owned(),
            name_claim: name_claim.to_owned(),
            audiences: vec!["games".to_owned(), "playhouse".to_owned()],
            ..config()
        };
        let fixture = BuiltinFixture::with(&config).await;
        let token = fixture.builtin.token("ada", Some("operator")).unwrap();
        let access = fixture.provider.verify_access(&token).await.unwrap();
        assert!(access.is_operator, "{roles_claim}");
        assert_eq!(access.name.as_deref(), Some("Ada Lovelace"));
    }
}
