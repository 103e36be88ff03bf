//! Transactions, statements and errors on every store.

use base::Code;
use base::error::Coded;
use db::{Db, Dialect, Error, InsertText, Raw, Value, on};
use futures::future::join_all;
use sqlx::{AssertSqlSafe, Executor};
use testkit::need;

use super::*;

/// Creates a table with one row.
async fn create_counter(db: &Db) {
    let mut tx = db.begin().await.unwrap();
    on!(tx, raw => {
        raw.execute("CREATE TABLE counter (id INTEGER NOT NULL PRIMARY KEY, value INTEGER NOT NULL)").await.unwrap();
    });
    tx.commit().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    on!(tx, raw => { raw.execute("INSERT INTO counter (id, value) VALUES (1, 0)").await.unwrap(); });
    tx.commit().await.unwrap();
}

async fn read_counter(db: &Db) -> i64 {
    let mut connection = db.connection().await.unwrap();
    on!(connection, raw => sqlx::query_scalar("SELECT value FROM counter WHERE id = 1").fetch_one(raw).await.unwrap())
}

#[tokio::test]
async fn commit_keeps_changes_and_drop_discards_them() {
    for place in need!(Place::all().await) {
        let db = place.open().await;
        create_counter(&db).await;
        let mut tx = db.begin().await.unwrap();
        on!(tx, raw => { raw.execute("UPDATE counter SET value = 7").await.unwrap(); });
        drop(tx);
        assert_eq!(read_counter(&db).await, 0);
        let mut tx = db.begin().await.unwrap();
        on!(tx, raw => { raw.execute("UPDATE counter SET value = 7").await.unwrap(); });
        assert_eq!(
            read_counter(&db).await,
            0,
            "the change is not visible before the commit, and reading does not wait for it"
        );
        tx.commit().await.unwrap();
        assert_eq!(read_counter(&db).await, 7);
        db.close().await;
    }
}

#[tokio::test]
async fn row_is_read_by_column_names() {
    db::row! {
        struct CounterRow {
            value: i64,
            id: i64,
        }
    }
    for place in need!(Place::all().await) {
        let db = place.open().await;
        create_counter(&db).await;
        let mut connection = db.connection().await.unwrap();
        let row: CounterRow = on!(connection, raw => {
            sqlx::query_as("SELECT id, value FROM counter").fetch_one(raw).await.unwrap()
        });
        assert_eq!((row.id, row.value), (1, 0));
        let missing: Result<CounterRow, _> = on!(connection, raw => {
            sqlx::query_as("SELECT id, value AS amount FROM counter").fetch_one(raw).await
        });
        assert!(matches!(missing, Err(sqlx::Error::ColumnNotFound(name)) if name == "value"));
        drop(connection);
        db.close().await;
    }
}

