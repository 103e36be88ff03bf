//! The lobby while the gateway restarts: it says so, comes back by itself, and applies what the player did meanwhile.

use testkit::{
    ClientUris, Folder, OidcClients, OidcProvider, Redis, RunningProgram, eventually, free_port, need,
};

use super::*;

const SERVICE_TOKEN: &str = "service-token-of-the-lobby-tests-00001";
/// The key of sessions, which the next process must have as well.
const SESSION_KEY: &str = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I=";

/// Returns a gateway with the lobby whose sessions, tickets and lines are in servers.
fn program(folder: &Folder, redis: &Redis, provider: &OidcProvider, secret: &str) -> Program {
    let hash = http_server::TokenHash::of(SERVICE_TOKEN);
    let settings = format!(
        "[gateway.lobby]\nenabled = true\n[gateway.session]\nkeys = [\"{SESSION_KEY}\"]\n\
         [services.shop]\ntoken_hash = \"{hash}\"\nmay = [\"notifications\", \"drops\"]\n\
         [matchmaking.queues.duel]\n[matchmaking.profiles.duel]\nplayers = 2\nassigner = \"here\"\n\
         [matchmaking.assigners.here]\naddresses = [\"127.0.0.1:1\"]\n",
    );
    let config = folder.path().join("playhouse.toml");
    std::fs::write(&config, settings).unwrap();
    let gateway = format!("listen.gateway=127.0.0.1:{}", free_port().unwrap());
    let any_port = ["service_api", "admin", "open_match"].map(|name| format!("listen.{name}=127.0.0.1:0"));
    playhouse(&["serve", "--print-addresses", "--config", config.to_str().unwrap(), "--set", &gateway])
        .args(any_port.iter().flat_map(|set| ["--set", set.as_str()]))
        .env("PLAYHOUSE_DB_URL", format!("sqlite:{}", folder.path().join("play.db").display()))
        .env("PLAYHOUSE_DB_MIGRATE", "true")
        .env("PLAYHOUSE_REDIS_URL", redis.url())
        .env("PLAYHOUSE_IDENTITY_ISSUER", provider.issuer())
        .env("PLAYHOUSE_IDENTITY_CLIENT_SECRET", secret)
}

async fn start(program: &Program) -> (RunningProgram, HashMap<String, String>) {
    let (running, mut at) = started(program.clone()).await;
    at.insert("service_token".to_owned(), SERVICE_TOKEN.to_owned());
    (running, at)
}

#[tokio::test(flavor = "multi_thread")]
async fn page_comes_back_after_a_restart_and_applies_what_was_done_meanwhile() {
    let browser = need!(Browser::start().await);
    let clients = OidcClients::default();
    let provider = need!(OidcProvider::start(clients.clone()).await);
    let redis = need!(Redis::private().await);
    let folder = Folder::fresh().unwrap();
    let program = program(&folder, &redis, &provider, &clients.client_secret);
    let (mut running, mut at) = start(&program).await;
    let gateway = format!("http://{}", at["gateway"]);
    provider.set_uris(&ClientUris::at(&gateway)).await;

    browser.goto(format!("{gateway}/login?return_to=/play")).await;
    browser.fill("[name=login]", "ada").await;
    browser.click("[name=go]").await;
    browser.wait_for_text(".profile .player-name", "Player ada", PATIENCE).await;
    browser.wait_for("#connection[data-state=open]", PATIENCE).await;
    let ada = Player { browser, name: "ada" };
    let (_, me) = fetch(&ada.browser, "GET", "/v1/me", "{}").await;
    let notify = async |at: &HashMap<String, String>, title: &str| {
        let text = json!({ "to": { "user_id": me["user_id"] }, "texts": { "en": { "title": title } } });
        service(at, "notifications", text).await;
    };
    let crown = schedule_drop(&at).await;
    ada.browser.reload().await;
    ada.press(&crown, "Join the line").await;
    ada.sees(&card(&crown), "You are number 1 of 1 in line.").await;
    ada.browser.click("#find").await;
    ada.sees("#searching", "Looking for an opponent").await;
    ada.browser.script("window.isSamePage = true").await;

    // With time to say goodbye, and without.
    for (round, stop) in [RunningProgram::sigterm, RunningProgram::kill].into_iter().enumerate() {
        let [before, after] = [format!("Before {round}"), format!("After {round}")];
        notify(&at, &before).await;
        ada.sees("#unread", "1 new").await;
        stop(&running);
        running.wait(LONG).await;
        ada.sees("#connection", "Offline").await;
        // The page stays as it was, and keeps what the player does.
        ada.browser.click(&format!("[aria-label='Mark read: {before}']")).await;
        ada.browser.wait_for("#unread[hidden]", PATIENCE).await;

        (running, at) = start(&program).await;
        ada.browser.wait_for("#connection[data-state=open]", LONG).await;
        ada.sees("#searching", "Looking for an opponent").await;
        ada.sees(&card(&crown), "You are number 1 of 1 in line.").await;
        notify(&at, &after).await;
        ada.sees("#notifications", &after).await;
        ada.sees("#unread", "1 new").await;
        eventually("the server knows what was read offline", LONG, async || {
            let (_, listed) = fetch(&ada.browser, "GET", "/v1/notifications", "{}").await;
            let all = listed["notifications"].as_array().unwrap();
            let is_read =
                |title: &str| all.iter().any(|one| one["title"] == title && !one["read_at"].is_null());
            if is_read(&before) && !is_read(&after) { Ok(()) } else { Err(listed.to_string()) }
        })
        .await;
        ada.browser.click("#read-all").await;
        ada.browser.wait_for("#unread[hidden]", PATIENCE).await;
    }
    // Nothing of it needed a reload, and everything works.
    assert_eq!(ada.browser.script("return window.isSamePage").await, true);
    assert!(ada.browser.has("#error[hidden]").await);
    ada.browser.click("#cancel").await;
    ada.browser.wait_for("#find", LONG).await;
}
