use hierlock::matrix::Matrix;
use testkit::need;

use super::*;

/// Every ordered pair of 2 users, 4 accounts and 8 resources, as seen and as the server shows it.
#[tokio::test]
async fn who_waits_for_whom_is_as_the_rules_say_for_every_pair() {
    let _alone = LOOKING.lock().await;
    for place in need!(places().await) {
        let locks = place.locks().await;
        let matrix = Matrix::observe(&locks).await.unwrap().unwrap();
        assert_eq!(matrix.names.len(), 14);
        assert!(matrix.is_right(), "{matrix}");
        let waits = matrix.cells().filter(|cell| cell.waited).count();
        // Each with itself; users with 2 accounts and 4 resources, accounts with 2 resources, each in both orders.
        assert_eq!((waits, matrix.cells().count()), (14 + 2 * (2 * 2 + 2 * 4 + 4 * 2), 14 * 14));
        let shown = matrix.cells().filter(|cell| cell.server_agrees == Some(true)).count();
        assert_eq!(shown, if locks.is_in_process() { 0 } else { waits });
        assert_nothing_is_left(&locks).await;
    }
}

#[tokio::test]
async fn too_few_buckets_for_a_matrix_are_told() {
    let server = need!(SqlServer::shared().await);
    let database = server.database().await;
    let place = Place::MySql(database);
    provision(&place.options(), 3).await;
    let locks = place.locks_with(Options { buckets: 3, ..options() }).await;
    assert!(Matrix::observe(&locks).await.unwrap().is_none());
}
