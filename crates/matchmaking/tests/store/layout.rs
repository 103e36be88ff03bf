//! The layout in Redis: the documented keys exactly, our own keys, and nothing else.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use matchmaking::model::SearchFields;
use matchmaking::store::{AfterNotify, AssignOutcome, RECOVERY_LEASE};
use testkit::{Redis, need};
use tokio::sync::Notify;

use crate::setup::{PATIENCE, Raw, Setup, Tickets, group, id, ids, only, ticket};

/// Each step is one script, so the layout is the same under the lock.
async fn both(redis: &Redis) -> [Tickets; 2] {
    [Setup::script(redis).open().await, Setup::lock(redis).open().await]
}

async fn ttl(raw: &mut Raw, key: &str) -> Duration {
    let millis: i64 = raw.ask(&["PTTL", key]).await;
    Duration::from_millis(millis.try_into().expect("a key that expires"))
}

#[tokio::test]
async fn ticket_is_stored_under_its_id_and_in_the_set() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        tickets.create_all(0..2).await;
        assert_eq!(tickets.keys().await, ["allTickets", "t00000", "t00001", "ticketQueue"]);
        assert_eq!(raw.get(&tickets.key("t00001")).await.unwrap(), ticket(1).data);
        let life = ttl(&mut raw, &tickets.key("t00001")).await;
        assert!(life > Duration::from_secs(590) && life <= Duration::from_secs(600), "{life:?}");
        let mut members: Vec<String> = raw.ask(&["SMEMBERS", &tickets.key("allTickets")]).await;
        members.sort();
        assert_eq!(members, ["t00000", "t00001"]);
        let created = ticket(1).created.micros().to_string();
        let score: String = raw.ask(&["ZSCORE", &tickets.key("ticketQueue"), "t00001"]).await;
        assert_eq!(score.parse::<f64>().unwrap(), created.parse::<f64>().unwrap());
        assert_eq!(raw.ask::<i64>(&["PTTL", &tickets.key("allTickets")]).await, -1, "it does not expire");
        let life = ttl(&mut raw, &tickets.key("ticketQueue")).await;
        assert!(life > Duration::from_secs(590) && life <= Duration::from_secs(600), "{life:?}");
    }
}

#[tokio::test]
async fn pending_ticket_is_in_the_sorted_set_by_second() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        tickets.create_all(0..3).await;
        let (before, _): (u64, u64) = raw.ask(&["TIME"]).await;
        assert_eq!(tickets.take(2).await, ids(0..2));
        let (after, _): (u64, u64) = raw.ask(&["TIME"]).await;
        let pending: HashMap<String, f64> =
            raw.ask(&["ZRANGE", &tickets.key("proposed_ticket_ids"), "0", "-1", "WITHSCORES"]).await;
        assert_eq!(pending.len(), 2);
        for number in 0..2 {
            let since = pending[id(number).as_str()];
            assert!(since.floor() >= before as f64 && since.floor() <= after as f64, "{since}");
            assert_eq!(since, pending[id(0).as_str()], "the fraction is the number of the claim");
            assert!(since.fract() > 0.0, "{since}");
        }
        let life = ttl(&mut raw, &tickets.key("claimNumber")).await;
        assert!(
            life > tickets.setup.rules.pending_timeout,
            "numbers are not used again in a live claim: {life:?}"
        );
        tickets.release(&ids([0])).await.unwrap();
        let left: Vec<String> = raw.ask(&["ZRANGE", &tickets.key("proposed_ticket_ids"), "0", "-1"]).await;
        assert_eq!(left, ["t00001"]);
        let all: u64 = raw.ask(&["SCARD", &tickets.key("allTickets")]).await;
        assert_eq!(all, 3, "who is pending takes part still");
    }
}

#[tokio::test]
async fn assigned_ticket_has_a_shorter_ttl_and_left_the_sets() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        tickets.create_all(0..2).await;
        tickets.take(1).await;
        let made = group("match", ids(0..2));
        tickets.assign(std::slice::from_ref(&made)).await.unwrap();
        let keys = ["assign:t00000", "assign:t00001", "claimNumber", "matchEvents", "t00000", "t00001"];
        assert_eq!(tickets.keys().await, keys);
        assert_eq!(raw.get(&tickets.key("assign:t00000")).await.unwrap(), only(&made));
        assert_eq!(raw.get(&tickets.key("t00000")).await.unwrap(), ticket(0).data);
        for key in ["assign:t00000", "assign:t00001", "t00000", "t00001"] {
            let life = ttl(&mut raw, &tickets.key(key)).await;
            assert!(life > Duration::from_secs(50) && life <= Duration::from_secs(60), "{key}: {life:?}");
        }
        let entries = tickets.entries().await;
        let lease = ttl(&mut raw, &tickets.key("matchEventsLease")).await;
        assert!(lease <= RECOVERY_LEASE, "{lease:?}");
        tickets.notify(&entries, AfterNotify::Remove).await.unwrap();
        assert_eq!(raw.ask::<u64>(&["XLEN", &tickets.key("matchEvents")]).await, 0);
        assert!(tickets.entries().await.is_empty());
        assert!(!tickets.keys().await.contains(&"matchEventsLease".to_owned()), "nobody needs it any more");
    }
}

