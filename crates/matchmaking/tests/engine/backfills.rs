//! Profiles with backfills: a match with room gets one, and tickets that come later join it.

use std::sync::Arc;
use std::time::Duration;

use matchmaking::engine::{
    EngineConfig, MatchFunction, PluginFuture, Pools, Profile, ProposedJoin, RuleFunction,
};
use matchmaking::model::{Any, Assignment, BackfillId, Match, Moment, Proposal, TicketId};
use matchmaking::store::{OpenRoom, ReadyAnswer, Seat};
use matchmaking::{Engine, Error};
use proto::openmatch::{self, AcknowledgeBackfillResponse, Backfill};
use rules::RuleSet;

use crate::plugins::{assigner, duels, pool, servers};
use crate::world::{Shared, World, engine_config};
use crate::{PATIENCE, on_both_stores};

on_both_stores! {
    match_with_room_gets_a_backfill_in_the_step_that_assigns_it,
    request_to_a_webhook_names_the_backfill,
    refused_match_gets_no_backfill,
    full_match_and_profile_without_backfills_get_none,
    match_gets_its_backfill_once_all_players_are_ready,
    oldest_tickets_that_fit_join_before_new_matches_are_made,
    cancelled_ticket_leaves_its_place_to_another,
    two_engines_never_fill_one_place_twice,
    players_join_only_in_the_region_and_the_role_that_are_left,
    backfill_of_a_game_server_that_is_gone_is_not_filled,
    failed_match_function_costs_no_ticket_a_match,
}

const RULES: &str = "name = \"coop\"\nversion = \"3\"\n[attributes.level]\ntype = \"number\"\n\
    [teams.heroes]\nmin = 2\nmax = 4\n[rules.level]\ntype = \"batch-distance\"\nattribute = \"level\"\nmax = 10\n";

fn coop_with(world: &World, rules: &str) -> Profile {
    let rules = Arc::new(RuleSet::parse(rules).unwrap());
    let function = RuleFunction::new("coop".into(), rules, world.metrics.clone()).with_definition("coop", 2);
    let pools = vec![pool(Vec::new())];
    Profile { name: "coop".into(), function: Arc::new(function), pools, backfill: true, ..duels() }
}

fn coop(world: &World) -> Profile {
    coop_with(world, RULES)
}

/// Creates tickets with these levels, each a second younger than the one before.
async fn levels<const N: usize>(world: &World, levels: [f64; N]) -> [TicketId; N] {
    let mut ids = Vec::new();
    for level in levels {
        world.clock.advance(Duration::from_secs(1));
        ids.push(world.ticket_with("level", level).await);
    }
    ids.try_into().unwrap()
}

async fn backfills(world: &World) -> Vec<BackfillId> {
    world.store.live_backfills().await.unwrap()
}

/// Makes a match of two. Returns its backfill.
async fn begin(world: &World, engine: &Engine) -> BackfillId {
    levels(world, [1.0, 2.0]).await;
    assert_eq!(engine.tick().await.unwrap().assigned, 2);
    backfills(world).await.pop().unwrap()
}

/// Returns the open places of a backfill.
fn open(backfill: &Backfill) -> f64 {
    backfill.search_fields.double_args["open"]
}

fn text(extensions: &openmatch::Assignment, name: &str) -> String {
    let any = &extensions.extensions[name];
    let text: buffa_types::google::protobuf::StringValue =
        buffa::Message::decode_from_slice(&any.value).unwrap();
    text.value
}

async fn acknowledge(world: &World, id: &BackfillId) -> Result<AcknowledgeBackfillResponse, Error> {
    let assignment = openmatch::Assignment { connection: "server:1".to_owned(), ..Default::default() };
    world.backfills().acknowledge(id.as_str(), Some(assignment)).await
}

/// Returns the tickets that a game server gets, by age.
async fn joined(world: &World, id: &BackfillId) -> Vec<TicketId> {
    let answer = acknowledge(world, id).await.unwrap();
    let mut ids: Vec<TicketId> =
        answer.tickets.iter().map(|ticket| TicketId::parse(&ticket.id).unwrap()).collect();
    ids.sort();
    ids
}

