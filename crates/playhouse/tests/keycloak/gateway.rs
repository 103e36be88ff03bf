//! `playhouse serve` with Keycloak as its issuer, a real browser, and changes by an administrator of Keycloak.

use std::collections::HashMap;

use futures::future::join_all;
use reqwest::Method;
use testkit::{Folder, Program, RunningProgram, eventually};
use tokio::time::{Instant, sleep_until};

use super::test_client::{self, TestClient};
use super::*;

/// The lifetime of access tokens while refreshes are tested. Keycloak counts in whole seconds.
const ACCESS: Duration = Duration::from_secs(2);
/// How many requests of one player are sent concurrently.
const CONCURRENT: usize = 100;
/// How soon the gateway must know about a back-channel logout.
const LOGOUT_DEADLINE: Duration = Duration::from_secs(1);

/// A running gateway, and a client for it.
struct Gateway {
    url: String,
    service_api: String,
    http: reqwest::Client,
    _running: RunningProgram,
    _folder: Folder,
}

pub(super) async fn works(keycloak: &mut Keycloak, browser: &Browser) {
    let gateway = Gateway::serve(keycloak).await;
    browser.delete_all_cookies().await;
    game_client_signs_in_with_a_token(&gateway, keycloak, browser).await;
    roles_of_a_service_give_it_rights(&gateway, keycloak).await;

    keycloak.set_gateway_url(&gateway.url).await;
    set_access_life(keycloak, ACCESS).await;
    players_sign_in_and_get_their_roles(&gateway, browser).await;
    refresh_brings_a_role_that_was_added_later(keycloak, browser).await;
    concurrent_requests_redeem_a_refresh_token_once(&gateway, keycloak, browser).await;
    key_rotation_does_not_interrupt_sessions(&gateway, keycloak, browser).await;
    sign_out_ends_the_session_at_keycloak(&gateway, keycloak, browser).await;
    logout_at_keycloak_ends_the_session(&gateway, keycloak, browser).await;
    sessions_work_while_keycloak_is_down(&gateway, keycloak, browser).await;
}

async fn game_client_signs_in_with_a_token(gateway: &Gateway, keycloak: &Keycloak, browser: &Browser) {
    let client = TestClient::serve().await;
    keycloak.set_gateway_url(&client.url).await;
    let tokens = test_client::sign_in(browser, keycloak, &client, "bob", Keycloak::PASSWORD).await;
    let (status, me) = gateway.get("/v1/me", text(&tokens["access_token"])).await;
    assert_eq!((status, &me["display_name"]), (StatusCode::OK, &json!("Bob Example")), "{me}");
    assert_eq!(me["roles"], json!(["player"]));
    // Other kinds of tokens are refused.
    for kind in ["id_token", "refresh_token"] {
        assert_eq!(gateway.get("/v1/me", text(&tokens[kind])).await.0, StatusCode::UNAUTHORIZED, "{kind}");
    }
    browser.delete_all_cookies().await;
}

async fn roles_of_a_service_give_it_rights(gateway: &Gateway, keycloak: &Keycloak) {
    let token = service_token(keycloak).await;
    let (status, me) = gateway.get("/v1/me", text(&token)).await;
    assert_eq!((status, &me["roles"]), (StatusCode::OK, &json!(["service"])), "{me}");
    assert_eq!(gateway.get("/v1/home", text(&token)).await.0, StatusCode::FORBIDDEN);

    let bob =
        text(&keycloak.admin(Method::GET, "users?exact=true&username=bob", None).await[0]["id"]).to_owned();
    let query = [("issuer", keycloak.issuer()), ("subject", bob)];
    let users = Url::parse_with_params(&format!("{}/users", gateway.service_api), &query).unwrap();
    let (status, found) = gateway.send(Method::GET, users.as_str(), text(&token), None).await;
    assert_eq!(status, StatusCode::OK, "{found}");
    let ban = format!("{}/users/{}/ban", gateway.service_api, text(&found["user_id"]));
    let (status, problem) =
        gateway.send(Method::POST, &ban, text(&token), Some(json!({ "reason": "for a test" }))).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{problem}");
}

async fn players_sign_in_and_get_their_roles(gateway: &Gateway, browser: &Browser) {
    gateway.sign_in(browser, "root-eve").await;
    browser.wait_for_text("#name", "Eve Example", DEADLINE).await;
    assert_eq!(
        browser.url().await,
        format!("{}/", gateway.url),
        "neither the code nor the state stays in the address"
    );
    assert_eq!(me(browser).await["roles"], json!(["player", "operator"]));

    // Another user signs in with the same browser.
    browser.delete_all_cookies().await;
    gateway.sign_in(browser, "ada").await;
    browser.wait_for_text("#name", "Ada Example", DEADLINE).await;
    let me = me(browser).await;
    assert_eq!(me["roles"], json!(["player"]));
    assert!(!me.to_string().contains("eyJ"), "no token reaches the browser: {me}");
}

