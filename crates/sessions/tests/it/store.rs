//! The contract of the session store, over both adapters.

mod setup;

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use account::Role;
use futures::StreamExt;
use futures::future::join_all;
use sessions::{EndCause, Group, Lease, RefreshClaim, Session, SessionId, SessionStore, StoredSession};
use testkit::{Redis, need};

use self::setup::{ISSUER, LEARNED, PATIENCE, Setup, id};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Runs a test in process, in Redis, and in a Redis whose scripts reach only the keys that they declare.
macro_rules! for_every_store {
    ($($name:ident)*) => {
        mod in_process {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(super::Setup::memory()).await;
            })*
        }
        mod in_redis {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let redis = super::need!(super::Redis::shared().await);
                super::$name(super::Setup::redis(redis)).await;
            })*
        }
        mod in_redis_with_declared_keys {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let redis = super::need!(super::Redis::shared_cluster().await);
                let keys = testkit::DeclaredKeysProxy::start(redis, super::LEARNED).await;
                super::$name(super::Setup::declared(redis, &keys)).await;
                keys.assert_no_undeclared_keys();
            })*
        }
    };
}

for_every_store! {
    written_session_is_read_by_every_process
    idle_session_expires_and_a_read_extends_it
    reads_and_refreshes_do_not_extend_the_lifetime
    one_of_a_hundred_concurrent_claims_is_granted
    expired_lease_can_be_claimed_by_another_process
    renewed_lease_stays_held
    lost_lease_cannot_write
    claim_with_an_old_version_is_refused
    removed_session_cannot_be_written_back
    removing_one_session_keeps_the_others
    group_of_a_sid_ends_together
    group_of_a_subject_ends_together
    every_subscriber_receives_every_end
}

async fn claimed(sessions: &SessionStore, id: &SessionId, version: u64, lease: Duration) -> Lease {
    match sessions.claim(id, version, lease).await.unwrap() {
        RefreshClaim::Granted(lease) => lease,
        other => panic!("{other:?}"),
    }
}

async fn exists(sessions: &SessionStore, id: &SessionId) -> bool {
    sessions.read(id).await.unwrap().is_some()
}

async fn written_session_is_read_by_every_process(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let session = Session {
        user_id: base::id::Uuid::nil(),
        sid: Some("s".to_owned()),
        name: Some("Ada \u{1f984} \"quoted\"".to_owned()),
        roles: vec![Role::Player, Role::Operator],
        refresh_after: None,
        ..setup.session("ada", HOUR)
    };
    let id = id();
    assert_eq!(here.read(&id).await.unwrap(), None);
    here.insert(&id, &session).await.unwrap();
    assert_eq!(there.read(&id).await.unwrap(), Some(StoredSession { session, version: 0 }));
    assert!(!exists(&there, &self::id()).await);
}

async fn idle_session_expires_and_a_read_extends_it(setup: Setup) {
    let [here, there, _] = setup.stores(2 * SECOND).await;
    let (used, unused) = (id(), id());
    here.insert(&used, &setup.session("ada", HOUR)).await.unwrap();
    here.insert(&unused, &setup.session("bob", HOUR)).await.unwrap();
    for _ in 0..3 {
        setup.pass(SECOND * 4 / 5).await;
        assert!(exists(&there, &used).await);
    }
    assert!(!exists(&here, &unused).await, "it was idle for too long");
    // A refresh starts the idle time anew.
    let lease = claimed(&here, &used, 0, SECOND).await;
    setup.pass(SECOND).await;
    assert!(here.replace(&lease, &setup.session("ada", HOUR)).await.unwrap());
    setup.pass(SECOND * 3 / 2).await;
    assert!(exists(&there, &used).await);
    setup.pass(SECOND * 21 / 10).await;
    assert!(!exists(&there, &used).await);
    assert_eq!(here.claim(&used, 1, SECOND).await.unwrap(), RefreshClaim::Gone);
}

async fn reads_and_refreshes_do_not_extend_the_lifetime(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let id = id();
    here.insert(&id, &setup.session("ada", 2 * SECOND)).await.unwrap();
    assert!(exists(&there, &id).await);
    setup.pass(SECOND / 2).await;
    // Neither reading nor refreshing moves the end.
    let StoredSession { session, version } = there.read(&id).await.unwrap().unwrap();
    let lease = claimed(&there, &id, version, SECOND).await;
    assert!(there.replace(&lease, &session).await.unwrap());
    assert!(exists(&here, &id).await);
    setup.pass(SECOND * 16 / 10).await;
    assert!(!exists(&here, &id).await && !exists(&there, &id).await);
}

