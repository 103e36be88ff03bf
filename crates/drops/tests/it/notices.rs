//! Messages of the payment provider in any order, repeated, wrong.

use drops::orders::{OrderState, Outcome};

use super::*;

testkit::on_all_stores!(
    every_permutation_of_messages_ends_the_same,
    a_message_has_its_effect_once,
    a_message_that_cannot_be_about_the_order_has_no_effect,
);

const TERMS: Terms = Terms { units: 10, limit: 10, hold_ms: MINUTE };

/// All orders of these.
fn permutations(kinds: &[NoticeKind]) -> Vec<Vec<NoticeKind>> {
    if kinds.is_empty() {
        return vec![Vec::new()];
    }
    let first = |at: usize| {
        let mut rest = kinds.to_vec();
        let first = rest.remove(at);
        permutations(&rest).into_iter().map(move |rest| [vec![first], rest].concat())
    };
    (0..kinds.len()).flat_map(first).collect()
}

async fn every_permutation_of_messages_ends_the_same(place: &SqlPlace) {
    use NoticeKind::{Failed, Refunded, Succeeded};
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
            // Each is also sent again, under its own id, right away and at the end.
            let messages: Vec<Notice> = permutation.iter().map(|kind| notice(&order, *kind)).collect();
            let twice = messages.iter().flat_map(|message| [message, message]).chain(&messages);
            for message in twice {
                shop.orders.record(message).await.unwrap();
            }
            let after = shop.orders.order(ada.user, order.id).await.unwrap();
            assert_eq!(after.state, expected, "{permutation:?}");
            assert_eq!(shop.owned(&order).await, owned, "{permutation:?}");
            assert_eq!(counts(shop.assert_sound(drop).await), (10 - owned, 0, owned), "{permutation:?}");
            let published = shop.published(order.id).await;
            assert_eq!(published.len() as i64, after.version, "one event for each state: {published:?}");
            assert_eq!(published.last().unwrap(), expected.word());
            if expected == OrderState::Paid {
                shop.orders.record(&notice(&order, Refunded)).await.unwrap();
            }
        }
    }
}

async fn a_message_has_its_effect_once(place: &SqlPlace) {
    let shop = Shop::open(place).await;
    let another = shop.another(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let order = shop.ordered(ada, 2).await;
    let message = notice(&order, NoticeKind::Succeeded);
    let repeats =
        (0..8).map(|n| if n % 2 == 0 { &shop } else { &another }).map(|shop| shop.orders.record(&message));
    let outcomes: Vec<_> = futures::future::join_all(repeats).await.into_iter().map(Result::unwrap).collect();
    let changed = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Changed(_))).count();
    assert_eq!(changed, 1, "{outcomes:?}");
    // Under another id it is known, too.
    let again = shop.orders.record(&notice(&order, NoticeKind::Succeeded)).await.unwrap();
    assert_eq!(again, Outcome::Unchanged(OrderState::Paid));
    assert_eq!((shop.owned(&order).await, counts(shop.assert_sound(drop).await)), (2, (8, 0, 2)));
    // An id that comes again with something else is refused.
    let other = Notice { kind: NoticeKind::Refunded, ..message.clone() };
    assert!(matches!(shop.orders.record(&other).await, Err(Error::WebhookReused)));
    let others = shop.ordered(ada, 1).await;
    let other = Notice { id: message.id, ..notice(&others, NoticeKind::Succeeded) };
    assert!(matches!(shop.orders.record(&other).await, Err(Error::WebhookReused)));
    assert_eq!(shop.published(order.id).await, ["PENDING", "PAID"]);
}

async fn a_message_that_cannot_be_about_the_order_has_no_effect(place: &SqlPlace) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let order = shop.ordered(ada, 1).await;
    let good = notice(&order, NoticeKind::Succeeded);
    for amount in [0, -PRICE, PRICE - 1, PRICE + 1, i64::MAX] {
        let wrong = Notice { amount, ..good.clone() };
        assert!(matches!(shop.orders.record(&wrong).await, Err(Error::WrongAmount { .. })), "{amount}");
    }
    for currency in ["USD", "eur", ""] {
        let wrong = Notice { currency: currency.to_owned(), ..good.clone() };
        assert!(matches!(shop.orders.record(&wrong).await, Err(Error::WrongAmount { .. })), "{currency}");
    }
    let wrong = Notice { order: OrderId::generate(), ..good.clone() };
    assert!(matches!(shop.orders.record(&wrong).await, Err(Error::UnknownOrder(_))));
    for wrong in
        [Notice { id: String::new(), ..good.clone() }, Notice { payment: "x".repeat(256), ..good.clone() }]
    {
        assert!(matches!(shop.orders.record(&wrong).await, Err(Error::Invalid { .. })));
    }
    assert_eq!(shop.orders.order(ada.user, order.id).await.unwrap(), order);
    assert_eq!(counts(shop.assert_sound(drop).await), (9, 1, 0));
    assert_eq!(shop.scalar("SELECT COUNT(*) FROM drop_payment_webhooks").await, 0);
    // The ids are free: what is right is accepted under them.
    shop.orders.record(&good).await.unwrap();
    // A second payment for the order is not taken for the first.
    let second = Notice { payment: "pay_2".to_owned(), ..notice(&order, NoticeKind::Refunded) };
    assert!(matches!(shop.orders.record(&second).await, Err(Error::OtherPayment(_))));
    assert_eq!(shop.owned(&order).await, 1);
}
