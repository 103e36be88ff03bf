//! Erasing a player who is in a drop, or about to be.

use account::OnErase;
use drops::stock::Stock;
use drops::{DropId, DropsEraser, Error};
use testkit::{Seed, need};

use crate::{LineBackend, Process, on_all_backends, terms, user};

on_all_backends!(erased_player_has_no_entry, join_after_erasure_is_refused);

impl Process {
    async fn erase(&self, player: u128) -> Result<(), account::Error> {
        let eraser = DropsEraser::new(Stock::new(self.db.clone()));
        loop {
            let mut tx = self.db.begin().await.unwrap();
            match eraser.erase(&mut tx, user(player)).await {
                Ok(()) => {
                    tx.commit().await.unwrap();
                    return Ok(());
                }
                // Accounts retry conflicts, too.
                Err(account::Error::Db(error)) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Counts a player's entries in all drops.
    async fn entries_of(&self, player: u128) -> i64 {
        let mut connection = self.db.connection().await.unwrap();
        db::on!(connection, raw => {
            sqlx::query_scalar("SELECT COUNT(*) FROM drop_entries WHERE user_id = ?")
                .bind(&user(player).as_uuid().as_bytes()[..])
                .fetch_one(raw)
                .await
                .unwrap()
        })
    }
}

async fn erased_player_has_no_entry(process: &Process) {
    let seed = Seed::new();
    let drops: [DropId; 2] =
        [process.open_drop(terms(1, 10)).await.id, process.open_drop(terms(1, 10)).await.id];
    for round in 0..12 {
        let mut choices = seed.choices(round);
        let player = 1_000 + u128::from(round);
        let joins = (0..4).map(|n| {
            let (process, drop) = (process.clone(), drops[n % 2]);
            tokio::spawn(async move { process.join(drop, player).await })
        });
        let joins: Vec<_> = joins.collect();
        for _ in 0..choices.u32(0..50) {
            tokio::task::yield_now().await;
        }
        process.erase(player).await.unwrap();
        for join in joins {
            let joined = join.await.unwrap();
            assert!(matches!(joined, Ok(_) | Err(Error::NotEligible)), "{joined:?}");
        }
        assert_eq!(process.entries_of(player).await, 0, "round {round}");
    }
    process.room.reconcile().await.unwrap();
    assert_eq!(process.in_line(drops[0]).await, process.waiting(drops[0]).await);
}

async fn join_after_erasure_is_refused(process: &Process) {
    let drop = process.open_drop(terms(1, 10)).await.id;
    process.join(drop, 1).await.unwrap();
    process.join(drop, 2).await.unwrap();
    process.erase(1).await.unwrap();
    // The player's session may still be valid.
    let late = process.join(drop, 1).await;
    assert!(matches!(late, Err(Error::NotEligible)), "{late:?}");
    assert_eq!(process.waiting(drop).await, [2]);
    process.erase(1).await.unwrap();
    // The mark is kept for a day.
    process.room.reconcile().await.unwrap();
    assert!(process.join(drop, 1).await.is_err());
    process.execute("UPDATE drop_erased_users SET erased_at = 1 WHERE user_id <> ?", drop).await;
    process.room.reconcile().await.unwrap();
    process.join(drop, 1).await.unwrap();
}

/// Processes that join and erase at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_join_does_not_bring_an_erased_player_back() {
    for place in need!(testkit::TestDatabase::servers().await) {
        let line = LineBackend::Redis(need!(testkit::Redis::shared().await).namespace());
        let one = Process::open(&place.url(), line.open().await).await;
        let other = Process::open(&place.url(), line.open().await).await;
        let drop = one.open_drop(terms(1, 10)).await.id;
        for player in 1..=20 {
            let joins = [&one, &other, &one].map(|process| {
                let process = process.clone();
                tokio::spawn(async move { std::mem::drop(process.join(drop, player).await) })
            });
            other.erase(player).await.unwrap();
            for join in joins {
                join.await.unwrap();
            }
            assert_eq!(one.entries_of(player).await, 0, "player {player}");
        }
    }
}