async fn one_of_a_hundred_concurrent_claims_is_granted(setup: Setup) {
    let stores = setup.stores(HOUR).await;
    let id = id();
    stores[0].insert(&id, &setup.session("ada", HOUR)).await.unwrap();
    let claims = (0..100).map(|n| {
        let (store, id) = (stores[n % 3].clone(), id.clone());
        tokio::spawn(async move { store.claim(&id, 0, HOUR).await.unwrap() })
    });
    let claims: Vec<RefreshClaim> = join_all(claims).await.into_iter().map(Result::unwrap).collect();
    let (yours, others): (Vec<_>, Vec<_>) =
        claims.into_iter().partition(|claim| matches!(claim, RefreshClaim::Granted(_)));
    assert_eq!(yours.len(), 1);
    assert!(others.iter().all(|claim| *claim == RefreshClaim::Busy), "{others:?}");
}

async fn expired_lease_can_be_claimed_by_another_process(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let id = id();
    here.insert(&id, &setup.session("ada", HOUR)).await.unwrap();
    claimed(&here, &id, 0, SECOND).await;
    assert_eq!(there.claim(&id, 0, SECOND).await.unwrap(), RefreshClaim::Busy);
    setup.pass(SECOND * 11 / 10).await;
    claimed(&there, &id, 0, HOUR).await;
    assert_eq!(here.claim(&id, 0, SECOND).await.unwrap(), RefreshClaim::Busy);
}

async fn renewed_lease_stays_held(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let id = id();
    here.insert(&id, &setup.session("ada", HOUR)).await.unwrap();
    let lease = claimed(&here, &id, 0, 2 * SECOND).await;
    for _ in 0..3 {
        setup.pass(SECOND).await;
        assert!(here.renew(&lease, 2 * SECOND).await.unwrap());
    }
    assert_eq!(there.claim(&id, 0, SECOND).await.unwrap(), RefreshClaim::Busy);
    setup.pass(SECOND * 21 / 10).await;
    // No other process claimed it: a late renewal still succeeds.
    assert!(here.renew(&lease, SECOND).await.unwrap());
    setup.pass(SECOND * 11 / 10).await;
    claimed(&there, &id, 0, HOUR).await;
    assert!(!here.renew(&lease, HOUR).await.unwrap());
}

async fn lost_lease_cannot_write(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let (id, session) = (id(), setup.session("ada", HOUR));
    here.insert(&id, &session).await.unwrap();
    let late = claimed(&here, &id, 0, SECOND).await;
    setup.pass(SECOND * 11 / 10).await;
    let good = claimed(&there, &id, 0, HOUR).await;
    let named = |name: &str| Session { name: Some(name.to_owned()), ..session.clone() };
    assert!(!here.replace(&late, &named("late")).await.unwrap());
    assert_eq!(here.read(&id).await.unwrap(), Some(StoredSession { session: session.clone(), version: 0 }));
    assert!(there.replace(&good, &named("good")).await.unwrap());
    // Neither can a lease that expired, nor one that was used already.
    assert!(!here.replace(&late, &named("late")).await.unwrap());
    assert!(!there.replace(&good, &named("twice")).await.unwrap());
    assert!(!there.renew(&good, HOUR).await.unwrap());
    assert_eq!(here.read(&id).await.unwrap(), Some(StoredSession { session: named("good"), version: 1 }));
}

async fn claim_with_an_old_version_is_refused(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let (id, session) = (id(), setup.session("ada", HOUR));
    here.insert(&id, &session).await.unwrap();
    for version in 0..3 {
        let lease = claimed(&here, &id, version, HOUR).await;
        assert!(here.replace(&lease, &session).await.unwrap());
        assert_eq!(there.claim(&id, version, HOUR).await.unwrap(), RefreshClaim::Replaced);
        assert_eq!(there.read(&id).await.unwrap().unwrap().version, version + 1);
    }
    // Each write released the lease.
    claimed(&there, &id, 3, HOUR).await;
}

async fn removed_session_cannot_be_written_back(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let (id, session) = (id(), setup.session("ada", HOUR));
    here.insert(&id, &session).await.unwrap();
    let lease = claimed(&here, &id, 0, HOUR).await;
    there.remove(&id, &session).await.unwrap();
    assert!(!here.renew(&lease, HOUR).await.unwrap());
    assert!(!here.replace(&lease, &session).await.unwrap());
    assert!(!exists(&here, &id).await && !exists(&there, &id).await);
    assert_eq!(here.claim(&id, 0, HOUR).await.unwrap(), RefreshClaim::Gone);
}

