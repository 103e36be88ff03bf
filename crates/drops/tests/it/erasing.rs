//! A user who is erased.

use drops::orders::{OrderState, Outcome};

use super::*;

testkit::on_all_stores!(erasing_leaves_the_counts_and_nothing_of_the_user);

async fn erasing_leaves_the_counts_and_nothing_of_the_user(place: &SqlPlace) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(Terms { units: 10, limit: 10, hold_ms: MINUTE }).await;
    let ada = shop.admitted(drop, "ada").await;
    let (paid, pending) = (shop.ordered(ada, 1).await, shop.ordered(ada, 2).await);
    shop.orders.record(&notice(&paid, NoticeKind::Succeeded)).await.unwrap();
    shop.reserve(ada, 3).await.unwrap();
    let eve = shop.admitted(drop, "eve").await;
    let others = shop.ordered(eve, 1).await;
    shop.accounts.erase(ada.user, "olga").await.unwrap();
    assert_eq!(counts(shop.assert_sound(drop).await), (8, 1, 1), "what was held is available");
    let user = ada.user.as_uuid().simple().to_string();
    let of_user = |table: &str| match place.is_server() {
        true => format!("SELECT COUNT(*) FROM {table} WHERE user_id = UNHEX('{user}')"),
        false => format!("SELECT COUNT(*) FROM {table} WHERE user_id = X'{user}'"),
    };
    for table in ["drop_entries", "drop_reservations", "drop_orders"] {
        assert_eq!(shop.scalar(&of_user(table)).await, 0, "{table}");
    }
    assert_eq!(shop.scalar("SELECT COUNT(*) FROM drop_orders WHERE payment IS NOT NULL").await, 0);
    // A payment that arrives now has nobody to go to.
    let outcome = shop.orders.record(&notice(&pending, NoticeKind::Succeeded)).await.unwrap();
    assert_eq!(outcome, Outcome::Changed(OrderState::RefundDue));
    // A refund puts the unit back.
    shop.orders.record(&notice(&paid, NoticeKind::Refunded)).await.unwrap();
    assert_eq!(counts(shop.assert_sound(drop).await), (9, 1, 0));
    assert_eq!(shop.orders.order(eve.user, others.id).await.unwrap(), others);
}
