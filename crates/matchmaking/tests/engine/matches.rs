//! Which matches are made.

use std::sync::Arc;
use std::time::Duration;

use base::id::Uuid;
use buffa::Message;
use buffa_types::google::protobuf::{StringValue, Value};
use matchmaking::engine::{EngineConfig, Fifo, Profile, RuleFunction, StaticList, Tick};
use matchmaking::model::{Assignment, Filter, MatchId, Moment, Proposal, Ticket, TicketId};
use matchmaking::store::DeleteOutcome;
use matchmaking::{JoinRequest, PlayerState, QUEUE_FIELD, Queue};
use proto::openmatch;
use serde_json::json;

use crate::plugins::{assigner, duels, duels_of, evaluator, function, pool, servers, tagged};
use crate::world::{Shared, World, engine_config};
use crate::{PATIENCE, on_both_stores};

on_both_stores! {
    tickets_are_paired_and_the_odd_one_waits_for_the_next,
    pools_keep_tickets_apart,
    profile_without_a_match_leaves_tickets_to_other_profiles,
    evaluator_decides_and_the_losing_ticket_is_matched_later,
    default_evaluator_prefers_score_then_age,
    first_of_overlapping_evaluator_choices_is_made,
    unknown_evaluator_choice_fails_the_tick,
    match_without_an_assignment_is_released_in_the_same_tick,
    assignments_of_unknown_matches_are_ignored,
    match_with_a_cancelled_ticket_is_not_made,
    match_with_a_deindexed_ticket_is_not_made,
    match_with_a_cancelled_ticket_is_made_without_the_check,
    match_with_an_assigned_ticket_is_not_made,
    invalid_proposals_are_refused_and_released,
    longest_waiting_tickets_are_assigned_first,
    tickets_match_once_they_have_waited_long_enough,
    missing_ticket_is_in_no_match,
    players_are_matched_within_their_queue,
    players_learn_their_match_and_who_plays_with_them,
    roster_of_a_large_match_is_left_out,
    match_carries_the_version_of_its_profile,
}

async fn tickets_are_paired_and_the_odd_one_waits_for_the_next(world: World) {
    let engine = world.engine(vec![duels()]);
    assert_eq!(engine.tick().await.unwrap(), Tick::default());
    let [a, b, c] = world.tickets(&[]).await;
    let tick = engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 3, assigned: 2, released: 1, failures: 0 });
    assert!(world.is_assigned(&a).await);
    assert_eq!(world.connection(&a).await, world.connection(&b).await);
    assert_eq!(world.connection(&c).await, None);
    assert_eq!(world.free().await, std::slice::from_ref(&c));

    assert_eq!(engine.tick().await.unwrap(), Tick { fetched: 1, assigned: 0, released: 1, failures: 0 });
    let d = world.ticket(&[]).await;
    assert_eq!(engine.tick().await.unwrap(), Tick { fetched: 2, assigned: 2, released: 0, failures: 0 });
    assert!(world.is_assigned(&c).await);
    assert_eq!(world.connection(&c).await, world.connection(&d).await);
    assert_ne!(world.connection(&c).await, world.connection(&a).await);
    assert_eq!(engine.tick().await.unwrap(), Tick::default());
}

async fn pools_keep_tickets_apart(world: World) {
    let both = Profile { name: "both".into(), pools: vec![tagged("red"), tagged("blue")], ..duels() };
    let engine = world.engine(vec![both]);
    let red = world.ticket(&["red"]).await;
    let blue = world.ticket(&["blue"]).await;
    let grey = world.ticket(&["grey", "Red"]).await;
    let tick = engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 3, assigned: 0, released: 3, failures: 0 });
    let second_red = world.ticket(&["red"]).await;
    engine.tick().await.unwrap();
    assert!(world.is_assigned(&red).await);
    assert_eq!(world.connection(&red).await, world.connection(&second_red).await);
    let second_blue = world.ticket(&["blue"]).await;
    engine.tick().await.unwrap();
    assert!(world.is_assigned(&blue).await);
    assert_eq!(world.connection(&blue).await, world.connection(&second_blue).await);
    assert_eq!(world.free().await, [grey]);
}

