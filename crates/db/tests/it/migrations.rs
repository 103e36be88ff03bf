use db::{Db, Error, Migration, Migrations, on};
use futures::future::join_all;
use sqlx::Executor;
use testkit::need;

use super::*;

const fn table(version: u32, name: &'static str, sql: &'static str) -> Migration {
    Migration { version, name, sqlite: sql, mysql: sql }
}

const FIRST: Migration = table(1, "first", "CREATE TABLE first (id INTEGER NOT NULL PRIMARY KEY)");
const SECOND: Migration = table(2, "second", "CREATE TABLE second (id INTEGER NOT NULL PRIMARY KEY)");
const THIRD: Migration = table(3, "third", "ALTER TABLE second ADD COLUMN name VARCHAR(10)");

const ONE: &[Migrations] = &[Migrations { component: "game", list: &[FIRST] }];
const THREE: &[Migrations] = &[Migrations { component: "game", list: &[FIRST, SECOND, THIRD] }];

async fn execute(db: &Db, statement: &'static str) {
    let mut tx = db.begin().await.unwrap();
    on!(tx, raw => { raw.execute(statement).await.unwrap(); });
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn pending_migrations_are_refused_then_run_then_done() {
    for place in need!(Place::all().await) {
        let db = place.open().await;
        let refused = db.require_migrated(THREE).await.unwrap_err();
        assert!(
            refused.to_string().contains("pending: game/0001_first, game/0002_second, game/0003_third"),
            "{refused}"
        );
        assert_eq!(db.migrate(ONE).await.unwrap(), ["game/0001_first"]);
        assert_eq!(db.migrate(THREE).await.unwrap(), ["game/0002_second", "game/0003_third"]);
        assert_eq!(db.migrate(THREE).await.unwrap(), [] as [&str; 0]);
        db.require_migrated(THREE).await.unwrap();
        execute(&db, "INSERT INTO second (id, name) VALUES (1, 'x')").await;
        db.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_number_may_migrate_at_once_and_each_migration_runs_once() {
    for place in need!(Place::all().await) {
        // On MySQL, connections of their own, as processes have.
        let mut dbs = vec![place.open().await];
        for _ in 1..10 {
            dbs.push(if matches!(place, Place::Sqlite(_)) { dbs[0].clone() } else { place.open().await });
        }
        let done = join_all(dbs.iter().map(|db| db.migrate(THREE))).await;
        let mut done: Vec<String> = done.into_iter().flat_map(Result::unwrap).collect();
        done.sort();
        assert_eq!(done, ["game/0001_first", "game/0002_second", "game/0003_third"]);
        for db in dbs {
            db.close().await;
        }
    }
}

#[tokio::test]
async fn a_text_that_was_changed_after_it_was_applied_is_refused() {
    const CHANGED: &[Migrations] = &[Migrations {
        component: "game",
        list: &[table(1, "first", "CREATE TABLE first (id BIGINT NOT NULL PRIMARY KEY)")],
    }];
    for place in need!(Place::all().await) {
        let db = place.open().await;
        db.migrate(ONE).await.unwrap();
        for refused in
            [db.require_migrated(CHANGED).await.unwrap_err(), db.migrate(CHANGED).await.unwrap_err()]
        {
            assert!(
                refused.to_string().contains("game/0001_first: it was applied or begun with another text"),
                "{refused}"
            );
        }
        db.close().await;
    }
}

#[tokio::test]
async fn an_older_program_lives_with_a_newer_database() {
    for place in need!(Place::all().await) {
        let db = place.open().await;
        db.migrate(THREE).await.unwrap();
        db.require_migrated(ONE).await.unwrap();
        let status = db.migration_status(ONE).await.unwrap();
        assert_eq!(status.applied, ["game/0001_first"]);
        assert_eq!(status.newer, ["game/0002_second", "game/0003_third"]);
        db.close().await;
    }
}

/// A statement that commits by itself may be done although its process died before it could write that down.
#[tokio::test]
async fn what_was_interrupted_is_taken_up_again() {
    for server in need!(SqlServer::all_shared().await) {
        for done in [true, false] {
            let place = Place::Server(server.database().await);
            let db = place.open().await;
            db.migrate(ONE).await.unwrap();
            execute(
                &db,
                "INSERT INTO schema_migrations (component, version, name, checksum, begun_at)
                 VALUES ('game', 2, 'second',
                         UNHEX(SHA2('CREATE TABLE second (id INTEGER NOT NULL PRIMARY KEY)', 256)), 1)",
            )
            .await;
            if done {
                execute(&db, "CREATE TABLE second (id INTEGER NOT NULL PRIMARY KEY)").await;
            }
            assert!(matches!(db.require_migrated(THREE).await, Err(Error::PendingMigrations(_))));
            assert_eq!(db.migrate(THREE).await.unwrap(), ["game/0002_second", "game/0003_third"]);
            db.require_migrated(THREE).await.unwrap();
            db.close().await;
        }
    }
}

/// What stands in the way is not taken for our own work, not even at the second try.
#[tokio::test]
async fn a_table_of_somebody_else_is_not_taken_for_ours() {
    for place in need!(Place::all().await) {
        let db = place.open().await;
        execute(&db, "CREATE TABLE first (other INTEGER)").await;
        for _ in 0..2 {
            let failed = db.migrate(ONE).await.unwrap_err();
            assert!(failed.to_string().contains("game/0001_first: the statement failed"), "{failed}");
        }
        db.close().await;
    }
}

/// Another program has begun it, with another table.
#[tokio::test]
async fn what_was_begun_with_another_text_is_refused() {
    let server = need!(SqlServer::shared().await);
    let place = Place::Server(server.database().await);
    let db = place.open().await;
    db.migrate(ONE).await.unwrap();
    execute(&db, "UPDATE schema_migrations SET applied_at = NULL, checksum = REPEAT('x', 32)").await;
    let refused = db.migrate(ONE).await.unwrap_err();
    assert!(refused.to_string().contains("begun with another text"), "{refused}");
}