/// Rows deferred to the commit are written unchanged or not at all, and a failed commit leaves the connection usable.
#[tokio::test]
async fn deferred_writes_are_atomic_with_the_transaction() {
    const HEAD: &str = "INSERT INTO notes (id, text, bytes)";
    let nasty = "a'); DROP TABLE notes; -- \\' \0 \u{e4}\u{1f3ae}";
    for place in need!(Place::all().await) {
        let mut config = place.config();
        config.max_connections = 1;
        let db = Db::open(&config).await.unwrap();
        create_counter(&db).await;
        let mut tx = db.begin().await.unwrap();
        let table = db.dialect().pick(
            "CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT, bytes BLOB) STRICT",
            "CREATE TABLE notes (id BIGINT PRIMARY KEY, text TEXT, bytes BLOB) DEFAULT CHARACTER SET utf8mb4",
        );
        on!(tx, raw => { raw.execute(table).await.unwrap(); });
        tx.commit().await.unwrap();
        let woken = std::sync::Arc::new(tokio::sync::Notify::new());
        let is_woken = async || tokio::time::timeout(Duration::ZERO, woken.notified()).await.is_ok();
        let notes = async || -> Vec<(i64, Option<String>, Option<Vec<u8>>)> {
            let mut connection = db.connection().await.unwrap();
            on!(connection, raw => sqlx::query_as("SELECT id, text, bytes FROM notes ORDER BY id").fetch_all(raw).await.unwrap())
        };

        let mut tx = db.begin().await.unwrap();
        tx.insert_at_commit(HEAD, [[Value::Integer(i64::MIN), nasty.into(), Value::Bytes(&[0, 255, 39])]]);
        tx.insert_at_commit::<3>(HEAD, []);
        tx.insert_at_commit(
            HEAD,
            [[1.into(), Value::Null, Value::Null], [2.into(), "".into(), Value::Bytes(&[])]],
        );
        tx.wake_after_commit(&woken);
        assert!(!is_woken().await);
        tx.commit().await.unwrap();
        assert!(is_woken().await);
        let written = vec![
            (i64::MIN, Some(nasty.to_owned()), Some(vec![0, 255, 39])),
            (1, None, None),
            (2, Some(String::new()), Some(Vec::new())),
        ];
        assert_eq!(notes().await, written);

        // The second of three deferred inserts is refused, after a statement and a flush that succeeded. Twice on one connection.
        for _ in 0..2 {
            let mut tx = db.begin().await.unwrap();
            on!(tx, raw => { raw.execute("UPDATE counter SET value = 7").await.unwrap(); });
            tx.insert_at_commit(HEAD, [[3.into(), Value::Null, Value::Null]]);
            tx.flush().await.unwrap();
            tx.insert_at_commit(HEAD, [[4.into(), Value::Null, Value::Null]]);
            tx.insert_at_commit(HEAD, [[1.into(), Value::Null, Value::Null]]);
            tx.insert_at_commit(HEAD, [[5.into(), Value::Null, Value::Null]]);
            tx.wake_after_commit(&woken);
            let refused = tx.commit().await.unwrap_err();
            assert!(matches!(refused, Error::Duplicate(_)), "{refused:?}");
            assert!(!is_woken().await);
        }
        let mut tx = db.begin().await.unwrap();
        tx.insert_at_commit(HEAD, [[6.into(), Value::Null, Value::Null]]);
        tx.flush().await.unwrap();
        tx.rollback().await.unwrap();
        assert_eq!((notes().await, read_counter(&db).await), (written, 0));
        db.close().await;
    }
}

#[tokio::test]
async fn transaction_can_begin_with_an_insert_and_read_its_own_writes() {
    for place in need!(Place::all().await) {
        let db = place.open().await;
        let mut tx = db.begin().await.unwrap();
        let table = db.dialect().pick(
            "CREATE TABLE heads (id BLOB PRIMARY KEY, number INTEGER NOT NULL) STRICT",
            "CREATE TABLE heads (id BINARY(1) PRIMARY KEY, number BIGINT NOT NULL)",
        );
        on!(tx, raw => { raw.execute(table).await.unwrap(); });
        tx.commit().await.unwrap();
        let ignore = db.dialect().pick("INSERT OR IGNORE INTO heads", "INSERT IGNORE INTO heads");
        let conflict = db.dialect().pick(
            " ON CONFLICT (id) DO UPDATE SET number = number + excluded.number",
            " ON DUPLICATE KEY UPDATE number = number + VALUES(number)",
        );
        let row = |id: &'static [u8], number: i64| [Value::Bytes(id), Value::Integer(number)];
        let all = "SELECT id, number FROM heads ORDER BY id";
        let read = async |tx: &mut db::Tx| {
            tx.insert_and_read::<2>(InsertText { head: "", tail: "" }, [], all).await.unwrap()
        };

        let (tx, inserted) = db.begin_with_insert(ignore, [row(b"a", 1), row(b"b", 2)]).await.unwrap();
        assert_eq!(inserted, 2);
        tx.commit().await.unwrap();
        let (mut tx, inserted) = db.begin_with_insert(ignore, [row(b"a", 9), row(b"c", 3)]).await.unwrap();
        assert_eq!(inserted, 1, "one row existed already");
        // The insert below runs after this deferred one.
        tx.insert_at_commit("INSERT INTO heads", [row(b"d", 4)]);
        let rows = [row(b"a", 10), row(b"e", 5)];
        let found = tx
            .insert_and_read(InsertText { head: "INSERT INTO heads", tail: conflict }, rows, all)
            .await
            .unwrap();
        let expected = [("a", 11), ("b", 2), ("c", 3), ("d", 4), ("e", 5)];
        let expected: Vec<(Vec<u8>, i64)> = expected.map(|(id, number)| (id.into(), number)).into();
        assert_eq!(found, expected);
        // The first insert is part of the transaction, too.
        tx.rollback().await.unwrap();
        let (mut tx, inserted) = db.begin_with_insert::<2>(ignore, []).await.unwrap();
        assert_eq!((inserted, read(&mut tx).await.len()), (0, 2));
        tx.rollback().await.unwrap();
        // Callbacks run after a commit, and only then.
        let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let is_done = || done.load(std::sync::atomic::Ordering::SeqCst);
        for (commits, expected) in [(false, false), (true, true)] {
            let mut tx = db.begin().await.unwrap();
            let then = done.clone();
            tx.after_commit(move || then.store(true, std::sync::atomic::Ordering::SeqCst));
            assert!(!is_done());
            if commits {
                tx.commit().await.unwrap()
            } else {
                tx.rollback().await.unwrap()
            }
            assert_eq!(is_done(), expected);
        }
        db.close().await;
    }
}

