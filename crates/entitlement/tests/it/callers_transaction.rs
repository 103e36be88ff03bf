//! Changes that are applied in a caller's transaction, together with the caller's own rows, as drops do.

use db::Tx;
use hierlock::Target;
use prometheus_client::encoding::text::encode;
use runtime::Drain;
use testkit::Program;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use work_queue::{Handler, Item, ItemOutcome, State, Worker};

use super::*;

testkit::on_all_stores!(
    changes_commit_with_the_callers_own_write,
    changes_roll_back_with_the_callers_own_write,
    a_key_is_applied_once_within_a_transaction_and_across_them,
    calls_in_one_transaction_see_each_other,
    a_refused_request_adds_nothing_to_the_transaction,
    a_concurrent_request_with_the_same_key_waits_and_is_replayed,
    a_key_used_under_another_lock_fails_the_commit_and_is_found_on_retry,
    a_transaction_without_the_lock_is_refused,
    events_are_published_by_this_process_after_the_commit,
    requests_are_counted_when_they_are_committed,
    each_request_of_a_call_has_its_own_response,
    a_shared_transaction_gives_up_after_its_lock_timeout,
);

/// The table of a caller.
const OWN_TABLE: &str = "CREATE TABLE claims (id BIGINT PRIMARY KEY)";
const OWN_WRITE: &str = "INSERT INTO claims (id) VALUES (7)";
const OWN_ROWS: &str = "SELECT COUNT(*) FROM claims";

async fn open(place: &TestDatabase) -> (Shop, (UserId, AccountId)) {
    let shop = Shop::open(place).await;
    let mut tx = shop.db.begin().await.unwrap();
    execute(&mut tx, OWN_TABLE).await;
    tx.commit().await.unwrap();
    let ada = shop.customer("ada").await;
    (shop, ada)
}

async fn execute(tx: &mut Tx, text: &'static str) {
    db::on!(tx, connection => { sqlx::query(text).execute(connection).await.unwrap(); });
}

async fn own_rows(shop: &Shop) -> i64 {
    let mut connection = shop.db.connection().await.unwrap();
    db::on!(connection, raw => sqlx::query_scalar(OWN_ROWS).fetch_one(raw).await.unwrap())
}

async fn version(shop: &Shop, change: &Change) -> Option<i64> {
    match shop.entitlements.get(&change.holding).await {
        Ok(view) => Some(view.version),
        Err(Error::NotFound(_)) => None,
        Err(error) => panic!("{error:?}"),
    }
}

async fn changes_commit_with_the_callers_own_write(place: &TestDatabase) {
    let (shop, ada) = open(place).await;
    let grant = [change(ada, "sword", NOW - 9, GRANT), change(ada, "shield", NOW - 8, GRANT)];
    let mut tx = shop.entitlements.begin(&grant, &[]).await.unwrap();
    execute(&mut tx, OWN_WRITE).await;
    let response = shop.entitlements.apply_in(&mut tx, "drops", "claim-7", &grant).await.unwrap();
    assert!(!response.is_replayed());
    assert_eq!(
        (own_rows(&shop).await, version(&shop, &grant[0]).await),
        (0, None),
        "nothing is visible before the commit"
    );
    tx.commit().await.unwrap();
    assert_eq!(own_rows(&shop).await, 1);
    let of = |at: usize| response.results().unwrap()[at]["entitlement"]["version"].as_i64();
    assert_eq!((of(0), of(1)), (Some(1), Some(1)));
    assert_eq!((version(&shop, &grant[0]).await, version(&shop, &grant[1]).await), (Some(1), Some(1)));
    let history = shop.entitlements.history(&grant[0].holding, i64::MAX, 10).await.unwrap();
    assert_eq!(history.iter().map(|entry| entry.caller.as_str()).collect::<Vec<_>>(), ["drops"]);
    assert_eq!(shop.versions().await, [1, 1]);
}

async fn changes_roll_back_with_the_callers_own_write(place: &TestDatabase) {
    let (shop, ada) = open(place).await;
    let grant = [change(ada, "sword", NOW, GRANT)];
    for end in ["rollback", "drop"] {
        let mut tx = shop.entitlements.begin(&grant, &[]).await.unwrap();
        execute(&mut tx, OWN_WRITE).await;
        shop.entitlements.apply_in(&mut tx, "drops", "claim-7", &grant).await.unwrap();
        // Writes that have reached the store are rolled back, too, not only buffered ones.
        tx.flush().await.unwrap();
        if end == "rollback" {
            tx.rollback().await.unwrap();
        }
    }
    assert_eq!((own_rows(&shop).await, version(&shop, &grant[0]).await), (0, None));
    assert_eq!(shop.versions().await, [0_i64; 0]);
    // The key can be used again, even for another request.
    let other = [change(ada, "shield", NOW, GRANT)];
    let applied = shop.entitlements.apply("drops", "claim-7", &other).await.unwrap();
    assert!(!applied.is_replayed());
}

