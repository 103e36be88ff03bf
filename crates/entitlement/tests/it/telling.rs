//! Events that are published by the process that appends them, and those that wait for their turn.

use runtime::Drain;
use work_queue::{Entry, Handler, Item, Outcome, State, Worker};

use super::*;

testkit::on_all_stores!(a_change_is_told_at_once_unless_one_before_it_is_still_on_its_way);

/// A relay whose bus never answers.
struct Stuck;

impl Handler for Stuck {
    async fn handle(&self, _: &[Item]) -> Vec<Outcome> {
        std::future::pending().await
    }
}

/// The rows of the outbox about entitlements, oldest first.
async fn rows(shop: &Shop) -> Vec<Entry> {
    let mut rows = shop.outbox.queue().list(Filter::All, 100).await.unwrap();
    rows.retain(|row| row.key.starts_with("entitlement/"));
    rows.reverse();
    rows
}

async fn a_change_is_told_at_once_unless_one_before_it_is_still_on_its_way(place: &SqlPlace) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    let (worker, drain) =
        (Worker::new(shop.outbox.queue().clone(), Stuck, base::id::ProcessId::generate()), Drain::new());
    let stop = drain.clone();
    let running = tokio::spawn(async move { worker.run(stop).await });
    // There is a relay here once it holds the event of the user.
    testkit::eventually("the relay is there", PATIENCE, async || {
        let all = shop.outbox.queue().list(Filter::All, 10).await.unwrap();
        all.iter().any(|row| row.state == State::InFlight)
    })
    .await;
    // Two of one entitlement, one of another, and again the first.
    let twice = [change(ada, "sword", NOW - 9, GRANT), change(ada, "sword", NOW - 8, REVOKE)];
    shop.entitlements.apply("shop", "one", &twice).await.unwrap();
    apply(&shop, change(ada, "shield", NOW - 7, GRANT)).await;
    apply(&shop, change(ada, "sword", NOW - 6, GRANT)).await;
    let rows = rows(&shop).await;
    let of = |row: &Entry| (row.key.rsplit('/').next().unwrap().to_owned(), row.lease);
    let expected = [("sword", 1), ("sword", 1), ("shield", 1), ("sword", 0)];
    assert_eq!(
        rows.iter().map(of).collect::<Vec<_>>(),
        expected.map(|(name, lease)| (name.to_owned(), lease))
    );
    running.abort();
}
