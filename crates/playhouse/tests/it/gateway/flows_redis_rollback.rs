//! Redis restores an old state: ended sessions stay ended, and used tokens stay used.

use reqwest::header::LOCATION;
use reqwest::{Client, Method};
use serde_json::json;
use sqlx::{ConnectOptions, Executor};
use testkit::{eventually, need};
use url::Url;

use super::flows::{Browser, Gateway, Player, Setup};
use super::flows_back_channel::{LogoutProxy, send_logout};
use crate::*;

const TOKEN: &str = "token-of-support";

/// Returns settings of a service with operator rights.
fn support_service() -> String {
    format!(
        "[services.support]\ntoken_hash = \"{}\"\nmay = [\"operator\"]\n",
        http_server::TokenHash::of(TOKEN)
    )
}

/// Makes Redis save its state to disk, like a backup.
async fn save_redis(setup: &Setup) {
    let mut redis = setup.fleet.redis.namespace().connect().await;
    redis::cmd("SAVE").exec_async(&mut redis).await.unwrap();
}

/// Restarts Redis with the state of [`save_redis`].
async fn restore_redis(setup: &mut Setup, gateways: &[Gateway]) {
    setup.fleet.redis.kill().await.unwrap();
    setup.fleet.redis.start_again().await.unwrap();
    for gateway in gateways {
        // Readiness may not have noticed the outage, so check that sessions are read.
        let unknown = Player::with("cookie", "playhouse=nobody".to_owned());
        eventually("sessions are readable", PATIENCE, async || {
            let (status, response) = unknown.me(&gateway.at).await;
            if status == 401 { Ok(()) } else { Err(format!("{status} {response}")) }
        })
        .await;
        gateway.wait_until_ready().await;
    }
}

/// Calls a route of the service API that changes a user.
async fn change_user(gateway: &Gateway, user: &str, what: &str) {
    let url = format!("http://{}/internal/v1/users/{user}/{what}", gateway.service_api);
    let request = Client::new().post(url).bearer_auth(TOKEN).json(&json!({ "reason": "cheats" }));
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 204, "{what}");
}

/// Waits until a player gets this status from every process.
async fn wait_for_status(player: &Player, gateways: &[Gateway], expected: u16) {
    for gateway in gateways {
        eventually("the player gets the status", PATIENCE, async || {
            let (status, response) = player.me(&gateway.at).await;
            if status == expected { Ok(()) } else { Err(format!("{status} {response}")) }
        })
        .await;
    }
}

async fn users(setup: &Setup) -> i64 {
    let server: sqlx::mysql::MySqlConnectOptions = setup.fleet.database.url().parse().unwrap();
    let mut connection = server.connect().await.unwrap();
    sqlx::query_scalar("SELECT COUNT(*) FROM users").fetch_one(&mut connection).await.unwrap()
}

