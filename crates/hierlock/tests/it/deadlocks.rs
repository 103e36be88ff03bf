//! Deadlocks, and the lock order that prevents them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures::future::join_all;
use hierlock::{Error, Level};
use sqlx::{Connection, Executor};
use testkit::{Seed, need};

use super::*;

const EXCLUSIVE: &str = "SELECT bucket FROM hier_lock_buckets WHERE level = 2 AND bucket = ? FOR UPDATE";

/// Runs two transactions that each lock two rows in the given order. Returns their error numbers.
async fn lock_rows(store: &TestStore, one: [u32; 2], other: [u32; 2]) -> Vec<u16> {
    let mut connections = [store.connect().await, store.connect().await];
    for connection in &mut connections {
        connection.execute("SET SESSION innodb_lock_wait_timeout = 2").await.unwrap();
    }
    let [first, second] = &mut connections;
    let (mut first, mut second) = (first.begin().await.unwrap(), second.begin().await.unwrap());
    sqlx::query(EXCLUSIVE).bind(one[0]).fetch_all(&mut *first).await.unwrap();
    sqlx::query(EXCLUSIVE).bind(other[0]).fetch_all(&mut *second).await.unwrap();
    let both = tokio::join!(
        sqlx::query(EXCLUSIVE).bind(one[1]).fetch_all(&mut *first),
        sqlx::query(EXCLUSIVE).bind(other[1]).fetch_all(&mut *second)
    );
    [both.0, both.1]
        .into_iter()
        .filter_map(Result::err)
        .map(|error| {
            let database = error.into_database_error().unwrap();
            database.downcast_ref::<sqlx::mysql::MySqlDatabaseError>().number()
        })
        .collect()
}

/// The control: without a fixed order there are deadlocks.
#[tokio::test]
async fn rows_locked_in_opposite_order_deadlock() {
    for store in need!(servers().await) {
        let errors = lock_rows(&store, [1, 2], [2, 1]).await;
        assert!(
            !errors.is_empty() && errors.iter().all(|number| [1205, 1213].contains(number)),
            "{errors:?}"
        );
    }
}

/// Finds two sorted sets of ids whose buckets are in opposite order.
fn sorted_ids_in_opposite_buckets() -> [[String; 2]; 2] {
    let bucket = |id: &String| resource("u1", "a1", id).bucket(BUCKETS);
    let mut ids: Vec<String> = (0..400).map(|number| format!("r{number}")).collect();
    ids.sort_unstable();
    let mut by_bucket: HashMap<u32, Vec<&String>> = HashMap::new();
    for id in &ids {
        by_bucket.entry(bucket(id)).or_default().push(id);
    }
    let shared: Vec<&Vec<&String>> = by_bucket.values().filter(|ids| ids.len() > 1).collect();
    for (one, other) in shared.iter().flat_map(|one| shared.iter().map(move |other| (one, other))) {
        // one[0] < other[1], and other[0] < one[1].
        if bucket(one[0]) != bucket(other[0]) && one[0] < other[1] && other[0] < one[1] {
            return [[one[0].clone(), other[1].clone()], [other[0].clone(), one[1].clone()]];
        }
    }
    panic!("no such ids among {}", ids.len());
}

/// Rows must be sorted by bucket: sorting by id deadlocks in the control, but not in the API.
#[tokio::test(flavor = "multi_thread")]
async fn sorting_by_id_deadlocks_and_sorting_by_bucket_does_not() {
    for store in need!(servers().await) {
        let sets = sorted_ids_in_opposite_buckets();
        assert!(sets.iter().all(|set| set.is_sorted()));
        let buckets =
            sets.each_ref().map(|set| set.each_ref().map(|id| resource("u1", "a1", id).bucket(BUCKETS)));
        assert_eq!(
            (buckets[0][0], buckets[0][1]),
            (buckets[1][1], buckets[1][0]),
            "the same two, the other way round"
        );
        let errors = lock_rows(&store, buckets[0], buckets[1]).await;
        assert!(
            !errors.is_empty() && errors.iter().all(|number| [1205, 1213].contains(number)),
            "{errors:?}"
        );

        let locks = store.locks().await;
        let take = |locks: LockManager, set: [String; 2]| async move {
            for _ in 0..100 {
                locks.acquire_resources("u1", "a1", &set).await.unwrap().release().await.unwrap();
            }
        };
        let both = sets.map(|set| tokio::spawn(take(locks.clone(), set)));
        join_all(both).await.into_iter().for_each(Result::unwrap);
        assert_idle(&locks).await;
    }
}

