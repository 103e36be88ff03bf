//! Matches by rules when an engine does not hold all tickets at once.

use std::sync::Arc;
use std::time::Duration;

use matchmaking::engine::{EngineConfig, Profile, RuleFunction};
use matchmaking::model::TicketId;
use rules::RuleSet;
use testkit::eventually;

use crate::loops::Running;
use crate::plugins::{duels, duels_of, tagged};
use crate::world::{World, engine_config};
use crate::{PATIENCE, on_both_stores};

on_both_stores! {
    partner_behind_the_first_fetch_is_found,
    tickets_of_many_fetches_meet_while_others_come_and_go,
    fallen_minimum_makes_one_match_of_the_tickets_of_two_engines,
    match_with_open_places_waits_a_second_for_the_tickets_of_others,
    engine_with_all_tickets_makes_a_match_with_open_places_at_once,
    held_tickets_are_released_when_the_store_hands_out_no_more,
    age_of_the_oldest_unmatched_ticket_is_reset,
    tickets_of_other_functions_meet_while_rules_wait_for_other_engines,
}

/// Duels of players with nearly the same skill.
const FAIR: &str = "name = \"fair\"\n[attributes.skill]\ntype = \"number\"\n[teams.a]\nmax = 1\n[teams.b]\nmax = 1\n\
    [rules.near]\ntype = \"batch-distance\"\nattribute = \"skill\"\nmax = 10\n";
/// One player may start alone.
const COOP: &str = "name = \"coop\"\n[teams.all]\nmin = 1\nmax = 2\n";

fn profile(world: &World, rules: &str) -> Profile {
    let rules = Arc::new(RuleSet::parse(rules).unwrap());
    Profile { function: Arc::new(RuleFunction::new("duel".into(), rules, world.metrics.clone())), ..duels() }
}

fn limited(fetch_limit: usize) -> EngineConfig {
    EngineConfig { fetch_limit, function_timeout: PATIENCE, ..engine_config() }
}

async fn assigned(world: &World, tickets: &[TicketId]) -> bool {
    for ticket in tickets {
        if !world.is_assigned(ticket).await {
            return false;
        }
    }
    true
}

async fn partner_behind_the_first_fetch_is_found(world: World) {
    let weak = world.ticket_with("skill", 100.0).await;
    let strong = world.ticket_with("skill", 900.0).await;
    let lonely = world.ticket_with("skill", 500.0).await;
    let partner = world.ticket_with("skill", 905.0).await;
    let running = Running::start(&world.engine_with(vec![profile(&world, FAIR)], limited(2)));
    let pair = [strong, partner];
    eventually("the match", PATIENCE, || assigned(&world, &pair)).await;
    running.stop().await;
    assert_eq!(world.made().await.len(), 1);
    assert_eq!(world.free().await, [weak, lonely]);
}

async fn tickets_of_many_fetches_meet_while_others_come_and_go(world: World) {
    // As many as 16 fetches return. The tick is short, because what they hold is released and fetched again a tick later.
    let config = EngineConfig { tick: Duration::from_millis(20), ..limited(2) };
    let first = world.ticket_with("skill", 0.0).await;
    for number in 1..30 {
        world.ticket_with("skill", 1_000.0 * f64::from(number)).await;
    }
    let partner = world.ticket_with("skill", 0.0).await;
    let [one, two] = [(); 2].map(|()| world.engine_with(vec![profile(&world, FAIR)], config.clone()));
    let running = [Running::start(&one), Running::start(&two)];
    let pair = [first, partner];
    eventually("the match", PATIENCE, || assigned(&world, &pair)).await;
    for running in running {
        running.stop().await;
    }
    assert_eq!(world.made().await.len(), 1);
    assert_eq!(world.free().await.len(), 29);
}

async fn fallen_minimum_makes_one_match_of_the_tickets_of_two_engines(world: World) {
    for _ in 0..10 {
        let pair: [TicketId; 2] = world.tickets(&[]).await;
        // Each engine fetches one ticket at a time, so both can have one at once. The clock stands still: no second passes.
        let one = world.engine_with(vec![profile(&world, COOP)], limited(1));
        let two = world.engine_over(world.another_store().await, vec![profile(&world, COOP)], limited(1));
        let running = [Running::start(&one), Running::start(&two)];
        eventually("the match", PATIENCE, || assigned(&world, &pair)).await;
        for running in running {
            running.stop().await;
        }
        let made = world.made().await;
        assert_eq!(made.iter().map(|made| made.ticket_ids.len()).collect::<Vec<_>>(), [2]);
    }
}