async fn removing_one_session_keeps_the_others(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let (phone, laptop, session) = (id(), id(), setup.session("ada", HOUR));
    for id in [&phone, &laptop] {
        here.insert(id, &session).await.unwrap();
    }
    there.remove(&phone, &session).await.unwrap();
    assert!(!exists(&here, &phone).await);
    assert!(exists(&here, &laptop).await);
    // Removing it again changes nothing.
    there.remove(&phone, &session).await.unwrap();
    let left = there.remove_group(&Group::of_subject(ISSUER, "ada")).await.unwrap();
    assert_eq!(left, 1);
}

async fn group_of_a_sid_ends_together(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let of_sid = |sid: &str| Session { sid: Some(sid.to_owned()), ..setup.session("ada", HOUR) };
    let (same, also, other) = (id(), id(), id());
    here.insert(&same, &of_sid("s1")).await.unwrap();
    there.insert(&also, &of_sid("s1")).await.unwrap();
    here.insert(&other, &of_sid("s2")).await.unwrap();
    for unrelated in [Group::of_sid("https://other.test", "s1"), Group::of_sid(ISSUER, "s")] {
        assert_eq!(here.remove_group(&unrelated).await.unwrap(), 0);
    }
    assert_eq!(there.remove_group(&Group::of_sid(ISSUER, "s1")).await.unwrap(), 2);
    assert!(!exists(&here, &same).await && !exists(&here, &also).await);
    assert!(exists(&here, &other).await);
    assert_eq!(here.remove_group(&Group::of_sid(ISSUER, "s1")).await.unwrap(), 0);
    // Sessions that ended with their sid are not counted again for the subject.
    assert_eq!(here.remove_group(&Group::of_subject(ISSUER, "ada")).await.unwrap(), 1);
}

async fn group_of_a_subject_ends_together(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let (ada, bob): (Vec<SessionId>, SessionId) = ((0..5).map(|_| id()).collect(), id());
    for (at, id) in ada.iter().enumerate() {
        // One without a sid.
        let sid = (at > 0).then(|| format!("s{at}"));
        here.insert(id, &Session { sid, ..setup.session("ada", HOUR) }).await.unwrap();
    }
    here.insert(&bob, &setup.session("bob", HOUR)).await.unwrap();
    assert_eq!(there.remove_group(&Group::of_subject(ISSUER, "ada")).await.unwrap(), 5);
    for id in &ada {
        assert!(!exists(&here, id).await);
    }
    assert!(exists(&here, &bob).await);
    // Sessions without a sid are a group of their own.
    let (with_sid, without_sid) = (id(), id());
    here.insert(&with_sid, &Session { sid: Some("s9".to_owned()), ..setup.session("ada", HOUR) })
        .await
        .unwrap();
    here.insert(&without_sid, &Session { sid: None, ..setup.session("ada", HOUR) }).await.unwrap();
    assert_eq!(there.remove_group(&Group::without_sid(ISSUER, "ada")).await.unwrap(), 1);
    assert!(exists(&here, &with_sid).await && !exists(&here, &without_sid).await);
    // A new sign-in works.
    let again = id();
    here.insert(&again, &setup.session("ada", HOUR)).await.unwrap();
    assert!(exists(&there, &again).await);
}

