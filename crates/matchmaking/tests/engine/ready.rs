//! Profiles with a ready check: players are asked before a server is requested.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use base::id::Uuid;
use futures::StreamExt;
use http_server::Connection;
use matchmaking::engine::{Profile, Tick};
use matchmaking::model::TicketId;
use matchmaking::store::{AnswerOutcome, ReadyAnswer, ReadyState, TicketReason};
use matchmaking::why::ObstacleCode;
use matchmaking::{Engine, JoinRequest, MatchmakingAdmin, PlayerState, Queue};
use runtime::Drain;
use testkit::eventually;

use crate::plugins::{assigner, duels, servers};
use crate::world::{World, engine_config};
use crate::{PATIENCE, on_both_stores};

on_both_stores! {
    players_are_asked_before_a_server_is_requested,
    every_member_of_a_party_is_asked,
    match_without_players_is_made_at_once,
    accepted_match_without_a_server_returns_to_the_queue_and_nobody_is_asked_meanwhile,
    declined_match_is_not_made_and_the_others_play_next,
    another_engine_makes_the_match_of_a_dead_one_once,
    loop_takes_matches_and_ends_checks,
    idle_loop_notices_that_a_profile_asks_now,
    accepted_match_is_settled_by_the_profile_of_now,
    tickets_return_to_their_place_if_the_profile_of_their_match_is_gone,
    cancelled_ticket_of_an_accepted_match_is_not_assigned,
    waiting_time_is_not_estimated_during_a_check_and_again_after_it,
}

const TIME: Duration = Duration::from_secs(30);

fn asking() -> Profile {
    Profile { ready_check: Some(TIME), ..duels() }
}

fn player(number: u128) -> Uuid {
    Uuid::from_u128(number + 1)
}

/// Creates tickets of players 0, 1, and so on.
async fn players<const N: usize>(world: &World) -> [TicketId; N] {
    let mut ids = Vec::new();
    for number in 0..N as u128 {
        ids.push(world.ticket_of(&player(number).to_string()).await);
    }
    ids.try_into().unwrap()
}

async fn answer(world: &World, id: &TicketId, number: u128, answer: ReadyAnswer) -> AnswerOutcome {
    world.store.answer_ready_check(id, player(number), answer).await.unwrap()
}

async fn accept_all(world: &World, ids: &[TicketId]) {
    for (number, id) in ids.iter().enumerate() {
        let outcome = answer(world, id, number as u128, ReadyAnswer::Accept).await;
        assert!(matches!(outcome, AnswerOutcome::Open(_)), "{outcome:?}");
    }
}

async fn state(world: &World, id: &TicketId) -> Option<ReadyState> {
    let states = world.store.ready_states(std::slice::from_ref(id)).await.unwrap().states;
    states.into_iter().next().map(|(_, state)| state)
}

fn tick(fetched: usize, assigned: usize, released: usize) -> Tick {
    Tick { fetched, assigned, released, failures: 0 }
}

async fn players_are_asked_before_a_server_is_requested(world: World) {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    let assigner = assigner(move |matches| {
        counted.fetch_add(matches.len(), Ordering::Relaxed);
        async move { Ok(servers(&matches)) }
    });
    let engine = world.engine(vec![Profile { assigner, ..asking() }]);
    let ids: [TicketId; 3] = players(&world).await;
    assert_eq!(engine.tick().await.unwrap(), tick(3, 0, 1));
    assert!(matches!(state(&world, &ids[0]).await, Some(ReadyState::Open(check)) if check.players == 2));
    assert_eq!(engine.tick().await.unwrap(), tick(1, 0, 1), "the others are not handed out");
    accept_all(&world, &ids[..1]).await;
    let operator = MatchmakingAdmin::new(world.store.clone(), vec![asking()], 100, world.clock.clone());
    let why = operator.why(ids[0].as_str()).await.unwrap();
    let codes: Vec<ObstacleCode> = why.obstacles.iter().map(|obstacle| obstacle.code).collect();
    assert_eq!((codes, why.profiles.len()), (vec![ObstacleCode::ReadyCheck], 0), "it has a match");
    assert_eq!(serde_json::to_value(&why).unwrap()["obstacles"][0]["code"], "ready_check");
    let report = operator.show(ids[0].as_str()).await.unwrap();
    assert!(report.why[0].contains("1 of 2 have accepted"), "{report:?}");
    assert!(report.pending_since.unwrap() * 1000 <= base::Clock::system().now().as_millis(), "{report:?}");
    assert_eq!(engine.tick_ready_checks().await.unwrap(), tick(0, 0, 0));
    assert_eq!(requests.load(Ordering::Relaxed), 0);
    accept_all(&world, &ids[..2]).await;
    // Any engine may take it.
    let other = world.engine_over(world.another_store().await, vec![asking()], engine_config());
    assert_eq!(other.tick_ready_checks().await.unwrap(), tick(0, 2, 0));
    assert_eq!(engine.tick_ready_checks().await.unwrap(), tick(0, 0, 0));
    let made = world.made().await;
    assert_eq!((made.len(), made[0].ticket_ids.len()), (1, 2));
    assert_eq!(made[0].user_ids, [player(0).to_string(), player(1).to_string()]);
    assert_eq!(world.connection(&ids[0]).await, world.connection(&ids[1]).await);
    assert_eq!(world.store.due_ready_checks(10).await.unwrap().open, 0);
    let metric = |name: &str| world.metric(&format!("playhouse_matchmaking_{name}"));
    assert_eq!(metric("ready_checks_opened_total{profile=\"duels\"}"), 1.0);
    assert_eq!(metric("ready_checks_ended_total{outcome=\"accepted\"}"), 1.0);
    assert_eq!(metric("ready_check_time_to_accept_seconds_count{profile=\"duels\"}"), 1.0);
}

