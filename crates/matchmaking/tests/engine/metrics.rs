//! The metrics that operators see.

use std::time::Duration;

use base::id::Uuid;
use matchmaking::engine::Profile;
use matchmaking::{JoinRequest, Queue};

use crate::on_both_stores;
use crate::plugins::{duels, duels_of};
use crate::world::World;

on_both_stores! {
    minimatch_metric_names_exist_and_count,
    time_to_assignment_is_observed_by_profile,
    age_of_the_oldest_unmatched_ticket_is_exported,
    joins_are_counted_by_queue_and_outcome,
}

async fn minimatch_metric_names_exist_and_count(world: World) {
    let engine = world.engine(vec![duels()]);
    let _: [_; 5] = world.tickets(&[]).await;
    engine.tick().await.unwrap();
    engine.tick().await.unwrap();
    let all = world.all_metrics();
    let expected = [
        ("minimatch_store_tickets_count", 1.0),
        ("minimatch_backend_tickets_fetched_total", 6.0),
        ("minimatch_backend_tickets_assigned_total", 4.0),
        ("minimatch_backend_fetch_tickets_latency_seconds_count", 2.0),
        ("minimatch_backend_match_function_latency_seconds_count{profile=\"duels\"}", 2.0),
        ("minimatch_backend_assigner_latency_seconds_count", 1.0),
        ("minimatch_backend_assign_to_redis_latency_seconds_count", 1.0),
        ("playhouse_matchmaking_tickets_released_total", 2.0),
    ];
    for (name, value) in expected {
        assert_eq!(all.get(name), Some(&value), "{name} in {all:#?}");
    }
    assert!(!all.keys().any(|name| name.contains("_failures_")), "{all:#?}");
}

async fn time_to_assignment_is_observed_by_profile(world: World) {
    let engine = world.engine(vec![duels_of("a"), Profile { name: "b".into(), ..duels_of("b") }]);
    let [_, _] = world.tickets(&["a"]).await;
    world.clock.advance(Duration::from_secs(3));
    let [_, _] = world.tickets(&["b"]).await;
    world.clock.advance(Duration::from_secs(1));
    engine.tick().await.unwrap();
    let seconds = |what: &str, profile: &str| {
        let name =
            format!("playhouse_matchmaking_time_to_assignment_seconds_{what}{{profile=\"{profile}\"}}");
        world.metric(&name)
    };
    for (profile, waited) in [("a", 4.0), ("b", 1.0)] {
        assert_eq!(seconds("count", profile), 2.0);
        assert!((seconds("sum", profile) - 2.0 * waited).abs() < 0.1, "{}", seconds("sum", profile));
    }
}

async fn age_of_the_oldest_unmatched_ticket_is_exported(world: World) {
    let engine = world.engine(vec![duels_of("a")]);
    let age = || world.metric("playhouse_matchmaking_oldest_ticket_age_seconds");
    let alone = world.ticket(&["a"]).await;
    world.clock.advance(Duration::from_secs(7));
    engine.tick().await.unwrap();
    assert!((age() - 7.0).abs() < 0.1, "{}", age());
    let [_] = world.tickets(&["a"]).await;
    let [_] = world.tickets(&["nowhere"]).await;
    world.clock.advance(Duration::from_secs(1));
    let [_] = world.tickets(&["elsewhere"]).await;
    world.clock.advance(Duration::from_secs(1));
    engine.tick().await.unwrap();
    assert!((age() - 2.0).abs() < 0.1, "{}", age());
    assert!(world.is_assigned(&alone).await);
    for left in world.free().await {
        world.store.delete(&left).await.unwrap();
    }
    engine.tick().await.unwrap();
    assert_eq!(age(), 0.0);
}

async fn joins_are_counted_by_queue_and_outcome(world: World) {
    let gone = Queue { cancel_when_gone: Some(Duration::from_secs(30)), ..Queue::default() };
    let queues = [("duel".to_owned(), Queue::default()), ("ranked".to_owned(), gone)];
    let players = world.players(queues);
    let user = Uuid::from_u128(1);
    for queue in ["duel", "duel", "duel", "ranked", "unknown"] {
        let _ = players.join(user, JoinRequest { queue: queue.to_owned(), ..JoinRequest::default() }).await;
    }
    let count = |queue: &str, outcome: &str| {
        let labels = format!("{{queue=\"{queue}\",outcome=\"{outcome}\"}}");
        world.metric(&format!("playhouse_matchmaking_joins_total{labels}"))
    };
    assert_eq!(
        [count("duel", "created"), count("duel", "existing"), count("ranked", "refused")],
        [1.0, 2.0, 1.0]
    );
    assert!(!world.all_metrics().keys().any(|name| name.contains("unknown")), "callers make no labels");
    let present = || world.metric("playhouse_matchmaking_players_present");
    let streams = [players.mark_present(user), players.mark_present(user)];
    assert_eq!(present(), 1.0, "players and not streams");
    drop(streams);
    assert_eq!(present(), 0.0);
}
