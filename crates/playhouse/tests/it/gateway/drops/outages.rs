//! Store outages while players wait: no place is lost.

use reqwest::Method;
use sqlx::ConnectOptions;
use testkit::{FaultProxy, need};

use super::super::flows::{Gateway, Player, Setup};
use super::*;

/// Creates and opens a drop. Returns its id.
async fn open_drop(gateway: &Gateway, capacity: u32, without_redis: &str) -> String {
    let terms = json!({
        "price": { "amount": 499, "currency": "EUR" }, "per_player": 2, "reservation_ms": 60_000, "without_redis": without_redis,
        "admission": {
            "batch": 10, "period_ms": 100, "capacity": capacity, "lifetime_ms": 60_000, "arrive_within_ms": 60_000,
        },
    });
    let body = json!({ "name": "Golden hat", "resource": "golden-hat", "stock": 5, "terms": terms });
    let create =
        plain_client().post(format!("http://{}/drops", gateway.admin)).header("idempotency-key", "golden");
    let drop = send(create.bearer_auth(OPERATOR_TOKEN).json(&body)).await.json()["drop_id"]
        .as_str()
        .unwrap()
        .to_owned();
    operate(gateway, &drop, "open").await;
    drop
}

async fn operate(gateway: &Gateway, drop: &str, what: &str) {
    let url = format!("http://{}/drops/{drop}/{what}", gateway.admin);
    assert_eq!(
        send(plain_client().post(url).bearer_auth(OPERATOR_TOKEN).json(&json!({}))).await.status,
        200,
        "{what}"
    );
}

async fn request(player: &Player, gateway: &Gateway, method: Method, path: &str) -> TestResponse {
    send(player.request(method, &gateway.at, path)).await
}

