use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use account::{AccountId, Error, UserId, UserState};
use base::Code;
use base::error::Coded;
use db::{Dialect, Tx};
use futures::future::{BoxFuture, join_all};
use hierlock::Target;
use serde_json::json;
use testkit::need;

use super::*;

const ISSUER: &str = "https://erased-issuer.example.com";
const SUBJECT: &str = "subject-of-ada";
const NAME: &str = "Ada Lovelace";
const REASON: &str = "insulted Babbage";
const PERSONA: &str = "ada on another platform";

/// Creates a user with every kind of personal data.
async fn ada(process: &Process) -> UserView {
    let sign_in = SignIn {
        issuer: ISSUER.to_owned(),
        subject: SUBJECT.to_owned(),
        display_name: Some(NAME.to_owned()),
        roles: vec![Role::Operator],
    };
    let ada = process.accounts.sign_in(&sign_in).await.unwrap().user;
    process.accounts.link(ada.id, ISSUER, "linked-subject", ACTOR).await.unwrap();
    process.accounts.link(ada.id, ISSUER, "unlinked-subject", ACTOR).await.unwrap();
    process.accounts.unlink(ada.id, ISSUER, "unlinked-subject", ACTOR).await.unwrap();
    process.accounts.create_account(ada.id, PERSONA).await.unwrap();
    process.accounts.ban(ada.id, REASON, ACTOR).await.unwrap();
    ada
}

/// Returns every value in our tables and the outbox, in hexadecimal digits.
async fn all_values(db: &Db) -> Vec<String> {
    const SQLITE: &str = "SELECT m.name, p.name FROM sqlite_master m JOIN pragma_table_info(m.name) p
        WHERE m.type = 'table' AND m.name <> 'schema_migrations' AND m.name NOT LIKE 'sqlite%'";
    const MYSQL: &str = "SELECT CAST(table_name AS CHAR), CAST(column_name AS CHAR) FROM information_schema.columns
        WHERE table_schema = DATABASE() AND table_name <> 'schema_migrations' AND table_name NOT LIKE 'hierlock%'";
    let text = db.dialect().pick(SQLITE, MYSQL);
    let mut connection = db.connection().await.unwrap();
    let columns: Vec<(String, String)> =
        on!(connection, raw => sqlx::query_as(text).fetch_all(raw).await.unwrap());
    for table in ["users", "identities", "accounts", "user_audit", "outbox"] {
        assert!(columns.iter().any(|(name, _)| name == table), "{table} is included: {columns:?}");
    }
    let mut values = Vec::new();
    for (table, column) in columns {
        let text = format!("SELECT HEX({column}) FROM {table} WHERE {column} IS NOT NULL");
        let mut column: Vec<String> =
            on!(connection, raw => sqlx::query_scalar(AssertSqlSafe(text)).fetch_all(raw).await.unwrap());
        // The server may read in the order of any index.
        column.sort_unstable();
        values.extend(column);
    }
    values
}

/// Returns the pieces of personal data that occur in the values.
fn personal_data(values: &[String]) -> Vec<&'static str> {
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02X}")).collect::<String>();
    let pieces =
        [ISSUER, SUBJECT, "linked-subject", "unlinked-subject", NAME, REASON, PERSONA, "operator", "default"];
    pieces.into_iter().filter(|piece| values.iter().any(|value| value.contains(&hex(piece)))).collect()
}

#[tokio::test]
async fn erasure_leaves_no_personal_data() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let (ada, accounts) = (ada(&process).await, &process.accounts);
        let bob = process.sign_in("bob").await;
        let before = personal_data(&all_values(&process.db).await);
        let known = [ISSUER, SUBJECT, "linked-subject", NAME, REASON, PERSONA, "operator", "default"];
        assert_eq!(before, known, "the search finds all data, and the unlinked identity is gone");
        accounts.erase(ada.id, ACTOR).await.unwrap();
        // Bob also has a default account.
        assert_eq!(personal_data(&all_values(&process.db).await), ["default"]);
        let tombstone = accounts.user(ada.id).await.unwrap();
        let expected = UserView {
            id: ada.id,
            state: UserState::Erased,
            display_name: None,
            roles: Vec::new(),
            ban_reason: None,
            created_at: ada.created_at,
        };
        assert_eq!(tombstone, expected);
        assert_eq!(accounts.accounts(ada.id).await.unwrap(), []);
        assert_eq!(accounts.user(bob.id).await.unwrap(), bob, "other users are unchanged");
        assert_eq!(accounts.accounts(bob.id).await.unwrap().len(), 1);
        assert_eq!(process.count("identities").await, 1);
        process.close().await;
    }
}