async fn a_key_is_applied_once_within_a_transaction_and_across_them(place: &TestDatabase) {
    let (shop, ada) = open(place).await;
    let more = Action::Grant { quantity: Some(5), valid_until: None };
    let grant = [change(ada, "gems", NOW, more)];
    let mut texts = Vec::new();
    for transaction in 0..2 {
        let mut tx = shop.entitlements.begin(&grant, &[]).await.unwrap();
        for call in 0..2 {
            let response = shop.entitlements.apply_in(&mut tx, "drops", "claim-7", &grant).await.unwrap();
            assert_eq!(response.is_replayed(), (transaction, call) != (0, 0), "{transaction} {call}");
            texts.push(response.text().to_owned());
        }
        tx.commit().await.unwrap();
    }
    // The same request in its own transaction.
    let alone = shop.entitlements.apply("drops", "claim-7", &grant).await.unwrap();
    assert!(alone.is_replayed());
    assert!(texts.iter().all(|text| text == alone.text()), "{texts:?}");
    let view = shop.entitlements.get(&grant[0].holding).await.unwrap();
    assert_eq!((view.quantity, view.version), (Some(5), 1));
    assert_eq!(shop.versions().await, [1]);
}

async fn calls_in_one_transaction_see_each_other(place: &TestDatabase) {
    let (shop, ada) = open(place).await;
    let more = Action::Grant { quantity: Some(1), valid_until: None };
    let gems = |n: i64| [change(ada, "gems", NOW - 9 + n, more)];
    let mut tx = shop.entitlements.begin(&gems(0), &[]).await.unwrap();
    for n in 0..3 {
        let response = shop.entitlements.apply_in(&mut tx, "drops", &n.to_string(), &gems(n)).await.unwrap();
        assert_eq!(response.results().unwrap()[0]["entitlement"]["version"], n + 1);
    }
    tx.commit().await.unwrap();
    let view = shop.entitlements.get(&gems(0)[0].holding).await.unwrap();
    assert_eq!((view.quantity, view.version), (Some(3), 3));
    assert_eq!(shop.versions().await, [1, 2, 3]);
}

async fn a_refused_request_adds_nothing_to_the_transaction(place: &TestDatabase) {
    let (shop, ada) = open(place).await;
    let grant = [change(ada, "sword", NOW, GRANT)];
    let unknown_user = [change((UserId::generate(), ada.1), "sword", NOW, GRANT)];
    let counted = Action::Grant { quantity: Some(1), valid_until: None };
    let mixed = [change(ada, "shield", NOW, GRANT), change(ada, "sword", NOW, counted)];
    let all = [&grant[..], &unknown_user, &mixed].concat();
    let mut tx = shop.entitlements.begin(&all, &[]).await.unwrap();
    execute(&mut tx, OWN_WRITE).await;
    shop.entitlements.apply_in(&mut tx, "drops", "1", &grant).await.unwrap();
    let mut refused = async |key: &str, changes: &[Change]| {
        shop.entitlements.apply_in(&mut tx, "drops", key, changes).await.unwrap_err()
    };
    assert!(matches!(refused("1", &mixed).await, Error::KeyReused));
    assert!(matches!(refused("2", &unknown_user).await, Error::NoAccount(_)));
    // Its first change is valid.
    assert!(matches!(refused("2", &mixed).await, Error::NotCounted));
    assert!(matches!(refused("2", &[]).await, Error::Invalid { .. }));
    assert!(matches!(refused("", &grant).await, Error::InvalidKey(_)));
    tx.commit().await.unwrap();
    assert_eq!((own_rows(&shop).await, version(&shop, &grant[0]).await), (1, Some(1)));
    assert_eq!(version(&shop, &mixed[0]).await, None);
    assert_eq!(shop.versions().await, [1]);
}