/// Waits until the players are in this order.
async fn wait_for_order(players: &[&Player], gateway: &Gateway, drop: &str) {
    eventually("every player has their place", PATIENCE, async || {
        let mut ahead = Vec::new();
        for player in players {
            ahead
                .push(request(player, gateway, Method::GET, &format!("/v1/drops/{drop}/place")).await.json());
        }
        let is_right = |(at, place): (usize, &Value)| place["ahead"] == at;
        if ahead.iter().enumerate().all(is_right) { Ok(()) } else { Err(format!("{ahead:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_outage_costs_no_place() {
    let setup = need!(Setup::start().await);
    let (redis, sql) =
        (FaultProxy::to(setup.fleet.redis.addr()).await, FaultProxy::to(setup.fleet.sql.addr()).await);
    let program = setup
        .first()
        .env("PLAYHOUSE_REDIS_URL", redis.url(&setup.fleet.redis.url()))
        .env("PLAYHOUSE_DB_URL", sql.url(setup.fleet.database.url()))
        .env("PLAYHOUSE_GATEWAY_LIMITS_TIMEOUT", "50ms");
    let gateway = Gateway::start(&program).await;
    // Paused, so that places stay as they are.
    let drop = open_drop(&gateway, 100, "continue").await;
    operate(&gateway, &drop, "pause").await;
    let (ada, grace) = (setup.player("ada").await, setup.player("grace").await);
    let (join, place) = (format!("/v1/drops/{drop}/join"), format!("/v1/drops/{drop}/place"));
    for player in [&ada, &grace] {
        let joined = request(player, &gateway, Method::POST, &join).await;
        assert_eq!(joined.status, 200, "{joined:?}");
    }
    wait_for_order(&[&ada, &grace], &gateway, &drop).await;

    // Without SQL: 503 with `retry-after`.
    sql.cut().await;
    for (method, path) in [(Method::POST, &join), (Method::GET, &place)] {
        // A drop is cached for at most a second.
        let response = eventually("the route is unavailable", PATIENCE, async || {
            let response = request(&ada, &gateway, method.clone(), path).await;
            if response.status == 503 { Ok(response) } else { Err(format!("{response:?}")) }
        })
        .await;
        assert_problem(&response, 503);
        assert_eq!(response.header("retry-after"), "1", "{response:?}");
    }
    sql.pass().await;
    wait_for_order(&[&ada, &grace], &gateway, &drop).await;

    // Without Redis: the number of players ahead is unknown, the place is kept, and joining works.
    redis.cut().await;
    let without = request(&grace, &gateway, Method::GET, &place).await.json();
    assert_eq!((&without["state"], &without["ahead"]), (&json!("waiting"), &Value::Null), "{without}");
    let alan = setup.player("alan").await;
    let joined = request(&alan, &gateway, Method::POST, &join).await;
    assert_eq!((joined.status, &joined.json()["state"]), (200, &json!("waiting")), "{joined:?}");
    redis.pass().await;
    wait_for_order(&[&ada, &grace, &alan], &gateway, &drop).await;
}

/// Returns the place of a player.
async fn place_of(player: &Player, gateway: &Gateway, drop: &str) -> Value {
    let place = request(player, gateway, Method::GET, &format!("/v1/drops/{drop}/place")).await;
    assert_eq!(place.status, 200, "{place:?}");
    place.json()
}

async fn wait_for_state(player: &Player, gateway: &Gateway, drop: &str, state: &str) {
    eventually(state, PATIENCE, async || {
        let place = place_of(player, gateway, drop).await;
        if place["state"] == state { Ok(()) } else { Err(place.to_string()) }
    })
    .await;
}

/// Waits until this many more admission cycles have ended.
async fn wait_for_cycles(setup: &Setup, count: i64) {
    let server: sqlx::mysql::MySqlConnectOptions = setup.fleet.database.url().parse().unwrap();
    let mut connection = server.connect().await.unwrap();
    let mut cycles = async || -> i64 {
        sqlx::query_scalar("SELECT cycles FROM drop_heads").fetch_one(&mut connection).await.unwrap()
    };
    let before = cycles().await;
    let deadline = std::time::Instant::now() + PATIENCE;
    while cycles().await < before + count {
        assert!(std::time::Instant::now() < deadline, "cycles have stopped");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drop_paused_without_redis_resumes_in_order() {
    let mut setup = need!(Setup::start().await);
    let gateway = Gateway::start(&setup.first().env("PLAYHOUSE_GATEWAY_LIMITS_TIMEOUT", "50ms")).await;
    // One player is inside at a time, so that the order is visible.
    let drop = open_drop(&gateway, 1, "pause").await;
    let (join, leave) = (format!("/v1/drops/{drop}/join"), format!("/v1/drops/{drop}/leave"));
    let (ada, grace) = (setup.player("ada").await, setup.player("grace").await);
    let (alan, edith) = (setup.player("alan").await, setup.player("edith").await);
    for player in [&ada, &grace, &alan] {
        let joined = request(player, &gateway, Method::POST, &join).await;
        assert_eq!(joined.status, 200, "{joined:?}");
    }
    wait_for_state(&ada, &gateway, &drop, "entered").await;

    setup.fleet.redis.kill().await.unwrap();
    // Now the next player could enter.
    assert_eq!(request(&ada, &gateway, Method::POST, &leave).await.status, 204);
    wait_for_cycles(&setup, 5).await;
    let joined = request(&edith, &gateway, Method::POST, &join).await;
    assert_eq!((joined.status, &joined.json()["state"]), (200, &json!("waiting")), "{joined:?}");
    for player in [&grace, &alan, &edith] {
        let place = place_of(player, &gateway, &drop).await;
        assert_eq!((&place["state"], &place["ahead"]), (&json!("waiting"), &Value::Null), "{place}");
    }

    // All players are admitted in order, although Redis lost the line.
    setup.fleet.redis.start_again().await.unwrap();
    wait_for_state(&grace, &gateway, &drop, "entered").await;
    wait_for_order(&[&alan, &edith], &gateway, &drop).await;
    for (leaving, next) in [(&grace, &alan), (&alan, &edith)] {
        assert_eq!(request(leaving, &gateway, Method::POST, &leave).await.status, 204);
        wait_for_state(next, &gateway, &drop, "entered").await;
    }
}
