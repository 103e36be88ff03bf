//! Local publishes, and events that wait for earlier events of their key.

use runtime::Drain;
use work_queue::{Handler, Item, ItemOutcome, ItemView, State, Worker};

use super::*;

testkit::on_all_stores!(an_event_is_published_locally_unless_an_earlier_one_is_unpublished);

/// A relay whose bus never answers.
struct Stuck;

impl Handler for Stuck {
    async fn handle(&self, _: &[Item]) -> Vec<ItemOutcome> {
        std::future::pending().await
    }
}

/// Returns the outbox rows of entitlements, oldest first.
async fn rows(shop: &Shop) -> Vec<ItemView> {
    let mut rows = shop.outbox.queue().list(Filter::All, 100).await.unwrap();
    rows.retain(|row| row.key.starts_with("entitlement/"));
    rows.reverse();
    rows
}

async fn an_event_is_published_locally_unless_an_earlier_one_is_unpublished(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    let (worker, drain) =
        (Worker::new(shop.outbox.queue().clone(), Stuck, base::id::ProcessId::generate()), Drain::new());
    let stop = drain.clone();
    let running = tokio::spawn(async move { worker.run(stop).await });
    // The relay runs once it has claimed the event of the user.
    testkit::eventually("the relay runs", PATIENCE, async || {
        let all = shop.outbox.queue().list(Filter::All, 10).await.unwrap();
        all.iter().any(|row| row.state == State::InFlight)
    })
    .await;
    // Two changes of one entitlement, one of another, then the first one again.
    let twice = [change(ada, "sword", NOW - 9, GRANT), change(ada, "sword", NOW - 8, REVOKE)];
    shop.entitlements.apply("shop", "one", &twice).await.unwrap();
    apply(&shop, change(ada, "shield", NOW - 7, GRANT)).await;
    apply(&shop, change(ada, "sword", NOW - 6, GRANT)).await;
    let rows = rows(&shop).await;
    let of = |row: &ItemView| (row.key.rsplit('/').next().unwrap().to_owned(), row.lease);
    let expected = [("sword", 1), ("sword", 1), ("shield", 1), ("sword", 0)];
    assert_eq!(
        rows.iter().map(of).collect::<Vec<_>>(),
        expected.map(|(name, lease)| (name.to_owned(), lease))
    );
    running.abort();
}