async fn profile_without_a_match_leaves_tickets_to_other_profiles(world: World) {
    let engine = world.engine(vec![duels_of("a"), duels_of("b")]);
    let [a] = world.tickets(&["a"]).await;
    let [b, c] = world.tickets(&["b"]).await;
    engine.tick().await.unwrap();
    assert!(world.is_assigned(&b).await && world.is_assigned(&c).await);
    assert_eq!(world.free().await, [a]);
}

async fn evaluator_decides_and_the_losing_ticket_is_matched_later(world: World) {
    for winner in ["a", "b"] {
        let picky = evaluator(async move |matches| {
            let won = matches.iter().filter(|made| *made.profile == *winner || matches.len() == 1);
            Ok(won.map(|made| made.id).collect())
        });
        let engine = world.engine(vec![duels_of("a"), duels_of("b")]).with_evaluator(picky);
        let only_a = world.ticket(&["a"]).await;
        let shared = world.ticket(&["a", "b"]).await;
        let only_b = world.ticket(&["b"]).await;
        let tick = engine.tick().await.unwrap();
        assert_eq!(tick, Tick { fetched: 3, assigned: 2, released: 1, failures: 0 });
        let (won, lost) = if winner == "a" { (only_a, only_b) } else { (only_b, only_a) };
        assert!(world.is_assigned(&shared).await);
        assert_eq!(world.connection(&shared).await, world.connection(&won).await);
        assert_eq!(world.free().await, std::slice::from_ref(&lost));
        // The losing ticket is matched with the next one of its kind.
        let next = world.ticket(&[if winner == "a" { "b" } else { "a" }]).await;
        engine.tick().await.unwrap();
        assert!(world.is_assigned(&lost).await);
        assert_eq!(world.connection(&lost).await, world.connection(&next).await);
    }
}

async fn default_evaluator_prefers_score_then_age(world: World) {
    let scored = |tag: &str, score| {
        let first_two = function(move |pools| async move {
            let tickets: Vec<_> = pools.pools[0].1.iter().take(2).cloned().collect();
            Ok(if tickets.len() == 2 { vec![Proposal { tickets, score, lineup: None }] } else { Vec::new() })
        });
        Profile { function: first_two, ..duels_of(tag) }
    };
    for (a_score, b_score, winner) in
        [(1.0, 2.0, "b"), (2.0, 1.0, "a"), (1.0, 1.0, "a"), (f64::NAN, 0.0, "b")]
    {
        let engine = world.engine(vec![scored("b", b_score), scored("a", a_score)]);
        let oldest = world.ticket(&["a"]).await;
        let shared = world.ticket(&["a", "b"]).await;
        let youngest = world.ticket(&["b"]).await;
        engine.tick().await.unwrap();
        let (won, lost) = if winner == "a" { (&oldest, &youngest) } else { (&youngest, &oldest) };
        assert!(world.is_assigned(&shared).await, "{a_score} {b_score}");
        assert_eq!(world.connection(&shared).await, world.connection(won).await, "{a_score} {b_score}");
        assert_eq!(world.free().await, std::slice::from_ref(lost));
        assert_eq!(world.store.delete(lost).await.unwrap(), DeleteOutcome::Deleted);
    }
}

async fn first_of_overlapping_evaluator_choices_is_made(world: World) {
    let all_twice = evaluator(async |matches| {
        let ids = matches.iter().rev().map(|made| made.id);
        Ok(ids.clone().chain(ids).collect())
    });
    let profile = |tag| Profile { name: tag, ..duels() };
    let profiles = vec![profile("a".into()), profile("b".into()), profile("c".into())];
    let engine = world.engine(profiles).with_evaluator(all_twice);
    let [a, b] = world.tickets(&[]).await;
    let tick = engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 2, assigned: 2, released: 0, failures: 0 });
    let made = world.made().await;
    assert_eq!(made.len(), 1, "{made:?}");
    assert_eq!(
        (made[0].match_profile.as_str(), &made[0].ticket_ids),
        ("c", &vec![a.to_string(), b.to_string()])
    );
}

