use std::sync::{Arc, Mutex};

use futures::future::join_all;
use hierlock::{Error, Level, Progress, Status};
use sqlx::{Connection, Executor};
use testkit::need;

use super::*;

/// A database with the tables, and no rows in them.
async fn empty(server: &SqlServer) -> Place {
    let place = Place::MySql(server.database().await);
    create_tables(&mut place.connect().await).await.unwrap();
    place
}

async fn status(place: &Place) -> Status {
    Provision::status(place.options()).await.unwrap().unwrap()
}

#[tokio::test]
async fn every_bucket_of_every_level_is_made_once_and_told_on_the_way() {
    for server in need!(SqlServer::all_shared().await) {
        let place = empty(server).await;
        assert_eq!(Provision::status(place.options()).await.unwrap(), None);
        let provision = Provision::new(place.options(), 150_001);
        assert!(!provision.is_complete().await.unwrap());
        let mut told: Vec<Progress> = Vec::new();
        let done = provision.run(|progress| told.push(progress)).await.unwrap();
        assert_eq!((done.total, done.present, done.made), (450_003, 450_003, 450_003));
        assert!(told.len() >= 7, "at the beginning and after each chunk");
        assert!(told.is_sorted_by(|one, other| one.present < other.present), "{told:?}");
        let found = status(&place).await;
        assert!(found.complete && found.missing() == 0, "{found:?}");
        assert_eq!(found.levels.iter().map(|level| level.present).collect::<Vec<_>>(), [150_001; 3]);
        assert!(provision.is_complete().await.unwrap());
        assert!(!Provision::new(place.options(), 150_000).is_complete().await.unwrap());

        let again = provision.run(|_| ()).await.unwrap();
        assert_eq!((again.present, again.made), (450_003, 0), "nothing is left to do");
    }
}

