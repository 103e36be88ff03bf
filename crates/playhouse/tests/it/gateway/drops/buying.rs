//! Reserving and paying, and refusals without effect.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn player_reserves_pays_and_owns() {
    let sale = Sale::open(5, json!({})).await;
    let ada = sale.player("ada").await;
    let token = ada.admission().await;
    let first = ada.reserve("one", 2, &token).await;
    assert_eq!(first.status, 201, "{first:?}");
    let again = ada.reserve("one", 2, &token).await;
    assert_eq!(
        (again.status, again.json()),
        (201, first.json()),
        "a repeated request gets the recorded response"
    );
    assert_refused(&ada.reserve("one", 1, &token).await, 422, "drops:key-reused");

    let path = sale.path(&format!("/reservations/{}/pay", first.json()["reservation_id"].as_str().unwrap()));
    let order = ada.post(&path).await.json();
    assert_eq!((&order["state"], &order["amount"]), (&json!("PENDING"), &json!(998)), "{order}");
    let checkout = Url::parse(order["checkout_url"].as_str().unwrap()).unwrap();
    let query: Vec<(String, String)> = checkout.query_pairs().into_owned().collect();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let id = order["order_id"].as_str().unwrap();
    let expected = [pair("shop", "1"), pair("order_id", id), pair("amount", "998"), pair("currency", "EUR")];
    assert_eq!(query, expected);
    assert_eq!(ada.post(&path).await.json(), order, "a reservation has two orders");

    let paid = sale.webhook(&webhook_about("succeeded", &order)).await;
    assert_eq!((paid.status, paid.json()), (200, json!({ "outcome": "changed" })), "{paid:?}");
    assert_eq!(ada.order_state(&order).await, "PAID");
    let orders = ada.get("/v1/orders").await.json();
    assert_eq!(orders["orders"][0]["order_id"], order["order_id"]);
    assert!(orders["orders"][0]["checkout_url"].is_null(), "a paid order has a checkout URL: {orders}");
    let owned = ada.get("/v1/entitlements").await.json();
    assert_eq!(owned["entitlements"][0]["resource"], "golden-hat", "{owned}");
    assert_eq!(owned["entitlements"][0]["quantity"], 2, "{owned}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_drop_operation_matches_the_openapi_document() {
    let sale = Sale::open(5, json!({ "message": "Thank you for waiting.", "lanes": ["gold"] })).await;
    let ada = sale.player("ada").await;
    let token = ada.admission().await;
    let order = ada.order("a", 1, &token).await;
    ada.order_state(&order).await;
    sale.webhook(&webhook_about("succeeded", &order)).await;
    let held = ada.reserve("b", 1, &token).await.json();
    ada.delete(&sale.path(&format!("/reservations/{}", held["reservation_id"].as_str().unwrap()))).await;
    for path in
        ["/v1/drops", "/v1/drops/jwks", "/v1/orders", &sale.path(""), &sale.path("/stock"), "/v1/home"]
    {
        ada.get(path).await;
    }
    ada.post(&sale.path("/leave")).await;
    let paths = sale.document["paths"].as_object().unwrap();
    let operations = paths.iter().flat_map(|(path, methods)| {
        let of_drops = methods.as_object().unwrap().iter().filter(|(_, one)| one["tags"][0] == "drops");
        of_drops.map(move |(method, _)| format!("{} {path}", method.to_uppercase()))
    });
    let described: BTreeSet<String> = operations.filter(|what| !what.ends_with("/stream")).collect();
    let succeeded = sale.succeeded.lock().unwrap().clone();
    let missing: Vec<&String> = described.difference(&succeeded).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn buying_needs_the_players_own_admission() {
    let sale = &Sale::open(5, json!({})).await;
    let (ada, grace) = (sale.player("ada").await, sale.player("grace").await);
    let token = ada.admission().await;
    let before = sale.stock(&ada).await;

    assert_refused(&grace.reserve("a", 1, &token).await, 403, "drops:admission-of-another-player");
    let middle = token.len() / 2;
    let forged = format!("{}AAAA{}", &token[..middle], &token[middle + 4..]);
    for forged in [forged.as_str(), "", "a.b.c", &token[..token.len() - 4]] {
        assert_refused(&ada.reserve("b", 1, forged).await, 403, "drops:admission-forged");
    }
    let without = ada.reserve_as("c", &json!({ "quantity": 1 })).await;
    assert_problem(&without, 400);
    let no_key = send(
        sale.gateway
            .post(&sale.path("/reservations"), &json!({ "quantity": 1, "admission": token }))
            .bearer_auth(&ada.token),
    )
    .await;
    assert_problem(&no_key, 400);

    // A token may outlive its admission, but cannot buy then.
    assert_eq!(ada.post(&sale.path("/leave")).await.status, 204);
    assert_refused(&ada.reserve("d", 1, &token).await, 403, "drops:not-admitted");
    assert_eq!(sale.stock(&ada).await, before, "a refused request changed the stock");
}

#[tokio::test(flavor = "multi_thread")]
async fn admission_is_valid_for_its_drop_until_it_ends() {
    let sale = Sale::open(5, json!({})).await;
    let ada = sale.player("ada").await;
    let token = ada.admission().await;
    let short = json!({
        "admission": { "batch": 1, "period_ms": 100, "capacity": 9, "lifetime_ms": 1_000, "arrive_within_ms": 1_000 },
    });
    let drop = create(&sale.gateway, "Silver hat", 5, short).await;
    let player = ada.token;
    let other = Sale { drop, ..sale };
    other.operate("open", &json!({})).await;
    let ada = Player { sale: &other, token: player };
    assert_refused(&ada.reserve("a", 1, &token).await, 403, "drops:admission-to-another-drop");
    let ended = ada.admission().await;
    eventually("the admission ends", PATIENCE, async || {
        let place = ada.place().await;
        if place["state"] == "expired" { Ok(()) } else { Err(place.to_string()) }
    })
    .await;
    let refused = eventually("the token has expired", PATIENCE, async || {
        let refused = ada.reserve("b", 1, &ended).await;
        // Until the token's last second is over, the entry's row refuses it.
        if refused.status == 409 { Ok(refused) } else { Err(format!("{refused:?}")) }
    })
    .await;
    assert_refused(&refused, 409, "drops:admission-ended");
    assert_eq!(other.stock(&ada).await["available"], 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn quantities_and_limits_are_enforced() {
    let sale = Sale::open(3, json!({})).await;
    let (ada, grace) = (sale.player("ada").await, sale.player("grace").await);
    let (ada_token, grace_token) = (ada.admission().await, grace.admission().await);
    for quantity in [0, -1, i64::MIN] {
        assert_refused(&ada.reserve("a", quantity, &ada_token).await, 400, "drops:invalid");
    }
    for quantity in [3, 1_000_000, i64::MAX] {
        assert_refused(&ada.reserve("b", quantity, &ada_token).await, 409, "drops:over-limit");
    }
    for quantity in [json!(1.5), json!("1"), json!(null), json!(1e30)] {
        let body = json!({ "quantity": quantity, "admission": ada_token });
        assert_problem(&ada.reserve_as("c", &body).await, 400);
    }
    assert_eq!(sale.stock(&ada).await["available"], 3);
    assert_eq!(ada.reserve("d", 2, &ada_token).await.status, 201);
    assert_refused(&ada.reserve("e", 1, &ada_token).await, 409, "drops:over-limit");
    assert_refused(&grace.reserve("f", 2, &grace_token).await, 409, "drops:sold-out");
    assert_eq!(grace.reserve("g", 1, &grace_token).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_units_are_released_once_and_only_by_their_player() {
    let sale = Sale::open(3, json!({})).await;
    let (ada, grace) = (sale.player("ada").await, sale.player("grace").await);
    let token = ada.admission().await;
    let reserved = ada.reserve("a", 2, &token).await.json();
    let path = sale.path(&format!("/reservations/{}", reserved["reservation_id"].as_str().unwrap()));
    assert_refused(&grace.delete(&path).await, 404, "drops:no-such-reservation");
    assert_refused(&grace.post(&format!("{path}/pay")).await, 404, "drops:no-such-reservation");
    for _ in 0..2 {
        let released = ada.delete(&path).await;
        assert_eq!((released.status, &released.json()["state"]), (200, &json!("RELEASED")), "{released:?}");
    }
    assert_refused(&ada.post(&format!("{path}/pay")).await, 409, "drops:reservation-ended");
    eventually("all units are available", PATIENCE, async || {
        let stock = sale.stock(&ada).await;
        if stock["available"] == 3 { Ok(()) } else { Err(stock.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_drop_sells_nothing_but_reserved_units_can_be_paid() {
    let sale = Sale::open(3, json!({})).await;
    let ada = sale.player("ada").await;
    let token = ada.admission().await;
    let order = ada.order("a", 1, &token).await;
    sale.operate("close", &json!({ "force": true })).await;
    assert_refused(&ada.reserve("b", 1, &token).await, 409, "drops:not-open");
    assert_eq!(sale.webhook(&webhook_about("succeeded", &order)).await.status, 200);
    assert_eq!(ada.order_state(&order).await, "PAID");
}