/// On SQLite this fails with "database is locked" when transactions begin without the write lock.
#[tokio::test(flavor = "multi_thread")]
async fn read_modify_write_transactions_are_serialised() {
    const READ: &str = "SELECT value FROM counter WHERE id = 1";
    const READ_LOCKED: &str = "SELECT value FROM counter WHERE id = 1 FOR UPDATE";
    for place in need!(Place::all().await) {
        let db = place.open().await;
        create_counter(&db).await;
        let add = |db: Db| async move {
            for _ in 0..20 {
                let mut tx = db.begin().await.unwrap();
                let value: i64 = match tx.raw() {
                    Raw::Sqlite(raw) => sqlx::query_scalar(READ).fetch_one(raw).await.unwrap(),
                    Raw::MySql(raw) => sqlx::query_scalar(READ_LOCKED).fetch_one(raw).await.unwrap(),
                };
                on!(tx, raw => {
                    sqlx::query("UPDATE counter SET value = ?").bind(value + 1).execute(raw).await.unwrap();
                });
                tx.commit().await.unwrap();
            }
        };
        join_all((0..16).map(|_| tokio::spawn(add(db.clone())))).await.into_iter().for_each(Result::unwrap);
        assert_eq!(read_counter(&db).await, 320);
        db.close().await;
    }
}

#[tokio::test]
async fn errors_are_classified() {
    for place in need!(Place::all().await) {
        let db = place.open().await;
        create_counter(&db).await;
        let mut tx = db.begin().await.unwrap();
        let twice =
            on!(tx, raw => raw.execute("INSERT INTO counter (id, value) VALUES (1, 0)").await.map(|_| ()));
        let error = Error::from(twice.unwrap_err());
        assert!(matches!(error, Error::Duplicate(_)), "{error:?}");
        assert_eq!(error.code(), Code::Conflict);
        let nonsense = on!(tx, raw => raw.execute("SELEKT 1").await.map(|_| ()));
        assert!(matches!(Error::from(nonsense.unwrap_err()), Error::Statement(_)));
        drop(tx);
        db.close().await;
    }
}