async fn refresh_brings_a_role_that_was_added_later(keycloak: &Keycloak, browser: &Browser) {
    keycloak.assign_role("ada", "playhouse-operator").await;
    eventually("the role of an operator", DEADLINE, async || {
        (me(browser).await["roles"] == json!(["player", "operator"])).then_some(())
    })
    .await;
}

async fn concurrent_requests_redeem_a_refresh_token_once(
    gateway: &Gateway,
    keycloak: &Keycloak,
    browser: &Browser,
) {
    let cookie = session_cookie(browser).await;
    // Leaves the page, because it would refresh the session in between.
    browser.goto("about:blank").await;
    for _ in 0..3 {
        let (status, _) = gateway.me_by_cookie(&cookie).await;
        assert_eq!(status, StatusCode::OK);
        // A plain sleep: the token must expire.
        sleep_until(Instant::now() + ACCESS).await;
        let before = refreshes(keycloak).await;
        let responses = join_all((0..CONCURRENT).map(|_| gateway.me_by_cookie(&cookie))).await;
        assert!(responses.iter().all(|(status, _)| *status == StatusCode::OK), "{responses:?}");
        assert!(refreshes(keycloak).await > before);
    }
    // Keycloak records this error when a rotated token is used a second time.
    assert_eq!(events(keycloak, "REFRESH_TOKEN_ERROR").await, 0);
    browser.goto(&gateway.url).await;
}

async fn key_rotation_does_not_interrupt_sessions(gateway: &Gateway, keycloak: &Keycloak, browser: &Browser) {
    set_access_life(keycloak, 30 * ACCESS).await;
    let old = service_token(keycloak).await;
    set_access_life(keycloak, ACCESS).await;
    assert_eq!(gateway.get("/v1/me", text(&old)).await.0, StatusCode::OK);
    keycloak.rotate_keys().await;
    let new = service_token(keycloak).await;
    assert_ne!(part(&new, 0)["kid"], part(&old, 0)["kid"]);
    for (token, which) in [(&new, "new"), (&old, "old")] {
        assert_eq!(gateway.get("/v1/me", text(token)).await.0, StatusCode::OK, "{which}");
    }
    let before = refreshes(keycloak).await;
    eventually("a refresh with the new key", DEADLINE, async || {
        me(browser).await;
        (refreshes(keycloak).await > before).then_some(())
    })
    .await;
    keycloak.retire_keys().await;
    me(browser).await;
}

