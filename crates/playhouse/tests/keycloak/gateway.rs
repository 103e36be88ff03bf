//! The gateway in front of Keycloak: `playhouse serve` as it is, a real browser, and an administrator who interferes.

use std::collections::HashMap;

use futures::future::join_all;
use reqwest::Method;
use testkit::{Folder, Program, Running, eventually};
use tokio::time::{Instant, sleep_until};

use super::stand_in::{self, Client};
use super::*;

/// How long access tokens live while we look at refreshes: Keycloak counts in seconds.
const ACCESS: Duration = Duration::from_secs(2);
/// How many requests of one player arrive together.
const RUSH: usize = 100;
/// What the administrator did is known to the gateway by then.
const SOON: Duration = Duration::from_secs(1);

/// A gateway that runs, and who talks to it.
struct Gateway {
    url: String,
    internal: String,
    http: reqwest::Client,
    _running: Running,
    _folder: Folder,
}

pub(super) async fn works(keycloak: &mut Keycloak, browser: &Browser) {
    let gateway = Gateway::serve(keycloak).await;
    browser.delete_all_cookies().await;
    game_clients_come_with_a_token(&gateway, keycloak, browser).await;
    services_may_do_what_their_roles_say(&gateway, keycloak).await;

    keycloak.set_gateway_url(&gateway.url).await;
    set_access_life(keycloak, ACCESS).await;
    players_sign_in_and_have_their_roles(&gateway, browser).await;
    a_role_given_later_arrives_with_a_refresh(keycloak, browser).await;
    a_rush_on_an_expired_token_redeems_it_once(&gateway, keycloak, browser).await;
    keys_change_and_nobody_notices(&gateway, keycloak, browser).await;
    signing_out_here_signs_out_there(&gateway, keycloak, browser).await;
    what_ends_there_ends_here(&gateway, keycloak, browser).await;
    while_keycloak_is_away_players_go_on(&gateway, keycloak, browser).await;
}

async fn game_clients_come_with_a_token(gateway: &Gateway, keycloak: &Keycloak, browser: &Browser) {
    let client = Client::serve().await;
    keycloak.set_gateway_url(&client.url).await;
    let tokens = stand_in::sign_in(browser, keycloak, &client, "bob", Keycloak::PASSWORD).await;
    let (status, me) = gateway.ask("/v1/me", text(&tokens["access_token"])).await;
    assert_eq!((status, &me["display_name"]), (StatusCode::OK, &json!("Bob Example")), "{me}");
    assert_eq!(me["roles"], json!(["player"]));
    // The other tokens open nothing.
    for kind in ["id_token", "refresh_token"] {
        assert_eq!(gateway.ask("/v1/me", text(&tokens[kind])).await.0, StatusCode::UNAUTHORIZED, "{kind}");
    }
    browser.delete_all_cookies().await;
}

async fn services_may_do_what_their_roles_say(gateway: &Gateway, keycloak: &Keycloak) {
    let token = service_token(keycloak).await;
    let (status, me) = gateway.ask("/v1/me", text(&token)).await;
    assert_eq!((status, &me["roles"]), (StatusCode::OK, &json!(["service"])), "{me}");
    assert_eq!(gateway.ask("/v1/home", text(&token)).await.0, StatusCode::FORBIDDEN);

    let bob =
        text(&keycloak.admin(Method::GET, "users?exact=true&username=bob", None).await[0]["id"]).to_owned();
    let query = [("issuer", keycloak.issuer()), ("subject", bob)];
    let users = Url::parse_with_params(&format!("{}/users", gateway.internal), &query).unwrap();
    let (status, found) = gateway.send(Method::GET, users.as_str(), text(&token), None).await;
    assert_eq!(status, StatusCode::OK, "{found}");
    let ban = format!("{}/users/{}/ban", gateway.internal, text(&found["user_id"]));
    let (status, problem) =
        gateway.send(Method::POST, &ban, text(&token), Some(json!({ "reason": "for a test" }))).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{problem}");
}

async fn players_sign_in_and_have_their_roles(gateway: &Gateway, browser: &Browser) {
    gateway.sign_in(browser, "root-eve").await;
    browser.wait_for_text("#name", "Eve Example", DEADLINE).await;
    assert_eq!(
        browser.url().await,
        format!("{}/", gateway.url),
        "neither code nor state stay in the address"
    );
    assert_eq!(me(browser).await["roles"], json!(["player", "operator"]));

    // Who changes places with somebody else in the same browser.
    browser.delete_all_cookies().await;
    gateway.sign_in(browser, "ada").await;
    browser.wait_for_text("#name", "Ada Example", DEADLINE).await;
    let me = me(browser).await;
    assert_eq!(me["roles"], json!(["player"]));
    assert!(!me.to_string().contains("eyJ"), "no token reaches the browser: {me}");
}

async fn a_role_given_later_arrives_with_a_refresh(keycloak: &Keycloak, browser: &Browser) {
    keycloak.assign_role("ada", "playhouse-operator").await;
    eventually("the role of an operator", DEADLINE, async || {
        (me(browser).await["roles"] == json!(["player", "operator"])).then_some(())
    })
    .await;
}

