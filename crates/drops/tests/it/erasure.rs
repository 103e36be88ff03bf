//! Erasing a user who has reservations and orders.

use drops::orders::{OrderState, PaymentOutcome};

use super::*;

testkit::on_all_stores!(
    erasure_keeps_the_counts_and_removes_the_user,
    erasure_races_with_reserves_and_payments,
);

async fn erasure_keeps_the_counts_and_removes_the_user(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(Terms { units: 10, limit: 10, hold_ms: MINUTE }).await;
    let ada = shop.admitted(drop, "ada").await;
    let (paid, pending) = (shop.ordered(ada, 1).await, shop.ordered(ada, 2).await);
    shop.orders.record(&webhook(&paid, WebhookKind::Succeeded)).await.unwrap();
    shop.reserve(ada, 3).await.unwrap();
    let eve = shop.admitted(drop, "eve").await;
    let others = shop.ordered(eve, 1).await;
    shop.accounts.erase(ada.user, "olga").await.unwrap();
    assert_eq!(counts(shop.assert_sound(drop).await), (8, 1, 1), "held units are available again");
    let user = ada.user.as_uuid().simple().to_string();
    let of_user = |table: &str| match place.is_server() {
        true => format!("SELECT COUNT(*) FROM {table} WHERE user_id = UNHEX('{user}')"),
        false => format!("SELECT COUNT(*) FROM {table} WHERE user_id = X'{user}'"),
    };
    for table in ["drop_entries", "drop_reservations", "drop_orders"] {
        assert_eq!(shop.scalar(&of_user(table)).await, 0, "{table}");
    }
    assert_eq!(shop.scalar("SELECT COUNT(*) FROM drop_orders WHERE payment IS NOT NULL").await, 0);
    // A payment after the erasure must be refunded.
    let outcome = shop.orders.record(&webhook(&pending, WebhookKind::Succeeded)).await.unwrap();
    assert_eq!(outcome, PaymentOutcome::Changed(OrderState::RefundDue));
    // A refund makes the unit available again.
    shop.orders.record(&webhook(&paid, WebhookKind::Refunded)).await.unwrap();
    assert_eq!(counts(shop.assert_sound(drop).await), (9, 1, 0));
    assert_eq!(shop.orders.order(eve.user, others.id).await.unwrap(), others);
}

/// Erases a user while their reserves, payments and refunds run. In any order, none fails unexpectedly and every unit is accounted for.
async fn erasure_races_with_reserves_and_payments(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let another = shop.another(place).await;
    let drop = shop.drop_of(Terms { units: 1_000, limit: 10, hold_ms: MINUTE }).await;
    for round in 0..10 {
        let ada = shop.admitted(drop, &format!("ada-{round}")).await;
        let (one, two) = (shop.ordered(ada, 1).await, shop.ordered(ada, 2).await);
        shop.orders.record(&webhook(&one, WebhookKind::Succeeded)).await.unwrap();
        let (paid, refunded) = (webhook(&two, WebhookKind::Succeeded), webhook(&one, WebhookKind::Refunded));
        let reserves = futures::future::join_all((0..4).map(|n| {
            let shop = if n % 2 == 0 { &shop } else { &another };
            shop.reserve(ada, 1)
        }));
        let (erased, reserved, paid, refunded) = tokio::join!(
            shop.accounts.erase(ada.user, "olga"),
            reserves,
            another.orders.record(&paid),
            shop.orders.record(&refunded),
        );
        erased.unwrap();
        for reserved in reserved {
            assert!(matches!(reserved, Ok(_) | Err(Error::NotAdmitted)), "{reserved:?}");
        }
        // Paid before the erasure, or due for a refund after it.
        let state = paid.unwrap().state();
        assert!(matches!(state, OrderState::Paid | OrderState::RefundDue), "{state:?}");
        assert_eq!(refunded.unwrap().state(), OrderState::Refunded);
        shop.assert_sound(drop).await;
    }
    let users = shop.scalar("SELECT COUNT(DISTINCT user_id) FROM drop_reservations").await;
    assert_eq!((users, shop.scalar("SELECT COUNT(*) FROM drop_entries").await), (1, 0));
    assert_eq!(shop.stock.levels(drop).await.unwrap().reserved, 0, "no unit stays reserved");
}
