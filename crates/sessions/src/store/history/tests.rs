//! The durable record on real servers: SQLite, MariaDB and, if available, MySQL.

use account::{OnErase, OnSessionsEnd, Role, UserId};
use base::Clock;
use base::error::Coded;
use config::{Setting, Value};
use db::{Config, DbUrl};
use futures::future::join_all;
use testkit::{FaultProxy, SqlServer, TestDatabase, eventually, need};

use super::*;
use crate::history::{MIGRATIONS, SessionHistory, SessionStatus};
use crate::store::{Session, SessionSecret};

const PATIENCE: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_secs(3600);
const ISSUER: &str = "https://issuer.test";

async fn open(url: &str, limit: Duration) -> Db {
    let url = DbUrl::parse(&Value::Text(url.to_owned())).unwrap();
    let config = Config { url, max_connections: 10, acquire_timeout: limit, migrate: false };
    let db = Db::open(&config).await.unwrap();
    db.migrate(&[MIGRATIONS]).await.unwrap();
    db
}

/// Opens a record whose statuses are cached for `fresh`.
fn history(db: &Db, fresh: Duration) -> SessionHistory {
    SessionHistory::new(db.clone(), HOUR, fresh, Clock::system())
}

fn id() -> SessionId {
    SessionSecret::generate().id()
}

fn session(subject: &str, began_at: Timestamp) -> Session {
    let now = Clock::system().now();
    Session {
        user_id: Uuid::from_u128(subject.bytes().fold(1, |sum, byte| sum * 257 + u128::from(byte))),
        issuer: ISSUER.to_owned(),
        subject: subject.to_owned(),
        sid: Some(format!("sid of {subject}")),
        name: None,
        roles: vec![Role::Player],
        tokens: String::new(),
        refresh_after: None,
        valid_until: now.after(HOUR).as_millis(),
        ends_at: now.after(HOUR).as_millis(),
        began_at: began_at.as_millis(),
        generation: 0,
    }
}

async fn count(db: &Db, table: &str) -> i64 {
    let text = AssertSqlSafe(format!("SELECT COUNT(*) FROM {table}"));
    let mut connection = db.connection().await.unwrap();
    on!(connection, raw => sqlx::query_scalar(text).fetch_one(raw).await.unwrap())
}

