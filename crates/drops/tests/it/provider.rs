//! A payment provider that repeats, reorders, delays and forges its webhooks, over HTTP.

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use base::error::Coded;
use drops::PaymentWebhooks;
use drops::orders::OrderState;
use testkit::{Payment, PaymentProvider, PaymentWebhook, Seed};
use tokio::net::TcpListener;
use webhook::Verifier;

use super::*;

testkit::on_all_stores!(a_faulty_provider_cannot_sell_a_unit_twice);

const BUYERS: usize = 8;

async fn a_faulty_provider_cannot_sell_a_unit_twice(place: &TestDatabase) {
    let seed = Seed::new();
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(Terms { units: 20, limit: 2, hold_ms: MINUTE }).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/payments", listener.local_addr().unwrap());
    let provider = PaymentProvider::start(url).await;
    let payments =
        PaymentWebhooks::new(Verifier::new([provider.secret.as_str()]).unwrap(), Duration::from_secs(300));
    let orders = shop.orders.clone();
    let receive = move |headers: HeaderMap, body: Bytes| async move {
        let read = payments.read(&headers, &body, Clock::system().now());
        let recorded = match read {
            Ok(Some(webhook)) => orders.record(&webhook).await.map(drop_outcome),
            other => other.map(|_| ()),
        };
        recorded.map_or_else(
            |error| StatusCode::from_u16(error.code().http_status()).unwrap(),
            |()| StatusCode::OK,
        )
    };
    let routes = Router::new().route("/payments", post(receive));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let (mut all, mut expected) = (Vec::new(), Vec::new());
    for n in 0..BUYERS {
        let order = shop.ordered(shop.admitted(drop, &format!("buyer-{n}")).await, 2).await;
        let payment = Payment {
            id: format!("pay_{n}"),
            order: order.id.to_string(),
            amount: order.amount,
            currency: order.currency.clone(),
        };
        let kinds: &[&str] = match n % 4 {
            0 => &["succeeded"],
            1 => &["failed", "succeeded"],
            2 => &["succeeded", "refunded"],
            _ => &["failed"],
        };
        all.extend(kinds.iter().map(|kind| provider.webhook(kind, &payment)));
        let state = [OrderState::Paid, OrderState::Paid, OrderState::Refunded, OrderState::Failed][n % 4];
        expected.push((order, state));
        if n == 0 {
            check_refusals(&shop, &provider, &payment).await;
        }
    }
    let statuses = provider.send_unreliably(&all, seed.choices(1)).await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    for (order, state) in &expected {
        let after = shop.orders.order(order.user, order.id).await.unwrap();
        assert_eq!(after.state, *state);
        assert_eq!(shop.owned(order).await, if *state == OrderState::Paid { 2 } else { 0 });
    }
    assert_eq!(counts(shop.assert_sound(drop).await), (12, 0, 8));
}

fn drop_outcome(_: drops::orders::PaymentOutcome) {}

/// Checks that forged, old and unknown webhooks have no effect.
async fn check_refusals(shop: &Shop, provider: &PaymentProvider, payment: &Payment) {
    let good = provider.webhook("succeeded", payment);
    assert_eq!(provider.send(&provider.forge(&good)).await, 401);
    let old = PaymentWebhook { sent_at: good.sent_at - 3_600, ..good.clone() };
    assert_eq!(provider.send(&old).await, 401);
    let unknown = Payment { order: OrderId::generate().to_string(), ..payment.clone() };
    assert_eq!(provider.send(&provider.webhook("succeeded", &unknown)).await, 404);
    for wrong in [
        Payment { amount: payment.amount - 1, ..payment.clone() },
        Payment { currency: "USD".to_owned(), ..payment.clone() },
    ] {
        assert_eq!(provider.send(&provider.webhook("succeeded", &wrong)).await, 422);
    }
    let nonsense = Payment { order: "7".to_owned(), ..payment.clone() };
    assert_eq!(provider.send(&provider.webhook("succeeded", &nonsense)).await, 400);
    // An unknown kind is acknowledged and ignored.
    assert_eq!(provider.send(&provider.webhook("created", payment)).await, 200);
    assert_eq!(shop.scalar("SELECT COUNT(*) FROM drop_payment_webhooks").await, 0);
}
