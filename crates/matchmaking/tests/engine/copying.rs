//! Assignments read from a separate server that is unreachable.

use std::time::{Duration, Instant};

use futures::StreamExt;
use matchmaking::RecoveryReport;
use matchmaking::store::TicketEvent;
use runtime::Drain;
use testkit::{Redis, eventually, need};

use crate::PATIENCE;
use crate::recorder::{Sql, assign_without_notifying, unrecorded_size};
use crate::world::World;

/// How many batches the recovery claims at once.
const AT_ONCE: usize = 32;

#[tokio::test(flavor = "multi_thread")]
async fn recovery_waits_while_assignments_cannot_be_copied() {
    let (primary, mut copies) = (need!(Redis::shared().await), need!(Redis::private().await));
    let world = World::in_redis(primary).await.reading_assignments_at(&copies.url()).await;
    let sql = Sql::embedded().await;
    let recorder = sql.recorder(&world);
    let failed_copies = || world.metric("playhouse_matchmaking_copies_failed_total");
    let matches = assign_without_notifying(&world, AT_ONCE + 8).await;
    copies.kill().await.unwrap();

    let recovered = recorder.tick().await.unwrap();
    assert_eq!(recovered, RecoveryReport { batches: 0, failed: AT_ONCE, has_more: true });
    assert_eq!(sql.rows().await, AT_ONCE, "they are recorded");
    assert_eq!(unrecorded_size(&world).await, matches.len() as u64, "and stay until they are copied");
    assert_eq!(world.metric("playhouse_matchmaking_entries_recovered_total"), 0.0);
    assert_eq!(world.metric("playhouse_matchmaking_unrecorded_entries"), matches.len() as f64);
    assert_eq!(failed_copies(), AT_ONCE as f64);

    let drain = Drain::new();
    let (running, until) = (recorder.clone(), drain.clone());
    let running = tokio::spawn(async move { running.run(until).await.unwrap() });
    eventually("it tries again", PATIENCE, async || failed_copies() >= 2.0 * AT_ONCE as f64).await;
    let (before, since) = (failed_copies(), Instant::now());
    eventually("it tries all of them twice more", PATIENCE, async || {
        failed_copies() >= before + 2.0 * matches.len() as f64
    })
    .await;
    // Two passes of two steps. The first step may be due at once; each of the others waits a second.
    assert!(since.elapsed() >= Duration::from_millis(2_500), "{:?}: it does not wait", since.elapsed());

    copies.start_again().await.unwrap();
    eventually("everything is copied", PATIENCE, async || unrecorded_size(&world).await == 0).await;
    drain.request();
    running.await.unwrap();
    for [ticket, _] in &matches {
        assert!(world.is_assigned(ticket).await);
    }
    assert_eq!(world.metric("playhouse_matchmaking_entries_recovered_total"), matches.len() as f64);
    assert_eq!(world.metric("playhouse_matchmaking_unrecorded_entries"), 0.0);
    assert_eq!(sql.published().await.len(), matches.len(), "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn uncopied_batches_block_no_later_match_and_are_not_recorded_again() {
    let (primary, mut copies) = (need!(Redis::shared().await), need!(Redis::private().await));
    let world = World::in_redis(primary).await.reading_assignments_at(&copies.url()).await;
    let sql = Sql::embedded().await;
    let recorder = sql.recorder(&world);
    let mut pushes = world.store.ticket_events().await.unwrap();
    // Counts the matches that were pushed before a ticket that is cancelled now.
    let mut pushed = async || {
        let mark = world.ticket(&[]).await;
        world.store.delete(&mark).await.unwrap();
        let mut count = 0;
        loop {
            match tokio::time::timeout(PATIENCE, pushes.next()).await.unwrap() {
                Some(TicketEvent::Assigned(_)) => count += 1,
                Some(TicketEvent::Gone(id)) if id == mark => return count,
                other => panic!("{other:?}"),
            }
        }
    };
    assign_without_notifying(&world, 2 * AT_ONCE).await;
    copies.kill().await.unwrap();
    for _ in 0..2 {
        assert!(recorder.tick().await.unwrap().has_more);
    }
    assert!(!recorder.tick().await.unwrap().has_more, "it has reached the newest");
    assert_eq!(sql.rows().await, 2 * AT_ONCE);

    assign_without_notifying(&world, 1).await;
    recorder.tick().await.unwrap();
    assert_eq!(sql.rows().await, 2 * AT_ONCE + 1, "a later match is recorded");
    let all = 2 * AT_ONCE + 1;
    assert_eq!(pushed().await, all);

    // From here on SQL refuses everything: recorded batches must not need it.
    sql.execute("ALTER TABLE outbox RENAME TO gone").await;
    for _ in 0..4 {
        let recovered = recorder.tick().await.unwrap();
        assert!(!recovered.has_more && (1..=AT_ONCE).contains(&recovered.failed), "{recovered:?}");
    }
    assert_eq!(pushed().await, 0, "players are notified once");
    copies.start_again().await.unwrap();
    eventually("everything is copied", PATIENCE, async || {
        recorder.tick().await.unwrap();
        unrecorded_size(&world).await == 0
    })
    .await;
    sql.execute("ALTER TABLE gone RENAME TO outbox").await;
    assert_eq!(sql.published().await.len(), all, "each once");
}
