//! Migrations: once each, resumable, and strict about changed texts.

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
async fn pending_migrations_fail_the_check_until_they_are_applied() {
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
async fn concurrent_migrators_run_each_migration_once() {
    for place in need!(Place::all().await) {
        // On MySQL each migrator has its own pool, as separate processes do.
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
async fn applied_migration_with_a_changed_text_is_refused() {
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
                refused
                    .to_string()
                    .contains("game/0001_first: it was begun or applied with a different text"),
                "{refused}"
            );
        }
        db.close().await;
    }
}

#[tokio::test]
async fn older_program_accepts_a_newer_database() {
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

/// DDL commits implicitly, so a statement may have been applied although its process died before recording that.
#[tokio::test]
async fn interrupted_migration_is_resumed() {
    for server in need!(SqlServer::all_shared().await) {
        for was_applied in [true, false] {
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
            if was_applied {
                execute(&db, "CREATE TABLE second (id INTEGER NOT NULL PRIMARY KEY)").await;
            }
            assert!(matches!(db.require_migrated(THREE).await, Err(Error::PendingMigrations(_))));
            assert_eq!(db.migrate(THREE).await.unwrap(), ["game/0002_second", "game/0003_third"]);
            db.require_migrated(THREE).await.unwrap();
            db.close().await;
        }
    }
}

/// A conflicting table is never mistaken for the migration's own result, not even by the second attempt.
#[tokio::test]
async fn foreign_table_fails_the_migration() {
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

/// Another version of the program has begun the migration, with a different text.
#[tokio::test]
async fn begun_migration_with_a_different_text_is_refused() {
    let server = need!(SqlServer::shared().await);
    let place = Place::Server(server.database().await);
    let db = place.open().await;
    db.migrate(ONE).await.unwrap();
    execute(&db, "UPDATE schema_migrations SET applied_at = NULL, checksum = REPEAT('x', 32)").await;
    let refused = db.migrate(ONE).await.unwrap_err();
    assert!(refused.to_string().contains("begun or applied with a different text"), "{refused}");
}