async fn every_subscriber_receives_every_end(setup: Setup) {
    let [here, there, third] = setup.stores(HOUR).await;
    let (alone, first, second, stays) = (id(), id(), id(), id());
    let of_sid = Session { sid: Some("s1".to_owned()), ..setup.session("ada", HOUR) };
    let bob = setup.session("bob", HOUR);
    for (id, session) in [(&alone, &bob), (&first, &of_sid), (&second, &of_sid), (&stays, &bob)] {
        here.insert(id, session).await.unwrap();
    }
    let listeners = join_all([&here, &there, &third].map(async |store| store.ends().await.unwrap())).await;
    there.remove_for(EndCause::Replaced, &alone, &bob).await.unwrap();
    there.remove_group(&Group::of_sid(ISSUER, "s1")).await.unwrap();
    let expected: HashMap<SessionId, EndCause> =
        [(alone, EndCause::Replaced), (first, EndCause::Ended), (second, EndCause::Ended)].into();
    for listener in listeners {
        let received = listener.take(3).map(|end| (end.id, end.cause)).collect::<HashMap<_, _>>();
        assert_eq!(tokio::time::timeout(PATIENCE, received).await.unwrap(), expected);
    }
    assert!(exists(&here, &stays).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_in_redis_expires() {
    let redis = need!(Redis::shared().await);
    let setup = Setup::redis(redis);
    let [sessions, ..] = setup.stores(HOUR).await;
    let session = |subject: &str, end: Duration| Session {
        user_id: base::id::Uuid::nil(),
        sid: Some(format!("sid of {subject}")),
        ..setup.session(subject, end)
    };
    let (ada, bob, eve) = (id(), id(), id());
    // The second ends before the first: their common group lives as long as the first.
    sessions.insert(&ada, &session("ada", 2 * HOUR)).await.unwrap();
    sessions.insert(&id(), &session("ada", HOUR / 2)).await.unwrap();
    sessions.insert(&bob, &session("bob", HOUR)).await.unwrap();
    sessions.insert(&eve, &session("eve", HOUR)).await.unwrap();
    sessions.read(&ada).await.unwrap();
    let lease = claimed(&sessions, &ada, 0, SECOND).await;
    sessions.renew(&lease, SECOND).await.unwrap();
    assert!(sessions.replace(&lease, &session("ada", 2 * HOUR)).await.unwrap());
    claimed(&sessions, &ada, 1, SECOND).await;
    sessions.remove(&bob, &session("bob", HOUR)).await.unwrap();
    sessions.remove_group(&Group::of_sid(ISSUER, "sid of eve")).await.unwrap();

    let lives = setup.lives().await;
    let count = |kind: &str| lives.keys().filter(|key| key.contains(kind)).count();
    assert_eq!(count("session:"), 2, "{lives:?}");
    assert!(lives.values().all(|life| *life > 0), "{lives:?}");
    let group = lives.iter().filter(|(key, _)| key.contains("session-sid:")).map(|(_, life)| *life).max();
    assert!(group > Some(HOUR.as_millis() as i64 * 3 / 2), "{lives:?}");
}

/// Repeated sign-ins do not grow the group.
#[tokio::test(flavor = "multi_thread")]
async fn group_in_redis_drops_ended_sessions() {
    let redis = need!(Redis::shared().await);
    let setup = Setup::redis(redis);
    let [sessions, ..] = setup.stores(HOUR).await;
    // One long session keeps the group alive.
    sessions.insert(&id(), &setup.session("ada", HOUR)).await.unwrap();
    for _ in 0..5 {
        sessions.insert(&id(), &setup.session("ada", SECOND / 10)).await.unwrap();
    }
    setup.pass(SECOND / 5).await;
    sessions.insert(&id(), &setup.session("ada", HOUR)).await.unwrap();
    assert_eq!(setup.members("session-subject:").await, 2);
}

/// Reads filter ended sessions, but Redis must drop them too.
#[tokio::test(flavor = "multi_thread")]
async fn no_session_stays_in_redis_beyond_its_end() {
    let redis = need!(Redis::shared().await);
    let setup = Setup::redis(redis);
    let [sessions, ..] = setup.stores(HOUR).await;
    let (id, session) = (id(), setup.session("ada", HOUR / 60));
    sessions.insert(&id, &session).await.unwrap();
    let lives = async || setup.lives().await.into_values().max().unwrap();
    let longest = HOUR.as_millis() as i64 / 60;
    assert!(lives().await <= longest);
    assert!(exists(&sessions, &id).await && lives().await <= longest);
    let lease = claimed(&sessions, &id, 0, SECOND).await;
    assert!(sessions.replace(&lease, &session).await.unwrap() && lives().await <= longest);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_script_touches_only_the_keys_that_it_declares() {
    let redis = need!(Redis::shared_cluster().await);
    let keys = testkit::DeclaredKeysProxy::start(redis, LEARNED).await;
    let setup = Setup::declared(redis, &keys);
    let [sessions, ..] = setup.stores(HOUR).await;
    let session = setup.session("ada", HOUR);
    let (first, second) = (id(), id());
    for id in [&first, &second] {
        sessions.insert(id, &session).await.unwrap();
    }
    let lease = claimed(&sessions, &first, 0, HOUR).await;
    assert!(sessions.renew(&lease, HOUR).await.unwrap());
    assert!(sessions.replace(&lease, &session).await.unwrap());
    sessions.remove(&first, &session).await.unwrap();
    assert!(!exists(&sessions, &first).await);
    assert_eq!(sessions.remove_group(&Group::of_subject(ISSUER, "ada")).await.unwrap(), 1);
    keys.assert_no_undeclared_keys();
    keys.assert_all_scripts_run(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/scripts")));
}