async fn a_rush_on_an_expired_token_redeems_it_once(
    gateway: &Gateway,
    keycloak: &Keycloak,
    browser: &Browser,
) {
    let cookie = session_cookie(browser).await;
    // The page itself would refresh in between.
    browser.goto("about:blank").await;
    for _ in 0..3 {
        let (status, _) = gateway.with_cookie(&cookie).await;
        assert_eq!(status, StatusCode::OK);
        // No hope: what it waits for is the time that Keycloak gave the token.
        sleep_until(Instant::now() + ACCESS).await;
        let before = refreshes(keycloak).await;
        let answers = join_all((0..RUSH).map(|_| gateway.with_cookie(&cookie))).await;
        assert!(answers.iter().all(|(status, _)| *status == StatusCode::OK), "{answers:?}");
        assert!(refreshes(keycloak).await > before);
    }
    // It is what a rotated token that comes a second time would be.
    assert_eq!(events(keycloak, "REFRESH_TOKEN_ERROR").await, 0);
    browser.goto(&gateway.url).await;
}

async fn keys_change_and_nobody_notices(gateway: &Gateway, keycloak: &Keycloak, browser: &Browser) {
    set_access_life(keycloak, 30 * ACCESS).await;
    let old = service_token(keycloak).await;
    set_access_life(keycloak, ACCESS).await;
    assert_eq!(gateway.ask("/v1/me", text(&old)).await.0, StatusCode::OK);
    keycloak.rotate_keys().await;
    let new = service_token(keycloak).await;
    assert_ne!(part(&new, 0)["kid"], part(&old, 0)["kid"]);
    for (token, which) in [(&new, "new"), (&old, "old")] {
        assert_eq!(gateway.ask("/v1/me", text(token)).await.0, StatusCode::OK, "{which}");
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

async fn signing_out_here_signs_out_there(gateway: &Gateway, keycloak: &Keycloak, browser: &Browser) {
    let cookie = session_cookie(browser).await;
    browser.goto(&gateway.url).await;
    browser.wait_for_text("#name", "Ada Example", DEADLINE).await;
    browser.click("#logout").await;
    // Nothing more is asked: not whether they mean it, and not where to go then.
    browser.wait_for("#nobody:not([hidden])", DEADLINE).await;
    assert_eq!(browser.url().await, format!("{}/", gateway.url));
    assert_eq!(gateway.with_cookie(&cookie).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(keycloak.sessions_of("ada").await, 0);
    browser.goto(format!("{}/login", gateway.url)).await;
    browser.wait_for("#password", DEADLINE).await;
}

async fn what_ends_there_ends_here(gateway: &Gateway, keycloak: &Keycloak, browser: &Browser) {
    // So long that it is no refresh that notices.
    set_access_life(keycloak, DEADLINE * 5).await;
    // Somebody with one session: of several, Keycloak names any one when it logs a user out.
    gateway.sign_in(browser, "ada").await;
    browser.wait_for_text("#name", "Ada Example", DEADLINE).await;
    let cookie = session_cookie(browser).await;
    assert_eq!(keycloak.sessions_of("ada").await, 1);
    keycloak.log_out("ada").await;
    eventually("the end of the session", SOON, async || {
        (gateway.with_cookie(&cookie).await.0 == StatusCode::UNAUTHORIZED).then_some(())
    })
    .await;
    browser.goto(&gateway.url).await;
    browser.wait_for("#nobody:not([hidden])", DEADLINE).await;
}

async fn while_keycloak_is_away_players_go_on(gateway: &Gateway, keycloak: &mut Keycloak, browser: &Browser) {
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
            ["listen.internal", "127.0.0.1:0"],
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
            internal: format!("http://{}/internal/v1", addresses["internal"]),
            http: reqwest::Client::new(),
            _running: running,
            _folder: folder,
        }
    }

    async fn sign_in(&self, browser: &Browser, name: &str) {
        browser.goto(format!("{}/login", self.url)).await;
        enter(browser, name, Keycloak::PASSWORD).await;
    }

    async fn ask(&self, path: &str, token: &str) -> (StatusCode, Value) {
        self.send(Method::GET, &format!("{}{path}", self.url), token, None).await
    }

    async fn send(&self, method: Method, url: &str, token: &str, body: Option<Value>) -> (StatusCode, Value) {
        let request = self.http.request(method, url).bearer_auth(token);
        let request = if let Some(body) = body { request.json(&body) } else { request };
        let answer = request.send().await.unwrap();
        (answer.status(), answer.json().await.unwrap())
    }

    /// Who is signed in with a cookie.
    async fn with_cookie(&self, cookie: &str) -> (StatusCode, Value) {
        let answer =
            self.http.get(format!("{}/v1/me", self.url)).header("cookie", cookie).send().await.unwrap();
        (answer.status(), answer.json().await.unwrap())
    }
}

/// Who is signed in, as a script of the page sees it.
async fn me(browser: &Browser) -> Value {
    let js = "const answer = await fetch('/v1/me'); return [answer.status, await answer.json()];";
    let answer = browser.script_async(js).await;
    assert_eq!(answer[0], 200, "{answer}");
    answer[1].clone()
}

async fn session_cookie(browser: &Browser) -> String {
    let cookies = browser.cookies().await;
    let session = cookies.iter().find(|cookie| cookie.name == "playhouse").unwrap();
    format!("playhouse={}", session.value)
}

/// Also has Keycloak write down what it does.
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

/// How many of these there have been, by Keycloak's own account.
async fn events(keycloak: &Keycloak, kind: &str) -> usize {
    let found = keycloak.admin(Method::GET, &format!("events?type={kind}&max=1000"), None).await;
    found.as_array().map_or(0, Vec::len)
}
