//! What the store of sessions promises, wherever it is.

mod setup;

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use account::Role;
use futures::StreamExt;
use futures::future::join_all;
use sessions::{Claim, Found, Group, Lease, Session, SessionId, SessionStore};
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
                let keys = testkit::DeclaredKeys::of(redis, super::LEARNED).await;
                super::$name(super::Setup::declared(redis, &keys)).await;
                keys.assert_none_undeclared();
            })*
        }
    };
}

for_every_store! {
    what_was_written_is_read_everywhere
    a_session_that_is_not_used_is_forgotten_and_a_use_prolongs_it
    a_session_ends_at_its_end_however_often_it_is_used
    of_a_hundred_who_want_to_refresh_one_may
    a_right_that_is_not_renewed_goes_to_another
    a_right_that_is_renewed_stays
    who_lost_the_right_writes_nothing
    a_session_that_has_moved_is_read_again
    a_session_that_is_gone_cannot_be_refreshed_back
    who_signs_out_takes_nobody_along
    all_sessions_of_the_issuers_session_end_together
    all_sessions_of_a_person_end_together
    those_who_listen_hear_of_every_end
}

async fn claimed(sessions: &SessionStore, id: &SessionId, version: u64, lease: Duration) -> Lease {
    match sessions.claim(id, version, lease).await.unwrap() {
        Claim::Yours(lease) => lease,
        other => panic!("{other:?}"),
    }
}

async fn is_there(sessions: &SessionStore, id: &SessionId) -> bool {
    sessions.read(id).await.unwrap().is_some()
}

async fn what_was_written_is_read_everywhere(setup: Setup) {
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
    assert_eq!(there.read(&id).await.unwrap(), Some(Found { session, version: 0 }));
    assert!(!is_there(&there, &self::id()).await);
}

async fn a_session_that_is_not_used_is_forgotten_and_a_use_prolongs_it(setup: Setup) {
    let [here, there, _] = setup.stores(2 * SECOND).await;
    let (used, unused) = (id(), id());
    here.insert(&used, &setup.session("ada", HOUR)).await.unwrap();
    here.insert(&unused, &setup.session("bob", HOUR)).await.unwrap();
    for _ in 0..3 {
        setup.pass(SECOND * 4 / 5).await;
        assert!(is_there(&there, &used).await);
    }
    assert!(!is_there(&here, &unused).await, "nobody used it for longer than that");
    // What a refresh writes has a life of its own.
    let lease = claimed(&here, &used, 0, SECOND).await;
    setup.pass(SECOND).await;
    assert!(here.replace(&lease, &setup.session("ada", HOUR)).await.unwrap());
    setup.pass(SECOND * 3 / 2).await;
    assert!(is_there(&there, &used).await);
    setup.pass(SECOND * 21 / 10).await;
    assert!(!is_there(&there, &used).await);
    assert_eq!(here.claim(&used, 1, SECOND).await.unwrap(), Claim::Gone);
}

async fn a_session_ends_at_its_end_however_often_it_is_used(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let id = id();
    here.insert(&id, &setup.session("ada", 2 * SECOND)).await.unwrap();
    assert!(is_there(&there, &id).await);
    setup.pass(SECOND / 2).await;
    // Neither reading nor refreshing moves the end.
    let Found { session, version } = there.read(&id).await.unwrap().unwrap();
    let lease = claimed(&there, &id, version, SECOND).await;
    assert!(there.replace(&lease, &session).await.unwrap());
    assert!(is_there(&here, &id).await);
    setup.pass(SECOND * 16 / 10).await;
    assert!(!is_there(&here, &id).await && !is_there(&there, &id).await);
}

