//! Failing plugins: which tickets are affected, and for how long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use matchmaking::engine::{Profile, Tick};
use matchmaking::model::TicketId;
use testkit::eventually;
use tokio::time::Instant;

use crate::plugins::{Fault, assigner, duels, duels_of, evaluator, function};
use crate::world::World;
use crate::{PATIENCE, on_both_stores};

/// No tick waits for a plugin beyond its deadline; the rest is slack for a busy machine.
const TICK: Duration = Duration::from_millis(600);

on_both_stores! {
    failing_match_function_costs_its_own_profile_one_tick,
    failing_assigner_costs_its_own_profile_one_tick,
    failing_evaluator_costs_all_profiles_one_tick,
    all_plugins_of_all_profiles_may_fail_at_once,
    another_engine_can_fetch_tickets_of_a_failed_assigner_at_once,
    plugin_is_called_again_after_a_failure,
}

/// Ticks while the plugin of one tag fails. The other tickets are assigned, and the failed ones are free at once.
async fn assert_only_the_failing_profile_waits(
    world: &World,
    engine: &matchmaking::Engine,
    step: &str,
    fault: Fault,
) {
    let [bad_a, bad_b, bad_c] = world.tickets(&["bad"]).await;
    let [good_a, good_b] = world.tickets(&["good"]).await;
    let before = world.failures("bad", step);
    let started = Instant::now();
    let tick = engine.tick().await.unwrap();
    assert!(started.elapsed() < TICK, "{fault:?}: {:?}", started.elapsed());
    assert_eq!(tick, Tick { fetched: 5, assigned: 2, released: 3, failures: 1 }, "{fault:?}");
    assert_eq!(world.free().await, [&bad_a, &bad_b, &bad_c].map(Clone::clone), "{fault:?}");
    assert!(world.is_assigned(&good_a).await && world.is_assigned(&good_b).await, "{fault:?}");
    assert_eq!(world.failures("bad", step) - before, 1.0, "{fault:?}");
    assert_eq!(world.failures("good", step), 0.0, "{fault:?}");
    for bad in [bad_a, bad_b, bad_c] {
        assert!(!world.is_assigned(&bad).await, "{fault:?}");
        world.store.delete(&bad).await.unwrap();
    }
    assert_eq!(world.made().await.len(), 1, "{fault:?}");
}

async fn failing_match_function_costs_its_own_profile_one_tick(world: World) {
    for fault in Fault::ALL {
        let failing = function(move |_| fault.happen());
        let bad = Profile { function: failing, ..duels_of("bad") };
        let engine = world.engine(vec![bad, duels_of("good")]);
        assert_only_the_failing_profile_waits(&world, &engine, "match_function", fault).await;
    }
}

async fn failing_assigner_costs_its_own_profile_one_tick(world: World) {
    for fault in Fault::ALL {
        let failing = assigner(move |_| fault.happen());
        let engine = world.engine(vec![Profile { assigner: failing, ..duels_of("bad") }, duels_of("good")]);
        assert_only_the_failing_profile_waits(&world, &engine, "assigner", fault).await;
    }
}

async fn failing_evaluator_costs_all_profiles_one_tick(world: World) {
    let tickets: [TicketId; 5] = world.tickets(&["a"]).await;
    for (count, fault) in (1_u8..).zip(Fault::ALL) {
        let engine = world.engine(vec![duels_of("a"), duels_of("b")]);
        let engine = engine.with_evaluator(evaluator(move |_| fault.happen()));
        let started = Instant::now();
        let tick = engine.tick().await.unwrap();
        assert!(started.elapsed() < TICK, "{fault:?}: {:?}", started.elapsed());
        assert_eq!(tick, Tick { fetched: 5, assigned: 0, released: 5, failures: 1 }, "{fault:?}");
        assert_eq!(world.free().await, tickets, "{fault:?}");
        assert_eq!(world.failures("", "evaluator"), f64::from(count), "{fault:?}");
    }
    assert!(world.made().await.is_empty());
}

async fn all_plugins_of_all_profiles_may_fail_at_once(world: World) {
    let profiles = Fault::ALL.map(|fault| Profile {
        name: format!("{fault:?}").into(),
        function: function(move |_| fault.happen()),
        ..duels()
    });
    let tickets: [TicketId; 3] = world.tickets(&[]).await;
    let tick = world.engine(profiles.to_vec()).tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 3, assigned: 0, released: 3, failures: 4 });
    assert_eq!(world.free().await, tickets);
    for fault in Fault::ALL {
        assert_eq!(world.failures(&format!("{fault:?}"), "match_function"), 1.0, "{fault:?}");
    }
}

async fn another_engine_can_fetch_tickets_of_a_failed_assigner_at_once(world: World) {
    let failing = assigner(async |_| Fault::Error.happen().await);
    let unlucky = world.engine(vec![Profile { assigner: failing, ..duels() }]);
    let another =
        world.engine_over(world.another_store().await, vec![duels()], crate::world::engine_config());
    let [a, b] = world.tickets(&[]).await;
    assert_eq!(unlucky.tick().await.unwrap(), Tick { fetched: 2, assigned: 0, released: 2, failures: 1 });
    assert!(!world.is_assigned(&a).await && !world.is_assigned(&b).await);
    assert_eq!(another.tick().await.unwrap(), Tick { fetched: 2, assigned: 2, released: 0, failures: 0 });
    assert!(world.is_assigned(&a).await);
    assert_eq!(world.connection(&a).await, world.connection(&b).await);
}

async fn plugin_is_called_again_after_a_failure(world: World) {
    let calls = Arc::new(AtomicUsize::new(0));
    let faults = Fault::ALL;
    let moody = assigner(move |matches| {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        async move {
            match faults.get(call) {
                Some(fault) => fault.happen().await,
                None => Ok(crate::plugins::servers(&matches)),
            }
        }
    });
    let engine = world.engine(vec![Profile { assigner: moody, ..duels() }]);
    let [a, b] = world.tickets(&[]).await;
    // Each failure is followed by a pause.
    eventually("they play", PATIENCE, async || engine.tick().await.unwrap().assigned == 2).await;
    assert!(world.is_assigned(&a).await && world.is_assigned(&b).await);
    assert_eq!(world.failures("duels", "assigner"), 4.0);
}