async fn every_member_of_a_party_is_asked(world: World) {
    let engine = world.engine(vec![asking()]);
    let pair = world.ticket_of_party(&[player(0).to_string(), player(1).to_string()]).await;
    let alone = world.ticket_of(&player(2).to_string()).await;
    assert_eq!(engine.tick().await.unwrap(), tick(2, 0, 0));
    for (id, number) in [(&pair, 0), (&alone, 2)] {
        answer(&world, id, number, ReadyAnswer::Accept).await;
    }
    let Some(ReadyState::Open(mut check)) = state(&world, &pair).await else { panic!("no check") };
    check.answers.sort();
    assert_eq!((check.accepted, check.players), (2, 3));
    assert_eq!(check.answers, [(player(0), true), (player(1), false)]);
    assert_eq!(engine.tick_ready_checks().await.unwrap(), tick(0, 0, 0));
    answer(&world, &pair, 1, ReadyAnswer::Accept).await;
    assert_eq!(engine.tick_ready_checks().await.unwrap(), tick(0, 2, 0));
    assert_eq!(world.made().await[0].user_ids, [0, 1, 2].map(|number| player(number).to_string()));
}

async fn match_without_players_is_made_at_once(world: World) {
    let engine = world.engine(vec![asking()]);
    let _: [TicketId; 2] = world.tickets(&[]).await;
    assert_eq!(engine.tick().await.unwrap(), tick(2, 2, 0));
    // A ticket without a player beside one with a player: only the player is asked.
    let [id] = players(&world).await;
    world.ticket(&[]).await;
    assert_eq!(engine.tick().await.unwrap(), tick(2, 0, 0));
    accept_all(&world, &[id]).await;
    assert_eq!(engine.tick_ready_checks().await.unwrap(), tick(0, 2, 0));
}

async fn accepted_match_without_a_server_returns_to_the_queue_and_nobody_is_asked_meanwhile(world: World) {
    let is_broken = Arc::new(AtomicBool::new(true));
    let broken = is_broken.clone();
    let assigner = assigner(move |matches| {
        let is_broken = broken.load(Ordering::Relaxed);
        async move { if is_broken { Err("no server".into()) } else { Ok(servers(&matches)) } }
    });
    let engine = world.engine(vec![Profile { assigner, ..asking() }]);
    let ids: [TicketId; 4] = players(&world).await;
    assert_eq!(engine.tick().await.unwrap(), tick(4, 0, 0));
    accept_all(&world, &ids).await;
    let failed = engine.tick_ready_checks().await.unwrap();
    assert_eq!(failed, Tick { failures: 1, ..tick(0, 0, 4) });
    assert_eq!(world.free().await, ids);
    assert_eq!(state(&world, &ids[0]).await, None);
    assert_eq!(engine.tick().await.unwrap(), Tick { failures: 1, ..tick(4, 0, 4) }, "nobody is asked");
    is_broken.store(false, Ordering::Relaxed);
    eventually("one match is tried", PATIENCE, async || engine.tick().await.unwrap().released == 2).await;
    accept_all(&world, &ids[..2]).await;
    assert_eq!(engine.tick_ready_checks().await.unwrap(), tick(0, 2, 0));
    assert_eq!(engine.tick().await.unwrap(), tick(2, 0, 0), "all are asked again");
}