async fn unknown_evaluator_choice_fails_the_tick(world: World) {
    let generous = evaluator(async |matches| {
        Ok(matches.iter().map(|made| made.id).chain([MatchId::generate()]).collect())
    });
    let engine = world.engine(vec![duels()]).with_evaluator(generous);
    let tickets: [_; 5] = world.tickets(&[]).await;
    let tick = engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 5, assigned: 0, released: 5, failures: 1 });
    assert_eq!(world.free().await, tickets);
    assert_eq!(world.failures("", "evaluator"), 1.0);
}

async fn match_without_an_assignment_is_released_in_the_same_tick(world: World) {
    let every_other =
        assigner(async |matches| Ok(servers(&matches).into_iter().skip(1).step_by(2).collect()));
    let engine = world.engine(vec![Profile { assigner: every_other, ..duels() }]);
    let [a, b, c, d, e] = world.tickets(&[]).await;
    let tick = engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 5, assigned: 2, released: 3, failures: 0 });
    assert!(world.is_assigned(&c).await && world.is_assigned(&d).await);
    assert_eq!(world.free().await, [a, b, e]);
}

async fn assignments_of_unknown_matches_are_ignored(world: World) {
    let dreamer = assigner(async |matches| {
        let made_up = (0..3).map(|_| (MatchId::generate(), Assignment::new("nowhere")));
        Ok(made_up.clone().chain(servers(&matches)).chain(made_up).collect())
    });
    let engine = world.engine(vec![Profile { assigner: dreamer, ..duels() }]);
    let [a, b] = world.tickets(&[]).await;
    let tick = engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 2, assigned: 2, released: 0, failures: 0 });
    let made = world.made().await;
    assert_eq!(made.len(), 1);
    assert_eq!(world.connection(&a).await, Some(format!("{}.test:1", made[0].match_id)));
    assert_eq!(world.connection(&a).await, world.connection(&b).await);
}

/// An assigner that runs `act` on the first ticket before it returns.
fn meanwhile<F>(
    world: &World,
    act: impl Fn(matchmaking::Store, TicketId) -> F + Send + Sync + 'static,
) -> Profile
where
    F: Future<Output = ()> + Send + 'static,
{
    let (store, act) = (world.store.clone(), Arc::new(act));
    let slow = assigner(move |matches| {
        let (store, act) = (store.clone(), act.clone());
        async move {
            act(store, matches[0].tickets[0].id.clone()).await;
            Ok(servers(&matches))
        }
    });
    Profile { assigner: slow, ..duels() }
}

async fn match_with_a_cancelled_ticket_is_not_made(world: World) {
    let profile = meanwhile(&world, async |store, first| {
        assert_eq!(store.delete(&first).await.unwrap(), DeleteOutcome::Deleted);
    });
    let engine = world.engine(vec![profile]);
    let [a, b, c, d] = world.tickets(&[]).await;
    let tick = engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 4, assigned: 2, released: 2, failures: 0 });
    assert!(!world.is_assigned(&a).await && !world.is_assigned(&b).await);
    assert!(world.is_assigned(&c).await && world.is_assigned(&d).await);
    assert_eq!(world.free().await, [b], "the other one is active again, the cancelled one is not");
    assert_eq!(world.made().await.len(), 1);
    assert_eq!(world.metric("playhouse_matchmaking_matches_refused_total{profile=\"duels\"}"), 1.0);
}

async fn match_with_a_deindexed_ticket_is_not_made(world: World) {
    let profile = meanwhile(&world, async |store, first| store.deindex(&first).await.unwrap());
    let engine = world.engine(vec![profile]);
    let [a, b] = world.tickets(&[]).await;
    let tick = engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 2, assigned: 0, released: 2, failures: 0 });
    assert!(!world.is_assigned(&a).await && !world.is_assigned(&b).await);
    assert_eq!(world.free().await, [b]);
}