async fn sign_out_ends_the_session_at_keycloak(gateway: &Gateway, keycloak: &Keycloak, browser: &Browser) {
    let cookie = session_cookie(browser).await;
    browser.goto(&gateway.url).await;
    browser.wait_for_text("#name", "Ada Example", DEADLINE).await;
    browser.click("#logout").await;
    // Keycloak asks for no confirmation and redirects back.
    browser.wait_for("#signed-out:not([hidden])", DEADLINE).await;
    assert_eq!(browser.url().await, format!("{}/", gateway.url));
    assert_eq!(gateway.me_by_cookie(&cookie).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(keycloak.sessions_of("ada").await, 0);
    browser.goto(format!("{}/login", gateway.url)).await;
    browser.wait_for("#password", DEADLINE).await;
}

async fn logout_at_keycloak_ends_the_session(gateway: &Gateway, keycloak: &Keycloak, browser: &Browser) {
    // Long enough that no refresh discovers the end of the session.
    set_access_life(keycloak, DEADLINE * 5).await;
    // A user with one session: if there are several, the logout token of Keycloak names any one of them.
    gateway.sign_in(browser, "ada").await;
    browser.wait_for_text("#name", "Ada Example", DEADLINE).await;
    let cookie = session_cookie(browser).await;
    assert_eq!(keycloak.sessions_of("ada").await, 1);
    keycloak.log_out("ada").await;
    eventually("the session has ended", LOGOUT_DEADLINE, async || {
        (gateway.me_by_cookie(&cookie).await.0 == StatusCode::UNAUTHORIZED).then_some(())
    })
    .await;
    browser.goto(&gateway.url).await;
    browser.wait_for("#signed-out:not([hidden])", DEADLINE).await;
}

async fn sessions_work_while_keycloak_is_down(gateway: &Gateway, keycloak: &mut Keycloak, browser: &Browser) {
    set_access_life(keycloak, ACCESS).await;
    gateway.sign_in(browser, "root-eve").await;
    browser.wait_for_text("#name", "Eve Example", DEADLINE).await;
    let (signer, refreshed) =
        (part(&service_token(keycloak).await, 0)["kid"].clone(), refreshes(keycloak).await);
    keycloak.kill().await.unwrap();
    sleep_until(Instant::now() + ACCESS).await;
    me(browser).await;
    keycloak.start_again().await.unwrap();
    assert_eq!(part(&service_token(keycloak).await, 0)["kid"], signer, "a restart keeps the keys");
    eventually("a refresh", DEADLINE, async || {
        me(browser).await;
        (refreshes(keycloak).await > refreshed).then_some(())
    })
    .await;
}

impl Gateway {
    async fn serve(keycloak: &Keycloak) -> Self {
        let folder = Folder::fresh().unwrap();
        let settings = [
            ["listen.gateway", "127.0.0.1:0"],
            ["listen.service_api", "127.0.0.1:0"],
            ["listen.admin", "127.0.0.1:0"],
            ["listen.open_match", "127.0.0.1:0"],
            ["gateway.limits.address", "10000/s burst 10000"],
            ["gateway.limits.read", "10000/s burst 10000"],
        ];
        let settings =
            settings.iter().flat_map(|[key, value]| ["--set".to_owned(), format!("{key}={value}")]);
        let program = Program::new(env!("CARGO_BIN_EXE_playhouse"))
            .args(["serve", "--print-addresses"])
            .args(settings)
            .env("PLAYHOUSE_DB_URL", format!("sqlite:{}", folder.path().join("play.db").display()))
            .env("PLAYHOUSE_DB_MIGRATE", "true")
            .env("PLAYHOUSE_IDENTITY_ISSUER", keycloak.issuer())
            .env("PLAYHOUSE_IDENTITY_CLIENT_SECRET", &keycloak.settings().client_secret);
        let running = program.start().unwrap();
        let line = running.wait_for_line("\"admin\":", DEADLINE).await;
        let addresses: HashMap<String, String> = serde_json::from_str(&line).unwrap();
        Self {
            url: format!("http://{}", addresses["gateway"]),
            service_api: format!("http://{}/internal/v1", addresses["service_api"]),
            http: reqwest::Client::new(),
            _running: running,
            _folder: folder,
        }
    }

    async fn sign_in(&self, browser: &Browser, name: &str) {
        browser.goto(format!("{}/login", self.url)).await;
        submit_sign_in(browser, name, Keycloak::PASSWORD).await;
    }

    async fn get(&self, path: &str, token: &str) -> (StatusCode, Value) {
        self.send(Method::GET, &format!("{}{path}", self.url), token, None).await
    }

    async fn send(&self, method: Method, url: &str, token: &str, body: Option<Value>) -> (StatusCode, Value) {
        let request = self.http.request(method, url).bearer_auth(token);
        let request = if let Some(body) = body { request.json(&body) } else { request };
        let response = request.send().await.unwrap();
        (response.status(), response.json().await.unwrap())
    }

    /// Reads the signed-in user with a session cookie.
    async fn me_by_cookie(&self, cookie: &str) -> (StatusCode, Value) {
        let response =
            self.http.get(format!("{}/v1/me", self.url)).header("cookie", cookie).send().await.unwrap();
        (response.status(), response.json().await.unwrap())
    }
}

/// Reads the signed-in user with a script of the page.
async fn me(browser: &Browser) -> Value {
    let js = "const response = await fetch('/v1/me'); return [response.status, await response.json()];";
    let response = browser.script_async(js).await;
    assert_eq!(response[0], 200, "{response}");
    response[1].clone()
}

async fn session_cookie(browser: &Browser) -> String {
    let cookies = browser.cookies().await;
    let session = cookies.iter().find(|cookie| cookie.name == "playhouse").unwrap();
    format!("playhouse={}", session.value)
}

/// Sets the lifetime of access tokens. Also makes Keycloak record refreshes.
async fn set_access_life(keycloak: &Keycloak, life: Duration) {
    let realm = json!({
        "accessTokenLifespan": life.as_secs(),
        "eventsEnabled": true,
        "enabledEventTypes": ["REFRESH_TOKEN", "REFRESH_TOKEN_ERROR"],
    });
    keycloak.admin(Method::PUT, "", Some(realm)).await;
}

async fn refreshes(keycloak: &Keycloak) -> usize {
    events(keycloak, "REFRESH_TOKEN").await
}

/// Returns how many events of this kind Keycloak has recorded.
async fn events(keycloak: &Keycloak, kind: &str) -> usize {
    let found = keycloak.admin(Method::GET, &format!("events?type={kind}&max=1000"), None).await;
    found.as_array().map_or(0, Vec::len)
}
