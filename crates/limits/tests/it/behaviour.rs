//! Behaviour of limits, in process and in Redis.

use std::path::Path;
use std::time::Duration;

use limits::{Counts, KeyKind};
use testkit::{Redis, need};

use crate::setup::{Setup, check, run_load};

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
    burst_is_followed_by_the_steady_rate
    keys_and_policies_are_independent
    tokens_are_taken_from_all_buckets_or_none
    remaining_and_reset_are_correct
    request_is_allowed_after_retry_after
    reduced_rate_applies_at_once
    bucket_listed_twice_gives_two_tokens
    request_without_checks_is_allowed
    decisions_are_counted
    refusals_are_counted_by_rule_and_key
    first_bucket_decides_before_the_others
    request_refused_by_others_counts_for_the_first_bucket
}

async fn burst_is_followed_by_the_steady_rate(setup: Setup) {
    let process = setup.open().await;
    let time = Duration::from_secs(1);
    for rate in ["50/s burst 100", "300/s burst 300"] {
        let load = run_load(&[&process], rate, rate, time).await;
        assert!((load.min..=load.max).contains(&load.allowed), "{rate}: {load:?}");
    }
    // Without a burst, unused tokens are lost.
    let load = run_load(&[&process], "single", "300/s burst 1", time).await;
    assert!((2..=load.max).contains(&load.allowed), "{load:?}");
}

async fn keys_and_policies_are_independent(setup: Setup) {
    let process = setup.open().await;
    assert!(process.take("a", "1/h").await.allowed);
    assert!(!process.take("a", "1/h").await.allowed);
    assert!(process.take("b", "1/h").await.allowed);
    assert!(process.limits.take(&[check("other", "a", "1/h")]).await.allowed);
}

async fn tokens_are_taken_from_all_buckets_or_none(setup: Setup) {
    let process = setup.open().await;
    let both = [check("player", "p", "5/h"), check("address", "a", "2/h")];
    let remaining = async |checks: &[_]| {
        let decision = process.limits.take(checks).await;
        (decision.allowed, decision.states.iter().map(|state| state.remaining).collect::<Vec<_>>())
    };
    assert_eq!(remaining(&both).await, (true, vec![4, 1]));
    assert_eq!(remaining(&both).await, (true, vec![3, 0]));
    for _ in 0..3 {
        assert_eq!(remaining(&both).await, (false, vec![3, 0]), "nothing was taken from the first bucket");
    }
    let [player, address] = both;
    assert_eq!(remaining(&[address, player]).await, (false, vec![0, 3]), "nor in the other order");
    let decision = process.limits.take(&both).await;
    assert_eq!(decision.states[0].retry_after, None, "the player's bucket did not refuse");
    assert_eq!(decision.retry_after(), decision.states[1].retry_after);
    assert!(decision.retry_after().is_some());
    assert_eq!(remaining(&[player]).await, (true, vec![2]));
}

async fn remaining_and_reset_are_correct(setup: Setup) {
    let process = setup.open().await;
    let (cost, slack) = (Duration::from_secs(720), Duration::from_secs(30));
    for taken in 1..=3 {
        let decision = process.take("k", "5/h burst 3").await;
        let state = decision.states[0];
        assert_eq!((decision.allowed, state.policy, state.quota, state.window), (true, "one", 3, 3 * cost));
        assert_eq!((state.remaining, state.retry_after), (3 - u64::from(taken), None));
        assert!(state.reset <= taken * cost && state.reset > taken * cost - slack, "{state:?}");
    }
    let decision = process.take("k", "5/h burst 3").await;
    let state = decision.states[0];
    assert_eq!((decision.allowed, state.remaining), (false, 0));
    let wait = state.retry_after.unwrap();
    assert!(wait <= cost && wait > cost - slack, "{state:?}");
    assert_eq!(state.reset, 2 * cost + wait, "the wait ends when the debt leaves room for one token");
}

async fn request_is_allowed_after_retry_after(setup: Setup) {
    let process = setup.open().await;
    while process.take("k", "20/s burst 3").await.allowed {}
    for _ in 0..10 {
        // The last token was taken as soon as it was available, so the next one is not available yet.
        let started = tokio::time::Instant::now();
        let decision = process.take("k", "20/s burst 3").await;
        let Some(wait) = decision.retry_after() else {
            assert!(decision.allowed, "the machine is slow");
            continue;
        };
        assert!(!decision.allowed && wait <= Duration::from_millis(50), "{wait:?}");
        // Counts from the response, which is later than the decision.
        tokio::time::sleep(wait).await;
        let decision = process.take("k", "20/s burst 3").await;
        assert!(decision.allowed, "{wait:?} after {:?}", started.elapsed());
    }
}

async fn reduced_rate_applies_at_once(setup: Setup) {
    let process = setup.open().await;
    for _ in 0..100 {
        assert!(process.take("k", "10/s burst 1000").await.allowed);
    }
    let decision = process.take("k", "10/s burst 5").await;
    let wait = decision.retry_after().expect("a refusal");
    assert!(wait <= Duration::from_millis(100), "{wait:?}");
    tokio::time::sleep(wait).await;
    assert!(process.take("k", "10/s burst 5").await.allowed);
}

async fn bucket_listed_twice_gives_two_tokens(setup: Setup) {
    let process = setup.open().await;
    let twice = [check("one", "k", "3/h"), check("one", "k", "3/h")];
    let decision = process.limits.take(&twice).await;
    assert_eq!(decision.states.iter().map(|state| state.remaining).collect::<Vec<_>>(), [2, 1]);
    assert!(!process.limits.take(&twice).await.allowed);
    assert!(process.take("k", "3/h").await.allowed);
    assert!(!process.take("k", "3/h").await.allowed);
}