#[tokio::test]
async fn cancelled_ticket_leaves_no_keys() {
    for tickets in both(need!(Redis::shared().await)).await {
        tickets.create_all(0..2).await;
        assert_eq!(tickets.take(1).await, ids([0]));
        for number in 0..2 {
            tickets.delete(&id(number)).await.unwrap();
        }
        assert_eq!(tickets.keys().await, ["claimNumber"], "it expires");
    }
}

#[tokio::test]
async fn deindexed_ticket_keeps_only_its_data() {
    for tickets in both(need!(Redis::shared().await)).await {
        tickets.create_all(0..1).await;
        assert_eq!(tickets.take(1).await, ids([0]));
        tickets.deindex(&id(0)).await.unwrap();
        assert_eq!(tickets.keys().await, ["claimNumber", "t00000"]);
    }
}

#[tokio::test]
async fn refused_match_changes_nothing_in_redis() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        tickets.create_all(0..2).await;
        tickets.take(2).await;
        tickets.delete(&id(1)).await.unwrap();
        let before = tickets.keys().await;
        assert_eq!(before, ["allTickets", "claimNumber", "proposed_ticket_ids", "t00000", "ticketQueue"]);
        let outcome = tickets.assign(&[group("match", ids([0, 1]))]).await.unwrap();
        assert_eq!(outcome, [AssignOutcome::Refused(id(1))]);
        assert_eq!(tickets.keys().await, before);
        assert!(ttl(&mut raw, &tickets.key("t00000")).await > Duration::from_secs(500));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn new_ticket_wakes_one_engine_and_skips_a_dead_one() {
    let redis = need!(Redis::shared().await);
    let tickets = Setup::script(redis).open().await;
    let mut raw = tickets.raw().await;
    let mut wakes = Vec::new();
    for name in ["one", "two"] {
        let (process, wake) = (tickets.clone(), Arc::new(Notify::new()));
        let woken = wake.clone();
        tokio::spawn(async move { process.listen_for_wakes(&name.into(), &woken).await });
        tokio::time::timeout(PATIENCE, wake.notified()).await.unwrap();
        wakes.push(wake);
    }
    for name in ["one", "two", "gone"] {
        tickets.fetch(&name.into(), 10).await.unwrap();
    }
    assert_eq!(raw.ask::<u64>(&["SCARD", &tickets.key("idleEngines")]).await, 3);
    let mut woken = [0, 0];
    for number in 0..2 {
        tickets.create(ticket(number)).await.unwrap();
        let (first, second) = (wakes[0].notified(), wakes[1].notified());
        tokio::pin!(first, second);
        let one = async {
            tokio::select! { () = first => 0, () = second => 1 }
        };
        woken[tokio::time::timeout(PATIENCE, one).await.expect("one of them is woken")] += 1;
    }
    assert_eq!(woken, [1, 1], "each ticket wakes another one");
    let left: Vec<String> = raw.ask(&["SMEMBERS", &tickets.key("idleEngines")]).await;
    assert!(left.is_empty() || left == ["gone"], "{left:?}");
    // An engine that got as many as it requested is not idle.
    assert_eq!(tickets.fetch(&"busy".into(), 2).await.unwrap().ids.len(), 2);
    assert!(!raw.ask::<bool>(&["SISMEMBER", &tickets.key("idleEngines"), "busy"]).await);
}

#[tokio::test]
async fn ticket_without_the_ttl_field_still_expires() {
    let mut setup = Setup::script(need!(Redis::shared().await));
    for (ttl_field, fields) in [(true, 1), (false, 0)] {
        setup.ttl_field = ttl_field;
        let tickets = setup.open().await;
        let id = tickets.frontend.create_from_fields(SearchFields::default()).await.unwrap();
        assert_eq!(tickets.frontend.get(id.as_str()).await.unwrap().persistent_field.len(), fields);
        let life = ttl(&mut tickets.raw().await, &tickets.key(id.as_str())).await;
        assert!(life > Duration::from_secs(590) && life <= Duration::from_secs(600), "{life:?}");
    }
}