async fn a_concurrent_request_with_the_same_key_waits_and_is_replayed(place: &TestDatabase) {
    let (shop, ada) = open(place).await;
    let another = shop.another(place).await;
    let grant = [change(ada, "sword", NOW, GRANT)];
    let mut tx = shop.entitlements.begin(&grant, &[]).await.unwrap();
    let first = shop.entitlements.apply_in(&mut tx, "drops", "claim-7", &grant).await.unwrap();
    let mut waiting = tokio::spawn({
        let grant = grant.clone();
        async move { another.entitlements.apply("drops", "claim-7", &grant).await.unwrap() }
    });
    // Longer than the lock timeout of a shared transaction, so it waits in its own.
    let waited = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
    assert!(waited.is_err(), "{waited:?}");
    tx.commit().await.unwrap();
    let second = waiting.await.unwrap();
    assert_eq!((second.text(), second.is_replayed()), (first.text(), true));
    assert_eq!(shop.versions().await, [1]);
}

/// The locks of the two requests do not exclude each other. Their key does, at the commit.
async fn a_key_used_under_another_lock_fails_the_commit_and_is_found_on_retry(place: &TestDatabase) {
    let (shop, ada) = open(place).await;
    let grant = [change(ada, "sword", NOW, GRANT)];
    let other = [change(ada, "shield", NOW, GRANT)];
    let mut attempts = 0;
    let refused = db::retry_conflicts(Error::is_conflict, || {
        attempts += 1;
        let (first, shop, grant, other) = (attempts == 1, &shop, &grant, &other);
        async move {
            let mut tx = shop.entitlements.begin(grant, &[]).await?;
            execute(&mut tx, OWN_WRITE).await;
            shop.entitlements.apply_in(&mut tx, "drops", "claim-7", grant).await?;
            if first && place.is_server() {
                shop.entitlements.apply("drops", "claim-7", other).await?;
            }
            Ok::<_, Error>(tx.commit().await?)
        }
    })
    .await;
    // SQLite has one writer, so no other request can commit first.
    if place.is_server() {
        assert!(matches!(refused, Err(Error::KeyReused)), "{refused:?}");
        assert_eq!((attempts, own_rows(&shop).await, version(&shop, &grant[0]).await), (2, 0, None));
    } else {
        refused.unwrap();
    }
    assert_eq!(shop.versions().await, [1]);
}

async fn a_transaction_without_the_lock_is_refused(place: &TestDatabase) {
    let (shop, ada) = open(place).await;
    let (user, account) = (ada.0.to_string(), ada.1.to_string());
    let grant = [change(ada, "sword", NOW, GRANT)];
    let shield = Target::resource(&user, &account, "shield").unwrap();
    for targets in [&[][..], &[shield]] {
        let mut tx = match targets {
            [] => shop.db.begin().await.unwrap(),
            targets => shop.db.begin_locked(&shop.locks, targets).await.unwrap(),
        };
        let refused = shop.entitlements.apply_in(&mut tx, "drops", "claim-7", &grant).await.unwrap_err();
        assert!(matches!(refused, Error::NotLocked(_)), "{refused:?}");
        tx.commit().await.unwrap();
    }
    assert_eq!(shop.versions().await, [0_i64; 0]);
    // A lock on the account or the user is enough.
    let ancestors = [Target::user(&user).unwrap(), Target::account(&user, &account).unwrap()];
    for (n, target) in ancestors.into_iter().enumerate() {
        let mut tx = shop.db.begin_locked(&shop.locks, &[target]).await.unwrap();
        let at = [change(ada, "sword", NOW - 9 + n as i64, GRANT)];
        shop.entitlements.apply_in(&mut tx, "drops", &target.to_string(), &at).await.unwrap();
        tx.commit().await.unwrap();
    }
    // The caller's own targets are locked with those of the changes.
    let tx = shop.entitlements.begin(&grant, &[shield]).await.unwrap();
    assert!(tx.holds(&shield) && tx.holds(&Target::resource(&user, &account, "sword").unwrap()));
    tx.rollback().await.unwrap();
    assert_eq!(shop.versions().await, [1, 2]);
}

/// A relay that reports its events and publishes them when it gets a permit.
struct PausedRelay {
    keys: UnboundedSender<Vec<String>>,
    permits: Arc<Semaphore>,
}

impl Handler for PausedRelay {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
        self.keys.send(items.iter().map(|item| item.key.clone()).collect()).unwrap();
        let _permit = self.permits.acquire().await.unwrap();
        items.iter().map(|_| ItemOutcome::Done).collect()
    }
}

