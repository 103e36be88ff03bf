//! Sign-in of a game client at the builtin issuer.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::redirect::Policy;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use url::Url;

const CLIENT_ID: &str = "playhouse-game";
const REDIRECT: &str = "http://127.0.0.1:1/callback";
const VERIFIER: &str = "a-verifier-of-at-least-forty-three-characters";

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Tokens {
    pub(super) access_token: String,
    pub(super) refresh_token: String,
}

/// Signs a user in by authorization code with PKCE, as a game does.
pub(super) async fn tokens(gateway: &str, user: &str) -> Tokens {
    let client = reqwest::Client::builder().redirect(Policy::none()).build().unwrap();
    let document =
        client.get(format!("{gateway}/issuer/.well-known/openid-configuration")).send().await.unwrap();
    let document: Value = document.json().await.unwrap();
    let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(VERIFIER));
    let parameters = [
        ("response_type", "code"),
        ("client_id", CLIENT_ID),
        ("redirect_uri", REDIRECT),
        ("scope", "openid profile"),
        ("state", "s"),
        ("code_challenge", &challenge),
        ("code_challenge_method", "S256"),
    ];
    let page_url =
        Url::parse_with_params(document["authorization_endpoint"].as_str().unwrap(), parameters).unwrap();
    let page = client.get(page_url.clone()).send().await.unwrap().text().await.unwrap();
    let (_, form) = page.split_once("action=\"").unwrap_or_else(|| panic!("{page}"));
    let action = form.split('"').next().unwrap().replace("&amp;", "&").replace("&#39;", "'");
    let chosen =
        send_form(&client, page_url.join(&action).unwrap(), &[("user", user), ("role", "player")]).await;
    let callback = Url::parse(chosen.headers()["location"].to_str().unwrap()).unwrap();
    let code = callback.query_pairs().find(|(name, _)| name == "code").unwrap().1.into_owned();
    let exchange = [
        ("grant_type", "authorization_code"),
        ("client_id", CLIENT_ID),
        ("code", &code),
        ("code_verifier", VERIFIER),
        ("redirect_uri", REDIRECT),
    ];
    let endpoint = Url::parse(document["token_endpoint"].as_str().unwrap()).unwrap();
    send_form(&client, endpoint, &exchange).await.json().await.unwrap()
}

async fn send_form(client: &reqwest::Client, url: Url, fields: &[(&str, &str)]) -> reqwest::Response {
    let body = Url::parse_with_params("http://form", fields).unwrap().query().unwrap().to_owned();
    let request = client.post(url).header("content-type", "application/x-www-form-urlencoded").body(body);
    request.send().await.unwrap()
}
