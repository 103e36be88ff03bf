//! From a reservation to an entitlement.

use drops::orders::{OrderState, PaymentOutcome};
use drops::stock::{LedgerKind, ReservationState};
use drops::{Drops, DropsConsole, Line};
use entitlement::{Action, Change};
use redis_store::RedisStore;
use screens::{Step, Subject};

use super::*;

testkit::on_all_stores!(
    a_payment_sells_the_units_and_grants_them,
    a_reservation_has_one_order,
    part_of_a_reservation_can_be_bought,
    a_late_payment_takes_other_units,
    a_late_payment_without_units_is_due_for_refund,
    a_late_payment_over_the_limit_is_due_for_refund,
    a_payment_that_cannot_be_granted_is_due_for_refund,
    a_purchase_succeeds_if_another_clock_is_ahead,
    a_failed_payment_releases_the_units,
    a_refund_revokes_the_units_of_its_order,
    a_refund_does_not_revoke_units_twice,
    paying_again_without_a_quantity_returns_the_order,
    a_player_who_bought_up_to_the_limit_leaves,
    steps_of_an_order_are_found_by_its_ids_and_events,
);

const TERMS: Terms = Terms { units: 5, limit: 3, hold_ms: MINUTE };

async fn a_payment_sells_the_units_and_grants_them(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let order = shop.ordered(ada, 2).await;
    assert_eq!((order.state, order.amount, order.currency.as_str()), (OrderState::Pending, 2 * PRICE, "EUR"));
    let paid = shop.orders.record(&webhook(&order, WebhookKind::Succeeded)).await.unwrap();
    assert_eq!(paid, PaymentOutcome::Changed(OrderState::Paid));
    assert_eq!(counts(shop.assert_sound(drop).await), (3, 0, 2));
    assert_eq!(shop.owned(&order).await, 2);
    assert_eq!(shop.published(order.id).await, ["PENDING", "PAID"]);
    let after = shop.orders.order(ada.user, order.id).await.unwrap();
    assert_eq!(
        (after.state, after.version, after.payment),
        (OrderState::Paid, 2, Some(format!("pay_{}", order.id)))
    );
    let reservation = shop.stock.reservation(ada.user, order.reservation).await.unwrap();
    assert_eq!((reservation.state, reservation.confirmed), (ReservationState::Confirmed, 2));
    assert!(matches!(shop.stock.release(ada.user, reservation.id).await, Err(Error::AlreadyPaid(_))));
    // Other players do not see the order.
    let eve = shop.customer("eve").await.0;
    assert!(matches!(shop.orders.order(eve, order.id).await, Err(Error::UnknownOrder(_))));
    assert_eq!(shop.orders.list(ada.user, None, 10).await.unwrap().len(), 1);
}