async fn events_are_published_by_this_process_after_the_commit(place: &TestDatabase) {
    let (shop, ada) = open(place).await;
    let (keys, mut handled) = unbounded_channel();
    let permits = Arc::new(Semaphore::new(0));
    let relay = PausedRelay { keys, permits: permits.clone() };
    let worker = Worker::new(shop.outbox.queue().clone(), relay, base::id::ProcessId::generate());
    let running = tokio::spawn(async move { worker.run(Drain::new()).await });
    let mut next = async || tokio::time::timeout(PATIENCE, handled.recv()).await.unwrap().unwrap();
    // The relay runs and is busy with the event of the user.
    assert!(next().await[0].starts_with("user/"));
    let grant = [change(ada, "sword", NOW, GRANT)];
    let mut tx = shop.entitlements.begin(&grant, &[]).await.unwrap();
    shop.entitlements.apply_in(&mut tx, "drops", "claim-7", &grant).await.unwrap();
    tx.commit().await.unwrap();
    let rows = shop.outbox.queue().list(Filter::All, 10).await.unwrap();
    let row = rows.iter().find(|row| row.key.starts_with("entitlement/")).unwrap();
    assert_eq!((row.state, row.lease), (State::InFlight, 1), "its transaction has claimed it");
    // Until the lease expires, only the process that committed the event can publish it.
    permits.add_permits(1);
    assert_eq!(next().await, std::slice::from_ref(&row.key));
    running.abort();
}

async fn requests_are_counted_when_they_are_committed(place: &TestDatabase) {
    let (shop, ada) = open(place).await;
    let mut registry = Registry::default();
    let metrics = entitlement::Metrics::new(&mut registry);
    let clock = Clock::manual(Timestamp::from_millis(NOW));
    let entitlements =
        Entitlements::new(shop.db.clone(), shop.locks.clone(), shop.outbox.clone(), clock, metrics);
    let grant = [change(ada, "sword", NOW, GRANT)];
    for is_committed in [false, true, true] {
        let mut tx = entitlements.begin(&grant, &[]).await.unwrap();
        entitlements.apply_in(&mut tx, "drops", "claim-7", &grant).await.unwrap();
        if is_committed {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
    }
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    for line in [
        r#"playhouse_entitlement_requests_total{outcome="done"} 1"#,
        r#"playhouse_entitlement_requests_total{outcome="replayed"} 1"#,
        "playhouse_entitlement_request_duration_seconds_count 2",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
    }
}

/// The environment variable that passes the URL of the store to the process that is killed.
const KILLED_URL: &str = "TESTKIT_CALLERS_TRANSACTION";
const UNCOMMITTED: &str = "nothing is committed";

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_killed_before_its_commit_leaves_nothing() {
    if let Ok(url) = std::env::var(KILLED_URL) {
        let _held = uncommitted(&url).await;
        println!("{UNCOMMITTED}");
        return std::future::pending().await;
    }
    for place in testkit::need!(TestDatabase::all().await) {
        let (shop, ada) = open(&place).await;
        // Only one process may open a SQLite file.
        shop.db.close().await;
        drop(shop);
        let program = Program::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "callers_transaction::a_caller_killed_before_its_commit_leaves_nothing",
                "--nocapture",
            ])
            .env(KILLED_URL, place.url())
            .start()
            .unwrap();
        program.wait_for_line(UNCOMMITTED, PATIENCE).await;
        program.kill();
        program.wait(PATIENCE).await;
        let config = config(&place.url(), Duration::from_secs(10));
        let shop = Shop::on(Db::open(&config).await.unwrap(), &config).await;
        let grant = [change(ada, "sword", NOW, GRANT)];
        assert_eq!((own_rows(&shop).await, version(&shop, &grant[0]).await), (0, None));
        // The lock is released, and the key can be used.
        let response = shop.entitlements.apply("drops", "claim-7", &grant).await.unwrap();
        assert!(!response.is_replayed());
        assert_eq!(shop.versions().await, [1]);
    }
}

/// Returns a transaction that has sent all writes to the store and is not committed.
async fn uncommitted(url: &str) -> Tx {
    let config = config(url, Duration::from_secs(10));
    let shop = Shop::on(Db::open(&config).await.unwrap(), &config).await;
    let grant = [change(shop.customer("ada").await, "sword", NOW, GRANT)];
    let mut tx = shop.entitlements.begin(&grant, &[]).await.unwrap();
    execute(&mut tx, OWN_WRITE).await;
    shop.entitlements.apply_in(&mut tx, "drops", "claim-7", &grant).await.unwrap();
    tx.flush().await.unwrap();
    tx
}