async fn match_with_room_gets_a_backfill_in_the_step_that_assigns_it(world: World) {
    let seen: Shared<Vec<Option<BackfillId>>> = Shared::default();
    let requested = seen.clone();
    let assigner = assigner(move |matches| {
        requested.lock().unwrap().extend(matches.iter().map(|made| made.backfill.clone()));
        async move { Ok(servers(&matches)) }
    });
    let engine = world.engine(vec![Profile { assigner, ..coop(&world) }]);
    let id = begin(&world, &engine).await;
    assert_eq!(*seen.lock().unwrap(), [Some(id.clone())], "the request for a server names it");
    let made = world.made().await;
    assert_eq!((made.len(), &*made[0].backfill_id), (1, ""), "these tickets did not join");

    let backfill = world.frontend.backfills().get(id.as_str()).await.unwrap();
    assert_eq!((backfill.generation, open(&backfill)), (1, 2.0));
    assert_eq!(backfill.search_fields.string_args["match_profile"], "coop");
    let value = |name: &str| {
        let data = &backfill.extensions[name].value;
        let value: buffa_types::google::protobuf::Value = buffa::Message::decode_from_slice(data).unwrap();
        serde_json::to_value(value).unwrap()
    };
    assert_eq!(value("teams"), serde_json::json!([{ "name": "heroes", "open": 2.0 }]));
    assert_eq!(value("rules")["definition"], serde_json::json!({ "name": "coop", "version": 2.0 }));
    assert_eq!(world.metric("playhouse_matchmaking_backfills_opened_total{profile=\"coop\"}"), 1.0);
}

async fn request_to_a_webhook_names_the_backfill(world: World) {
    let service = crate::webhook::Service::start(crate::webhook::all).await;
    let assigner = crate::webhook::profile(&service.url, None, &world.clock).assigner;
    let config = EngineConfig { assigner_timeout: PATIENCE, ..engine_config() };
    let engine = world.engine_with(vec![Profile { assigner, ..coop(&world) }], config);
    let id = begin(&world, &engine).await;
    levels(&world, [50.0, 50.0, 51.0, 52.0]).await;
    assert_eq!(engine.tick().await.unwrap().assigned, 4);
    let requests = service.questions();
    let asked = |at: usize| -> serde_json::Value { serde_json::from_slice(&requests[at].1).unwrap() };
    let [with_room, full] = [0, 1].map(|at| asked(at)["matches"][0].clone());
    assert_eq!((&with_room["backfill_id"], &with_room["teams"][0]["open"]), (&id.as_str().into(), &2.into()));
    assert_eq!((full.get("backfill_id"), &full["teams"][0]["open"]), (None, &0.into()));
}

async fn refused_match_gets_no_backfill(world: World) {
    let store = world.store.clone();
    let assigner = assigner(move |matches: Vec<Match>| {
        let store = store.clone();
        async move {
            store.delete(&matches[0].tickets[0].id).await.unwrap();
            Ok(servers(&matches))
        }
    });
    let engine = world.engine(vec![Profile { assigner, ..coop(&world) }]);
    let [_, other] = levels(&world, [1.0, 2.0]).await;
    assert_eq!(engine.tick().await.unwrap().assigned, 0);
    assert_eq!(backfills(&world).await, []);
    assert_eq!(world.free().await, [other]);
}

async fn full_match_and_profile_without_backfills_get_none(world: World) {
    levels(&world, [1.0, 2.0, 3.0, 4.0]).await;
    assert_eq!(world.engine(vec![coop(&world)]).tick().await.unwrap().assigned, 4);
    levels(&world, [1.0, 2.0]).await;
    let without = Profile { backfill: false, ..coop(&world) };
    assert_eq!(world.engine(vec![without]).tick().await.unwrap().assigned, 2);
    assert_eq!(backfills(&world).await, []);
}

async fn match_gets_its_backfill_once_all_players_are_ready(world: World) {
    let rules = RULES.replace("type = \"number\"", "type = \"number\"\ndefault = 1");
    let asking = Profile { ready_check: Some(Duration::from_secs(30)), ..coop_with(&world, &rules) };
    let engine = world.engine(vec![asking]);
    let users = [1, 2].map(base::id::Uuid::from_u128);
    let mut ids = Vec::new();
    for user in users {
        ids.push(world.ticket_of(&user.to_string()).await);
    }
    engine.tick().await.unwrap();
    assert_eq!(backfills(&world).await, []);
    for (id, user) in ids.iter().zip(users) {
        world.store.answer_ready_check(id, user, ReadyAnswer::Accept).await.unwrap();
    }
    assert_eq!(engine.tick_ready_checks().await.unwrap().assigned, 2);
    let id = backfills(&world).await.pop().unwrap();
    // Who comes later is not asked.
    let late = world.ticket_of(&base::id::Uuid::from_u128(3).to_string()).await;
    engine.tick().await.unwrap();
    assert_eq!(joined(&world, &id).await, [late]);
}