#[tokio::test]
async fn erasure_is_published_once_and_stays_in_the_audit_log() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let (ada, accounts) = (ada(&process).await, &process.accounts);
        let before = process.actions(&ada).await;
        for _ in 0..3 {
            accounts.erase(ada.id, "service/privacy").await.unwrap();
        }
        let erased: Vec<_> =
            process.events().await.into_iter().filter(|event| event["subject"] == "user.erased.v1").collect();
        assert_eq!(erased.len(), 1);
        assert_eq!(erased[0]["data"], json!({ "user_id": ada.id.to_string(), "state": "ERASED" }));
        let records = accounts.audit(ada.id, 100).await.unwrap();
        assert_eq!(records.len(), before.len() + 1, "earlier records stay");
        assert_eq!(
            (records[0].action.as_str(), records[0].actor.as_str()),
            ("user.erased", "service/privacy")
        );
        assert_eq!(records[0].detail, json!({ "from": "BANNED", "to": "ERASED" }));
        process.close().await;
    }
}

#[tokio::test]
async fn erased_user_stays_erased_and_the_identity_creates_a_new_user() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let (ada, accounts) = (ada(&process).await, &process.accounts);
        accounts.erase(ada.id, ACTOR).await.unwrap();
        let refused = [
            accounts.ban(ada.id, "reason", ACTOR).await.unwrap_err(),
            accounts.unban(ada.id, ACTOR).await.unwrap_err(),
            accounts.link(ada.id, ISSUER, SUBJECT, ACTOR).await.unwrap_err(),
            accounts.unlink(ada.id, ISSUER, SUBJECT, ACTOR).await.unwrap_err(),
            accounts.create_account(ada.id, "default").await.unwrap_err(),
        ];
        for error in refused {
            assert!(matches!(error, Error::Erased(user) if user == ada.id), "{error:?}");
            assert_eq!(error.code(), Code::FailedPrecondition);
        }
        assert!(matches!(accounts.find(ISSUER, SUBJECT).await, Err(Error::UnknownIdentity)));
        let again = SignIn { issuer: ISSUER.to_owned(), ..sign_in(SUBJECT) };
        let again = accounts.sign_in(&again).await.unwrap();
        assert!(again.created && again.user.id != ada.id);
        assert_eq!((again.user.display_name, again.user.roles), (None, vec![Role::Player]));
        process.close().await;
    }
}

/// An erase hook that writes to its own table.
struct Notes {
    calls: AtomicUsize,
    /// The accounts that existed when it was called.
    accounts: Mutex<Vec<AccountId>>,
    fails: bool,
}

impl Notes {
    fn new(fails: bool) -> Arc<Self> {
        Arc::new(Self { calls: AtomicUsize::new(0), accounts: Mutex::default(), fails })
    }

    async fn table(db: &Db) {
        const SQLITE: &str = "CREATE TABLE notes (user_id BLOB NOT NULL) STRICT";
        const MYSQL: &str = "CREATE TABLE notes (user_id BINARY(16) NOT NULL) ENGINE=InnoDB";
        let text = db.dialect().pick(SQLITE, MYSQL);
        let mut tx = db.begin().await.unwrap();
        on!(tx, raw => { sqlx::query(text).execute(raw).await.unwrap(); });
        tx.commit().await.unwrap();
    }
}

impl OnErase for Notes {
    fn erase<'a>(&'a self, tx: &'a mut Tx, user: UserId) -> BoxFuture<'a, Result<(), Error>> {
        const ACCOUNTS: &str = "SELECT account_id FROM accounts WHERE user_id = ?";
        Box::pin(async move {
            self.calls.fetch_add(1, Ordering::SeqCst);
            let key = &user.as_uuid().as_bytes()[..];
            let accounts: Vec<Vec<u8>> = on!(tx, raw => {
                sqlx::query_scalar(ACCOUNTS).bind(key).fetch_all(raw).await.map_err(db::Error::from)?
            });
            let id = |bytes: &Vec<u8>| AccountId::from_uuid(base::id::Uuid::from_slice(bytes).unwrap());
            *self.accounts.lock().unwrap() = accounts.iter().map(id).collect();
            on!(tx, raw => {
                sqlx::query("INSERT INTO notes (user_id) VALUES (?)")
                    .bind(key)
                    .execute(raw)
                    .await
                    .map_err(db::Error::from)?;
            });
            if self.fails { Err(Error::on_erase(hierlock::Error::Lost)) } else { Ok(()) }
        })
    }
}

