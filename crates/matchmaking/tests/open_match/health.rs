//! Health tells the truth about the store of tickets.

use serde_json::json;
use testkit::{Redis, eventually, need};

use crate::PATIENCE;
use crate::server::{Served, rules};

const SERVICES: [&str; 4] =
    ["", "openmatch.FrontendService", "openmatch.BackendService", "openmatch.QueryService"];

async fn becomes(served: &Served, expected: &str) {
    for service in SERVICES {
        eventually("the status", PATIENCE, async || {
            let (_, answer) =
                served.connect("grpc.health.v1.Health/Check", json!({ "service": service })).await;
            (answer["status"] == expected).then_some(()).ok_or(answer)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn services_are_not_served_while_the_store_is_away() {
    let mut redis = need!(Redis::private().await);
    let served = Served::in_redis(&redis.url(), rules()).await;
    becomes(&served, "SERVING").await;
    redis.kill().await.unwrap();
    becomes(&served, "NOT_SERVING").await;
    redis.start_again().await.unwrap();
    becomes(&served, "SERVING").await;
    redis.pause().await.unwrap();
    becomes(&served, "NOT_SERVING").await;
    redis.resume().unwrap();
    becomes(&served, "SERVING").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_service_is_not_found() {
    let served = Served::in_memory().await;
    let (status, answer) = served.connect("grpc.health.v1.Health/Check", json!({ "service": "x" })).await;
    assert_eq!((status, &answer["code"]), (404, &json!("not_found")));
}