async fn oldest_tickets_that_fit_join_before_new_matches_are_made(world: World) {
    let engine = world.engine(vec![coop(&world)]);
    let id = begin(&world, &engine).await;
    let begun = world.made().await.remove(0);
    let [far, first, second, third] = levels(&world, [50.0, 9.0, 3.0, 4.0]).await;
    let tick = engine.tick().await.unwrap();
    assert_eq!((tick.fetched, tick.assigned, tick.released, tick.failures), (4, 0, 2, 0));
    assert_eq!(world.free().await, [far, third], "one breaks a rule, one finds no place");
    assert_eq!(world.metric("playhouse_matchmaking_backfill_tickets_joined_total{profile=\"coop\"}"), 2.0);
    let waiting = world.store.backfill_status(&id).await.unwrap().unwrap().waiting;
    assert_eq!(waiting, [first.clone(), second.clone()]);
    assert!(!world.is_assigned(&first).await, "the game server takes them in first");

    let answer = acknowledge(&world, &id).await.unwrap();
    assert_eq!(open(&answer.backfill), 0.0);
    assert_eq!(answer.tickets.len(), 2);
    for ticket in [&first, &second] {
        let assignment = world.assignment(ticket).await;
        assert_eq!((&*assignment.connection, &*text(&assignment, "team")), ("server:1", "heroes"));
        assert!(assignment.extensions.contains_key("rules"));
    }
    let made = world.made().await;
    assert_eq!((made.len(), &*made[0].backfill_id), (1, id.as_str()));
    assert_eq!((&*made[0].match_profile, made[0].definition_version), ("coop", 2));
    assert_ne!(made[0].match_id, begun.match_id);
    assert_eq!(backfills(&world).await, [], "it is full");
    assert!(matches!(acknowledge(&world, &id).await, Err(Error::BackfillNotFound(_))));
    assert_eq!(world.metric("playhouse_matchmaking_backfills_filled_total"), 1.0);
}

async fn cancelled_ticket_leaves_its_place_to_another(world: World) {
    let engine = world.engine(vec![coop(&world)]);
    let id = begin(&world, &engine).await;
    let [first, second] = levels(&world, [1.0, 1.0]).await;
    engine.tick().await.unwrap();
    world.store.delete(&first).await.unwrap();
    let [third, fourth] = levels(&world, [1.0, 1.0]).await;
    engine.tick().await.unwrap();
    assert_eq!(world.free().await, [fourth]);
    assert_eq!(joined(&world, &id).await, [second, third]);
    assert_eq!(backfills(&world).await, []);
}

async fn two_engines_never_fill_one_place_twice(world: World) {
    let engines = [0, 1].map(|_| world.engine(vec![coop(&world)]));
    let id = begin(&world, &engines[0]).await;
    for _ in 0..5 {
        levels(&world, [1.0; 3]).await;
        let (one, two) = tokio::join!(engines[0].tick(), engines[1].tick());
        assert_eq!(one.unwrap().failures + two.unwrap().failures, 0);
    }
    let seats = world.store.open_rooms(std::slice::from_ref(&id)).await.unwrap().remove(0).seats;
    assert_eq!(seats.len(), 4, "{seats:?}");
    assert_eq!(joined(&world, &id).await.len(), 2);
    let assigned: usize = world.made().await.iter().map(|made| made.ticket_ids.len()).sum();
    let waiting = world.free().await.len();
    let in_others: usize = {
        let mut waiting = 0;
        for id in backfills(&world).await {
            waiting += world.store.backfill_status(&id).await.unwrap().unwrap().waiting.len();
        }
        waiting
    };
    assert_eq!(assigned + waiting + in_others, 17);
}

