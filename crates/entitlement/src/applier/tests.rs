//! Requests that share a transaction. Callers must not be able to distinguish that from one transaction each.

use account::{AccountId, Accounts, SignIn, UserId};
use base::Backoff;
use config::{Setting, Value as Configured};
use db::DbUrl;
use hierlock::{Options, Provisioner};
use prometheus_client::registry::Registry;
use sqlx::ConnectOptions;
use testkit::TestDatabase;

use super::*;
use crate::model::Action;

testkit::on_all_stores!(
    requests_in_one_transaction_are_applied_as_if_in_sequence,
    replayed_requests_write_nothing
);

const BUCKETS: u32 = 1_000;
const TIMEOUT: Duration = Duration::from_secs(10);
const NOW: Timestamp = Timestamp::from_millis(1_772_366_400_000);
const GRANT: Action = Action::Grant { quantity: None, valid_until: None };
const MORE: Action = Action::Grant { quantity: Some(5), valid_until: None };

async fn open(database: &TestDatabase) -> (Applier, UserId, AccountId) {
    let url = DbUrl::parse(&Configured::Text(database.url())).unwrap();
    let config = db::Config { url, max_connections: 4, acquire_timeout: TIMEOUT, migrate: false };
    let db = Db::open(&config).await.unwrap();
    let migrations = [db::MIGRATIONS, outbox::MIGRATIONS, account::MIGRATIONS, crate::MIGRATIONS];
    db.migrate(&migrations).await.unwrap();
    let options = Options { buckets: BUCKETS, wait_timeout: TIMEOUT, ..Options::default() };
    let clock = Clock::manual(NOW);
    let locks = match config.server() {
        Some(server) => {
            hierlock::create_tables(&mut server.connect().await.unwrap()).await.unwrap();
            Provisioner::new(server.clone(), BUCKETS).run(|_| ()).await.unwrap();
            LockManager::mysql(server, &options).await.unwrap()
        }
        None => LockManager::in_process(&options, &clock),
    };
    let queue = outbox::Config {
        workers: 1,
        batch: 100,
        poll: TIMEOUT,
        lease: TIMEOUT,
        max_attempts: 5,
        retry: Backoff::new(TIMEOUT, TIMEOUT),
        retention: TIMEOUT,
    };
    let metrics = outbox::Metrics::new(&mut Registry::default(), "outbox");
    let outbox = Outbox::new(db.clone(), queue, metrics, clock.clone());
    let accounts = Accounts::new(db.clone(), locks.clone(), outbox.clone(), clock.clone());
    let sign_in = SignIn {
        issuer: "test".to_owned(),
        subject: "ada".to_owned(),
        display_name: None,
        roles: Vec::new(),
    };
    let user = accounts.sign_in(&sign_in).await.unwrap().user.id;
    let account = accounts.accounts(user).await.unwrap()[0].id;
    (Applier { db, locks, outbox, clock }, user, account)
}

/// Builds a request whose fingerprint is the resource of its first change.
fn request(key: &str, user: UserId, account: AccountId, changes: &[(&str, i64, Action)]) -> Request {
    let change = |(resource, age, action): &(&str, i64, Action)| Change {
        holding: Holding { user, account, resource: (*resource).to_owned() },
        action: *action,
        occurred_at: Timestamp::from_millis(NOW.as_millis() - age),
        reference: None,
    };
    Request {
        caller: "shop".to_owned(),
        key: IdempotencyKey::new("shop", key, db::RequestFingerprint::new("test").text(changes[0].0))
            .unwrap(),
        changes: changes.iter().map(change).collect(),
        traceparent: None,
        if_superseded: IfSuperseded::Record,
    }
}