/// `SIGNAL` raises any error number, including those of clusters.
#[tokio::test]
async fn transient_server_errors_are_reported_as_transient() {
    for place in need!(Place::servers().await) {
        let db = place.open().await;
        for number in
            [1205, 1213, 1020, 3101, 1040, 1047, 1053, 1159, 1317, 1927, 4031, 1290, 1792, 1836, 1874]
        {
            let mut connection = db.connection().await.unwrap();
            let signal = format!("SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = 'x'");
            let raised = on!(connection, raw => raw.execute(AssertSqlSafe(signal)).await.map(drop));
            let error = Error::from(raised.unwrap_err());
            assert!(error.is_transient(), "{number}: {error:?}");
            let is_expected = match number {
                1205 | 1213 | 1020 | 3101 => error.is_conflict(),
                1290 | 1792 | 1836 | 1874 => matches!(error, Error::ReadOnly(_)) && !error.is_conflict(),
                _ => matches!(error, Error::Unreachable(_)) && !error.is_conflict(),
            };
            assert!(is_expected, "{number}: {error:?}");
        }
        db.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn first_process_decides_an_agreed_setting() {
    for place in need!(Place::all().await) {
        let db = place.open().await;
        db.migrate(&[db::MIGRATIONS]).await.unwrap();
        let ours: Vec<String> = (0..50).map(|n| format!("value {n}")).collect();
        let agreed = join_all(ours.iter().map(|ours| db.agree_on_setting("buckets", ours))).await;
        let agreed: Vec<String> = agreed.into_iter().map(Result::unwrap).collect();
        assert!(ours.contains(&agreed[0]));
        assert!(agreed.iter().all(|value| *value == agreed[0]), "{agreed:?}");
        assert_eq!(db.deployment_id().await.unwrap(), db.deployment_id().await.unwrap());
        if db.dialect() == Dialect::MySql {
            assert!(
                db.agree_on_setting("too long", &"x".repeat(300)).await.is_err(),
                "a value that does not fit is not truncated"
            );
        }
        db.close().await;
    }
}

#[tokio::test]
async fn deadlock_is_busy_and_can_be_retried() {
    let server = need!(SqlServer::shared().await);
    let place = Place::Server(server.database().await);
    let db = place.open().await;
    create_counter(&db).await;
    let mut tx = db.begin().await.unwrap();
    on!(tx, raw => { raw.execute("INSERT INTO counter (id, value) VALUES (2, 0)").await.unwrap(); });
    tx.commit().await.unwrap();
    let (mut one, mut other) = (db.begin().await.unwrap(), db.begin().await.unwrap());
    on!(one, raw => { raw.execute("UPDATE counter SET value = 1 WHERE id = 1").await.unwrap(); });
    on!(other, raw => { raw.execute("UPDATE counter SET value = 1 WHERE id = 2").await.unwrap(); });
    let first =
        async { on!(one, raw => raw.execute("UPDATE counter SET value = 1 WHERE id = 2").await.map(|_| ())) };
    let second = async {
        on!(other, raw => raw.execute("UPDATE counter SET value = 1 WHERE id = 1").await.map(|_| ()))
    };
    let (first, second) = tokio::join!(first, second);
    let victim = Error::from(first.and(second).unwrap_err());
    assert!(matches!(victim, Error::Busy(_)), "{victim:?}");
    assert!(victim.is_transient());
}

/// Without strict mode MySQL truncates values, and without READ COMMITTED claims block inserts.
#[tokio::test]
async fn session_is_strict_whatever_the_server_default() {
    let server = testkit::SqlServer::builder(testkit::Flavour::Mariadb).arg("--sql-mode=").start().await;
    let server = need!(server);
    let db = Place::Server(server.database().await).open().await;
    let mut tx = db.begin().await.unwrap();
    let Raw::MySql(raw) = tx.raw() else { panic!("expected MySQL") };
    raw.execute("CREATE TEMPORARY TABLE narrow (text VARCHAR(3))").await.unwrap();
    let inserted = raw.execute("INSERT INTO narrow (text) VALUES ('abcdef')").await;
    assert!(inserted.is_err(), "the value was truncated");
    let level: String = sqlx::query_scalar("SELECT @@tx_isolation").fetch_one(raw).await.unwrap();
    assert_eq!(level, "READ-COMMITTED");
}

#[tokio::test]
async fn second_process_on_one_sqlite_file_is_refused() {
    let place = Place::sqlite().unwrap();
    let db = place.open().await;
    let refused = Db::open(&place.config()).await.unwrap_err();
    assert!(matches!(refused, Error::InUse(_)), "{refused:?}");
    assert!(refused.to_string().contains("in use by another process"), "{refused}");
    db.close().await;
    drop(db);
    place.open().await.close().await;
}

#[tokio::test]
async fn refused_connection_differs_from_an_unreachable_server() {
    let server = need!(SqlServer::mariadb().await);
    let with = |change: fn(&mut url::Url)| {
        let mut url: url::Url = format!("{}/nowhere", server.url().trim_end_matches('/')).parse().unwrap();
        change(&mut url);
        config(DbUrl::MySql(url))
    };
    let unknown = Db::open(&with(|_| ())).await.unwrap_err();
    assert!(unknown.to_string().contains("create the database that db.url names"), "{unknown}");
    let wrong = Db::open(&with(|url| url.set_username("nobody").unwrap())).await.unwrap_err();
    assert!(wrong.to_string().contains("check the user and password"), "{wrong}");
    assert!(!unknown.is_transient() && !wrong.is_transient());
    let absent = Db::open(&with(|url| url.set_port(Some(1)).unwrap())).await.unwrap_err();
    assert!(matches!(absent, Error::Unreachable(_)) && absent.is_transient(), "{absent:?}");
}