async fn of_a_hundred_who_want_to_refresh_one_may(setup: Setup) {
    let stores = setup.stores(HOUR).await;
    let id = id();
    stores[0].insert(&id, &setup.session("ada", HOUR)).await.unwrap();
    let claims = (0..100).map(|n| {
        let (store, id) = (stores[n % 3].clone(), id.clone());
        tokio::spawn(async move { store.claim(&id, 0, HOUR).await.unwrap() })
    });
    let claims: Vec<Claim> = join_all(claims).await.into_iter().map(Result::unwrap).collect();
    let (yours, others): (Vec<_>, Vec<_>) =
        claims.into_iter().partition(|claim| matches!(claim, Claim::Yours(_)));
    assert_eq!(yours.len(), 1);
    assert!(others.iter().all(|claim| *claim == Claim::Busy), "{others:?}");
}

async fn a_right_that_is_not_renewed_goes_to_another(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let id = id();
    here.insert(&id, &setup.session("ada", HOUR)).await.unwrap();
    claimed(&here, &id, 0, SECOND).await;
    assert_eq!(there.claim(&id, 0, SECOND).await.unwrap(), Claim::Busy);
    setup.pass(SECOND * 11 / 10).await;
    claimed(&there, &id, 0, HOUR).await;
    assert_eq!(here.claim(&id, 0, SECOND).await.unwrap(), Claim::Busy);
}

async fn a_right_that_is_renewed_stays(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let id = id();
    here.insert(&id, &setup.session("ada", HOUR)).await.unwrap();
    let lease = claimed(&here, &id, 0, 2 * SECOND).await;
    for _ in 0..3 {
        setup.pass(SECOND).await;
        assert!(here.keep(&lease, 2 * SECOND).await.unwrap());
    }
    assert_eq!(there.claim(&id, 0, SECOND).await.unwrap(), Claim::Busy);
    setup.pass(SECOND * 21 / 10).await;
    // Nobody else wanted it: then a late word still counts.
    assert!(here.keep(&lease, SECOND).await.unwrap());
    setup.pass(SECOND * 11 / 10).await;
    claimed(&there, &id, 0, HOUR).await;
    assert!(!here.keep(&lease, HOUR).await.unwrap());
}

async fn who_lost_the_right_writes_nothing(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let (id, session) = (id(), setup.session("ada", HOUR));
    here.insert(&id, &session).await.unwrap();
    let late = claimed(&here, &id, 0, SECOND).await;
    setup.pass(SECOND * 11 / 10).await;
    let good = claimed(&there, &id, 0, HOUR).await;
    let named = |name: &str| Session { name: Some(name.to_owned()), ..session.clone() };
    assert!(!here.replace(&late, &named("late")).await.unwrap());
    assert_eq!(here.read(&id).await.unwrap(), Some(Found { session: session.clone(), version: 0 }));
    assert!(there.replace(&good, &named("good")).await.unwrap());
    // Neither does one whose turn is over, nor one that has written already.
    assert!(!here.replace(&late, &named("late")).await.unwrap());
    assert!(!there.replace(&good, &named("twice")).await.unwrap());
    assert!(!there.keep(&good, HOUR).await.unwrap());
    assert_eq!(here.read(&id).await.unwrap(), Some(Found { session: named("good"), version: 1 }));
}

async fn a_session_that_has_moved_is_read_again(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let (id, session) = (id(), setup.session("ada", HOUR));
    here.insert(&id, &session).await.unwrap();
    for version in 0..3 {
        let lease = claimed(&here, &id, version, HOUR).await;
        assert!(here.replace(&lease, &session).await.unwrap());
        assert_eq!(there.claim(&id, version, HOUR).await.unwrap(), Claim::Moved);
        assert_eq!(there.read(&id).await.unwrap().unwrap().version, version + 1);
    }
    // The right was given back each time.
    claimed(&there, &id, 3, HOUR).await;
}

async fn a_session_that_is_gone_cannot_be_refreshed_back(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let (id, session) = (id(), setup.session("ada", HOUR));
    here.insert(&id, &session).await.unwrap();
    let lease = claimed(&here, &id, 0, HOUR).await;
    there.remove(&id, &session).await.unwrap();
    assert!(!here.keep(&lease, HOUR).await.unwrap());
    assert!(!here.replace(&lease, &session).await.unwrap());
    assert!(!is_there(&here, &id).await && !is_there(&there, &id).await);
    assert_eq!(here.claim(&id, 0, HOUR).await.unwrap(), Claim::Gone);
}