async fn match_with_a_cancelled_ticket_is_made_without_the_check(world: World) {
    let world = world.under(|rules| rules.check_tickets = false);
    let profile = meanwhile(&world, async |store, first| {
        assert_eq!(store.delete(&first).await.unwrap(), DeleteOutcome::Deleted);
    });
    let engine = world.engine(vec![profile]);
    let [a, b] = world.tickets(&[]).await;
    assert_eq!(engine.tick().await.unwrap().assigned, 2);
    assert!(world.is_assigned(&a).await);
    assert_eq!(world.connection(&a).await, world.connection(&b).await);
    assert!(world.free().await.is_empty());
}

async fn match_with_an_assigned_ticket_is_not_made(world: World) {
    // With and without the check: a ticket is never assigned twice.
    for check in [true, false] {
        let world = world.under(|rules| rules.check_tickets = check);
        let rival = Arc::new(world.engine(vec![duels()]));
        let profile = meanwhile(&world, move |store, _| {
            let rival = rival.clone();
            async move {
                // As if the pending timeout had passed.
                let (ids, _) = store.list(10).await.unwrap();
                store.release(&ids).await.unwrap();
                assert_eq!(rival.tick().await.unwrap().assigned, 2);
            }
        });
        let engine = world.engine(vec![profile]);
        let [a, b] = world.tickets(&[]).await;
        let tick = engine.tick().await.unwrap();
        assert_eq!(tick, Tick { fetched: 2, assigned: 0, released: 2, failures: 0 });
        let made = world.made().await;
        assert_eq!(made.len(), 1);
        let connection = Some(format!("{}.test:1", made[0].match_id));
        assert_eq!(
            [world.connection(&a).await, world.connection(&b).await],
            [connection.clone(), connection]
        );
        assert!(world.free().await.is_empty());
    }
}

/// Returns the proposals, given the tickets of the pool.
type Propose = Box<dyn Fn(Vec<Arc<Ticket>>) -> Vec<Proposal> + Send + Sync>;

async fn invalid_proposals_are_refused_and_released(world: World) {
    let stranger = world.ticket(&["stranger"]).await;
    // Captures the tickets of another pool, so that a function can propose them.
    let seen: Shared<Vec<_>> = Shared::default();
    let (spy, loot) = (seen.clone(), seen);
    let spying = function(move |pools| {
        *spy.lock().unwrap() = pools.pools[0].1.clone();
        async { Ok(Vec::new()) }
    });
    let spying = Profile { function: spying, ..duels_of("stranger") };
    world.engine(vec![spying]).tick().await.unwrap();
    let loot = loot.lock().unwrap()[0].clone();

    let cases: [(&str, Propose); 4] = [
        ("of another pool", Box::new(move |given| vec![Proposal::new(vec![given[0].clone(), loot.clone()])])),
        (
            "made up",
            Box::new(|given| {
                let made_up = Ticket { id: TicketId::parse("made-up").unwrap(), ..(*given[0]).clone() };
                vec![Proposal::new(vec![given[0].clone(), made_up.into()])]
            }),
        ),
        ("twice", Box::new(|given| vec![Proposal::new(vec![given[0].clone(), given[0].clone()])])),
        ("empty", Box::new(|given| vec![Proposal::new(given), Proposal::new(Vec::new())])),
    ];
    let [good_a, good_b] = world.tickets(&["good"]).await;
    let [bad_a, bad_b] = world.tickets(&["bad"]).await;
    for (case, propose) in cases {
        let before = world.failures("bad", "match_function");
        let propose = function({
            let propose = Arc::new(propose);
            move |pools| {
                let propose = propose.clone();
                async move { Ok(propose(pools.pools[0].1.clone())) }
            }
        });
        let engine = world.engine(vec![Profile { function: propose, ..duels_of("bad") }]);
        let tick = engine.tick().await.unwrap();
        assert_eq!((tick.assigned, tick.failures), (0, 1), "{case}");
        assert_eq!(tick.released, tick.fetched, "{case}");
        assert_eq!(world.failures("bad", "match_function") - before, 1.0, "{case}");
        let free = world.free().await;
        assert_eq!(free, [&stranger, &good_a, &good_b, &bad_a, &bad_b].map(Clone::clone), "{case}");
    }
    assert!(world.made().await.is_empty());
}

