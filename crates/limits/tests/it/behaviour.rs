//! What limits promise, wherever they are.

use std::path::Path;
use std::time::Duration;

use testkit::{Redis, need};

use crate::setup::{Setup, check, rush};

/// Runs a test in process and in Redis.
macro_rules! on_both {
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
    };
}

on_both! {
    a_burst_then_the_steady_rate
    keys_and_policies_are_independent
    from_all_or_from_none
    remaining_and_reset_are_right
    after_exactly_the_time_named_one_is_allowed
    a_rate_that_was_made_smaller_counts_at_once
    a_bucket_named_twice_is_taken_from_twice
    no_checks_are_allowed
    decisions_are_counted
    the_first_bucket_decides_before_the_others_are_asked
    a_request_that_others_refuse_counts_for_the_first_bucket
}

async fn a_burst_then_the_steady_rate(setup: Setup) {
    let world = setup.open().await;
    let time = Duration::from_secs(1);
    for rate in ["50/s burst 100", "300/s burst 300"] {
        let rush = rush(&[&world], rate, rate, time).await;
        assert!((rush.least..=rush.most).contains(&rush.allowed), "{rate}: {rush:?}");
    }
    // Without a burst, what nobody asks for in time is lost.
    let rush = rush(&[&world], "single", "300/s burst 1", time).await;
    assert!((2..=rush.most).contains(&rush.allowed), "{rush:?}");
}

async fn keys_and_policies_are_independent(setup: Setup) {
    let world = setup.open().await;
    assert!(world.take("a", "1/h").await.allowed);
    assert!(!world.take("a", "1/h").await.allowed);
    assert!(world.take("b", "1/h").await.allowed);
    assert!(world.limits.take(&[check("other", "a", "1/h")]).await.allowed);
}

async fn from_all_or_from_none(setup: Setup) {
    let world = setup.open().await;
    let both = [check("player", "p", "5/h"), check("address", "a", "2/h")];
    let remaining = async |checks: &[_]| {
        let verdict = world.limits.take(checks).await;
        (verdict.allowed, verdict.states.iter().map(|state| state.remaining).collect::<Vec<_>>())
    };
    assert_eq!(remaining(&both).await, (true, vec![4, 1]));
    assert_eq!(remaining(&both).await, (true, vec![3, 0]));
    for _ in 0..3 {
        assert_eq!(remaining(&both).await, (false, vec![3, 0]), "nothing was taken from the first");
    }
    let [player, address] = both;
    assert_eq!(remaining(&[address, player]).await, (false, vec![0, 3]), "nor the other way round");
    let verdict = world.limits.take(&both).await;
    assert_eq!(verdict.states[0].retry_after, None, "the player's bucket did not refuse");
    assert_eq!(verdict.retry_after(), verdict.states[1].retry_after);
    assert!(verdict.retry_after().is_some());
    assert_eq!(remaining(&[player]).await, (true, vec![2]));
}

async fn remaining_and_reset_are_right(setup: Setup) {
    let world = setup.open().await;
    let (cost, slack) = (Duration::from_secs(720), Duration::from_secs(30));
    for taken in 1..=3 {
        let verdict = world.take("k", "5/h burst 3").await;
        let state = verdict.states[0];
        assert_eq!((verdict.allowed, state.policy, state.quota, state.window), (true, "one", 3, 3 * cost));
        assert_eq!((state.remaining, state.retry_after), (3 - u64::from(taken), None));
        assert!(state.reset <= taken * cost && state.reset > taken * cost - slack, "{state:?}");
    }
    let verdict = world.take("k", "5/h burst 3").await;
    let state = verdict.states[0];
    assert_eq!((verdict.allowed, state.remaining), (false, 0));
    let wait = state.retry_after.unwrap();
    assert!(wait <= cost && wait > cost - slack, "{state:?}");
    assert_eq!(state.reset, 2 * cost + wait, "one is left when the bucket is full but for two");
}

async fn after_exactly_the_time_named_one_is_allowed(setup: Setup) {
    let world = setup.open().await;
    while world.take("k", "20/s burst 3").await.allowed {}
    for _ in 0..10 {
        // One was taken as soon as it could be, so the next one is never there already.
        let asked = tokio::time::Instant::now();
        let verdict = world.take("k", "20/s burst 3").await;
        let Some(wait) = verdict.retry_after() else {
            assert!(verdict.allowed, "a slow machine");
            continue;
        };
        assert!(!verdict.allowed && wait <= Duration::from_millis(50), "{wait:?}");
        // From the answer on, which is later than the decision.
        tokio::time::sleep(wait).await;
        let verdict = world.take("k", "20/s burst 3").await;
        assert!(verdict.allowed, "{wait:?} after {:?}", asked.elapsed());
    }
}