async fn is_in_redis(setup: &Setup, player: &Player) -> bool {
    setup.sessions().await.read(&player.session()).await.unwrap().is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_sessions_stay_ended() {
    let mut setup = need!(Setup::start().await);
    setup.configure(&support_service());
    let gateways = setup.start_gateways(2).await;
    let proxy = LogoutProxy::install(&setup, &gateways[1].at).await;
    let names = ["signs-out", "is-banned", "is-logged-out", "is-ended", "is-erased", "stays"];
    let mut players = Vec::new();
    for name in names {
        let player = setup.sign_in(name).await;
        let (status, me) = player.me(&gateways[1].at).await;
        assert_eq!((status, player.me(&gateways[0].at).await.0), (200, 200), "{me}");
        players.push((player, me));
    }
    let [signs_out, is_banned, is_logged_out, is_ended, is_erased, stays] =
        <[_; 6]>::try_from(players).map_err(|_| ()).unwrap();
    save_redis(&setup).await;

    let user = |(_, me): &(Player, Value)| me["user_id"].as_str().unwrap().to_owned();
    let logout = signs_out.1["session"]["logout_url"].as_str().unwrap();
    let done = signs_out.0.request(Method::GET, &gateways[0].at, logout).send().await.unwrap();
    assert_eq!(done.status(), 303);
    assert_eq!(setup.provider.end_sessions_of("is-logged-out").await, 1);
    change_user(&gateways[0], &user(&is_banned), "ban").await;
    wait_for_status(&is_banned.0, &gateways, 403).await;
    change_user(&gateways[0], &user(&is_banned), "unban").await;
    change_user(&gateways[0], &user(&is_ended), "end-sessions").await;
    change_user(&gateways[0], &user(&is_erased), "erase").await;
    let ended = [&signs_out, &is_logged_out, &is_banned, &is_ended, &is_erased];
    for (player, _) in ended {
        wait_for_status(player, &gateways, 401).await;
    }
    wait_for_status(&stays.0, &gateways, 200).await;

    restore_redis(&mut setup, &gateways).await;
    for (player, _) in ended {
        assert!(is_in_redis(&setup, player).await, "Redis was not restored");
    }
    let again = setup.sign_in("is-banned").await;
    let users = users(&setup).await;
    for gateway in &gateways {
        for (player, me) in ended {
            let (status, problem) = player.me(&gateway.at).await;
            assert_eq!(status, 401, "{me}: {problem}");
        }
        assert_eq!(stays.0.me(&gateway.at).await.0, 200);
        assert_eq!(again.me(&gateway.at).await.0, 200, "a later sign-in is refused");
    }
    assert_eq!(self::users(&setup).await, users, "a session of an erased user created a user");
    // A used logout token stays used.
    let recorded = proxy.recorded();
    let (status, response) = send_logout(&gateways[0].at, &recorded[0]).await;
    assert_eq!((status.as_u16(), &response["error"]), (400, &json!("invalid_request")));
}

/// The issuer treats a refresh token that is presented twice as stolen and revokes all tokens of the sign-in.
#[tokio::test(flavor = "multi_thread")]
async fn used_refresh_token_is_not_presented_again() {
    let mut setup = need!(Setup::start().await);
    let gateways = setup.start_gateways(2).await;
    let ada = setup.sign_in("ada").await;
    save_redis(&setup).await;
    for round in 1..=2 {
        setup.make_refresh_due(&ada).await;
        assert_eq!(ada.me(&gateways[round % 2].at).await.0, 200);
        assert_eq!(setup.provider.refreshes().await, round as u64);
    }
    restore_redis(&mut setup, &gateways).await;
    assert_eq!(ada.me(&gateways[0].at).await.0, 200, "the session has not ended and no refresh is due");
    setup.make_refresh_due(&ada).await;
    for gateway in &gateways {
        assert_eq!(ada.me(&gateway.at).await.0, 401, "an old refresh token needs a new sign-in");
    }
    assert_eq!((setup.provider.refreshes().await, setup.provider.refused_refreshes().await), (2, 0));
    assert_eq!(setup.provider.signed_in_users().await, ["ada"], "the issuer has revoked nothing");
    assert_eq!(setup.sign_in("ada").await.me(&gateways[1].at).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn sign_in_is_completed_once() {
    let mut setup = need!(Setup::start().await);
    let gateways = setup.start_gateways(2).await;
    let callback = format!("http://{}/login/callback", setup.public());
    let mut browser = Browser::stopping_at(&callback);
    let back = browser.sign_in(&format!("http://{}/login?return_to=/", setup.public()), "ada").await;
    let mut second = browser.clone();
    save_redis(&setup).await;
    let first = browser.visit(&back, None).await;
    assert_eq!(first.headers()[LOCATION], "/");
    restore_redis(&mut setup, &gateways).await;
    for gateway in &gateways {
        let mut elsewhere = back.clone();
        elsewhere.set_port(Url::parse(&format!("http://{}", gateway.at)).unwrap().port()).unwrap();
        let response = second.clone().visit(&elsewhere, None).await;
        assert_eq!(response.status(), 400);
        assert!(response.text().await.unwrap().contains("This sign-in was already used"));
    }
    second.visit(&back, None).await;
    assert_eq!(second.cookie("playhouse"), None);
}

/// The logout arrives before the session exists.
#[tokio::test(flavor = "multi_thread")]
async fn logout_during_a_sign_in_ends_the_new_session() {
    let setup = need!(Setup::start().await);
    let patient = |program: Program| program.env("PLAYHOUSE_DB_ACQUIRE_TIMEOUT", "20s");
    let gateways = [
        Gateway::start(&patient(setup.first())).await,
        Gateway::start(&patient(setup.program("gateway,service-api"))).await,
    ];
    let proxy = LogoutProxy::install(&setup, &gateways[1].at).await;
    setup.sign_in("ada").await;
    // Another role, so that the sign-in has to update the user, whose row is locked.
    setup.provider.set_roles("ada", &["playhouse-operator"]).await;
    let callback = format!("http://{}/login/callback", setup.public());
    let mut browser = Browser::stopping_at(&callback);
    let back = browser.sign_in(&format!("http://{}/login?return_to=/", setup.public()), "ada").await;
    let server: sqlx::mysql::MySqlConnectOptions = setup.fleet.database.url().parse().unwrap();
    let (mut locking, mut other) = (server.connect().await.unwrap(), server.connect().await.unwrap());
    locking.execute("START TRANSACTION").await.unwrap();
    locking.execute("SELECT * FROM users FOR UPDATE").await.unwrap();
    let finishing = tokio::spawn(async move {
        let response = browser.visit(&back, None).await;
        (response.status().as_u16(), browser.cookie("playhouse").map(str::to_owned))
    });
    let other = tokio::sync::Mutex::new(&mut other);
    eventually("the code is redeemed and the sign-in waits for the user", PATIENCE, async || {
        const WAITING: &str =
            "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE 'UPDATE users%'";
        let waiting: i64 = sqlx::query_scalar(WAITING).fetch_one(&mut **other.lock().await).await.unwrap();
        waiting == 1
    })
    .await;
    assert_eq!(setup.provider.end_sessions_of("ada").await, 2);
    assert_eq!(proxy.recorded().len(), 2);
    locking.execute("ROLLBACK").await.unwrap();
    assert_eq!(finishing.await.unwrap(), (403, None));
    let mut redis = setup.fleet.redis.namespace().connect().await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("session:*").query_async(&mut redis).await.unwrap();
    assert_eq!(keys, Vec::<String>::new());
}
