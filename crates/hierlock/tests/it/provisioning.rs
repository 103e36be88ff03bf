use std::sync::{Arc, Mutex};

use futures::future::join_all;
use hierlock::{Error, Level, ProvisionProgress, ProvisionStatus};
use sqlx::{Connection, Executor};
use testkit::need;

use super::*;

/// Creates a database with empty tables.
async fn empty(server: &SqlServer) -> TestStore {
    let store = TestStore::MySql(server.database().await);
    create_tables(&mut store.connect().await).await.unwrap();
    store
}

async fn status(store: &TestStore) -> ProvisionStatus {
    Provisioner::status(store.options()).await.unwrap().unwrap()
}

#[tokio::test]
async fn every_bucket_is_created_once_with_progress_reports() {
    for server in need!(SqlServer::all_shared().await) {
        let store = empty(server).await;
        assert_eq!(Provisioner::status(store.options()).await.unwrap(), None);
        let provision = Provisioner::new(store.options(), 150_001);
        assert!(!provision.is_complete().await.unwrap());
        let mut reports: Vec<ProvisionProgress> = Vec::new();
        let done = provision.run(|progress| reports.push(progress)).await.unwrap();
        assert_eq!((done.total, done.present, done.created), (450_003, 450_003, 450_003));
        assert!(reports.len() >= 7, "at the start and after each chunk");
        assert!(reports.is_sorted_by(|one, other| one.present < other.present), "{reports:?}");
        let found = status(&store).await;
        assert!(found.complete && found.missing() == 0, "{found:?}");
        assert_eq!(found.levels.iter().map(|level| level.present).collect::<Vec<_>>(), [150_001; 3]);
        assert!(provision.is_complete().await.unwrap());
        assert!(!Provisioner::new(store.options(), 150_000).is_complete().await.unwrap());

        let again = provision.run(|_| ()).await.unwrap();
        assert_eq!((again.present, again.created), (450_003, 0), "nothing is left to do");
    }
}