async fn declined_match_is_not_made_and_the_others_play_next(world: World) {
    let engine = world.engine(vec![asking()]);
    let ids: [TicketId; 3] = players(&world).await;
    engine.tick().await.unwrap();
    accept_all(&world, &ids[..1]).await;
    assert_eq!(answer(&world, &ids[1], 1, ReadyAnswer::Decline).await, AnswerOutcome::Left);
    let released = Some(ReadyState::Over(Some(TicketReason::NotEveryoneAccepted)));
    assert_eq!(state(&world, &ids[0]).await, released);
    assert_eq!(engine.tick().await.unwrap(), tick(2, 0, 0));
    for (number, id) in [(0, &ids[0]), (2, &ids[2])] {
        answer(&world, id, number, ReadyAnswer::Accept).await;
    }
    assert_eq!(engine.tick_ready_checks().await.unwrap(), tick(0, 2, 0));
    assert!(world.is_assigned(&ids[0]).await && world.is_assigned(&ids[2]).await);
    let declined = world.metric("playhouse_matchmaking_ready_checks_ended_total{outcome=\"declined\"}");
    assert_eq!(declined, 1.0);
}

async fn another_engine_makes_the_match_of_a_dead_one_once(world: World) {
    let world = world.under(|rules| rules.pending_timeout = Duration::from_secs(3));
    let profile = || Profile { ready_check: Some(Duration::from_secs(3)), ..duels() };
    let hangs = assigner(async |_| std::future::pending().await);
    let config = matchmaking::engine::EngineConfig { assigner_timeout: PATIENCE, ..engine_config() };
    let dying = world.engine_with(vec![Profile { assigner: hangs, ..profile() }], config);
    let ids: [TicketId; 2] = players(&world).await;
    dying.tick().await.unwrap();
    accept_all(&world, &ids).await;
    let running = tokio::spawn(async move { dying.tick_ready_checks().await });
    eventually("it has taken the match", PATIENCE, async || {
        world.store.due_ready_checks(10).await.unwrap().open == 1
    })
    .await;
    running.abort();
    let other = world.engine_over(world.another_store().await, vec![profile()], engine_config());
    eventually("the other one makes it", PATIENCE, async || {
        world.clock.advance(Duration::from_millis(100));
        other.tick_ready_checks().await.unwrap().assigned == 2
    })
    .await;
    assert_eq!(world.made().await.len(), 1);
}

async fn loop_takes_matches_and_ends_checks(world: World) {
    let tick = Duration::from_millis(20);
    let config = matchmaking::engine::EngineConfig { tick, ..engine_config() };
    let profile = Profile { ready_check: Some(Duration::from_secs(2)), ..duels() };
    let engine: Engine = world.engine_with(vec![profile], config);
    let drain = Drain::new();
    let stop = drain.clone();
    let looping = engine.clone();
    let running = tokio::spawn(async move { looping.run_ready_checks(drain).await });
    let ids: [TicketId; 2] = players(&world).await;
    engine.tick().await.unwrap();
    accept_all(&world, &ids).await;
    eventually("they are assigned", PATIENCE, async || world.is_assigned(&ids[0]).await).await;
    let silent: [TicketId; 2] = players(&world).await;
    engine.tick().await.unwrap();
    accept_all(&world, &silent[..1]).await;
    eventually("the check ends", PATIENCE, async || {
        world.clock.advance(Duration::from_millis(50));
        world.store.find(&silent[1]).await.unwrap().data.is_none()
    })
    .await;
    assert_eq!(world.free().await, silent[..1]);
    stop.request();
    tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap().unwrap();
}

async fn idle_loop_notices_that_a_profile_asks_now(world: World) {
    let tick = Duration::from_millis(20);
    let config = matchmaking::engine::EngineConfig { tick, ..engine_config() };
    let engine: Engine = world.engine_with(Vec::new(), config);
    let drain = Drain::new();
    let (looping, stop) = (engine.clone(), drain.clone());
    let running = tokio::spawn(async move { looping.run_ready_checks(drain).await });
    let ids: [TicketId; 2] = players(&world).await;
    engine.set_profiles(vec![asking()]);
    engine.tick().await.unwrap();
    accept_all(&world, &ids).await;
    // An idle loop looks again after five seconds.
    let soon = Duration::from_secs(4);
    eventually("they are assigned", soon, async || world.is_assigned(&ids[0]).await).await;
    stop.request();
    tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap().unwrap();
}