async fn longest_waiting_tickets_are_assigned_first(world: World) {
    const LIMIT: usize = 20;
    let mut order: Vec<i64> = (0..10 * LIMIT as i64).collect();
    fastrand::Rng::with_seed(7).shuffle(&mut order);
    let start = Moment::from(world.clock.now()).micros();
    let mut tickets = Vec::new();
    for at in order {
        tickets.push((at, world.put_at(Moment::from_micros(start + at)).await));
    }
    tickets.sort();
    let assigned: Shared<Vec<TicketId>> = Shared::default();
    let seen = assigned.clone();
    let watched = assigner(move |matches| {
        let tickets = matches.iter().flat_map(|made| &made.tickets).map(|ticket| ticket.id.clone());
        seen.lock().unwrap().extend(tickets);
        async move { Ok(servers(&matches)) }
    });
    let config = EngineConfig { fetch_limit: LIMIT, ..engine_config() };
    let engine = world.engine_with(vec![Profile { assigner: watched, ..duels() }], config);
    for _ in 0..10 {
        assert_eq!(engine.tick().await.unwrap().assigned, LIMIT);
    }
    let expected: Vec<TicketId> = tickets.into_iter().map(|(_, id)| id).collect();
    assert_eq!(*assigned.lock().unwrap(), expected);
}

async fn tickets_match_once_they_have_waited_long_enough(world: World) {
    let patient = pool(vec![Filter::MinWait(Duration::from_secs(10))]);
    let eager = pool(vec![Filter::MaxWait(Duration::from_secs(5)), Filter::Tag("eager".to_owned())]);
    let profile = |name: &str, pool| Profile { name: name.into(), pools: vec![pool], ..duels() };
    let engine = world.engine(vec![profile("patient", patient), profile("eager", eager)]);
    let [a, b] = world.tickets(&[]).await;
    let late = world.ticket(&["eager"]).await;
    assert_eq!(engine.tick().await.unwrap().assigned, 0);
    world.clock.advance(Duration::from_millis(5_001));
    let too_late = world.ticket(&["eager"]).await;
    assert_eq!(engine.tick().await.unwrap().assigned, 0, "one of two is not eager any more");
    world.clock.advance(Duration::from_millis(4_998));
    assert_eq!(engine.tick().await.unwrap().assigned, 0);
    world.clock.advance(Duration::from_millis(2));
    assert_eq!(engine.tick().await.unwrap().assigned, 2);
    assert!(world.is_assigned(&a).await && world.is_assigned(&b).await);
    assert_eq!(world.free().await, [late, too_late]);
}

async fn missing_ticket_is_in_no_match(world: World) {
    // The engine has cached the first ticket in an earlier tick.
    let engine = world.engine(vec![Profile {
        assigner: Arc::new(StaticList::new(vec!["{match_id}.test:1".to_owned()])),
        ..duels()
    }]);
    let gone = world.ticket(&[]).await;
    engine.tick().await.unwrap();
    world.store.delete(&gone).await.unwrap();
    let [a, b] = world.tickets(&[]).await;
    assert_eq!(engine.tick().await.unwrap(), Tick { fetched: 2, assigned: 2, released: 0, failures: 0 });
    let made = world.made().await;
    assert_eq!(made[0].ticket_ids, [a.to_string(), b.to_string()]);
    assert_eq!(world.connection(&a).await, Some(format!("{}.test:1", made[0].match_id)));
    assert!(world.free().await.is_empty());
}

async fn players_are_matched_within_their_queue(world: World) {
    let queues = ["duel", "ranked"].map(|name| (name.to_owned(), Queue::default()));
    let players = world.players(queues);
    let filter = Filter::Text { field: QUEUE_FIELD.to_owned(), value: "ranked".to_owned() };
    let ranked = Profile { pools: vec![pool(vec![filter])], ..duels() };
    let engine = world.engine(vec![ranked]);
    let mut tickets = Vec::new();
    for (number, queue) in ["ranked", "duel", "ranked", "duel"].into_iter().enumerate() {
        let user = Uuid::from_u128(number as u128);
        let join = JoinRequest { queue: queue.to_owned(), ..JoinRequest::default() };
        tickets.push((user, players.join(user, join).await.unwrap().ticket));
    }
    let tick = engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 4, assigned: 2, released: 2, failures: 0 });
    for (user, before) in tickets {
        let ticket = players.ticket(user, before.id.as_str()).await.unwrap();
        let is_ranked = ticket.queue == "ranked";
        assert_eq!(ticket.state == PlayerState::Assigned, is_ranked, "{ticket:?}");
        assert_eq!(ticket.assignment.is_some(), is_ranked);
    }
}