/// The current holders. Checks that no two conflict by the rules of the hierarchy.
#[derive(Default)]
struct Holders(Mutex<Vec<(u64, Vec<[u8; 3]>)>>);

/// Returns the target of a path of indices. 0 means none.
fn target<'a>(ids: &'a [String], path: [u8; 3]) -> Target<'a> {
    let id = |at: usize| ids[path[at] as usize].as_str();
    match path {
        [_, 0, _] => user(id(0)),
        [_, _, 0] => account(id(0), id(1)),
        _ => resource(id(0), id(1), id(2)),
    }
}

impl Holders {
    fn enter(&self, who: u64, paths: Vec<[u8; 3]>, ids: &[String]) {
        let mut inside = self.0.lock().unwrap();
        for (other, theirs) in inside.iter() {
            for (ours, their) in paths.iter().flat_map(|ours| theirs.iter().map(move |their| (ours, their))) {
                let (ours, their) = (target(ids, *ours), target(ids, *their));
                assert!(!ours.conflicts_with(&their), "{who} has {ours}, and {other} has {their}");
            }
        }
        inside.push((who, paths));
    }

    fn leave(&self, who: u64) {
        self.0.lock().unwrap().retain(|(other, _)| *other != who);
    }
}

/// Locks ten thousand random sets of mixed targets: no deadlock, no lost release, no two conflicting holders.
#[tokio::test(flavor = "multi_thread")]
async fn random_sets_never_deadlock_and_exclude_each_other() {
    const TASKS: u64 = 20;
    const TIMES: u64 = 500;
    let seed = Seed::new();
    for store in need!(all_stores().await) {
        let locks = store.locks().await;
        let inside = Arc::new(Holders::default());
        let ids: Arc<Vec<String>> = Arc::new((0..5).map(|number| format!("id{number}")).collect());
        let work = |locks: LockManager, inside: Arc<Holders>, ids: Arc<Vec<String>>, task: u64| async move {
            let mut choices = seed.choices(task);
            for time in 0..TIMES {
                let paths: Vec<[u8; 3]> = (0..choices.usize(1..5))
                    .map(|_| [choices.u8(1..5), choices.u8(0..4), choices.u8(0..5)])
                    .collect();
                let lock = locks.acquire_all(paths.iter().map(|path| target(&ids, *path))).await;
                let lock = lock.unwrap_or_else(|error: Error| panic!("{error:?}"));
                let who = task * TIMES + time;
                inside.enter(who, paths, &ids);
                tokio::task::yield_now().await;
                inside.leave(who);
                if time % 7 == 0 { drop(lock) } else { lock.release().await.unwrap() }
            }
        };
        let tasks =
            (0..TASKS).map(|task| tokio::spawn(work(locks.clone(), inside.clone(), ids.clone(), task)));
        join_all(tasks).await.into_iter().for_each(Result::unwrap);
        assert_idle(&locks).await;
        for id in ids.iter() {
            assert!(is_free(&locks, user(id)).await);
        }
    }
}

/// Callers that lock again while they hold locks may deadlock. One of them gets the error.
#[tokio::test(flavor = "multi_thread")]
async fn deadlock_by_the_caller_is_a_separate_error() {
    for store in need!(servers().await) {
        let locks = store.locks().await;
        let mut connections = [store.connect().await, store.connect().await];
        let [first, second] = &mut connections;
        let (mut first, mut second) = (first.begin().await.unwrap(), second.begin().await.unwrap());
        locks.lock_in_transaction(&mut first, [user("1")]).await.unwrap();
        locks.lock_in_transaction(&mut second, [user("2")]).await.unwrap();
        let both = tokio::join!(locks.lock_in_transaction(&mut first, [user("2")]), async {
            let done = locks.lock_in_transaction(&mut second, [user("1")]).await;
            drop(second);
            done
        });
        let victims: Vec<Error> = [both.0, both.1].into_iter().filter_map(Result::err).collect();
        assert!(matches!(victims[..], [Error::Deadlock(_)]), "{victims:?}");
        assert!(victims[0].is_safe_to_retry());
        assert_eq!(Level::ALL.len(), 3);
    }
}
