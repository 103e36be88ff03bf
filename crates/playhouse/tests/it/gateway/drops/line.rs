//! The line: joining, waiting, admission, leaving. Drops as players see them.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn joining_again_keeps_the_place() {
    let sale = Sale::draft(5, json!({})).await;
    let (ada, grace) = (sale.player("ada").await, sale.player("grace").await);
    let opens_at = base::Clock::system().now().after(Duration::from_secs(3_600)).to_rfc3339();
    sale.operate("schedule", &json!({ "opens_at": opens_at })).await;
    assert_eq!(ada.place().await, json!({ "state": "not_joined", "wait_seconds": null }));
    for _ in 0..3 {
        assert_eq!(ada.join().await["state"], "waiting");
    }
    ada.wait_for_players_ahead(0).await;
    grace.join().await;
    let behind = grace.wait_for_players_ahead(1).await;
    assert_eq!(behind["waiting"], 2, "{behind}");
    ada.join().await;
    ada.wait_for_players_ahead(0).await;
    assert_eq!(behind["wait_seconds"], Value::Null, "the wait is known before anyone was admitted");

    // Leaving frees the place once. Joining again goes to the end of the line.
    assert_eq!(ada.post(&sale.path("/leave")).await.status, 204);
    assert_eq!(ada.place().await["state"], "left");
    assert_refused(&ada.post(&sale.path("/leave")).await, 409, "drops:not-in-line");
    grace.wait_for_players_ahead(0).await;
    ada.join().await;
    ada.wait_for_players_ahead(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn players_see_scheduled_and_open_drops() {
    let sale = Sale::draft(5, json!({ "order": "shuffle" })).await;
    let ada = sale.player("ada").await;
    let listed = async || ada.get("/v1/drops").await.json()["drops"].clone();
    assert_eq!(listed().await, json!([]), "players see a draft");
    assert_refused(&ada.get(&sale.path("")).await, 404, "drops:no-such-drop");
    for path in ["/place", "/stock", "/stream"] {
        assert_refused(&ada.get(&sale.path(path)).await, 404, "drops:no-such-drop");
    }
    assert_refused(&ada.post(&sale.path("/join")).await, 404, "drops:no-such-drop");

    let opens_at = base::Clock::system().now().after(Duration::from_secs(3_600)).to_rfc3339();
    sale.operate("schedule", &json!({ "opens_at": opens_at })).await;
    let drop = eventually("the drop is listed", PATIENCE, async || match listed().await {
        Value::Array(drops) if drops.len() == 1 => Ok(drops[0].clone()),
        other => Err(other.to_string()),
    })
    .await;
    assert_eq!((&drop["state"], &drop["opens_at"]), (&json!("SCHEDULED"), &json!(opens_at)));
    assert_eq!(drop["price"], json!({ "amount": 499, "currency": "EUR" }));
    assert!(drop["seed"].is_null() && drop["seed_hash"].as_str().unwrap().len() == 64, "{drop}");

    sale.operate("open", &json!({})).await;
    eventually("the seed is public", PATIENCE, async || {
        let drop = ada.get(&sale.path("")).await.json();
        if drop["seed"].is_string() { Ok(()) } else { Err(drop.to_string()) }
    })
    .await;
    sale.operate("close", &json!({})).await;
    eventually("the drop is closed", PATIENCE, async || {
        let (listed, drop) = (listed().await, ada.get(&sale.path("")).await.json());
        if listed == json!([]) && drop["state"] == "CLOSED" {
            Ok(())
        } else {
            Err(format!("{listed} {drop}"))
        }
    })
    .await;
    assert_refused(&ada.post(&sale.path("/join")).await, 409, "drops:not-joinable");
    for unknown in ["01a1e4c0-0000-7000-8000-000000000001", "no-id"] {
        let response = ada.get(&format!("/v1/drops/{unknown}")).await;
        let expected = if unknown == "no-id" { (400, "drops:invalid") } else { (404, "drops:no-such-drop") };
        assert_refused(&response, expected.0, expected.1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ownership_decides_eligibility_and_lane() {
    let terms = json!({ "who": { "owns": "ticket" }, "lanes": ["gold"] });
    let sale = Sale::open(5, terms).await;
    sale.operate("pause", &json!({})).await;
    let (ada, grace, alan) =
        (sale.player("ada").await, sale.player("grace").await, sale.player("alan").await);
    for (player, resources) in [(&ada, &["ticket"][..]), (&grace, &["ticket", "gold"]), (&alan, &["gold"])] {
        let me = player.get("/v1/me").await.json();
        for resource in resources {
            let body = json!({
                "user_id": me["user_id"], "account_id": me["accounts"][0]["account_id"], "resource": resource,
                "quantity": 1, "occurred_at": "2026-03-01T12:00:00Z",
            });
            let key = format!("{resource}-{}", me["user_id"].as_str().unwrap());
            let url = format!("http://{}/internal/v1/entitlements/grant", sale.gateway.at["service_api"]);
            let grant = sale.gateway.client.post(url).bearer_auth(shop::TOKEN).header("idempotency-key", key);
            assert_eq!(send(grant.json(&body)).await.status, 200);
        }
    }
    assert_refused(&alan.post(&sale.path("/join")).await, 403, "drops:not-eligible");
    ada.join().await;
    ada.wait_for_players_ahead(0).await;
    grace.join().await;
    // Her lane comes first.
    grace.wait_for_players_ahead(0).await;
    ada.wait_for_players_ahead(1).await;
    assert_eq!(alan.place().await["state"], "not_joined");
}

#[tokio::test(flavor = "multi_thread")]
async fn returning_client_sees_its_place() {
    let sale = Sale::open(5, json!({ "message": "Thank you for waiting." })).await;
    let ada = sale.player("ada").await;
    let home = async || {
        let home = ada.get("/v1/home").await.json();
        assert_eq!(home["drops"]["status"], "ok", "{home}");
        home["drops"]["data"].clone()
    };
    eventually("the drop is listed", PATIENCE, async || {
        ada.get("/v1/drops").await.json()["drops"].as_array().unwrap().len() == 1
    })
    .await;
    assert_eq!(home().await, json!({ "places": [], "reservations": [] }));
    let token = ada.admission().await;
    let admitted = home().await;
    assert_eq!(admitted["places"][0]["drop"]["drop_id"], sale.drop, "{admitted}");
    assert!(admitted["places"][0]["place"]["admission"]["token"].is_string(), "{admitted}");
    let reserved = ada.reserve("one", 1, &token).await.json();
    let holding = home().await;
    assert_eq!(holding["reservations"][0]["reservation_id"], reserved["reservation_id"], "{holding}");
}

#[tokio::test(flavor = "multi_thread")]
async fn drop_stream_sends_every_change_of_the_place() {
    let sale = Sale::open(5, json!({})).await;
    sale.operate("pause", &json!({})).await;
    let (ada, grace) = (sale.player("ada").await, sale.player("grace").await);
    ada.join().await;
    grace.join().await;
    grace.wait_for_players_ahead(1).await;
    let path = sale.path("/stream?place=true");
    let mut events =
        flows::Events::new(sale.gateway.get(&path).bearer_auth(&grace.token).send().await.unwrap());
    let mut place = async || loop {
        match events.next().await.unwrap() {
            (name, place) if name == "place" => return place,
            (name, other) => assert_eq!(name, "stock", "{other}"),
        }
    };
    assert_eq!(place().await["ahead"], 1);
    assert_eq!(ada.post(&sale.path("/leave")).await.status, 204);
    assert_eq!(place().await["ahead"], 0);
    sale.operate("resume", &json!({})).await;
    let mut admitted = place().await;
    while admitted["state"] == "waiting" {
        admitted = place().await;
    }
    assert_eq!(admitted["state"], "entered", "{admitted}");
    assert_eq!(grace.reserve("a", 1, admitted["admission"]["token"].as_str().unwrap()).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn admission_keys_are_public_and_cacheable() {
    let sale = Sale::open(1, json!({})).await;
    let keys = send(sale.gateway.get("/v1/drops/jwks")).await;
    assert_eq!((keys.status, keys.header("cache-control")), (200, "public, max-age=300"), "{keys:?}");
    let key = keys.json()["keys"][0].clone();
    assert_eq!((&key["kty"], &key["crv"], &key["alg"]), (&json!("OKP"), &json!("Ed25519"), &json!("EdDSA")));
    assert!(key["d"].is_null(), "the key is private: {key}");
}