fn request(key: &str, change: &Change) -> NewRequest {
    NewRequest { key: key.to_owned(), changes: vec![change.clone()], traceparent: None }
}

async fn each_request_of_a_call_has_its_own_response(place: &TestDatabase) {
    let (shop, ada) = open(place).await;
    let more = |quantity| Action::Grant { quantity: Some(quantity), valid_until: None };
    let revoked = [change(ada, "shield", NOW + 5, REVOKE), change(ada, "bow", NOW - 9, GRANT)];
    shop.entitlements.apply("shop", "1", &revoked).await.unwrap();
    let events = shop.versions().await.len();
    let gems = change(ada, "gems", NOW, more(5));
    let requests = [
        request("gems-1", &gems),
        request("gems-2", &change(ada, "gems", NOW, more(2))),
        request("late", &change(ada, "shield", NOW + 5, more(1))),
        request("uncounted", &change(ada, "bow", NOW, more(1))),
        request("unknown-user", &change((UserId::generate(), ada.1), "gems", NOW, more(1))),
        request("nothing", &change(ada, "gems", NOW, more(0))),
        request("", &gems),
        request("gems-1", &gems),
        request("gems-2", &gems),
    ];
    let changes: Vec<Change> = requests.iter().flat_map(|request| request.changes.clone()).collect();
    let mut tx = shop.entitlements.begin_shared(&changes, PATIENCE).await.unwrap();
    let mut responses =
        shop.entitlements.apply_each_in(&mut tx, "drops", &requests).await.unwrap().into_iter();
    let mut next = || responses.next().unwrap();
    let quantity = |response: Result<ApplyResponse, Error>| {
        response.unwrap().results().unwrap()[0]["entitlement"]["quantity"].as_i64()
    };
    assert_eq!(
        (quantity(next()), quantity(next())),
        (Some(5), Some(7)),
        "each sees the effects of those before it"
    );
    let superseded = next();
    assert!(matches!(superseded, Err(Error::Superseded(at)) if at.as_millis() == NOW + 5), "{superseded:?}");
    assert!(matches!(next(), Err(Error::NotCounted)));
    assert!(matches!(next(), Err(Error::NoAccount(_))));
    assert!(matches!(next(), Err(Error::Invalid { field: "quantity", .. })));
    assert!(matches!(next(), Err(Error::InvalidKey(_))));
    assert!(next().unwrap().is_replayed());
    assert!(matches!(next(), Err(Error::KeyReused)));
    tx.commit().await.unwrap();
    let view = shop.entitlements.get(&gems.holding).await.unwrap();
    assert_eq!((view.quantity, view.version), (Some(7), 2));
    assert_eq!(shop.versions().await.len(), events + 2);
    // A refused request is in no history, and its key can be used.
    for (key, resource, entries) in [("late", "shield", 1), ("uncounted", "bow", 1)] {
        let holding = change(ada, resource, NOW, GRANT).holding;
        assert_eq!(shop.entitlements.history(&holding, i64::MAX, 10).await.unwrap().len(), entries);
        let other = [change(ada, key, NOW, GRANT)];
        assert!(!shop.entitlements.apply("drops", key, &other).await.unwrap().is_replayed());
    }
    // A call may have no requests.
    let mut tx = shop.entitlements.begin_shared(&changes, PATIENCE).await.unwrap();
    assert!(shop.entitlements.apply_each_in(&mut tx, "drops", &[]).await.unwrap().is_empty());
    let unlocked = [request("other", &change(ada, "other", NOW, GRANT))];
    let refused = shop.entitlements.apply_each_in(&mut tx, "drops", &unlocked).await;
    assert!(matches!(refused, Err(Error::NotLocked(_))), "{refused:?}");
}

async fn a_shared_transaction_gives_up_after_its_lock_timeout(place: &TestDatabase) {
    let (shop, ada) = open(place).await;
    let grant = [change(ada, "sword", NOW, GRANT)];
    let holder = shop.entitlements.begin(&grant, &[]).await.unwrap();
    let start = std::time::Instant::now();
    let timed_out = shop.entitlements.begin_shared(&grant, Duration::from_millis(50)).await;
    assert!(
        matches!(timed_out, Err(Error::Db(db::Error::Lock(hierlock::Error::Timeout(_))))),
        "{timed_out:?}"
    );
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
    holder.rollback().await.unwrap();
    shop.entitlements.begin_shared(&grant, PATIENCE).await.unwrap().rollback().await.unwrap();
}
