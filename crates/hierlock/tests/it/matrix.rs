use hierlock::matrix::Matrix;
use testkit::need;

use super::*;

/// Observes every ordered pair of 2 users, 4 accounts and 8 resources, and compares with the server's tables.
#[tokio::test]
async fn every_pair_waits_as_the_rules_say() {
    let _alone = WAIT_TABLES.lock().await;
    for store in need!(all_stores().await) {
        let locks = store.locks().await;
        let matrix = Matrix::observe(&locks).await.unwrap().unwrap();
        assert_eq!(matrix.names.len(), 14);
        assert!(matrix.is_correct(), "{matrix}");
        let waits = matrix.cells().filter(|cell| cell.waited).count();
        // Each target with itself; users with 2 accounts and 4 resources, accounts with 2 resources, in both orders.
        assert_eq!((waits, matrix.cells().count()), (14 + 2 * (2 * 2 + 2 * 4 + 4 * 2), 14 * 14));
        let shown = matrix.cells().filter(|cell| cell.server_agrees == Some(true)).count();
        assert_eq!(shown, if locks.is_in_process() { 0 } else { waits });
        assert_idle(&locks).await;
    }
}

#[tokio::test]
async fn too_few_buckets_for_a_matrix_are_reported() {
    let server = need!(SqlServer::shared().await);
    let database = server.database().await;
    let store = TestStore::MySql(database);
    provision(&store.options(), 3).await;
    let locks = store.locks_with(Options { buckets: 3, ..options() }).await;
    assert!(Matrix::observe(&locks).await.unwrap().is_none());
}