async fn a_reservation_has_one_order(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let another = shop.another(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let held = shop.reserve(ada, 3).await.unwrap();
    let pays = (0..8)
        .map(|n| if n % 2 == 0 { &shop } else { &another })
        .map(|shop| shop.orders.pay(ada.user, held.id, None));
    let orders = futures::future::join_all(pays).await;
    let first = orders[0].as_ref().unwrap().id;
    assert!(orders.iter().all(|order| order.as_ref().unwrap().id == first), "{orders:?}");
    assert_eq!(shop.published(first).await, ["PENDING"]);
    let other = shop.orders.pay(ada.user, held.id, Some(1)).await;
    assert!(matches!(other, Err(Error::OtherQuantity { ordered: 3 })), "{other:?}");
    let eve = shop.customer("eve").await.0;
    assert!(matches!(shop.orders.pay(eve, held.id, None).await, Err(Error::UnknownReservation(_))));
    // An ended reservation cannot be paid.
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admit(drop, shop.customer("ada").await).await;
    let released = shop.reserve(ada, 1).await.unwrap();
    for quantity in [0, -1, 2, i64::MAX] {
        let refused = shop.orders.pay(ada.user, released.id, Some(quantity)).await;
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{quantity}");
    }
    shop.stock.release(ada.user, released.id).await.unwrap();
    assert!(matches!(shop.orders.pay(ada.user, released.id, None).await, Err(Error::ReservationEnded(_))));
}

async fn part_of_a_reservation_can_be_bought(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let held = shop.reserve(ada, 3).await.unwrap();
    let order = shop.orders.pay(ada.user, held.id, Some(1)).await.unwrap();
    assert_eq!((order.quantity, order.amount), (1, PRICE));
    shop.orders.record(&webhook(&order, WebhookKind::Succeeded)).await.unwrap();
    assert_eq!(counts(shop.assert_sound(drop).await), (4, 0, 1), "the rest is available again");
    assert_eq!(shop.owned(&order).await, 1);
    // Units that were reserved but not bought do not count against the limit.
    shop.reserve(ada, 2).await.unwrap();
}

/// Creates an order whose reservation has ended.
async fn late_order(shop: &Shop, drop: DropId, name: &str, quantity: i64) -> (VerifiedAdmission, Order) {
    let ada = shop.admitted(drop, name).await;
    let order = shop.ordered(ada, quantity).await;
    shop.stock.release(ada.user, order.reservation).await.unwrap();
    (ada, order)
}

async fn a_late_payment_takes_other_units(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let (_, order) = late_order(&shop, drop, "ada", 2).await;
    let paid = shop.orders.record(&webhook(&order, WebhookKind::Succeeded)).await.unwrap();
    assert_eq!(paid, PaymentOutcome::Changed(OrderState::Paid));
    assert_eq!(counts(shop.assert_sound(drop).await), (3, 0, 2));
    assert_eq!(shop.owned(&order).await, 2);
    assert_eq!(shop.stock.ledger(drop, None, 1).await.unwrap()[0].kind, LedgerKind::SoldLate);
}

async fn a_late_payment_without_units_is_due_for_refund(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(Terms { units: 3, ..TERMS }).await;
    let (_, order) = late_order(&shop, drop, "ada", 2).await;
    let eve = shop.admitted(drop, "eve").await;
    shop.reserve(eve, 2).await.unwrap();
    let outcome = shop.orders.record(&webhook(&order, WebhookKind::Succeeded)).await.unwrap();
    assert_eq!(outcome, PaymentOutcome::Changed(OrderState::RefundDue));
    assert_eq!(counts(shop.assert_sound(drop).await), (1, 2, 0));
    assert_eq!(shop.owned(&order).await, 0);
    assert_eq!(shop.published(order.id).await, ["PENDING", "REFUND_DUE"]);
    let due = shop.refunds_due(10).await;
    assert_eq!(due.iter().map(|due| due.order.id).collect::<Vec<_>>(), [order.id], "operators see it");
    // A refund by the provider settles it.
    shop.orders.record(&webhook(&order, WebhookKind::Refunded)).await.unwrap();
    assert!(shop.refunds_due(10).await.is_empty());
    assert_eq!(shop.published(order.id).await, ["PENDING", "REFUND_DUE", "REFUNDED"]);
    assert_eq!(counts(shop.assert_sound(drop).await), (1, 2, 0));
}

async fn a_late_payment_over_the_limit_is_due_for_refund(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(Terms { limit: 2, ..TERMS }).await;
    let (ada, order) = late_order(&shop, drop, "ada", 2).await;
    shop.reserve(ada, 1).await.unwrap();
    let outcome = shop.orders.record(&webhook(&order, WebhookKind::Succeeded)).await.unwrap();
    assert_eq!(outcome, PaymentOutcome::Changed(OrderState::RefundDue));
    assert_eq!(counts(shop.assert_sound(drop).await), (4, 1, 0));
}

async fn a_payment_that_cannot_be_granted_is_due_for_refund(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.customer("ada").await;
    let admitted = shop.admit(drop, ada).await;
    let order = shop.ordered(admitted, 1).await;
    // Another service has granted the same resource without a quantity.
    let uncounted = Change {
        holding: Holding { user: ada.0, account: ada.1, resource: "sword".to_owned() },
        action: Action::Grant { quantity: None, valid_until: None },
        occurred_at: Timestamp::from_millis(NOW - 9),
        reference: None,
    };
    shop.entitlements.apply("shop", "1", &[uncounted]).await.unwrap();
    let outcome = shop.orders.record(&webhook(&order, WebhookKind::Succeeded)).await.unwrap();
    assert_eq!(outcome, PaymentOutcome::Changed(OrderState::RefundDue));
    assert_eq!(counts(shop.assert_sound(drop).await), (5, 0, 0));
}

async fn a_purchase_succeeds_if_another_clock_is_ahead(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.customer("ada").await;
    let admitted = shop.admit(drop, ada).await;
    let order = shop.ordered(admitted, 1).await;
    let revoked = Change {
        holding: Holding { user: ada.0, account: ada.1, resource: "sword".to_owned() },
        action: Action::Revoke { quantity: None },
        occurred_at: Timestamp::from_millis(NOW + 60_000),
        reference: None,
    };
    shop.entitlements.apply("shop", "1", &[revoked]).await.unwrap();
    let outcome = shop.orders.record(&webhook(&order, WebhookKind::Succeeded)).await.unwrap();
    assert_eq!(outcome, PaymentOutcome::Changed(OrderState::Paid));
    assert_eq!(shop.owned(&order).await, 1);
    shop.assert_sound(drop).await;
}

async fn a_failed_payment_releases_the_units(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let order = shop.ordered(ada, 2).await;
    let outcome = shop.orders.record(&webhook(&order, WebhookKind::Failed)).await.unwrap();
    assert_eq!(outcome, PaymentOutcome::Changed(OrderState::Failed));
    assert_eq!(counts(shop.assert_sound(drop).await), (5, 0, 0));
    assert_eq!(shop.published(order.id).await, ["PENDING", "FAILED"]);
}

async fn a_refund_revokes_the_units_of_its_order(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let (one, two) = (shop.ordered(ada, 1).await, shop.ordered(ada, 2).await);
    for order in [&one, &two] {
        shop.orders.record(&webhook(order, WebhookKind::Succeeded)).await.unwrap();
    }
    let outcome = shop.orders.record(&webhook(&two, WebhookKind::Refunded)).await.unwrap();
    assert_eq!(outcome, PaymentOutcome::Changed(OrderState::Refunded));
    assert_eq!(shop.owned(&one).await, 1, "the other order's unit stays");
    assert_eq!(counts(shop.assert_sound(drop).await), (4, 0, 1));
    assert_eq!(shop.published(two.id).await, ["PENDING", "PAID", "REFUNDED"]);
}

/// Returns a revocation by an operator or a game.
fn revoke(order: &Order, quantity: Option<i64>, after_ms: i64) -> Change {
    Change {
        holding: Holding { user: order.user, account: order.account, resource: "sword".to_owned() },
        action: Action::Revoke { quantity },
        occurred_at: Timestamp::from_millis(NOW + after_ms),
        reference: None,
    }
}

async fn a_refund_does_not_revoke_units_twice(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    // Either all units were revoked, or as many as the order granted.
    for revoked in [None, Some(2)] {
        let drop = shop.drop_of(TERMS).await;
        let player = shop.customer(&format!("player of {drop}")).await;
        let ada = shop.admit(drop, player).await;
        let (one, two) = (shop.ordered(ada, 2).await, shop.ordered(ada, 1).await);
        shop.orders.record(&webhook(&one, WebhookKind::Succeeded)).await.unwrap();
        let by_hand = [revoke(&one, revoked, 1)];
        shop.entitlements.apply("support", &drop.to_string(), &by_hand).await.unwrap();
        let outcome = shop.orders.record(&webhook(&one, WebhookKind::Refunded)).await.unwrap();
        assert_eq!(outcome, PaymentOutcome::Changed(OrderState::Refunded));
        assert_eq!(counts(shop.assert_sound(drop).await), (4, 1, 0));
        // A later purchase is owned.
        shop.orders.record(&webhook(&two, WebhookKind::Succeeded)).await.unwrap();
        assert_eq!(shop.owned(&two).await, 1, "{revoked:?}");
    }
}

async fn paying_again_without_a_quantity_returns_the_order(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let held = shop.reserve(ada, 3).await.unwrap();
    let order = shop.orders.pay(ada.user, held.id, Some(1)).await.unwrap();
    assert_eq!(shop.orders.pay(ada.user, held.id, None).await.unwrap(), order);
}

async fn a_player_who_bought_up_to_the_limit_leaves(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let (ada, eve) = (shop.admitted(drop, "ada").await, shop.admitted(drop, "eve").await);
    let inside = async || shop.scalar("SELECT COUNT(*) FROM drop_entries WHERE state = 1").await;
    let (one, rest) = (shop.ordered(ada, 1).await, shop.ordered(ada, 2).await);
    shop.orders.record(&webhook(&one, WebhookKind::Succeeded)).await.unwrap();
    assert_eq!(inside().await, 2);
    shop.orders.record(&webhook(&rest, WebhookKind::Succeeded)).await.unwrap();
    assert_eq!(inside().await, 1, "there is room for the next player");
    assert!(matches!(shop.reserve(ada, 1).await, Err(Error::NotAdmitted)));
    shop.reserve(eve, 1).await.unwrap();
}

async fn steps_of_an_order_are_found_by_its_ids_and_events(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let order = shop.ordered(ada, 2).await;
    shop.orders.record(&webhook(&order, WebhookKind::Succeeded)).await.unwrap();
    let drops = Drops::new(shop.db.clone(), shop.outbox.clone(), Clock::system());
    let line = Line::new(&RedisStore::Memory, "");
    let console = DropsConsole::new(drops, shop.stock.clone(), line, shop.orders.clone());
    let steps = async |id: String| {
        let mut found = drops::steps(&console, &Subject::Id(id), 100).await.unwrap();
        Step::sort(&mut found);
        found.into_iter().map(|step| step.what).collect::<Vec<_>>()
    };
    let payment = format!("Paid and granted (payment pay_{})", order.id);
    let bought = ["Ordered 2 units for 39.98 EUR", payment.as_str()];
    let all = [&["Reserved 2 units"], &bought[..]].concat();
    for id in [order.id.to_string(), order.reservation.to_string(), format!("order/{}", order.id)] {
        let mut found = steps(id.clone()).await;
        // The database's clock and that of the process differ in this test.
        found.sort_by_key(|what| all.iter().position(|step| step == what));
        assert_eq!(found, all, "{id}");
    }
    assert_eq!(steps(format!("pay_{}", order.id)).await.len(), 2);

    let events = shop.outbox.queue().newest_of_key(&format!("order/{}", order.id), 10).await.unwrap();
    assert_eq!(events.len(), 2);
    for event in events {
        let found = steps(event.id.to_string()).await;
        assert!(bought.iter().all(|step| found.iter().any(|what| what == step)), "{found:?}");
    }
    let granted = shop.outbox.queue().list(Filter::All, 10).await.unwrap();
    let granted = granted.iter().find(|event| event.key.starts_with("entitlement/")).unwrap();
    assert!(steps(granted.id.to_string()).await.is_empty(), "another service knows it");
}
