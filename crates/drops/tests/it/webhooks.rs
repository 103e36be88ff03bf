//! Webhooks of the payment provider: in any order, repeated, wrong, old.

use drops::orders::{ListOrders, OrderState, PaymentOutcome};
use testkit::eventually;

use super::*;

testkit::on_all_stores!(
    webhooks_in_any_order_have_the_same_result,
    a_webhook_has_its_effect_once,
    a_webhook_that_does_not_match_its_order_has_no_effect,
    a_second_payment_is_due_for_refund,
    operators_settle_refunds_by_hand,
    old_webhooks_are_pruned_and_have_no_second_effect,
);

const TERMS: Terms = Terms { units: 10, limit: 10, hold_ms: MINUTE };

/// Returns all permutations of the items.
pub(super) fn permutations<T: Copy>(all: &[T]) -> Vec<Vec<T>> {
    if all.is_empty() {
        return vec![Vec::new()];
    }
    let first = |at: usize| {
        let mut rest = all.to_vec();
        let first = rest.remove(at);
        permutations(&rest).into_iter().map(move |rest| [vec![first], rest].concat())
    };
    (0..all.len()).flat_map(first).collect()
}

async fn webhooks_in_any_order_have_the_same_result(place: &TestDatabase) {
    use WebhookKind::{Failed, Refunded, Succeeded};
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    for (kinds, expected, owned) in [
        (&[Succeeded, Failed, Refunded][..], OrderState::Refunded, 0),
        (&[Succeeded, Failed], OrderState::Paid, 2),
        (&[Succeeded, Refunded], OrderState::Refunded, 0),
        (&[Failed, Refunded], OrderState::Refunded, 0),
    ] {
        for permutation in permutations(kinds) {
            let order = shop.ordered(ada, 2).await;
            // Each webhook is repeated with the same id, right away and at the end.
            let webhooks: Vec<Webhook> = permutation.iter().map(|kind| webhook(&order, *kind)).collect();
            let twice = webhooks.iter().flat_map(|webhook| [webhook, webhook]).chain(&webhooks);
            for webhook in twice {
                shop.orders.record(webhook).await.unwrap();
            }
            let after = shop.orders.order(ada.user, order.id).await.unwrap();
            assert_eq!(after.state, expected, "{permutation:?}");
            assert_eq!(shop.owned(&order).await, owned, "{permutation:?}");
            assert_eq!(counts(shop.assert_sound(drop).await), (10 - owned, 0, owned), "{permutation:?}");
            let published = shop.published(order.id).await;
            assert_eq!(published.len() as i64, after.version, "one event per state: {published:?}");
            assert_eq!(published.last().unwrap(), expected.as_str());
            if expected == OrderState::Paid {
                shop.orders.record(&webhook(&order, Refunded)).await.unwrap();
            }
        }
    }
}