async fn a_rate_that_was_made_smaller_counts_at_once(setup: Setup) {
    let world = setup.open().await;
    for _ in 0..100 {
        assert!(world.take("k", "10/s burst 1000").await.allowed);
    }
    let verdict = world.take("k", "10/s burst 5").await;
    let wait = verdict.retry_after().expect("a refusal");
    assert!(wait <= Duration::from_millis(100), "{wait:?}");
    tokio::time::sleep(wait).await;
    assert!(world.take("k", "10/s burst 5").await.allowed);
}

async fn a_bucket_named_twice_is_taken_from_twice(setup: Setup) {
    let world = setup.open().await;
    let twice = [check("one", "k", "3/h"), check("one", "k", "3/h")];
    let verdict = world.limits.take(&twice).await;
    assert_eq!(verdict.states.iter().map(|state| state.remaining).collect::<Vec<_>>(), [2, 1]);
    assert!(!world.limits.take(&twice).await.allowed);
    assert!(world.take("k", "3/h").await.allowed);
    assert!(!world.take("k", "3/h").await.allowed);
}

async fn no_checks_are_allowed(setup: Setup) {
    let verdict = setup.open().await.limits.take(&[]).await;
    assert!(verdict.allowed && verdict.states.is_empty() && verdict.retry_after().is_none());
}

async fn decisions_are_counted(setup: Setup) {
    let world = setup.open().await;
    let checks = [check("player", "p", "9/h"), check("address", "a", "2/h")];
    for _ in 0..5 {
        world.limits.take(&checks).await;
    }
    let count = |policy: &str, outcome: &str| {
        world
            .metric(&format!("playhouse_limits_decisions_total{{policy=\"{policy}\",outcome=\"{outcome}\"}}"))
    };
    assert_eq!([count("player", "allowed"), count("address", "allowed")], [2, 2]);
    assert_eq!([count("player", "refused"), count("address", "refused")], [0, 3]);
    assert_eq!([world.metric("playhouse_limits_local_total"), world.metric("playhouse_limits_away")], [0, 0]);
}

async fn the_first_bucket_decides_before_the_others_are_asked(setup: Setup) {
    let world = setup.open().await;
    let (address, player) = (check("address", "a", "2/h"), check("player", "p", "9/h"));
    for left in [1, 0] {
        let verdict = world.limits.begin(address).expect("there is one").take(&[player]).await;
        let remaining: Vec<u64> = verdict.states.iter().map(|state| state.remaining).collect();
        assert_eq!((verdict.allowed, verdict.shared, remaining), (true, true, vec![left, 7 + left]));
    }
    let refused = world.limits.begin(address).expect_err("it is empty");
    assert!(!refused.allowed && refused.retry_after().is_some(), "{refused:?}");
    assert_eq!(
        world.limits.take(&[player]).await.states[0].remaining,
        6,
        "nothing was taken from the others"
    );
    let count = |policy: &str, outcome: &str| {
        let labels = format!("{{policy=\"{policy}\",outcome=\"{outcome}\"}}");
        world.metric(&format!("playhouse_limits_decisions_total{labels}"))
    };
    assert_eq!([count("address", "allowed"), count("address", "refused")], [2, 1]);
    assert_eq!([count("player", "allowed"), count("player", "refused")], [3, 0]);
}

async fn a_request_that_others_refuse_counts_for_the_first_bucket(setup: Setup) {
    let world = setup.open().await;
    let (address, player) = (check("address", "a", "3/h"), check("player", "p", "1/h"));
    for allowed in [true, false, false] {
        let begun = world.limits.begin(address).expect("the address has some left");
        assert_eq!(begun.take(&[player]).await.allowed, allowed);
    }
    assert!(world.limits.begin(address).is_err(), "the address is stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_redis_refused_is_refused_here_until_redis_would_allow_it() {
    let setup = Setup::redis(need!(Redis::shared().await));
    let (one, other) = (setup.open().await, setup.open().await);
    let address = check("address", "a", "2/s burst 4");
    while other.limits.take(&[address]).await.allowed {}
    let begun = one.limits.begin(address).expect("this process has seen nobody from there");
    let refused = begun.take(&[]).await;
    assert!(!refused.allowed && refused.shared, "{refused:?}");
    let again = one.limits.begin(address).expect_err("Redis said so, and is not asked again");
    let wait = again.retry_after().expect("a time to come back");
    assert!(wait <= Duration::from_millis(500), "{wait:?}");
    tokio::time::sleep(wait).await;
    assert!(one.limits.begin(address).expect("it is time").take(&[]).await.allowed);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_touches_only_the_keys_that_it_declares() {
    let redis = need!(Redis::shared_cluster().await);
    let keys = testkit::DeclaredKeys::of(redis, "").await;
    let world = Setup::declared(redis, &keys).open().await;
    for allowed in [true, false] {
        let both = [check("one", "ada", "1/m"), check("two", "ada lovelace", "100/m")];
        assert_eq!(world.limits.take(&both).await.allowed, allowed);
    }
    keys.assert_none_undeclared();
    keys.assert_all_run(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/shared")));
}