async fn players_join_only_in_the_region_and_the_role_that_are_left(world: World) {
    let rules = "name = \"raid\"\nrole_attribute = \"role\"\n[attributes.role]\ntype = \"string-list\"\ndefault = []\n\
        [teams.raid]\nmin = 2\nmax = 4\nroles = { tank = { max = 1 }, healer = { max = 1 }, damage = { max = 2 } }\n\
        [rules.near]\ntype = \"latency\"\nmax = 100\n";
    let in_us = assigner(async |matches: Vec<Match>| {
        let region = Any {
            type_url: "type.googleapis.com/google.protobuf.StringValue".to_owned(),
            value: "\x0a\x02us".into(),
        };
        let server = |made: &Match| {
            let extensions = [("region".to_owned(), region.clone())].into();
            (made.id, Assignment { extensions, ..Assignment::new("server:1") })
        };
        Ok(matches.iter().map(server).collect())
    });
    let engine = world.engine(vec![Profile { assigner: in_us, ..coop_with(&world, rules) }]);
    let raider = async |role: &str, regions: &[(&str, f64)]| {
        world.clock.advance(Duration::from_secs(1));
        let tags: Vec<String> = if role.is_empty() { Vec::new() } else { vec![format!("role={role}")] };
        let latency = regions.iter().map(|(name, latency)| (format!("latency.{name}"), *latency));
        world.ticket_of_fields(tags, latency.collect()).await
    };
    let both = [("eu", 20.0), ("us", 60.0)];
    // Who names no role gets the first one that is free, and plays it from then on.
    raider("", &both).await;
    raider("healer", &both).await;
    assert_eq!(engine.tick().await.unwrap().assigned, 2);
    let id = backfills(&world).await.pop().unwrap();
    raider("damage", &[("eu", 10.0), ("us", 150.0)]).await;
    raider("healer", &both).await;
    raider("tank", &both).await;
    let damage = raider("damage", &both).await;
    engine.tick().await.unwrap();
    let listed = joined(&world, &id).await;
    assert_eq!(text(&world.assignment(&damage).await, "team"), "raid");
    assert_eq!(listed, [damage], "the others are too far, or have no role");
    let seats = world.store.open_rooms(&[id]).await.unwrap().remove(0).seats;
    let mut roles: Vec<&String> = seats.values().flat_map(|seat| &seat.roles).collect();
    roles.sort();
    assert_eq!(roles, ["damage", "healer", "tank"]);
    assert!(seats.values().all(|seat| seat.players[0]["latency"].get("eu").is_none()), "{seats:?}");
}

async fn backfill_of_a_game_server_that_is_gone_is_not_filled(world: World) {
    let engine = world.engine(vec![coop(&world)]);
    let id = begin(&world, &engine).await;
    let [late] = levels(&world, [1.0]).await;
    world.frontend.backfills().delete(id.as_str()).await.unwrap();
    engine.tick().await.unwrap();
    assert_eq!(world.free().await, [late]);
}

/// Follows rules, and lets a ticket join that does not exist.
struct Careless(RuleFunction);

impl MatchFunction for Careless {
    fn name(&self) -> &'static str {
        "careless"
    }

    fn make_matches<'a>(&'a self, pools: &'a Pools) -> PluginFuture<'a, Vec<Proposal>> {
        self.0.make_matches(pools)
    }

    fn seats(
        &self,
        match_: &Match,
        region: Option<&str>,
        now: Moment,
    ) -> Option<std::collections::BTreeMap<TicketId, Seat>> {
        self.0.seats(match_, region, now)
    }

    fn fill<'a>(&'a self, rooms: &'a [OpenRoom], _: &'a Pools) -> PluginFuture<'a, Vec<ProposedJoin>> {
        let seats = vec![(TicketId::parse("nobody").unwrap(), Seat::default())];
        let join = ProposedJoin { backfill: rooms[0].id.clone(), seats };
        Box::pin(async { Ok(vec![join]) })
    }
}

async fn failed_match_function_costs_no_ticket_a_match(world: World) {
    let rules = Arc::new(RuleSet::parse(RULES).unwrap());
    let function = Arc::new(Careless(RuleFunction::new("coop".into(), rules, world.metrics.clone())));
    let engine = world.engine_with(vec![Profile { function, ..coop(&world) }], engine_config());
    begin(&world, &engine).await;
    levels(&world, [1.0, 1.0]).await;
    let tick = engine.tick().await.unwrap();
    assert_eq!((tick.assigned, tick.failures), (2, 1));
    assert_eq!(world.failures("coop", "backfill"), 1.0);
}
