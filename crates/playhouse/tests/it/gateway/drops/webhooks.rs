//! Valid and invalid webhooks of the payment provider.

use super::*;

async fn ordered(sale: &Sale) -> (Player<'_>, Value) {
    let ada = sale.player("ada").await;
    let token = ada.admission().await;
    let order = ada.order("a", 1, &token).await;
    (ada, order)
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_webhook_is_refused_without_effect() {
    let sale = Sale::open(3, json!({})).await;
    let (ada, order) = ordered(&sale).await;
    let good = webhook_about("succeeded", &order);
    let order_id = order["order_id"].as_str().unwrap();
    let payment = |order: &str, amount, currency: &str| Payment {
        id: "pay_1".to_owned(),
        order: order.to_owned(),
        amount,
        currency: currency.to_owned(),
    };
    let unknown = "01a1e4c0-0000-7000-8000-000000000001";
    let with = |what: &str| PaymentWebhook { body: what.to_owned(), ..good.clone() };
    let forged = PaymentWebhook { secret: format!("whsec_{}", "A".repeat(32)), ..good.clone() };
    let old = PaymentWebhook { sent_at: good.sent_at - 3_600, ..good.clone() };
    let refusals = [
        (webhook_of("succeeded", &payment(unknown, 499, "EUR")), 404, "drops:no-such-order"),
        (webhook_of("succeeded", &payment(order_id, 498, "EUR")), 422, "drops:wrong-amount"),
        (webhook_of("succeeded", &payment(order_id, 499, "USD")), 422, "drops:wrong-amount"),
        (webhook_of("succeeded", &payment(order_id, -499, "EUR")), 422, "drops:wrong-amount"),
        (with("{"), 400, "drops:unreadable-webhook"),
        (with(r#"{"type":"payment.succeeded","data":{}}"#), 400, "drops:unreadable-webhook"),
        (forged, 401, "drops:bad-signature"),
        (old, 401, "drops:bad-signature"),
    ];
    for (webhook, status, cause) in refusals {
        assert_refused(&sale.webhook(&webhook).await, status, cause);
    }
    let unsigned =
        send(sale.gateway.client.post(sale.gateway.url("/v1/payments/webhook")).body(good.body.clone()))
            .await;
    assert_refused(&unsigned, 401, "drops:bad-signature");
    assert_eq!(ada.order_state(&order).await, "PENDING");
    let owned = ada.get("/v1/entitlements").await.json();
    assert_eq!(owned["entitlements"], json!([]));

    // The signature covers trailing bytes, too.
    let spaced = with(&format!("{}\n ", good.body));
    assert_eq!(sale.webhook(&spaced).await.status, 200);
    assert_eq!(ada.order_state(&order).await, "PAID");
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_webhook_counts_once_and_unknown_types_are_ignored() {
    let sale = Sale::open(3, json!({})).await;
    let (ada, order) = ordered(&sale).await;
    let paid = webhook_about("succeeded", &order);
    let outcome = async |webhook: &PaymentWebhook| {
        let response = sale.webhook(webhook).await;
        assert_eq!(response.status, 200, "{response:?}");
        response.json()["outcome"].as_str().unwrap().to_owned()
    };
    assert_eq!(outcome(&paid).await, "changed");
    assert_eq!(outcome(&paid).await, "repeated");
    let late = PaymentWebhook { id: "msg_late".to_owned(), ..webhook_about("failed", &order) };
    assert_eq!(outcome(&late).await, "unchanged", "a later failure changed a paid order");
    let foreign = r#"{"type":"customer.created","data":{"id":7}}"#.to_owned();
    assert_eq!(outcome(&PaymentWebhook { id: "msg_7".to_owned(), body: foreign, ..paid }).await, "ignored");
    assert_eq!(ada.order_state(&order).await, "PAID");
    let owned = ada.get("/v1/entitlements").await.json();
    assert_eq!(owned["entitlements"][0]["quantity"], 1, "{owned}");
    assert_eq!(sale.stock(&ada).await["sold"], 1);
}

/// An order is paid twice. Operators see the second payment until they have refunded it.
#[tokio::test(flavor = "multi_thread")]
async fn second_payment_is_listed_until_it_is_settled() {
    let sale = Sale::open(3, json!({})).await;
    let (ada, order) = ordered(&sale).await;
    let order_id = order["order_id"].as_str().unwrap();
    assert_eq!(sale.webhook(&webhook_about("succeeded", &order)).await.status, 200);
    let admin = |path: &str| format!("http://{}{path}", sale.gateway.at["admin"]);
    let refunds = async || {
        let request = sale.gateway.client.get(admin("/refunds")).bearer_auth(OPERATOR_TOKEN);
        send(request).await.json()["refunds"].clone()
    };
    assert_eq!(refunds().await, json!([]));
    let second = Payment {
        id: "pay_2".to_owned(),
        order: order_id.to_owned(),
        amount: 499,
        currency: "EUR".to_owned(),
    };
    assert_eq!(sale.webhook(&webhook_of("succeeded", &second)).await.json()["outcome"], "surplus");
    let due = refunds().await;
    assert_eq!((due.as_array().unwrap().len(), &due[0]["payment_id"]), (1, &json!("pay_2")), "{due}");
    assert_eq!((&due[0]["is_surplus"], &due[0]["order"]["order_id"]), (&json!(true), &json!(order_id)));
    let settle = async |payment: &str| {
        let url = admin(&format!("/orders/{order_id}/settle"));
        let request = sale.gateway.client.post(url).bearer_auth(OPERATOR_TOKEN);
        send(request.json(&json!({ "payment_id": payment }))).await
    };
    assert_eq!(settle("pay_3").await.status, 409, "an unknown payment was settled");
    assert_eq!(settle("pay_2").await.status, 200);
    assert_eq!(settle("pay_2").await.status, 200, "settling twice failed");
    assert_eq!(refunds().await, json!([]));
    assert_eq!(ada.order_state(&order).await, "PAID");
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_get_503_until_a_secret_is_configured() {
    let gateway = Gateway::start("").await;
    let response = send(gateway.client.post(gateway.url("/v1/payments/webhook")).body("{}")).await;
    assert_problem(&response, 503);
    assert_eq!(response.header("retry-after"), "1");
}

/// The demo checkout signs payments without money, so it is only for `playhouse dev`.
#[tokio::test(flavor = "multi_thread")]
async fn demo_checkout_exists_only_in_dev() {
    let sale = Sale::open(3, json!({})).await;
    let (ada, order) = ordered(&sale).await;
    let id = order["order_id"].as_str().unwrap();
    let url = sale.gateway.url(&format!("/demo/checkout?order_id={id}&amount=499&currency=EUR"));
    assert_problem(&send(sale.gateway.client.get(&url)).await, 404);
    let form = format!("order_id={id}&amount=499&currency=EUR&result=pay");
    assert_problem(&send(sale.gateway.client.post(url).body(form)).await, 404);
    assert_eq!(ada.order_state(&order).await, "PENDING");
}