async fn requests_in_one_transaction_are_applied_as_if_in_sequence(database: &TestDatabase) {
    let (applier, ada, account) = open(database).await;
    let of_ada = |key: &str, changes: &[(&str, i64, Action)]| request(key, ada, account, changes);
    let requests = [
        of_ada("1", &[("sword", 5, GRANT)]),
        of_ada("1", &[("sword", 5, GRANT)]),
        of_ada("1", &[("shield", 5, GRANT)]),
        request("2", UserId::generate(), account, &[("sword", 5, GRANT)]),
        of_ada("3", &[("gems", 5, MORE)]),
        of_ada(
            "4",
            &[("gems", 4, MORE), ("gems", 3, MORE), ("gems", 2, Action::Revoke { quantity: Some(1) })],
        ),
        // All or nothing: its valid change has no effect either, and the key can be used again.
        of_ada("5", &[("gems", 2, MORE), ("gems", 1, GRANT)]),
        of_ada("5", &[("gems", 1, MORE)]),
        of_ada("6", &[("sword", 9, Action::Revoke { quantity: None })]),
    ];
    let responses = applier.apply(&requests, TIMEOUT).await.unwrap();
    let result = |at: usize, change: usize| {
        let results = responses[at].as_ref().unwrap().results().unwrap();
        let entitlement = &results[change]["entitlement"];
        let effect = results[change]["effect"].as_str().unwrap().to_owned();
        (effect, entitlement["version"].as_i64().unwrap(), entitlement["quantity"].as_i64())
    };
    let applied = |version, quantity| ("applied".to_owned(), version, quantity);
    assert_eq!(result(0, 0), applied(1, None));
    let (first, again) = (responses[0].as_ref().unwrap(), responses[1].as_ref().unwrap());
    assert_eq!((again.text(), again.is_replayed(), first.is_replayed()), (first.text(), true, false));
    assert!(matches!(responses[2], Err(Error::KeyReused)), "{:?}", responses[2]);
    assert!(matches!(responses[3], Err(Error::NoAccount(_))), "{:?}", responses[3]);
    assert_eq!(result(4, 0), applied(1, Some(5)));
    assert_eq!(
        [result(5, 0), result(5, 1), result(5, 2)],
        [applied(2, Some(10)), applied(3, Some(15)), applied(4, Some(14))]
    );
    assert!(matches!(responses[6], Err(Error::Counted)), "{:?}", responses[6]);
    assert_eq!(result(7, 0), applied(5, Some(19)));
    assert_eq!(result(8, 0), ("superseded".to_owned(), 1, None));

    // The last state of each entitlement is stored.
    let mut connection = applier.db.connection().await.unwrap();
    let gems = &requests[4].changes[0].holding;
    let stored = store::get(&mut connection, gems).await.unwrap().unwrap();
    assert_eq!((stored.version, stored.quantity, stored.entries), (5, Some(19), 5));
    let sword = store::get(&mut connection, &requests[0].changes[0].holding).await.unwrap().unwrap();
    assert_eq!((sword.version, sword.entries), (1, 2));
    assert_eq!(store::history(&mut connection, gems, i64::MAX, 10).await.unwrap().len(), 5);
}

async fn replayed_requests_write_nothing(database: &TestDatabase) {
    let (applier, ada, account) = open(database).await;
    let requests = [
        request("1", ada, account, &[("sword", 5, GRANT)]),
        request("2", ada, account, &[("gems", 5, MORE)]),
    ];
    let first = applier.apply(&requests, TIMEOUT).await.unwrap();
    // Also in a transaction with a new request.
    let more = [&requests[..], &[request("3", ada, account, &[("gems", 4, MORE)])]].concat();
    for requests in [&requests[..], &more[..], &more[..]] {
        let again = applier.apply(requests, TIMEOUT).await.unwrap();
        for (first, again) in first.iter().zip(&again) {
            let (first, again) = (first.as_ref().unwrap(), again.as_ref().unwrap());
            assert_eq!((first.text(), again.is_replayed()), (again.text(), true));
        }
    }
    let mut connection = applier.db.connection().await.unwrap();
    let stored = store::get(&mut connection, &requests[1].changes[0].holding).await.unwrap().unwrap();
    assert_eq!((stored.version, stored.quantity), (2, Some(10)));
}
