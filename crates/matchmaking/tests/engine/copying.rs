//! Assignments that are read at a server of their own, which is away.

use std::time::Duration;

use matchmaking::Recovered;
use runtime::Drain;
use testkit::{Redis, eventually, need};

use crate::PATIENCE;
use crate::recorder::{Sql, make_and_die, unrecorded};
use crate::world::World;

/// How many entries the recovery takes at once.
const AT_ONCE: usize = 32;

#[tokio::test(flavor = "multi_thread")]
async fn recovery_waits_while_assignments_cannot_be_copied() {
    let (primary, mut copies) = (need!(Redis::shared().await), need!(Redis::private().await));
    let world = World::in_redis(primary).await.reading_assignments_at(&copies.url()).await;
    let sql = Sql::embedded().await;
    let recorder = sql.recorder(&world);
    let failed_copies = || world.metric("playhouse_matchmaking_copies_failed_total");
    let matches = make_and_die(&world, AT_ONCE + 8).await;
    copies.kill().await.unwrap();

    let recovered = recorder.tick().await.unwrap();
    assert_eq!(recovered, Recovered { entries: 0, failed: AT_ONCE, more: true });
    assert_eq!(sql.rows().await, AT_ONCE, "they are recorded");
    assert_eq!(unrecorded(&world).await, matches.len() as u64, "and stay until they are copied");
    assert_eq!(world.metric("playhouse_matchmaking_entries_recovered_total"), 0.0);
    assert_eq!(world.metric("playhouse_matchmaking_unrecorded_entries"), matches.len() as f64);
    assert_eq!(failed_copies(), AT_ONCE as f64);

    let drain = Drain::new();
    let (running, until) = (recorder.clone(), drain.clone());
    let running = tokio::spawn(async move { running.run(until).await.unwrap() });
    eventually("it tries again", PATIENCE, async || failed_copies() >= 2.0 * AT_ONCE as f64).await;
    let before = failed_copies();
    tokio::time::sleep(Duration::from_millis(700)).await;
    let more = failed_copies() - before;
    assert!(more <= AT_ONCE as f64, "{more} copies tried in 700 ms: it does not wait");

    copies.start_again().await.unwrap();
    eventually("everything is copied", PATIENCE, async || unrecorded(&world).await == 0).await;
    drain.request();
    running.await.unwrap();
    for [ticket, _] in &matches {
        assert!(world.is_assigned(ticket).await);
    }
    assert_eq!(world.metric("playhouse_matchmaking_entries_recovered_total"), matches.len() as f64);
    assert_eq!(world.metric("playhouse_matchmaking_unrecorded_entries"), 0.0);
    assert_eq!(sql.published().await.len(), matches.len(), "each once");
}
