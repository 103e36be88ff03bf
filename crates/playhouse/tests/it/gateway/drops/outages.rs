//! Stores that go away while players wait: nobody loses a place.

use reqwest::Method;
use testkit::{Proxy, need};

use super::super::flows::{Door, Player, Scene};
use super::*;

/// A paused drop, so that places stay as they are.
async fn paused_drop(door: &Door) -> String {
    let client = browserless();
    let terms = json!({
        "price": { "amount": 499, "currency": "EUR" }, "per_player": 2, "reservation_ms": 60_000,
        "admission": {
            "batch": 10, "period_ms": 100, "capacity": 100, "lifetime_ms": 60_000, "arrive_within_ms": 60_000,
        },
    });
    let body = json!({ "name": "Golden hat", "resource": "golden-hat", "stock": 5, "terms": terms });
    let create = client.post(format!("http://{}/drops", door.admin)).header("idempotency-key", "golden");
    let create = create.bearer_auth(OPERATOR_TOKEN);
    let drop = sent(create.json(&body)).await.json()["drop_id"].as_str().unwrap().to_owned();
    for what in ["open", "pause"] {
        let url = format!("http://{}/drops/{drop}/{what}", door.admin);
        assert_eq!(sent(client.post(url).bearer_auth(OPERATOR_TOKEN).json(&json!({}))).await.status, 200);
    }
    drop
}

async fn ask(player: &Player, door: &Door, method: Method, path: &str) -> Answer {
    sent(player.request(method, &door.at, path)).await
}

/// Waits until the players stand in this order.
async fn stand_in_order(players: &[&Player], door: &Door, drop: &str) {
    eventually("everybody has their place", PATIENCE, async || {
        let mut ahead = Vec::new();
        for player in players {
            ahead.push(ask(player, door, Method::GET, &format!("/v1/drops/{drop}/place")).await.json());
        }
        let right = |(at, place): (usize, &Value)| place["ahead"] == at;
        if ahead.iter().enumerate().all(right) { Ok(()) } else { Err(format!("{ahead:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_loses_a_place_while_a_store_is_away() {
    let scene = need!(Scene::start().await);
    let (redis, sql) = (Proxy::to(scene.fleet.redis.addr()).await, Proxy::to(scene.fleet.sql.addr()).await);
    let program = scene
        .first()
        .env("PLAYHOUSE_HOT_URL", redis.url(&scene.fleet.redis.url()))
        .env("PLAYHOUSE_DB_URL", sql.url(scene.fleet.database.url()))
        .env("PLAYHOUSE_GATEWAY_LIMITS_TIMEOUT", "50ms");
    let door = Door::open(&program).await;
    let drop = paused_drop(&door).await;
    let (ada, grace) = (scene.player("ada").await, scene.player("grace").await);
    let (join, place) = (format!("/v1/drops/{drop}/join"), format!("/v1/drops/{drop}/place"));
    for player in [&ada, &grace] {
        let joined = ask(player, &door, Method::POST, &join).await;
        assert_eq!(joined.status, 200, "{joined:?}");
    }
    stand_in_order(&[&ada, &grace], &door, &drop).await;

    // SQL away: a clear 503 that says when to come back.
    sql.cut().await;
    for (method, path) in [(Method::POST, &join), (Method::GET, &place)] {
        // What is remembered of a drop is a second old at most.
        let answer = eventually("it is unavailable", PATIENCE, async || {
            let answer = ask(&ada, &door, method.clone(), path).await;
            if answer.status == 503 { Ok(answer) } else { Err(format!("{answer:?}")) }
        })
        .await;
        assert_problem(&answer, 503);
        assert_eq!(answer.header("retry-after"), "1", "{answer:?}");
    }
    sql.pass().await;
    stand_in_order(&[&ada, &grace], &door, &drop).await;

    // Redis away: the position is unknown, the place is not. Joining goes on.
    redis.cut().await;
    let without = ask(&grace, &door, Method::GET, &place).await.json();
    assert_eq!((&without["state"], &without["ahead"]), (&json!("waiting"), &Value::Null), "{without}");
    let alan = scene.player("alan").await;
    let joined = ask(&alan, &door, Method::POST, &join).await;
    assert_eq!((joined.status, &joined.json()["state"]), (200, &json!("waiting")), "{joined:?}");
    redis.pass().await;
    stand_in_order(&[&ada, &grace, &alan], &door, &drop).await;
}