async fn a_webhook_has_its_effect_once(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let another = shop.another(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let order = shop.ordered(ada, 2).await;
    let first = webhook(&order, WebhookKind::Succeeded);
    let repeats =
        (0..8).map(|n| if n % 2 == 0 { &shop } else { &another }).map(|shop| shop.orders.record(&first));
    let outcomes: Vec<_> = futures::future::join_all(repeats).await.into_iter().map(Result::unwrap).collect();
    let changed = outcomes.iter().filter(|outcome| matches!(outcome, PaymentOutcome::Changed(_))).count();
    assert_eq!(changed, 1, "{outcomes:?}");
    // The same payment with another webhook id has no second effect.
    let again = shop.orders.record(&webhook(&order, WebhookKind::Succeeded)).await.unwrap();
    assert_eq!(again, PaymentOutcome::Unchanged(OrderState::Paid));
    assert_eq!((shop.owned(&order).await, counts(shop.assert_sound(drop).await)), (2, (8, 0, 2)));
    // A reused webhook id with other content is refused.
    let other = Webhook { kind: WebhookKind::Refunded, ..first.clone() };
    assert!(matches!(shop.orders.record(&other).await, Err(Error::WebhookReused)));
    let others = shop.ordered(ada, 1).await;
    let other = Webhook { id: first.id, ..webhook(&others, WebhookKind::Succeeded) };
    assert!(matches!(shop.orders.record(&other).await, Err(Error::WebhookReused)));
    assert_eq!(shop.published(order.id).await, ["PENDING", "PAID"]);
}

async fn a_webhook_that_does_not_match_its_order_has_no_effect(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let order = shop.ordered(ada, 1).await;
    let good = webhook(&order, WebhookKind::Succeeded);
    for amount in [0, -PRICE, PRICE - 1, PRICE + 1, i64::MAX] {
        let wrong = Webhook { amount, ..good.clone() };
        assert!(matches!(shop.orders.record(&wrong).await, Err(Error::WrongAmount { .. })), "{amount}");
    }
    for currency in ["USD", "eur", ""] {
        let wrong = Webhook { currency: currency.to_owned(), ..good.clone() };
        assert!(matches!(shop.orders.record(&wrong).await, Err(Error::WrongAmount { .. })), "{currency}");
    }
    let wrong = Webhook { order: OrderId::generate(), ..good.clone() };
    assert!(matches!(shop.orders.record(&wrong).await, Err(Error::UnknownOrder(_))));
    for wrong in
        [Webhook { id: String::new(), ..good.clone() }, Webhook { payment: "x".repeat(256), ..good.clone() }]
    {
        assert!(matches!(shop.orders.record(&wrong).await, Err(Error::Invalid { .. })));
    }
    assert_eq!(shop.orders.order(ada.user, order.id).await.unwrap(), order);
    assert_eq!(counts(shop.assert_sound(drop).await), (9, 1, 0));
    assert_eq!(shop.scalar("SELECT COUNT(*) FROM drop_payment_webhooks").await, 0);
    // The refused webhooks did not use up their ids.
    shop.orders.record(&good).await.unwrap();
    // A refund of another payment does not apply to the order's payment.
    let second = Webhook { payment: "pay_2".to_owned(), ..webhook(&order, WebhookKind::Refunded) };
    assert!(matches!(shop.orders.record(&second).await, Err(Error::OtherPayment(_))));
    assert_eq!(shop.owned(&order).await, 1);
}

/// Returns a webhook about a second payment for the same order.
fn second_payment(order: &Order, kind: WebhookKind) -> Webhook {
    Webhook { payment: "pay_2".to_owned(), ..webhook(order, kind) }
}

/// Returns the payments that are due for refund, each with whether another payment has paid for the order.
async fn refunds_due(shop: &Shop) -> Vec<(String, bool)> {
    let due = shop.refunds_due(10).await;
    due.into_iter().map(|due| (due.payment, due.is_surplus)).collect()
}

async fn a_second_payment_is_due_for_refund(place: &TestDatabase) {
    use WebhookKind::{Failed, Refunded, Succeeded};
    let shop = Shop::open(place).await;
    let another = shop.another(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let order = shop.ordered(ada, 1).await;
    shop.orders.record(&webhook(&order, Succeeded)).await.unwrap();
    // Sent to two processes, with different webhook ids: one refund is due.
    let sends = (0..6).map(|n| {
        let shop = if n % 2 == 0 { &shop } else { &another };
        let order = &order;
        async move { shop.orders.record(&second_payment(order, Succeeded)).await.unwrap() }
    });
    let outcomes = futures::future::join_all(sends).await;
    let surplus =
        outcomes.iter().filter(|outcome| matches!(outcome, PaymentOutcome::Surplus(OrderState::Paid)));
    assert_eq!(surplus.count(), 1, "{outcomes:?}");
    assert_eq!(refunds_due(&shop).await, [("pay_2".to_owned(), true)]);
    let surplus = format!("payment/{}/pay_2", order.id);
    assert_eq!(shop.states_of(&surplus).await, ["REFUND_DUE"]);
    // The order is unchanged.
    assert_eq!(shop.published(order.id).await, ["PENDING", "PAID"]);
    assert_eq!((shop.owned(&order).await, counts(shop.assert_sound(drop).await)), (1, (9, 0, 1)));
    // A failed second payment changes nothing. Its refund settles it once.
    shop.orders.record(&second_payment(&order, Failed)).await.unwrap();
    assert_eq!(refunds_due(&shop).await.len(), 1);
    let refund = second_payment(&order, Refunded);
    assert_eq!(shop.orders.record(&refund).await.unwrap(), PaymentOutcome::Surplus(OrderState::Paid));
    assert_eq!(shop.orders.record(&refund).await.unwrap(), PaymentOutcome::Repeated(OrderState::Paid));
    shop.orders.record(&second_payment(&order, Succeeded)).await.unwrap();
    assert!(refunds_due(&shop).await.is_empty());
    assert_eq!(shop.states_of(&surplus).await, ["REFUND_DUE", "REFUNDED"]);
    assert_eq!((shop.owned(&order).await, counts(shop.assert_sound(drop).await)), (1, (9, 0, 1)));
    // A further payment for a refunded order is due for refund, too.
    shop.orders.record(&webhook(&order, Refunded)).await.unwrap();
    let third = Webhook { payment: "pay_3".to_owned(), ..webhook(&order, Succeeded) };
    assert_eq!(shop.orders.record(&third).await.unwrap(), PaymentOutcome::Surplus(OrderState::Refunded));
    assert_eq!(refunds_due(&shop).await, [("pay_3".to_owned(), true)]);
    // The refund stays due after the user is erased.
    shop.accounts.erase(ada.user, "olga").await.unwrap();
    assert_eq!(refunds_due(&shop).await, [("pay_3".to_owned(), true)]);
    assert_eq!(shop.scalar("SELECT COUNT(*) FROM drop_surplus_payments").await, 1);
}

/// Reads an order again.
async fn read_order(shop: &Shop, ada: VerifiedAdmission, order: &Order) -> Order {
    shop.orders.order(ada.user, order.id).await.unwrap()
}

async fn operators_settle_refunds_by_hand(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let paid = shop.ordered(ada, 9).await;
    let payment = format!("pay_{}", paid.id);
    let refused = async |payment: &str| {
        let settled = shop.orders.settle_refund(paid.id, payment, "olga").await;
        assert!(matches!(settled, Err(Error::NoRefundDue(_))), "{settled:?}");
    };
    refused(&payment).await;
    shop.orders.record(&webhook(&paid, WebhookKind::Succeeded)).await.unwrap();
    refused(&payment).await;
    refused("pay_2").await;
    // The late order has no units left, and the order above is paid twice.
    let late = shop.ordered(ada, 1).await;
    shop.stock.release(ada.user, late.reservation).await.unwrap();
    let eve = shop.admitted(drop, "eve").await;
    shop.reserve(eve, 1).await.unwrap();
    shop.orders.record(&webhook(&late, WebhookKind::Succeeded)).await.unwrap();
    shop.orders.record(&second_payment(&paid, WebhookKind::Succeeded)).await.unwrap();
    let late_payment = format!("pay_{}", late.id);
    assert_eq!(refunds_due(&shop).await, [(late_payment.clone(), false), ("pay_2".to_owned(), true)]);
    let in_state = async |state, drop| {
        let which = ListOrders { state, drop, after: None, limit: 10 };
        let found = shop.orders.in_state(which).await.unwrap();
        found.into_iter().map(|order| order.id).collect::<Vec<_>>()
    };
    assert_eq!(in_state(OrderState::RefundDue, None).await, [late.id]);
    assert_eq!(in_state(OrderState::Paid, Some(drop)).await, [paid.id]);
    assert!(in_state(OrderState::Paid, Some(DropId::generate())).await.is_empty());
    let nameless = shop.orders.settle_refund(late.id, &late_payment, "").await;
    assert!(matches!(nameless, Err(Error::Invalid { field: "actor", .. })));
    let unknown = shop.orders.settle_refund(OrderId::generate(), "pay_2", "olga").await;
    assert!(matches!(unknown, Err(Error::UnknownOrder(_))));
    let levels = shop.assert_sound(drop).await;
    for expected in
        [PaymentOutcome::Changed(OrderState::Refunded), PaymentOutcome::Unchanged(OrderState::Refunded)]
    {
        let settled = shop.orders.settle_refund(late.id, &late_payment, "olga").await.unwrap();
        assert_eq!(settled, expected);
    }
    for expected in [PaymentOutcome::Surplus(OrderState::Paid), PaymentOutcome::Unchanged(OrderState::Paid)] {
        assert_eq!(shop.orders.settle_refund(paid.id, "pay_2", "olga").await.unwrap(), expected);
    }
    assert!(refunds_due(&shop).await.is_empty());
    assert_eq!(shop.published(late.id).await, ["PENDING", "REFUND_DUE", "REFUNDED"]);
    assert_eq!(shop.states_of(&format!("payment/{}/pay_2", paid.id)).await, ["REFUND_DUE", "REFUNDED"]);
    assert_eq!(read_order(&shop, ada, &late).await.settled_by.as_deref(), Some("olga"));
    // A later webhook of the provider changes nothing.
    for late in [webhook(&late, WebhookKind::Refunded), second_payment(&paid, WebhookKind::Refunded)] {
        assert!(matches!(shop.orders.record(&late).await.unwrap(), PaymentOutcome::Unchanged(_)));
    }
    assert_eq!((shop.assert_sound(drop).await, shop.owned(&paid).await), (levels, 9));
    // A player's list is paged, the newest first.
    let first = shop.orders.list(ada.user, None, 1).await.unwrap();
    let rest = shop.orders.list(ada.user, Some(first[0].id), 10).await.unwrap();
    assert_eq!(
        [&first[..], &rest].concat().iter().map(|order| order.id).collect::<Vec<_>>(),
        [late.id, paid.id]
    );
    assert!(shop.orders.list(eve.user, None, 10).await.unwrap().is_empty());
}

async fn old_webhooks_are_pruned_and_have_no_second_effect(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let order = shop.ordered(ada, 1).await;
    let paid = webhook(&order, WebhookKind::Succeeded);
    shop.orders.record(&paid).await.unwrap();
    assert_eq!(shop.orders.prune_webhooks(Duration::from_secs(3_600)).await.unwrap(), 0);
    // More webhooks than one transaction removes.
    let old = insert_old_webhooks(place);
    let mut tx = shop.db.begin().await.unwrap();
    db::on!(tx, connection => { sqlx::query(AssertSqlSafe(old)).execute(connection).await.unwrap(); });
    tx.commit().await.unwrap();
    assert_eq!(shop.orders.prune_webhooks(Duration::from_secs(3_600)).await.unwrap(), 2_500);
    assert_eq!(shop.scalar("SELECT COUNT(*) FROM drop_payment_webhooks").await, 1);
    eventually("the last webhook is old, too", PATIENCE, async || {
        shop.orders.prune_webhooks(Duration::from_millis(1)).await.unwrap() == 1
    })
    .await;
    assert_eq!(shop.orders.record(&paid).await.unwrap(), PaymentOutcome::Unchanged(OrderState::Paid));
    assert_eq!((shop.owned(&order).await, counts(shop.assert_sound(drop).await)), (1, (9, 0, 1)));
}

/// Returns the statement that inserts 2,500 old webhooks.
fn insert_old_webhooks(place: &TestDatabase) -> String {
    let (id, order) = match place.is_server() {
        true => ("CONCAT('old', one.n, '-', two.n)", "REPEAT('x', 16)"),
        false => ("'old' || one.n || '-' || two.n", "zeroblob(16)"),
    };
    format!(
        "INSERT INTO drop_payment_webhooks (webhook_id, order_id, kind, outcome, received_at) \
         WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 50) \
         SELECT {id}, {order}, 'payment.failed', 'FAILED', 0 FROM number one JOIN number two"
    )
}