/// Returns the extension with this name in the stored assignment of a ticket.
async fn stored(world: &World, id: &TicketId, name: &str) -> serde_json::Value {
    let data = world.store.find(id).await.unwrap().assignment.unwrap();
    let assignment = openmatch::Assignment::decode_from_slice(&data).unwrap();
    let any = &assignment.extensions[name];
    match any.type_url.ends_with("StringValue") {
        true => json!(StringValue::decode_from_slice(&any.value).unwrap().value),
        false => serde_json::to_value(Value::decode_from_slice(&any.value).unwrap()).unwrap(),
    }
}

fn rules(world: &World, text: &str) -> Profile {
    let rules = Arc::new(rules::RuleSet::parse(text).unwrap());
    let function = Arc::new(RuleFunction::new("duels".into(), rules, world.metrics.clone()));
    Profile { function, ..duels() }
}

async fn players_learn_their_match_and_who_plays_with_them(world: World) {
    let users: Vec<String> = (1..=3).map(|user| Uuid::from_u128(user).to_string()).collect();
    let single = world.ticket_of(&users[0]).await;
    let unnamed = world.ticket(&[]).await;
    world.engine(vec![duels()]).tick().await.unwrap();
    let made = world.made().await;
    let teams = json!([{ "players": [users[0]], "tickets": [unnamed.as_str()] }]);
    let expected = json!({ "id": made[0].match_id, "profile": "duels", "teams": teams });
    for ticket in [&single, &unnamed] {
        assert_eq!(stored(&world, ticket, "match").await, expected);
    }

    let party = world.ticket_of_party(&users[..2]).await;
    let single = world.ticket_of(&users[2]).await;
    let config = EngineConfig { function_timeout: PATIENCE, ..engine_config() };
    let profile = rules(&world, "name = \"two\"\n[teams.red]\nmax = 1\n[teams.blue]\nmax = 1\n");
    world.engine_with(vec![profile], config).tick().await.unwrap();
    let made = world.made().await;
    for ticket in [&party, &single] {
        let seen = stored(&world, ticket, "match").await;
        assert_eq!(seen["id"], made[0].match_id, "{seen}");
        let own = stored(&world, ticket, "team").await;
        let team = seen["teams"].as_array().unwrap().iter().find(|team| team["name"] == own).unwrap();
        let expected = if *ticket == party { json!(users[..2]) } else { json!(users[2..]) };
        assert_eq!(*team, json!({ "name": own, "players": expected }));
    }
}

async fn roster_of_a_large_match_is_left_out(world: World) {
    for (players, is_listed) in [(16, true), (40, true), (60, false), (200, false)] {
        let mut tickets = Vec::new();
        for user in 0..players {
            tickets.push(world.ticket_of(&Uuid::from_u128(user).to_string()).await);
        }
        let profile = Profile { function: Arc::new(Fifo::new(players as usize)), ..duels() };
        assert_eq!(world.engine(vec![profile]).tick().await.unwrap().assigned, players as usize);
        let seen = stored(&world, &tickets[0], "match").await;
        assert_eq!(seen.get("teams").is_some(), is_listed, "{players} players: {seen}");
        assert_eq!(seen["id"], world.made().await[0].match_id);
        let data = world.store.find(&tickets[0]).await.unwrap().assignment.unwrap();
        assert!(data.len() < 2_600, "{players} players take {} bytes for each of them", data.len());
    }
}

async fn match_carries_the_version_of_its_profile(world: World) {
    let engine = world.engine(vec![Profile { version: 4, ..duels() }]);
    let _: [TicketId; 2] = world.tickets(&[]).await;
    engine.tick().await.unwrap();
    assert_eq!(world.made().await[0].profile_version, Some(4));
}