#[tokio::test]
async fn every_hook_erases_in_the_same_transaction() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        Notes::table(&process.db).await;
        let ada = ada(&process).await;
        let theirs: Vec<_> =
            process.accounts.accounts(ada.id).await.unwrap().iter().map(|account| account.id).collect();
        let (one, other) = (Notes::new(false), Notes::new(false));
        let accounts = process.with(vec![one.clone(), other.clone()]);
        accounts.erase(ada.id, ACTOR).await.unwrap();
        assert_eq!(process.count("notes").await, 2);
        let mut seen = one.accounts.lock().unwrap().clone();
        seen.sort();
        assert_eq!(seen, theirs, "hooks are called while the accounts exist");
        accounts.erase(ada.id, ACTOR).await.unwrap();
        let calls = [&one, &other].map(|notes| notes.calls.load(Ordering::SeqCst));
        assert_eq!(calls, [1, 1], "not called again for an erased user");
        process.close().await;
    }
}

#[tokio::test]
async fn failing_hook_rolls_back_the_erasure() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        Notes::table(&process.db).await;
        let ada = ada(&process).await;
        let before = (all_values(&process.db).await, process.kinds().await);
        let accounts = process.with(vec![Notes::new(false), Notes::new(true)]);
        let error = accounts.erase(ada.id, ACTOR).await.unwrap_err();
        assert!(matches!(error, Error::OnErase { code: Code::Unavailable, .. }), "{error:?}");
        assert_eq!(error.code(), Code::Unavailable);
        assert!(!error.to_string().contains("lost"), "the cause is hidden from the caller");
        assert_eq!((all_values(&process.db).await, process.kinds().await), before);
        assert_eq!(process.count("notes").await, 0);
        process.accounts.erase(ada.id, ACTOR).await.unwrap();
        process.close().await;
    }
}

/// An erase hook that checks whether a lock under the user is free while it is called.
struct LockProbe {
    locks: LockManager,
    was_free: Mutex<Vec<bool>>,
}

impl OnErase for LockProbe {
    fn erase<'a>(&'a self, _: &'a mut Tx, user: UserId) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let user = user.to_string();
            let sword = Target::resource(&user, "account", "sword").unwrap();
            let locked = self.locks.with_timeout(Duration::from_millis(100)).acquire(sword).await;
            self.was_free.lock().unwrap().push(locked.is_ok());
            Ok(())
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn user_is_locked_during_erasure() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let ada = ada(&process).await;
        let probe = Arc::new(LockProbe { locks: process.locks.clone(), was_free: Mutex::default() });
        let user = ada.id.to_string();
        let sword = Target::resource(&user, "account", "sword").unwrap();
        let held = process.locks.acquire(sword).await.unwrap();
        let accounts = process.with(vec![probe.clone()]);
        let erasing = tokio::spawn(async move { accounts.erase(ada.id, ACTOR).await });
        process.until_blocked().await;
        assert!(!erasing.is_finished() && probe.was_free.lock().unwrap().is_empty(), "it waits");
        held.release().await.unwrap();
        erasing.await.unwrap().unwrap();
        assert_eq!(*probe.was_free.lock().unwrap(), [false], "the lock is held during the erasure");
        process.locks.acquire(sword).await.unwrap().release().await.unwrap();
        process.close().await;
    }
}

/// Concurrent sign-ins and new accounts leave no data on the tombstone.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_sign_ins_restore_no_data_of_an_erased_user() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let rounds = if process.db.dialect() == Dialect::Sqlite { 10 } else { 20 };
        for round in 0..rounds {
            let subject = format!("racer{round}");
            let user = process.sign_in(&subject).await;
            let signing_in = (0..6).map(|n| {
                let (accounts, subject) = (process.accounts.clone(), subject.clone());
                tokio::spawn(async move {
                    let named = SignIn { display_name: Some(format!("name {n}")), ..sign_in(&subject) };
                    let signed_in = accounts.sign_in(&named).await.unwrap().user;
                    assert_eq!(signed_in.state, UserState::Active);
                    let made = accounts.create_account(user.id, &format!("account {n}")).await;
                    assert!(matches!(made, Ok(_) | Err(Error::Erased(_))), "{made:?}");
                })
            });
            let accounts = process.accounts.clone();
            let erasing = tokio::spawn(async move { accounts.erase(user.id, ACTOR).await.unwrap() });
            let (signed_in, erased) = tokio::join!(join_all(signing_in), erasing);
            signed_in.into_iter().for_each(Result::unwrap);
            erased.unwrap();
            let left = process.accounts.user(user.id).await.unwrap();
            assert_eq!((left.state, left.display_name, left.roles), (UserState::Erased, None, Vec::new()));
            assert_eq!(process.accounts.accounts(user.id).await.unwrap(), []);
        }
        process.close().await;
    }
}