async fn request_without_checks_is_allowed(setup: Setup) {
    let decision = setup.open().await.limits.take(&[]).await;
    assert!(decision.allowed && decision.states.is_empty() && decision.retry_after().is_none());
}

async fn decisions_are_counted(setup: Setup) {
    let process = setup.open().await;
    let checks = [check("player", "p", "9/h"), check("address", "a", "2/h")];
    for _ in 0..5 {
        process.limits.take(&checks).await;
    }
    let count = |policy: &str, outcome: &str| process.metric(&decisions(policy, outcome));
    assert_eq!([count("player", "allowed"), count("address", "allowed")], [2, 2]);
    assert_eq!([count("player", "refused"), count("address", "refused")], [0, 3]);
    assert_eq!(
        [process.metric("playhouse_limits_local_total"), process.metric("playhouse_limits_away")],
        [0, 0]
    );
}

/// Returns the name of a counter of decisions.
fn decisions(policy: &str, outcome: &str) -> String {
    let kind = if policy == "player" { "user" } else { "address" };
    format!(
        "playhouse_limits_decisions_total{{policy=\"{policy}\",key_kind=\"{kind}\",outcome=\"{outcome}\"}}"
    )
}

async fn refusals_are_counted_by_rule_and_key(setup: Setup) {
    let process = setup.open().await;
    let address = check("address", "192.0.2.1", "9/h");
    for _ in 0..3 {
        let pending = process.limits.begin(address).expect("the address has tokens left");
        pending.take(&[check("player", "p", "1/h")]).await;
    }
    let counts = process.limits.counts();
    let shown: Vec<(&str, KeyKind, u64, u64)> = counts
        .iter()
        .map(|counts| {
            let Counts { allowed, refused } = counts.since_start;
            assert_eq!((counts.last_minute, counts.last_hour), (counts.since_start, counts.since_start));
            (counts.rule.policy, counts.rule.kind, allowed, refused)
        })
        .collect();
    assert_eq!(shown, [("address", KeyKind::Address, 1, 0), ("player", KeyKind::User, 1, 2)]);
    let worst = process.limits.most_refused(20);
    let keys: Vec<(&str, &str, u64)> =
        worst.iter().map(|key| (key.rule.policy, key.key.as_str(), key.refused)).collect();
    assert_eq!(keys, [("player", "p", 2)], "the address did not refuse");
}

async fn first_bucket_decides_before_the_others(setup: Setup) {
    let process = setup.open().await;
    let (address, player) = (check("address", "a", "2/h"), check("player", "p", "9/h"));
    for left in [1, 0] {
        let decision = process.limits.begin(address).expect("a token is left").take(&[player]).await;
        let remaining: Vec<u64> = decision.states.iter().map(|state| state.remaining).collect();
        assert_eq!((decision.allowed, decision.shared, remaining), (true, true, vec![left, 7 + left]));
    }
    let refused = process.limits.begin(address).expect_err("the bucket is empty");
    assert!(!refused.allowed && refused.retry_after().is_some(), "{refused:?}");
    assert_eq!(
        process.limits.take(&[player]).await.states[0].remaining,
        6,
        "nothing was taken from the other bucket"
    );
    let count = |policy: &str, outcome: &str| process.metric(&decisions(policy, outcome));
    assert_eq!([count("address", "allowed"), count("address", "refused")], [2, 1]);
    assert_eq!([count("player", "allowed"), count("player", "refused")], [3, 0]);
}

async fn request_refused_by_others_counts_for_the_first_bucket(setup: Setup) {
    let process = setup.open().await;
    let (address, player) = (check("address", "a", "3/h"), check("player", "p", "1/h"));
    for allowed in [true, false, false] {
        let pending = process.limits.begin(address).expect("the address has tokens left");
        assert_eq!(pending.take(&[player]).await.allowed, allowed);
    }
    assert!(process.limits.begin(address).is_err(), "the address is refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_of_redis_applies_in_process_until_redis_would_allow() {
    let setup = Setup::redis(need!(Redis::shared().await));
    let (one, other) = (setup.open().await, setup.open().await);
    let address = check("address", "a", "2/s burst 4");
    while other.limits.take(&[address]).await.allowed {}
    let pending = one.limits.begin(address).expect("this process does not know the address");
    let refused = pending.take(&[]).await;
    assert!(!refused.allowed && refused.shared, "{refused:?}");
    let again = one.limits.begin(address).expect_err("refused without another request to Redis");
    let wait = again.retry_after().expect("a retry time");
    assert!(wait <= Duration::from_millis(500), "{wait:?}");
    tokio::time::sleep(wait).await;
    assert!(one.limits.begin(address).expect("the wait is over").take(&[]).await.allowed);
}

#[tokio::test(flavor = "multi_thread")]
async fn script_touches_only_declared_keys() {
    let redis = need!(Redis::shared_cluster().await);
    let keys = testkit::DeclaredKeysProxy::start(redis, "").await;
    let process = Setup::declared(redis, &keys).open().await;
    for allowed in [true, false] {
        let both = [check("one", "ada", "1/m"), check("two", "ada lovelace", "100/m")];
        assert_eq!(process.limits.take(&both).await.allowed, allowed);
    }
    keys.assert_no_undeclared_keys();
    keys.assert_all_scripts_run(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/shared")));
}