async fn accepted_match_is_settled_by_the_profile_of_now(world: World) {
    let hangs = assigner(async |_| std::future::pending().await);
    let engine = world.engine(vec![Profile { assigner: hangs, ..asking() }]);
    let ids: [TicketId; 4] = players(&world).await;
    engine.tick().await.unwrap();
    accept_all(&world, &ids).await;
    // The players of a match are not asked again, although its profile asks nobody any more.
    engine.set_profiles(vec![duels()]);
    assert_eq!(engine.tick_ready_checks().await.unwrap(), tick(0, 4, 0));
    assert_eq!(world.made().await.len(), 2);
}

async fn tickets_return_to_their_place_if_the_profile_of_their_match_is_gone(world: World) {
    let engine = world.engine(vec![asking()]);
    let ids: [TicketId; 2] = players(&world).await;
    engine.tick().await.unwrap();
    accept_all(&world, &ids).await;
    engine.set_profiles(vec![Profile { name: "others".into(), ..asking() }]);
    let newer = world.ticket(&[]).await;
    assert_eq!(engine.tick_ready_checks().await.unwrap(), tick(0, 0, 2));
    let [first, second] = ids.clone();
    assert_eq!(world.free().await, [first, second, newer], "they keep their place");
    assert_eq!(state(&world, &ids[0]).await, None);
    let due = world.store.due_ready_checks(10).await.unwrap();
    assert_eq!((due.open, due.accepted.len()), (0, 0));
    assert_eq!(engine.tick().await.unwrap(), tick(3, 0, 1), "the new profile asks them");
    accept_all(&world, &ids).await;
    assert_eq!(engine.tick_ready_checks().await.unwrap(), tick(0, 2, 0));
}

async fn cancelled_ticket_of_an_accepted_match_is_not_assigned(world: World) {
    let engine = world.engine(vec![asking()]);
    let ids: [TicketId; 2] = players(&world).await;
    engine.tick().await.unwrap();
    accept_all(&world, &ids).await;
    world.store.delete(&ids[0]).await.unwrap();
    assert_eq!(engine.tick_ready_checks().await.unwrap(), tick(0, 0, 0));
    assert_eq!(world.free().await, ids[1..]);
    let lost = world.metric("playhouse_matchmaking_ready_checks_ended_total{outcome=\"lost\"}");
    assert_eq!(lost, 1.0);
}

async fn waiting_time_is_not_estimated_during_a_check_and_again_after_it(world: World) {
    let engine = world.engine(vec![asking()]);
    let queues = world.players([("duel".to_owned(), Queue::default())]);
    queues.set_profiles(&[asking()]);
    let (drain, frontend) = (Drain::new(), world.frontend.clone());
    let listening = tokio::spawn({
        let drain = drain.clone();
        async move { frontend.run(drain).await.unwrap() }
    });
    let join = async |number| {
        let request = JoinRequest { queue: "duel".to_owned(), ..JoinRequest::default() };
        queues.join(player(number), request).await.unwrap().ticket
    };
    eventually("matches are known", PATIENCE, async || {
        let _: [TicketId; 6] = world.tickets(&[]).await;
        assert_eq!(engine.tick().await.unwrap(), tick(6, 6, 0));
        let ticket = join(0).await;
        queues.leave(player(0), ticket.id.as_str()).await.unwrap();
        ticket.estimate.is_some()
    })
    .await;
    let [anna, ben] = [join(0).await.id, join(1).await.id];
    let connection = Connection::new(([127, 0, 0, 1], 1).into(), Drain::new());
    let mut stream = Box::pin(queues.watch(player(0), anna.as_str(), &connection).await.unwrap());
    let mut seen = async || {
        let ticket = tokio::time::timeout(PATIENCE, stream.next()).await.unwrap().unwrap().unwrap();
        (ticket.state, ticket.estimate.is_some())
    };
    assert_eq!(seen().await, (PlayerState::Waiting, true));
    engine.tick().await.unwrap();
    assert_eq!(seen().await, (PlayerState::ReadyCheck, false), "by stream");
    let asked = queues.ticket(player(0), anna.as_str()).await.unwrap();
    assert_eq!((asked.state, asked.estimate), (PlayerState::ReadyCheck, None), "by REST");
    queues.decline(player(1), ben.as_str()).await.unwrap();
    assert_eq!(seen().await, (PlayerState::Waiting, true), "by stream");
    let waiting = queues.ticket(player(0), anna.as_str()).await.unwrap();
    assert!(waiting.state == PlayerState::Waiting && waiting.estimate.is_some(), "by REST: {waiting:?}");
    drain.request();
    listening.await.unwrap();
}