#[tokio::test]
async fn every_gap_is_found_and_filled() {
    for server in need!(SqlServer::all_shared().await) {
        let store = empty(server).await;
        provision(&store.options(), 120_000).await;
        let mut connection = store.connect().await;
        for gap in [
            "level = 0 AND bucket = 0",
            "level = 1 AND bucket >= 70000 AND bucket < 110000",
            "level = 2 AND bucket = 119999",
        ] {
            connection
                .execute(sqlx::AssertSqlSafe(format!("DELETE FROM hier_lock_buckets WHERE {gap}")))
                .await
                .unwrap();
        }
        let found = status(&store).await;
        assert_eq!(found.levels.iter().map(|level| level.missing).collect::<Vec<_>>(), [1, 40_000, 1]);
        let first: Vec<Option<u32>> = found.levels.iter().map(|level| level.first_missing).collect();
        assert_eq!(first, [Some(0), Some(70_000), Some(119_999)]);
        let done = Provisioner::new(store.options(), 120_000).run(|_| ()).await.unwrap();
        assert_eq!((done.created, done.present), (40_002, 360_000));
        assert_eq!(status(&store).await.missing(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_runs_share_the_work() {
    for server in need!(SqlServer::all_shared().await) {
        let store = empty(server).await;
        let runs = (0..4).map(|_| {
            let provision = Provisioner::new(store.options(), 60_000);
            tokio::spawn(async move { provision.run(|_| ()).await.unwrap().created })
        });
        let made: u64 = join_all(runs).await.into_iter().map(Result::unwrap).sum();
        assert_eq!(made, 180_000, "each row is created by one run");
        assert_eq!(status(&store).await.missing(), 0);
    }
}

/// A larger transaction inserts rows in another order. The server rolls back the run's chunk, which is retried.
#[tokio::test]
async fn run_retries_after_a_deadlock() {
    let _alone = WAIT_TABLES.lock().await;
    for server in need!(SqlServer::all_shared().await) {
        let store = empty(server).await;
        provision(&store.options(), 3_000).await;
        let locks = store.locks_with(Options { buckets: 3_000, ..options() }).await;
        let mut connection = store.connect().await;
        connection.execute("DELETE FROM hier_lock_buckets WHERE level = 0").await.unwrap();
        let mut tx = connection.begin().await.unwrap();
        let insert = |rows: Vec<String>| {
            let values = rows.join(", ");
            sqlx::AssertSqlSafe(format!("INSERT INTO hier_lock_buckets (level, bucket) VALUES {values}"))
        };
        let many = (1_000..3_000).map(|bucket| format!("(0, {bucket})"));
        tx.execute(insert(many.collect())).await.unwrap();
        let run = Provisioner::new(store.options(), 3_000);
        let running = tokio::spawn(async move { run.run(|_| ()).await });
        let waits = async || locks.lock_waits().await.unwrap().unwrap().len() == 1;
        testkit::eventually("the run waits", TIMEOUT, waits).await;
        tx.execute(insert(vec!["(0, 0)".to_owned()])).await.unwrap();
        tx.commit().await.unwrap();
        let done = running.await.unwrap().unwrap();
        assert_eq!((done.created, done.present), (999, 9_000));
    }
}

/// Existing rows can be locked while others are created, and held locks do not block the run.
#[tokio::test(flavor = "multi_thread")]
async fn rows_stay_lockable_during_a_run() {
    for server in need!(SqlServer::all_shared().await) {
        let store = empty(server).await;
        provision(&store.options(), 300_000).await;
        let locks = store.locks_with(Options { buckets: 300_000, ..options() }).await;
        // Every second resource row is missing, so that every chunk has existing and missing rows.
        let halve = "DELETE FROM hier_lock_buckets WHERE level = 2 AND bucket % 2 = 1";
        store.connect().await.execute(halve).await.unwrap();
        let ids: Vec<String> = (0..20_000).map(|number| number.to_string()).collect();
        let there = |id: &&String| resource("u", "a", id).bucket(300_000).is_multiple_of(2);
        let held = locks.acquire(resource("u", "a", ids.iter().find(there).unwrap())).await.unwrap();
        let run = Provisioner::new(store.options(), 300_000);
        let running = tokio::spawn(async move { run.run(|_| ()).await.unwrap() });
        let (mut times, mut slowest) = (0, Duration::ZERO);
        for id in ids.iter().filter(there).skip(1).cycle() {
            if running.is_finished() {
                break;
            }
            let began = std::time::Instant::now();
            locks.acquire(resource("u", "a", id)).await.unwrap().release().await.unwrap();
            slowest = slowest.max(began.elapsed());
            times += 1;
        }
        assert_eq!(running.await.unwrap().created, 150_000);
        assert!(times >= 20, "only {times} locks");
        assert!(slowest < Duration::from_secs(3), "{slowest:?}");
        held.release().await.unwrap();
        assert_eq!(status(&store).await.missing(), 0);
    }
}

#[tokio::test]
async fn buckets_are_never_removed_and_added_only_without_clients() {
    for server in need!(SqlServer::all_shared().await) {
        let store = empty(server).await;
        provision(&store.options(), 1_000).await;
        let run = async |buckets| Provisioner::new(store.options(), buckets).run(|_| ()).await;
        let fewer = run(999).await.unwrap_err();
        assert!(matches!(fewer, Error::CannotShrink { wanted: 999, .. }), "{fewer:?}");

        let locks = store.locks_with(Options { buckets: 1_000, ..options() }).await;
        let used = run(2_000).await.unwrap_err();
        assert!(matches!(&used, Error::InUse(by) if !by.is_empty()), "{used:?}");
        assert!(used.to_string().contains("stop all processes first"), "{used}");
        assert_eq!(status(&store).await.space.buckets, 1_000);
        locks.close().await;
        drop(locks);
        let grown = testkit::eventually("no client is connected", TIMEOUT, async || run(2_000).await).await;
        assert_eq!(grown.created, 3_000);
        let old =
            LockManager::mysql(store.options(), &Options { buckets: 1_000, ..options() }).await.unwrap_err();
        assert!(matches!(old, Error::BucketSpaceMismatch { .. }), "{old:?}");
        store
            .locks_with(Options { buckets: 2_000, ..options() })
            .await
            .acquire(user("u"))
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

/// A new number of buckets is recorded first, and marked complete when all rows exist.
#[tokio::test]
async fn cancelled_run_is_resumed_by_the_next() {
    for server in need!(SqlServer::all_shared().await) {
        let store = empty(server).await;
        provision(&store.options(), 1_000).await;
        let provision = Provisioner::new(store.options(), 2_000);
        // Refused until the server has noticed that earlier connections are closed.
        testkit::eventually("the run has started", TIMEOUT, || async {
            let begun = tokio::sync::Notify::new();
            tokio::select! {
                biased;
                () = begun.notified() => Ok(()),
                done = provision.run(|_| begun.notify_one()) => Err(format!("{done:?}")),
            }
        })
        .await;
        let found = status(&store).await;
        assert_eq!((found.space.buckets, found.complete), (2_000, false));
        assert!(!provision.is_complete().await.unwrap());
        let done = provision.run(|_| ()).await.unwrap();
        assert_eq!(done.present, 6_000);
        assert!(provision.is_complete().await.unwrap());
    }
}

#[tokio::test]
async fn buckets_of_another_hash_are_not_created() {
    let server = need!(SqlServer::shared().await);
    let store = empty(server).await;
    provision(&store.options(), 10).await;
    store.connect().await.execute("UPDATE hier_lock_space SET hash = 'another'").await.unwrap();
    let other = Provisioner::new(store.options(), 20).run(|_| ()).await.unwrap_err();
    assert!(matches!(other, Error::BucketSpaceMismatch { .. }), "{other:?}");
}

#[tokio::test]
async fn run_can_be_rate_limited() {
    let server = need!(SqlServer::shared().await);
    let store = empty(server).await;
    let began = std::time::Instant::now();
    let reports = Arc::new(Mutex::new(0));
    let counter = reports.clone();
    let gentle = Provisioner::new(store.options(), 1_000).throttled(4_000);
    gentle.run(move |_| *counter.lock().unwrap() += 1).await.unwrap();
    // 3,000 rows at 4,000 per second; there is no pause after the last chunks.
    assert!(began.elapsed() >= Duration::from_millis(250), "{:?}", began.elapsed());
    assert!(*reports.lock().unwrap() > 3, "in smaller chunks");
    // Even the lowest rate makes progress.
    Provisioner::new(store.options(), 1_000).throttled(0).run(|_| ()).await.unwrap();
}

#[tokio::test]
async fn tables_are_created_once_and_a_partial_space_is_not_complete() {
    let server = need!(SqlServer::shared().await);
    let store = empty(server).await;
    let mut connection = store.connect().await;
    create_tables(&mut connection).await.unwrap();
    provision(&store.options(), 10).await;
    connection.execute("UPDATE hier_lock_space SET complete = FALSE").await.unwrap();
    assert!(!status(&store).await.complete);
    assert_eq!(Level::ALL.map(|level| level as u8), [0, 1, 2], "the numbers in the table");
    connection.close().await.unwrap();
}