async fn who_signs_out_takes_nobody_along(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let (phone, laptop, session) = (id(), id(), setup.session("ada", HOUR));
    for id in [&phone, &laptop] {
        here.insert(id, &session).await.unwrap();
    }
    there.remove(&phone, &session).await.unwrap();
    assert!(!is_there(&here, &phone).await);
    assert!(is_there(&here, &laptop).await);
    // As good as done already.
    there.remove(&phone, &session).await.unwrap();
    let left = there.remove_group(&Group::of_subject(ISSUER, "ada")).await.unwrap();
    assert_eq!(left, 1);
}

async fn all_sessions_of_the_issuers_session_end_together(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let of_sid = |sid: &str| Session { sid: Some(sid.to_owned()), ..setup.session("ada", HOUR) };
    let (same, also, other) = (id(), id(), id());
    here.insert(&same, &of_sid("s1")).await.unwrap();
    there.insert(&also, &of_sid("s1")).await.unwrap();
    here.insert(&other, &of_sid("s2")).await.unwrap();
    for stranger in [Group::of_sid("https://other.test", "s1"), Group::of_sid(ISSUER, "s")] {
        assert_eq!(here.remove_group(&stranger).await.unwrap(), 0);
    }
    assert_eq!(there.remove_group(&Group::of_sid(ISSUER, "s1")).await.unwrap(), 2);
    assert!(!is_there(&here, &same).await && !is_there(&here, &also).await);
    assert!(is_there(&here, &other).await);
    assert_eq!(here.remove_group(&Group::of_sid(ISSUER, "s1")).await.unwrap(), 0);
    // Those that ended with their sid are not counted again with the person.
    assert_eq!(here.remove_group(&Group::of_subject(ISSUER, "ada")).await.unwrap(), 1);
}

async fn all_sessions_of_a_person_end_together(setup: Setup) {
    let [here, there, _] = setup.stores(HOUR).await;
    let (ada, bob): (Vec<SessionId>, SessionId) = ((0..5).map(|_| id()).collect(), id());
    for (at, id) in ada.iter().enumerate() {
        // One without the issuer's name for it.
        let sid = (at > 0).then(|| format!("s{at}"));
        here.insert(id, &Session { sid, ..setup.session("ada", HOUR) }).await.unwrap();
    }
    here.insert(&bob, &setup.session("bob", HOUR)).await.unwrap();
    assert_eq!(there.remove_group(&Group::of_subject(ISSUER, "ada")).await.unwrap(), 5);
    for id in &ada {
        assert!(!is_there(&here, id).await);
    }
    assert!(is_there(&here, &bob).await);
    // Those of which the issuer has not told the name end by themselves.
    let (named, nameless) = (id(), id());
    here.insert(&named, &Session { sid: Some("s9".to_owned()), ..setup.session("ada", HOUR) }).await.unwrap();
    here.insert(&nameless, &Session { sid: None, ..setup.session("ada", HOUR) }).await.unwrap();
    assert_eq!(there.remove_group(&Group::without_sid(ISSUER, "ada")).await.unwrap(), 1);
    assert!(is_there(&here, &named).await && !is_there(&here, &nameless).await);
    // Whoever signs in again is signed in.
    let again = id();
    here.insert(&again, &setup.session("ada", HOUR)).await.unwrap();
    assert!(is_there(&there, &again).await);
}