#[tokio::test]
async fn every_gap_is_found_and_filled() {
    for server in need!(SqlServer::all_shared().await) {
        let place = empty(server).await;
        provision(&place.options(), 120_000).await;
        let mut connection = place.connect().await;
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
        let found = status(&place).await;
        assert_eq!(found.levels.iter().map(|level| level.missing).collect::<Vec<_>>(), [1, 40_000, 1]);
        let first: Vec<Option<u32>> = found.levels.iter().map(|level| level.first_missing).collect();
        assert_eq!(first, [Some(0), Some(70_000), Some(119_999)]);
        let done = Provision::new(place.options(), 120_000).run(|_| ()).await.unwrap();
        assert_eq!((done.made, done.present), (40_002, 360_000));
        assert_eq!(status(&place).await.missing(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_may_provision_at_once() {
    for server in need!(SqlServer::all_shared().await) {
        let place = empty(server).await;
        let runs = (0..4).map(|_| {
            let provision = Provision::new(place.options(), 60_000);
            tokio::spawn(async move { provision.run(|_| ()).await.unwrap().made })
        });
        let made: u64 = join_all(runs).await.into_iter().map(Result::unwrap).sum();
        assert_eq!(made, 180_000, "each row is made by one of them");
        assert_eq!(status(&place).await.missing(), 0);
    }
}

/// Somebody with more rows than the run makes them in another order. The server sacrifices the run, which tries again.
#[tokio::test]
async fn a_run_gets_over_a_deadlock() {
    let _alone = LOOKING.lock().await;
    for server in need!(SqlServer::all_shared().await) {
        let place = empty(server).await;
        provision(&place.options(), 3_000).await;
        let locks = place.locks_with(Options { buckets: 3_000, ..options() }).await;
        let mut connection = place.connect().await;
        connection.execute("DELETE FROM hier_lock_buckets WHERE level = 0").await.unwrap();
        let mut tx = connection.begin().await.unwrap();
        let insert = |rows: Vec<String>| {
            let values = rows.join(", ");
            sqlx::AssertSqlSafe(format!("INSERT INTO hier_lock_buckets (level, bucket) VALUES {values}"))
        };
        let many = (1_000..3_000).map(|bucket| format!("(0, {bucket})"));
        tx.execute(insert(many.collect())).await.unwrap();
        let run = Provision::new(place.options(), 3_000);
        let running = tokio::spawn(async move { run.run(|_| ()).await });
        let waits = async || locks.waits().await.unwrap().unwrap().len() == 1;
        testkit::eventually("the run waits", PATIENCE, waits).await;
        tx.execute(insert(vec!["(0, 0)".to_owned()])).await.unwrap();
        tx.commit().await.unwrap();
        let done = running.await.unwrap().unwrap();
        assert_eq!((done.made, done.present), (999, 9_000));
    }
}

/// Rows that are there can be locked while others are made, and locks that are held do not hold up the making.
#[tokio::test(flavor = "multi_thread")]
async fn the_table_stays_lockable_meanwhile() {
    for server in need!(SqlServer::all_shared().await) {
        let place = empty(server).await;
        provision(&place.options(), 300_000).await;
        let locks = place.locks_with(Options { buckets: 300_000, ..options() }).await;
        // Every second row of the resources is gone, so that every chunk has both.
        let halve = "DELETE FROM hier_lock_buckets WHERE level = 2 AND bucket % 2 = 1";
        place.connect().await.execute(halve).await.unwrap();
        let ids: Vec<String> = (0..20_000).map(|number| number.to_string()).collect();
        let there = |id: &&String| resource("u", "a", id).bucket(300_000).is_multiple_of(2);
        let held = locks.acquire(resource("u", "a", ids.iter().find(there).unwrap())).await.unwrap();
        let run = Provision::new(place.options(), 300_000);
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
        assert_eq!(running.await.unwrap().made, 150_000);
        assert!(times >= 20, "only {times} locks");
        assert!(slowest < Duration::from_secs(3), "{slowest:?}");
        held.release().await.unwrap();
        assert_eq!(status(&place).await.missing(), 0);
    }
}

#[tokio::test]
async fn buckets_are_never_taken_away_and_added_only_while_nobody_is_there() {
    for server in need!(SqlServer::all_shared().await) {
        let place = empty(server).await;
        provision(&place.options(), 1_000).await;
        let run = async |buckets| Provision::new(place.options(), buckets).run(|_| ()).await;
        let fewer = run(999).await.unwrap_err();
        assert!(matches!(fewer, Error::Shrinks { wanted: 999, .. }), "{fewer:?}");

        let locks = place.locks_with(Options { buckets: 1_000, ..options() }).await;
        let used = run(2_000).await.unwrap_err();
        assert!(matches!(&used, Error::InUse(by) if !by.is_empty()), "{used:?}");
        assert!(used.to_string().contains("stop all processes first"), "{used}");
        assert_eq!(status(&place).await.space.buckets, 1_000);
        locks.close().await;
        drop(locks);
        let grown = testkit::eventually("nobody is there", PATIENCE, async || run(2_000).await).await;
        assert_eq!(grown.made, 3_000);
        let old = Locks::mysql(place.options(), &Options { buckets: 1_000, ..options() }).await.unwrap_err();
        assert!(matches!(old, Error::OtherSpace { .. }), "{old:?}");
        place
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

/// There are more buckets from the moment they are recorded, and they are complete from the moment they are made.
#[tokio::test]
async fn a_run_that_was_given_up_is_taken_up_by_the_next() {
    for server in need!(SqlServer::all_shared().await) {
        let place = empty(server).await;
        provision(&place.options(), 1_000).await;
        let provision = Provision::new(place.options(), 2_000);
        // Refused as long as the server has not noticed that earlier connections were closed.
        testkit::eventually("it is under way", PATIENCE, || async {
            let begun = tokio::sync::Notify::new();
            tokio::select! {
                biased;
                () = begun.notified() => Ok(()),
                done = provision.run(|_| begun.notify_one()) => Err(format!("{done:?}")),
            }
        })
        .await;
        let found = status(&place).await;
        assert_eq!((found.space.buckets, found.complete), (2_000, false));
        assert!(!provision.is_complete().await.unwrap());
        let done = provision.run(|_| ()).await.unwrap();
        assert_eq!(done.present, 6_000);
        assert!(provision.is_complete().await.unwrap());
    }
}

#[tokio::test]
async fn buckets_of_another_hash_are_not_made() {
    let server = need!(SqlServer::shared().await);
    let place = empty(server).await;
    provision(&place.options(), 10).await;
    place.connect().await.execute("UPDATE hier_lock_space SET hash = 'another'").await.unwrap();
    let other = Provision::new(place.options(), 20).run(|_| ()).await.unwrap_err();
    assert!(matches!(other, Error::OtherSpace { .. }), "{other:?}");
}

#[tokio::test]
async fn a_run_can_be_gentle() {
    let server = need!(SqlServer::shared().await);
    let place = empty(server).await;
    let began = std::time::Instant::now();
    let told = Arc::new(Mutex::new(0));
    let telling = told.clone();
    let gentle = Provision::new(place.options(), 1_000).throttled(4_000);
    gentle.run(move |_| *telling.lock().unwrap() += 1).await.unwrap();
    // 3,000 rows at 4,000 a second; the last chunks are not waited for.
    assert!(began.elapsed() >= Duration::from_millis(250), "{:?}", began.elapsed());
    assert!(*told.lock().unwrap() > 3, "in smaller chunks");
    // However gentle, it goes on.
    Provision::new(place.options(), 1_000).throttled(0).run(|_| ()).await.unwrap();
}

#[tokio::test]
async fn tables_are_made_once_and_a_half_made_space_is_not_complete() {
    let server = need!(SqlServer::shared().await);
    let place = empty(server).await;
    let mut connection = place.connect().await;
    create_tables(&mut connection).await.unwrap();
    provision(&place.options(), 10).await;
    connection.execute("UPDATE hier_lock_space SET complete = FALSE").await.unwrap();
    assert!(!status(&place).await.complete);
    assert_eq!(Level::ALL.map(|level| level as u8), [0, 1, 2], "as the table has them");
    connection.close().await.unwrap();
}
