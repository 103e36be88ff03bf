//! Store outages behind the gateway: features that do not need the store work, and all work afterwards.

use std::time::Instant;

use serde_json::json;
use testkit::{FaultProxy, eventually, need};

use super::flows::{Gateway, Player, Setup};
use crate::*;

/// The reference timeout of one part, plus some time for the rest of the request.
const HOME_TIMEOUT: Duration = Duration::from_secs(2);

/// The token of a service with operator rights.
const TOKEN: &str = "ph_for-tests-only";

/// Returns the states of three parts of `/v1/home`. Asserts that the response comes in time.
async fn home(player: &Player, at: &str) -> [String; 3] {
    let started = Instant::now();
    let (status, home) = player.get(at, "/v1/home").await;
    assert_eq!(status, 200, "{home}");
    assert!(started.elapsed() < HOME_TIMEOUT, "{:?}: {home}", started.elapsed());
    ["account", "entitlements", "matchmaking"].map(|part| home[part]["status"].as_str().unwrap().to_owned())
}

async fn wait_for_all_parts(player: &Player, at: &str) {
    eventually("all parts are available", PATIENCE, async || {
        let (_, home) = player.get(at, "/v1/home").await;
        let states = ["account", "entitlements", "matchmaking"].map(|part| &home[part]["status"]);
        if states == [&json!("ok"); 3] { Ok(()) } else { Err(home.to_string()) }
    })
    .await;
}

/// Starts a process that reaches its stores through these proxies, with the reference timeouts.
async fn start_gateway(setup: &Setup, redis: &FaultProxy, sql: &FaultProxy) -> Gateway {
    let program = setup
        .first()
        .env("PLAYHOUSE_REDIS_URL", redis.url(&setup.fleet.redis.url()))
        .env("PLAYHOUSE_DB_URL", sql.url(setup.fleet.database.url()))
        .env("PLAYHOUSE_DB_ACQUIRE_TIMEOUT", "5s")
        .env("PLAYHOUSE_GATEWAY_LIMITS_TIMEOUT", "50ms");
    Gateway::start(&program).await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_a_player_sees_everything_but_matchmaking() {
    let setup = need!(Setup::start().await);
    let (redis, sql) =
        (FaultProxy::to(setup.fleet.redis.addr()).await, FaultProxy::to(setup.fleet.sql.addr()).await);
    let gateway = start_gateway(&setup, &redis, &sql).await;
    let (ada, browser) = (setup.player("ada").await, setup.sign_in("ada").await);
    assert_eq!(home(&ada, &gateway.at).await, ["ok", "ok", "ok"]);
    for round in 0..2 {
        if round == 0 {
            redis.cut().await
        } else {
            redis.half_open().await
        }
        for _ in 0..3 {
            assert_eq!(home(&ada, &gateway.at).await, ["ok", "ok", "unavailable"], "round {round}");
        }
        // The gateway cannot know whether a session has ended, so it neither accepts nor ends it.
        assert_eq!(browser.me(&gateway.at).await.0, 503);
        redis.pass().await;
        wait_for_all_parts(&ada, &gateway.at).await;
        assert_eq!(browser.me(&gateway.at).await.0, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_database_a_player_sees_account_and_tickets() {
    let setup = need!(Setup::start().await);
    let (redis, sql) =
        (FaultProxy::to(setup.fleet.redis.addr()).await, FaultProxy::to(setup.fleet.sql.addr()).await);
    setup.configure(&format!(
        "[services.support]\ntoken_hash = \"{}\"\nmay = [\"operator\"]\n",
        http_server::TokenHash::of(TOKEN)
    ));
    let gateway = start_gateway(&setup, &redis, &sql).await;
    let (ada, eve) = (setup.player("ada").await, setup.player("eve").await);
    assert_eq!(home(&ada, &gateway.at).await, ["ok", "ok", "ok"]);
    let (_, me) = eve.me(&gateway.at).await;
    let ban =
        format!("http://{}/internal/v1/users/{}/ban", gateway.service_api, me["user_id"].as_str().unwrap());
    let ban = reqwest::Client::new().post(ban).bearer_auth(TOKEN).json(&json!({ "reason": "cheats" }));
    assert_eq!(ban.send().await.unwrap().status(), 204);
    eventually("eve is banned", PATIENCE, async || eve.me(&gateway.at).await.0 == 403).await;
    for round in 0..2 {
        if round == 0 {
            sql.cut().await
        } else {
            sql.half_open().await
        }
        // Longer than a cached user is valid.
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(3) {
            assert_eq!(home(&ada, &gateway.at).await, ["ok", "unavailable", "ok"], "round {round}");
        }
        assert_eq!(eve.me(&gateway.at).await.0, 503, "a banned player was accepted");
        sql.pass().await;
        wait_for_all_parts(&ada, &gateway.at).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn emptied_redis_only_makes_players_sign_in_again() {
    let mut setup = need!(Setup::start().await);
    let gateways = setup.start_gateways(3).await;
    let (ada, game) = (setup.sign_in("ada").await, setup.player("bob").await);
    setup.fleet.redis.kill().await.unwrap();
    for gateway in &gateways {
        assert_eq!(ada.me(&gateway.at).await.0, 503);
        assert_eq!(game.me(&gateway.at).await.0, 200, "an access token needs no Redis");
    }
    setup.fleet.redis.start_again().await.unwrap();
    for gateway in &gateways {
        gateway.wait_until_ready().await;
    }
    for round in 0..30 {
        for gateway in &gateways {
            assert_eq!(ada.me(&gateway.at).await.0, 401, "round {round}");
            assert_eq!(game.get(&gateway.at, "/v1/home").await.0, 200, "round {round}");
        }
    }
    let again = setup.sign_in("ada").await;
    for gateway in &gateways {
        assert_eq!(again.me(&gateway.at).await.0, 200);
    }
}
