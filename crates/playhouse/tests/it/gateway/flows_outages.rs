//! Stores that go away behind the gateway: what does not need them works, and everything does when they are back.

use std::time::Instant;

use serde_json::json;
use testkit::{Proxy, eventually, need};

use super::flows::{Door, Player, Scene};
use crate::*;

/// How long one part may take, as the reference has it, and a little for everything around it.
const IN_TIME: Duration = Duration::from_secs(2);

/// The token of a service that may ban.
const TOKEN: &str = "ph_for-tests-only";

/// The states of the parts that a player sees first, which must be told in time.
async fn home(player: &Player, at: &str) -> [String; 3] {
    let started = Instant::now();
    let (status, home) = player.get(at, "/v1/home").await;
    assert_eq!(status, 200, "{home}");
    assert!(started.elapsed() < IN_TIME, "{:?}: {home}", started.elapsed());
    ["account", "entitlements", "matchmaking"].map(|part| home[part]["status"].as_str().unwrap().to_owned())
}

async fn is_whole_again(player: &Player, at: &str) {
    eventually("all parts are there", PATIENCE, async || {
        let (_, home) = player.get(at, "/v1/home").await;
        let states = ["account", "entitlements", "matchmaking"].map(|part| &home[part]["status"]);
        if states == [&json!("ok"); 3] { Ok(()) } else { Err(home.to_string()) }
    })
    .await;
}

/// A process that reaches its stores through these, with the deadlines of the reference.
async fn door(scene: &Scene, redis: &Proxy, sql: &Proxy) -> Door {
    let program = scene
        .first()
        .env("PLAYHOUSE_HOT_URL", redis.url(&scene.fleet.redis.url()))
        .env("PLAYHOUSE_DB_URL", sql.url(scene.fleet.database.url()))
        .env("PLAYHOUSE_DB_ACQUIRE_TIMEOUT", "5s")
        .env("PLAYHOUSE_GATEWAY_LIMITS_TIMEOUT", "50ms");
    Door::open(&program).await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_hot_store_a_player_sees_everything_but_matchmaking() {
    let scene = need!(Scene::start().await);
    let (redis, sql) = (Proxy::to(scene.fleet.redis.addr()).await, Proxy::to(scene.fleet.sql.addr()).await);
    let door = door(&scene, &redis, &sql).await;
    let (ada, browser) = (scene.player("ada").await, scene.sign_in("ada").await);
    assert_eq!(home(&ada, &door.at).await, ["ok", "ok", "ok"]);
    for round in 0..2 {
        if round == 0 {
            redis.cut().await
        } else {
            redis.half_open().await
        }
        for _ in 0..3 {
            assert_eq!(home(&ada, &door.at).await, ["ok", "ok", "unavailable"], "round {round}");
        }
        // Whether a session is over cannot be told: it is neither used nor ended.
        assert_eq!(browser.me(&door.at).await.0, 503);
        redis.pass().await;
        is_whole_again(&ada, &door.at).await;
        assert_eq!(browser.me(&door.at).await.0, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_database_a_player_sees_who_they_are_and_their_tickets() {
    let scene = need!(Scene::start().await);
    let (redis, sql) = (Proxy::to(scene.fleet.redis.addr()).await, Proxy::to(scene.fleet.sql.addr()).await);
    scene.configure(&format!(
        "[services.support]\ntoken_hash = \"{}\"\nmay = [\"operator\"]\n",
        http_server::TokenHash::of(TOKEN)
    ));
    let door = door(&scene, &redis, &sql).await;
    let (ada, eve) = (scene.player("ada").await, scene.player("eve").await);
    assert_eq!(home(&ada, &door.at).await, ["ok", "ok", "ok"]);
    let (_, me) = eve.me(&door.at).await;
    let ban = format!("http://{}/internal/v1/users/{}/ban", door.internal, me["user_id"].as_str().unwrap());
    let ban = reqwest::Client::new().post(ban).bearer_auth(TOKEN).json(&json!({ "reason": "cheats" }));
    assert_eq!(ban.send().await.unwrap().status(), 204);
    eventually("she is banned", PATIENCE, async || eve.me(&door.at).await.0 == 403).await;
    for round in 0..2 {
        if round == 0 {
            sql.cut().await
        } else {
            sql.half_open().await
        }
        // Longer than what is known of a user is taken to be true.
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(3) {
            assert_eq!(home(&ada, &door.at).await, ["ok", "unavailable", "ok"], "round {round}");
        }
        assert_eq!(eve.me(&door.at).await.0, 503, "nobody comes in who was turned away");
        sql.pass().await;
        is_whole_again(&ada, &door.at).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_comes_back_empty_has_players_sign_in_again_and_nothing_worse() {
    let mut scene = need!(Scene::start().await);
    let doors = scene.gateways(3).await;
    let (ada, game) = (scene.sign_in("ada").await, scene.player("bob").await);
    scene.fleet.redis.kill().await.unwrap();
    for door in &doors {
        assert_eq!(ada.me(&door.at).await.0, 503);
        assert_eq!(game.me(&door.at).await.0, 200, "a token needs no store");
    }
    scene.fleet.redis.start_again().await.unwrap();
    for door in &doors {
        door.is_ready().await;
    }
    for round in 0..30 {
        for door in &doors {
            assert_eq!(ada.me(&door.at).await.0, 401, "round {round}");
            assert_eq!(game.get(&door.at, "/v1/home").await.0, 200, "round {round}");
        }
    }
    let again = scene.sign_in("ada").await;
    for door in &doors {
        assert_eq!(again.me(&door.at).await.0, 200);
    }
}