async fn match_with_open_places_waits_a_second_for_the_tickets_of_others(world: World) {
    let [held, alone] = world.tickets(&[]).await;
    assert_eq!(world.store.fetch(&"another".into(), 1).await.unwrap().ids, [held]);
    let engine = world.engine_with(vec![profile(&world, COOP)], limited(1000));
    let assigned = async || engine.tick().await.unwrap().assigned;
    assert_eq!(assigned().await, 0);
    world.clock.advance(Duration::from_millis(900));
    assert_eq!(assigned().await, 0);
    world.clock.advance(Duration::from_millis(100));
    assert_eq!(
        assigned().await,
        1,
        "another engine that holds a ticket for long, or died, delays no match for longer"
    );
    assert!(world.is_assigned(&alone).await);
}

async fn engine_with_all_tickets_makes_a_match_with_open_places_at_once(world: World) {
    let [alone] = world.tickets(&[]).await;
    let engine = world.engine_with(vec![profile(&world, COOP)], limited(1000));
    assert_eq!(engine.tick().await.unwrap().assigned, 1);
    assert!(world.is_assigned(&alone).await);
    // The third place of a full fetch may be behind it.
    let three: [TicketId; 3] = world.tickets(&[]).await;
    let running = Running::start(&world.engine_with(vec![profile(&world, COOP)], limited(1)));
    eventually("two matches", PATIENCE, || assigned(&world, &three)).await;
    running.stop().await;
    let sizes: Vec<usize> = world.made().await.iter().map(|made| made.ticket_ids.len()).collect();
    assert_eq!(sizes, [1, 2, 1]);
}

async fn held_tickets_are_released_when_the_store_hands_out_no_more(world: World) {
    let skills = [100.0, 300.0, 500.0, 700.0];
    let mut tickets = Vec::new();
    for skill in skills {
        tickets.push(world.ticket_with("skill", skill).await);
    }
    let running = Running::start(&world.engine_with(vec![profile(&world, FAIR)], limited(2)));
    eventually("all are free again", PATIENCE, async || world.free().await == tickets).await;
    running.stop().await;
}

async fn age_of_the_oldest_unmatched_ticket_is_reset(world: World) {
    let age = || {
        world.all_metrics().get("playhouse_matchmaking_rule_oldest_age_seconds{profile=\"duels\"}").copied()
    };
    let engine = world.engine_with(vec![profile(&world, FAIR)], limited(1000));
    let ticket = world.ticket_with("skill", 100.0).await;
    world.clock.advance(Duration::from_secs(7));
    engine.tick().await.unwrap();
    assert!(age().unwrap() >= 7.0, "{:?}", age());
    world.store.delete(&ticket).await.unwrap();
    engine.tick().await.unwrap();
    assert_eq!(age(), Some(0.0), "no ticket waits");

    world.ticket_with("skill", 100.0).await;
    world.clock.advance(Duration::from_secs(7));
    engine.tick().await.unwrap();
    assert!(age().unwrap() >= 7.0, "{:?}", age());
    engine.set_profiles(vec![duels()]);
    engine.tick().await.unwrap();
    assert_eq!(age(), None, "the profile has no rules any more");
}

async fn tickets_of_other_functions_meet_while_rules_wait_for_other_engines(world: World) {
    // Another engine holds a ticket throughout, so this one may hold its own.
    world.ticket_with("skill", 100.0).await;
    assert_eq!(world.store.fetch(&"another".into(), 1).await.unwrap().ids.len(), 1);
    let ranked = Profile { name: "ranked".into(), pools: vec![tagged("ranked")], ..profile(&world, FAIR) };
    let running = Running::start(&world.engine_with(vec![ranked, duels_of("quick")], limited(1000)));
    for _ in 0..10 {
        let looks = || world.metric("minimatch_backend_fetch_tickets_latency_seconds_count");
        let before = looks();
        let first = world.ticket(&["quick"]).await;
        eventually("looks at one ticket", PATIENCE, async || looks() > before).await;
        let pair = [first, world.ticket(&["quick"]).await];
        eventually("the match", Duration::from_secs(2), || assigned(&world, &pair)).await;
    }
    running.stop().await;
}