/// Ends all sessions of a user, as `account` does.
async fn end_user(db: &Db, history: &SessionHistory, user: Uuid) {
    let mut tx = db.begin().await.unwrap();
    history.end_sessions(&mut tx, UserId::from_uuid(user)).await.unwrap();
    tx.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn end_applies_to_sessions_that_began_before_it() {
    for place in need!(TestDatabase::all().await) {
        let db = open(&place.url(), PATIENCE).await;
        let history = history(&db, Duration::ZERO);
        let before = history.consume_state("one", HOUR).await.unwrap().unwrap();
        let ada = session("ada", before);
        let (one, other) = (id(), id());
        assert_eq!(history.status(&one, &ada).await.unwrap(), SessionStatus::Alive);

        // One session, but no other one of the same session at the issuer.
        history.end(&one, &ada).await;
        assert_eq!(history.status(&one, &ada).await.unwrap(), SessionStatus::Ended);
        assert_eq!(history.status(&other, &ada).await.unwrap(), SessionStatus::Alive);

        // All sessions of one session at the issuer; bob has another one.
        let groups = [Group::of_sid(ISSUER, "sid of ada")];
        let expiry = Clock::system().now().after(HOUR);
        assert!(history.back_channel("jti", expiry, &groups, None).await.unwrap());
        assert_eq!(history.status(&other, &ada).await.unwrap(), SessionStatus::Ended);
        let bob = session("bob", before);
        assert_eq!(history.status(&other, &bob).await.unwrap(), SessionStatus::Alive);

        // All sessions of a user.
        end_user(&db, &history, bob.user_id).await;
        assert_eq!(history.status(&other, &bob).await.unwrap(), SessionStatus::EndedWithUser);

        // But no session that begins later.
        eventually("SQL's clock advances", PATIENCE, async || {
            let later = history.consume_state(&oidc::random_token(), HOUR).await.unwrap().unwrap();
            let (ada, bob) = (session("ada", later), session("bob", later));
            let statuses =
                [history.status(&id(), &ada).await.unwrap(), history.status(&id(), &bob).await.unwrap()];
            statuses == [SessionStatus::Alive, SessionStatus::Alive]
        })
        .await;
        db.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_time_token_is_consumed_once_by_concurrent_callers() {
    for place in need!(TestDatabase::all().await) {
        let db = open(&place.url(), PATIENCE).await;
        let history = history(&db, Duration::ZERO);
        let tries = (0..20).map(|_| {
            let history = history.clone();
            tokio::spawn(async move { history.consume_state("state", HOUR).await.unwrap() })
        });
        let used = join_all(tries).await.into_iter().filter_map(Result::unwrap).count();
        assert_eq!(used, 1);
        // A logout token with the same text is another one, and works once.
        let expiry = Clock::system().now().after(HOUR);
        assert!(history.back_channel("state", expiry, &[], None).await.unwrap());
        assert!(!history.back_channel("state", expiry, &[], None).await.unwrap());
        db.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replayed_logout_token_ends_no_session() {
    for place in need!(TestDatabase::all().await) {
        let db = open(&place.url(), PATIENCE).await;
        let history = history(&db, Duration::ZERO);
        let groups = [Group::of_subject(ISSUER, "ada")];
        let expiry = Clock::system().now().after(HOUR);
        assert!(history.back_channel("jti", expiry, &groups, None).await.unwrap());
        let again = eventually("a session that started later", PATIENCE, async || {
            let later = history.consume_state(&oidc::random_token(), HOUR).await.unwrap().unwrap();
            let ada = session("ada", later);
            if history.status(&id(), &ada).await.unwrap() == SessionStatus::Alive {
                Ok(ada)
            } else {
                Err("not yet")
            }
        })
        .await;
        assert!(!history.back_channel("jti", expiry, &groups, None).await.unwrap());
        assert_eq!(history.status(&id(), &again).await.unwrap(), SessionStatus::Alive);
        db.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refresh_token_is_presented_once() {
    for place in need!(TestDatabase::all().await) {
        let db = open(&place.url(), PATIENCE).await;
        let history = history(&db, Duration::ZERO);
        let (id, first) = (id(), session("ada", Timestamp::from_millis(0)));
        let at_generation = |generation: i64| Session { generation, ..first.clone() };
        let tries = (0..20).map(|_| {
            let (history, id, first) = (history.clone(), id.clone(), first.clone());
            tokio::spawn(async move { history.spend(&id, &first).await.unwrap() })
        });
        let presented = join_all(tries).await.into_iter().filter(|done| *done.as_ref().unwrap()).count();
        assert_eq!(presented, 1);

        // The issuer did not accept it.
        history.undo_spend(&id, &first).await;
        assert!(history.spend(&id, &first).await.unwrap());
        assert!(history.spend(&id, &at_generation(1)).await.unwrap());
        // Redis lost its last writes.
        assert!(
            !history.spend(&id, &at_generation(0)).await.unwrap()
                && !history.spend(&id, &at_generation(1)).await.unwrap()
        );
        // Undoing an old one changes nothing.
        history.undo_spend(&id, &at_generation(0)).await;
        assert!(
            !history.spend(&id, &at_generation(1)).await.unwrap()
                && history.spend(&id, &at_generation(2)).await.unwrap()
        );
        // SQL lost its last writes: Redis is ahead.
        assert!(history.spend(&id, &at_generation(9)).await.unwrap());
        assert!(history.spend(&self::id(), &at_generation(5)).await.unwrap());
        db.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_status_is_dropped_when_an_end_is_announced() {
    for place in need!(TestDatabase::all().await) {
        let db = open(&place.url(), PATIENCE).await;
        let (here, there) = (history(&db, HOUR), history(&db, HOUR));
        let (id, ada) = (id(), session("ada", Timestamp::from_millis(0)));
        assert_eq!(here.status(&id, &ada).await.unwrap(), SessionStatus::Alive);
        there.end(&id, &ada).await;
        assert_eq!(there.status(&id, &ada).await.unwrap(), SessionStatus::Ended);
        assert_eq!(here.status(&id, &ada).await.unwrap(), SessionStatus::Alive, "no query yet");
        here.drop_cached(&id);
        assert_eq!(here.status(&id, &ada).await.unwrap(), SessionStatus::Ended);
        db.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_rows_are_removed() {
    for place in need!(TestDatabase::all().await) {
        let db = open(&place.url(), PATIENCE).await;
        let history = history(&db, Duration::ZERO);
        let lasting = session("ada", Timestamp::from_millis(0));
        history.end(&id(), &lasting).await;
        history.spend(&id(), &lasting).await.unwrap();
        history.consume_state("lasting", HOUR).await.unwrap();
        for table in ["session_ends", "session_refreshes", "session_used"] {
            let mut tx = db.begin().await.unwrap();
            let columns = match table {
                "session_ends" => "name, user_id, ended_at, expires_at) VALUES (?, NULL, 1, 1",
                "session_refreshes" => {
                    "name, user_id, spent, expires_at) VALUES (?, 'sixteen bytes...', 1, 1"
                }
                _ => "name, used_at, expires_at) VALUES (?, 1, 1",
            };
            let columns = columns.replace("'sixteen bytes...'", "x'000102030405060708090a0b0c0d0e0f'");
            for number in 0..3_u8 {
                let text = AssertSqlSafe(format!("INSERT INTO {table} ({columns})"));
                on!(tx, raw => { sqlx::query(text).bind(vec![number; 32]).execute(raw).await.unwrap(); });
            }
            tx.commit().await.unwrap();
            assert_eq!(count(&db, table).await, 4);
        }
        assert_eq!(history.tick().await.unwrap(), 9);
        for table in ["session_ends", "session_refreshes", "session_used"] {
            assert_eq!(count(&db, table).await, 1, "{table}");
        }
        assert_eq!(history.tick().await.unwrap(), 0);
        db.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn erasure_removes_the_users_rows_and_ends_their_sessions() {
    for place in need!(TestDatabase::all().await) {
        let db = open(&place.url(), PATIENCE).await;
        let history = history(&db, Duration::ZERO);
        let (ended, id, ada) = (id(), id(), session("ada", Timestamp::from_millis(0)));
        history.end(&ended, &ada).await;
        history.spend(&id, &ada).await.unwrap();
        let expiry = Clock::system().now().after(HOUR);
        let user = UserId::from_uuid(ada.user_id);
        history.back_channel("jti", expiry, &[Group::of_subject(ISSUER, "ada")], Some(user)).await.unwrap();
        let mut tx = db.begin().await.unwrap();
        history.erase(&mut tx, user).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!((count(&db, "session_ends").await, count(&db, "session_refreshes").await), (1, 0));
        for id in [&ended, &id] {
            assert_eq!(history.status(id, &ada).await.unwrap(), SessionStatus::EndedWithUser);
        }
        db.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_outage_keeps_known_sessions_and_delays_recording_of_ends() {
    let server = need!(SqlServer::private().await);
    let database = server.database().await;
    let proxy = FaultProxy::to(server.addr()).await;
    let faulty = open(&proxy.url(database.url()), Duration::from_millis(500)).await;
    let (here, there) =
        (history(&faulty, Duration::ZERO), history(&open(database.url(), PATIENCE).await, HOUR));
    let (known, unknown, ada) = (id(), id(), session("ada", Timestamp::from_millis(0)));
    assert_eq!(here.status(&known, &ada).await.unwrap(), SessionStatus::Alive);
    proxy.cut().await;
    assert_eq!(here.status(&known, &ada).await.unwrap(), SessionStatus::Alive);
    assert!(here.status(&unknown, &ada).await.unwrap_err().is_transient());
    assert!(here.spend(&known, &ada).await.unwrap_err().is_transient(), "no token is presented unrecorded");
    here.end(&known, &ada).await;
    assert!(here.tick().await.unwrap_err().is_transient());
    assert_eq!(here.pending().len(), 1, "it is retried");
    proxy.pass().await;
    eventually("the end is recorded", PATIENCE, async || here.tick().await.is_ok()).await;
    assert_eq!(here.pending().len(), 0);
    assert_eq!(there.status(&known, &ada).await.unwrap(), SessionStatus::Ended);
}
