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

/// Reads the next status of a watch: an enveloped message of Connect.
async fn next_status(watching: &mut reqwest::Response, read: &mut Vec<u8>) -> String {
    loop {
        if let Some((head, rest)) = read.split_at_checked(5) {
            let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
            if let Some(message) = rest.get(..length) {
                let message: serde_json::Value = serde_json::from_slice(message).unwrap();
                read.drain(..5 + length);
                return message["status"].as_str().unwrap_or_default().to_owned();
            }
        }
        let more = tokio::time::timeout(PATIENCE, watching.chunk()).await.expect("it has a status");
        read.extend_from_slice(&more.unwrap().expect("it goes on"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_of_the_health_follows_an_outage() {
    let mut redis = need!(Redis::private().await);
    let served = Served::in_redis(&redis.url(), rules()).await;
    becomes(&served, "SERVING").await;
    let request = json!({ "service": "openmatch.QueryService" }).to_string();
    let length = u32::try_from(request.len()).unwrap().to_be_bytes();
    let body = [&[0][..], &length, request.as_bytes()].concat();
    let url = format!("http://{}/grpc.health.v1.Health/Watch", served.address);
    let watch = reqwest::Client::new().post(url).header("content-type", "application/connect+json");
    let (mut watching, mut read) = (watch.body(body).send().await.unwrap(), Vec::new());
    assert_eq!(next_status(&mut watching, &mut read).await, "SERVING");
    redis.kill().await.unwrap();
    assert_eq!(next_status(&mut watching, &mut read).await, "NOT_SERVING");
    redis.start_again().await.unwrap();
    assert_eq!(next_status(&mut watching, &mut read).await, "SERVING");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_service_is_not_found() {
    let served = Served::in_memory().await;
    let (status, answer) = served.connect("grpc.health.v1.Health/Check", json!({ "service": "x" })).await;
    assert_eq!((status, &answer["code"]), (404, &json!("not_found")));
}
