//! Requests that share a transaction. From outside this cannot be told from one after the other, and must not be.

use account::{AccountId, Accounts, SignIn, UserId};
use base::Backoff;
use config::{Setting, Value as Configured};
use db::DbUrl;
use hierlock::{Options, Provision};
use prometheus_client::registry::Registry;
use sqlx::ConnectOptions;
use testkit::SqlPlace;

use super::*;
use crate::model::Action;

testkit::on_all_stores!(
    requests_in_one_transaction_are_done_as_if_one_after_the_other,
    nothing_is_written_when_all_was_answered_before
);

const BUCKETS: u32 = 1_000;
const PATIENCE: Duration = Duration::from_secs(10);
const NOW: Timestamp = Timestamp::from_millis(1_772_366_400_000);
const GRANT: Action = Action::Grant { quantity: None, valid_until: None };
const MORE: Action = Action::Grant { quantity: Some(5), valid_until: None };

async fn open(place: &SqlPlace) -> (Ledger, UserId, AccountId) {
    let url = DbUrl::parse(&Configured::Text(place.url())).unwrap();
    let config = db::Config { url, max_connections: 4, acquire_timeout: PATIENCE, migrate: false };
    let db = Db::open(&config).await.unwrap();
    let migrations = [db::MIGRATIONS, outbox::MIGRATIONS, account::MIGRATIONS, crate::MIGRATIONS];
    db.migrate(&migrations).await.unwrap();
    let options = Options { buckets: BUCKETS, wait_timeout: PATIENCE, ..Options::default() };
    let clock = Clock::manual(NOW);
    let locks = match config.server() {
        Some(server) => {
            hierlock::create_tables(&mut server.connect().await.unwrap()).await.unwrap();
            Provision::new(server.clone(), BUCKETS).run(|_| ()).await.unwrap();
            Locks::mysql(server, &options).await.unwrap()
        }
        None => Locks::in_process(&options, &clock),
    };
    let queue = outbox::Config {
        workers: 1,
        batch: 100,
        poll: PATIENCE,
        lease: PATIENCE,
        max_attempts: 5,
        retry: Backoff::new(PATIENCE, PATIENCE),
        retention: PATIENCE,
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
    (Ledger { db, locks, outbox, clock }, user, account)
}

/// What makes two of them the same is their resource here.
fn request(key: &str, user: UserId, account: AccountId, changes: &[(&str, i64, Action)]) -> Request {
    let change = |(resource, before, action): &(&str, i64, Action)| Change {
        holding: Holding { user, account, resource: (*resource).to_owned() },
        action: *action,
        occurred_at: Timestamp::from_millis(NOW.as_millis() - before),
        reference: None,
    };
    Request {
        caller: "shop".to_owned(),
        key: IdempotencyKey::new("shop", key, db::Fingerprint::of("test").text(changes[0].0)).unwrap(),
        changes: changes.iter().map(change).collect(),
        traceparent: None,
        if_superseded: IfSuperseded::Record,
    }
}

async fn requests_in_one_transaction_are_done_as_if_one_after_the_other(place: &SqlPlace) {
    let (ledger, ada, account) = open(place).await;
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
        // All or nothing: what is good about it leaves no trace, and the key is still free.
        of_ada("5", &[("gems", 2, MORE), ("gems", 1, GRANT)]),
        of_ada("5", &[("gems", 1, MORE)]),
        of_ada("6", &[("sword", 9, Action::Revoke { quantity: None })]),
    ];
    let answers = ledger.apply(&requests, PATIENCE).await.unwrap();
    let result = |at: usize, change: usize| {
        let results = answers[at].as_ref().unwrap().results().unwrap();
        let entitlement = &results[change]["entitlement"];
        let effect = results[change]["effect"].as_str().unwrap().to_owned();
        (effect, entitlement["version"].as_i64().unwrap(), entitlement["quantity"].as_i64())
    };
    let applied = |version, quantity| ("applied".to_owned(), version, quantity);
    assert_eq!(result(0, 0), applied(1, None));
    let (first, again) = (answers[0].as_ref().unwrap(), answers[1].as_ref().unwrap());
    assert_eq!((again.text(), again.is_replayed(), first.is_replayed()), (first.text(), true, false));
    assert!(matches!(answers[2], Err(Error::KeyReused)), "{:?}", answers[2]);
    assert!(matches!(answers[3], Err(Error::NoAccount(_))), "{:?}", answers[3]);
    assert_eq!(result(4, 0), applied(1, Some(5)));
    assert_eq!(
        [result(5, 0), result(5, 1), result(5, 2)],
        [applied(2, Some(10)), applied(3, Some(15)), applied(4, Some(14))]
    );
    assert!(matches!(answers[6], Err(Error::Counted)), "{:?}", answers[6]);
    assert_eq!(result(7, 0), applied(5, Some(19)));
    assert_eq!(result(8, 0), ("superseded".to_owned(), 1, None));

    // What is stored is the last of each.
    let mut connection = ledger.db.connection().await.unwrap();
    let gems = &requests[4].changes[0].holding;
    let stored = store::get(&mut connection, gems).await.unwrap().unwrap();
    assert_eq!((stored.version, stored.quantity, stored.entries), (5, Some(19), 5));
    let sword = store::get(&mut connection, &requests[0].changes[0].holding).await.unwrap().unwrap();
    assert_eq!((sword.version, sword.entries), (1, 2));
    assert_eq!(store::history(&mut connection, gems, i64::MAX, 10).await.unwrap().len(), 5);
}

async fn nothing_is_written_when_all_was_answered_before(place: &SqlPlace) {
    let (ledger, ada, account) = open(place).await;
    let requests = [
        request("1", ada, account, &[("sword", 5, GRANT)]),
        request("2", ada, account, &[("gems", 5, MORE)]),
    ];
    let first = ledger.apply(&requests, PATIENCE).await.unwrap();
    // In one with something new, too.
    let more = [&requests[..], &[request("3", ada, account, &[("gems", 4, MORE)])]].concat();
    for requests in [&requests[..], &more[..], &more[..]] {
        let again = ledger.apply(requests, PATIENCE).await.unwrap();
        for (first, again) in first.iter().zip(&again) {
            let (first, again) = (first.as_ref().unwrap(), again.as_ref().unwrap());
            assert_eq!((first.text(), again.is_replayed()), (again.text(), true));
        }
    }
    let mut connection = ledger.db.connection().await.unwrap();
    let stored = store::get(&mut connection, &requests[1].changes[0].holding).await.unwrap().unwrap();
    assert_eq!((stored.version, stored.quantity), (2, Some(10)));
}
