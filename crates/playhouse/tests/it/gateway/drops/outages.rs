//! Stores that go away while players wait: nobody loses a place.

use reqwest::Method;
use sqlx::ConnectOptions;
use testkit::{Proxy, need};

use super::super::flows::{Door, Player, Scene};
use super::*;

/// Creates a drop with these terms beside the usual ones, and opens it.
async fn open_drop(door: &Door, capacity: u32, without_redis: &str) -> String {
    let terms = json!({
        "price": { "amount": 499, "currency": "EUR" }, "per_player": 2, "reservation_ms": 60_000, "without_redis": without_redis,
        "admission": {
            "batch": 10, "period_ms": 100, "capacity": capacity, "lifetime_ms": 60_000, "arrive_within_ms": 60_000,
        },
    });
    let body = json!({ "name": "Golden hat", "resource": "golden-hat", "stock": 5, "terms": terms });
    let create =
        browserless().post(format!("http://{}/drops", door.admin)).header("idempotency-key", "golden");
    let drop = sent(create.bearer_auth(OPERATOR_TOKEN).json(&body)).await.json()["drop_id"]
        .as_str()
        .unwrap()
        .to_owned();
    operate(door, &drop, "open").await;
    drop
}

async fn operate(door: &Door, drop: &str, what: &str) {
    let url = format!("http://{}/drops/{drop}/{what}", door.admin);
    assert_eq!(
        sent(browserless().post(url).bearer_auth(OPERATOR_TOKEN).json(&json!({}))).await.status,
        200,
        "{what}"
    );
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
    // Paused, so that places stay as they are.
    let drop = open_drop(&door, 100, "continue").await;
    operate(&door, &drop, "pause").await;
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

/// What a player is answered who asks where they stand.
async fn place_of(player: &Player, door: &Door, drop: &str) -> Value {
    let place = ask(player, door, Method::GET, &format!("/v1/drops/{drop}/place")).await;
    assert_eq!(place.status, 200, "{place:?}");
    place.json()
}

async fn is_in_state(player: &Player, door: &Door, drop: &str, state: &str) {
    eventually(state, PATIENCE, async || {
        let place = place_of(player, door, drop).await;
        if place["state"] == state { Ok(()) } else { Err(place.to_string()) }
    })
    .await;
}

/// Waits until so many more admission cycles have ended.
async fn cycles_pass(scene: &Scene, count: i64) {
    let server: sqlx::mysql::MySqlConnectOptions = scene.fleet.database.url().parse().unwrap();
    let mut connection = server.connect().await.unwrap();
    let mut cycles = async || -> i64 {
        sqlx::query_scalar("SELECT cycles FROM drop_heads").fetch_one(&mut connection).await.unwrap()
    };
    let before = cycles().await;
    let deadline = std::time::Instant::now() + PATIENCE;
    while cycles().await < before + count {
        assert!(std::time::Instant::now() < deadline, "cycles go on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drop_that_pauses_without_redis_goes_on_in_order_when_it_is_back() {
    let mut scene = need!(Scene::start().await);
    let door = Door::open(&scene.first().env("PLAYHOUSE_GATEWAY_LIMITS_TIMEOUT", "50ms")).await;
    // One is inside at a time, so that the order can be seen.
    let drop = open_drop(&door, 1, "pause").await;
    let (join, leave) = (format!("/v1/drops/{drop}/join"), format!("/v1/drops/{drop}/leave"));
    let (ada, grace) = (scene.player("ada").await, scene.player("grace").await);
    let (alan, edith) = (scene.player("alan").await, scene.player("edith").await);
    for player in [&ada, &grace, &alan] {
        let joined = ask(player, &door, Method::POST, &join).await;
        assert_eq!(joined.status, 200, "{joined:?}");
    }
    is_in_state(&ada, &door, &drop, "entered").await;

    scene.fleet.redis.kill().await.unwrap();
    // There is room for the next one now.
    assert_eq!(ask(&ada, &door, Method::POST, &leave).await.status, 204);
    cycles_pass(&scene, 5).await;
    let joined = ask(&edith, &door, Method::POST, &join).await;
    assert_eq!((joined.status, &joined.json()["state"]), (200, &json!("waiting")), "{joined:?}");
    for player in [&grace, &alan, &edith] {
        let place = place_of(player, &door, &drop).await;
        assert_eq!((&place["state"], &place["ahead"]), (&json!("waiting"), &Value::Null), "{place}");
    }

    // Everybody is there, in order, although Redis has forgotten them.
    scene.fleet.redis.start_again().await.unwrap();
    is_in_state(&grace, &door, &drop, "entered").await;
    stand_in_order(&[&alan, &edith], &door, &drop).await;
    for (leaving, next) in [(&grace, &alan), (&alan, &edith)] {
        assert_eq!(ask(leaving, &door, Method::POST, &leave).await.status, 204);
        is_in_state(next, &door, &drop, "entered").await;
    }
}