async fn those_who_listen_hear_of_every_end(setup: Setup) {
    let [here, there, third] = setup.stores(HOUR).await;
    let (alone, first, second, stays) = (id(), id(), id(), id());
    let of_sid = Session { sid: Some("s1".to_owned()), ..setup.session("ada", HOUR) };
    let bob = setup.session("bob", HOUR);
    for (id, session) in [(&alone, &bob), (&first, &of_sid), (&second, &of_sid), (&stays, &bob)] {
        here.insert(id, session).await.unwrap();
    }
    let listeners = join_all([&here, &there, &third].map(async |store| store.ends().await.unwrap())).await;
    there.remove(&alone, &bob).await.unwrap();
    there.remove_group(&Group::of_sid(ISSUER, "s1")).await.unwrap();
    let expected: HashSet<SessionId> = [alone, first, second].into();
    for listener in listeners {
        let heard = tokio::time::timeout(PATIENCE, listener.take(3).collect::<HashSet<_>>()).await;
        assert_eq!(heard.unwrap(), expected);
    }
    assert!(is_there(&here, &stays).await);
}

/// Whatever is done, nothing stays in Redis for ever.
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
    // The second ends before the first: their common group stays for as long as the first.
    sessions.insert(&ada, &session("ada", 2 * HOUR)).await.unwrap();
    sessions.insert(&id(), &session("ada", HOUR / 2)).await.unwrap();
    sessions.insert(&bob, &session("bob", HOUR)).await.unwrap();
    sessions.insert(&eve, &session("eve", HOUR)).await.unwrap();
    sessions.read(&ada).await.unwrap();
    let lease = claimed(&sessions, &ada, 0, SECOND).await;
    sessions.keep(&lease, SECOND).await.unwrap();
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

/// Whoever signs in again and again leaves no trail.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_in_redis_forgets_sessions_that_have_ended() {
    let redis = need!(Redis::shared().await);
    let setup = Setup::redis(redis);
    let [sessions, ..] = setup.stores(HOUR).await;
    // One that lasts, so that the group does.
    sessions.insert(&id(), &setup.session("ada", HOUR)).await.unwrap();
    for _ in 0..5 {
        sessions.insert(&id(), &setup.session("ada", SECOND / 10)).await.unwrap();
    }
    setup.pass(SECOND / 5).await;
    sessions.insert(&id(), &setup.session("ada", HOUR)).await.unwrap();
    assert_eq!(setup.members("session-subject:").await, 2);
}

/// What is read is filtered, but it should not be there either.
#[tokio::test(flavor = "multi_thread")]
async fn no_session_stays_in_redis_beyond_its_end() {
    let redis = need!(Redis::shared().await);
    let setup = Setup::redis(redis);
    let [sessions, ..] = setup.stores(HOUR).await;
    let (id, session) = (id(), setup.session("ada", HOUR / 60));
    sessions.insert(&id, &session).await.unwrap();
    let lives = async || setup.lives().await.into_values().max().unwrap();
    let most = HOUR.as_millis() as i64 / 60;
    assert!(lives().await <= most);
    assert!(is_there(&sessions, &id).await && lives().await <= most);
    let lease = claimed(&sessions, &id, 0, SECOND).await;
    assert!(sessions.replace(&lease, &session).await.unwrap() && lives().await <= most);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_script_touches_only_the_keys_that_it_declares() {
    let redis = need!(Redis::shared_cluster().await);
    let keys = testkit::DeclaredKeys::of(redis, LEARNED).await;
    let setup = Setup::declared(redis, &keys);
    let [sessions, ..] = setup.stores(HOUR).await;
    let session = setup.session("ada", HOUR);
    let (first, second) = (id(), id());
    for id in [&first, &second] {
        sessions.insert(id, &session).await.unwrap();
    }
    let lease = claimed(&sessions, &first, 0, HOUR).await;
    assert!(sessions.keep(&lease, HOUR).await.unwrap());
    assert!(sessions.replace(&lease, &session).await.unwrap());
    sessions.remove(&first, &session).await.unwrap();
    assert!(!is_there(&sessions, &first).await);
    assert_eq!(sessions.remove_group(&Group::of_subject(ISSUER, "ada")).await.unwrap(), 1);
    keys.assert_none_undeclared();
    keys.assert_all_run(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/scripts")));
}
