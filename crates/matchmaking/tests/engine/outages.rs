//! Redis outages while tickets are pending.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use matchmaking::Engine;
use matchmaking::engine::{EngineConfig, Profile};
use matchmaking::model::TicketId;
use testkit::{FaultProxy, Redis, eventually, need};
use tokio::sync::Semaphore;

use crate::PATIENCE;
use crate::loops::Running;
use crate::plugins::{assigner, duels, servers};
use crate::world::{World, engine_config, open};

/// An assigner that blocks until it is released, and fails the first time.
struct Gate {
    reached: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Gate {
    fn new(failing: bool) -> (Self, Profile) {
        let gate = Self { reached: Arc::new(Semaphore::new(0)), open: Arc::new(Semaphore::new(0)) };
        let (reached, open) = (gate.reached.clone(), gate.open.clone());
        let calls = Arc::new(AtomicUsize::new(0));
        let assigner = assigner(move |matches| {
            let (reached, open, calls) = (reached.clone(), open.clone(), calls.clone());
            async move {
                if calls.fetch_add(1, Ordering::Relaxed) > 0 {
                    return Ok(servers(&matches));
                }
                reached.add_permits(1);
                open.acquire().await.unwrap().forget();
                if failing { Err("no luck".into()) } else { Ok(servers(&matches)) }
            }
        });
        (gate, Profile { assigner, ..duels() })
    }
}

fn patient() -> EngineConfig {
    EngineConfig { assigner_timeout: PATIENCE, ..engine_config() }
}

/// Checks that each ticket is in one match and has its assignment.
async fn assert_assigned_once(world: &World, tickets: &[TicketId]) {
    let made = world.made().await;
    for ticket in tickets {
        let of: Vec<_> = made.iter().filter(|made| made.ticket_ids.contains(&ticket.to_string())).collect();
        assert_eq!(of.len(), 1, "{ticket} of {tickets:?} in {made:#?}");
        assert_eq!(world.connection(ticket).await, Some(format!("{}.test:1", of[0].match_id)));
    }
}

async fn ticks(engine: &Engine) {
    eventually("the store is back", PATIENCE, async || engine.tick().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unreleased_tickets_are_released_when_the_store_is_back() {
    let mut redis = need!(Redis::builder().appendonly().start().await);
    let world = World::at(&redis.url()).await;
    let (gate, profile) = Gate::new(true);
    let engine = world.engine_with(vec![profile], patient());
    let tickets: [TicketId; 3] = world.tickets(&[]).await;
    let ticking = tokio::spawn({
        let engine = engine.clone();
        async move { engine.tick().await }
    });
    gate.reached.acquire().await.unwrap().forget();
    redis.kill().await.unwrap();
    gate.open.add_permits(1);
    let tick = ticking.await.unwrap().unwrap();
    assert_eq!((tick.assigned, tick.failures), (0, 1));
    assert!(engine.tick().await.is_err(), "there is no store");
    redis.start_again().await.unwrap();
    // The pending timeout is ten minutes: only the engine can release them.
    eventually("the store answers", PATIENCE, async || world.store.list(1).await).await;
    let tick = engine.tick().await.unwrap();
    assert_eq!(tick.fetched, 3, "they are released before others are fetched");
    if tick.assigned == 0 {
        // The assigner failed before, and is paused.
        eventually("they play", PATIENCE, async || engine.tick().await.unwrap().assigned == 2).await;
    }
    assert_eq!(world.free().await, tickets[2..]);
    assert_assigned_once(&world, &tickets[..2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn running_engine_survives_the_loss_of_its_store() {
    let mut redis = need!(Redis::builder().appendonly().start().await);
    let world = World::at(&redis.url()).await;
    let config = EngineConfig { tick: Duration::from_millis(50), ..engine_config() };
    let before: [TicketId; 3] = world.tickets(&[]).await;
    let running = Running::start(&world.engine_with(vec![duels()], config));
    eventually("the first pair plays", PATIENCE, || world.is_assigned(&before[1])).await;
    redis.kill().await.unwrap();
    eventually("the loss is counted", PATIENCE, async || world.failures("", "fetch") > 0.0).await;
    redis.start_again().await.unwrap();
    let last = eventually("a new ticket", PATIENCE, async || {
        world.frontend.create(Some(proto::openmatch::Ticket::default())).await
    })
    .await;
    drop(last);
    eventually("the odd one plays", PATIENCE, async || {
        world.store.find(&before[2]).await.is_ok_and(|found| found.assignment.is_some())
    })
    .await;
    running.stop().await;
    assert_assigned_once(&world, &before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn match_written_with_a_lost_reply_is_not_made_again() {
    let redis = need!(Redis::private().await);
    let world = World::at(&redis.url()).await;
    let proxy = FaultProxy::to(redis.addr()).await;
    let far = world.store_over(&open(&proxy.url(&redis.url())).await);
    let (gate, profile) = Gate::new(false);
    let engine = world.engine_over(far, vec![profile], patient());
    let tickets: [TicketId; 2] = world.tickets(&[]).await;
    let ticking = tokio::spawn({
        let engine = engine.clone();
        async move { engine.tick().await }
    });
    gate.reached.acquire().await.unwrap().forget();
    proxy.delay(Duration::from_millis(200)).await;
    gate.open.add_permits(1);
    eventually("the match is written", PATIENCE, || world.is_assigned(&tickets[0])).await;
    proxy.cut().await;
    let tick = ticking.await.unwrap().unwrap();
    assert_eq!((tick.assigned, tick.failures), (0, 1), "the engine cannot know");
    assert_eq!(world.failures("duels", "assign"), 1.0);

    proxy.pass().await;
    ticks(&engine).await;
    let another = world.engine(vec![duels()]);
    assert_eq!(another.tick().await.unwrap().fetched, 0);
    assert_assigned_once(&world, &tickets).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unwritten_match_is_made_once_when_the_store_is_back() {
    let redis = need!(Redis::private().await);
    let world = World::at(&redis.url()).await;
    let proxy = FaultProxy::to(redis.addr()).await;
    let far = world.store_over(&open(&proxy.url(&redis.url())).await);
    let (gate, profile) = Gate::new(false);
    let engine = world.engine_over(far, vec![profile], patient());
    let tickets: [TicketId; 2] = world.tickets(&[]).await;
    let ticking = tokio::spawn({
        let engine = engine.clone();
        async move { engine.tick().await }
    });
    gate.reached.acquire().await.unwrap().forget();
    proxy.cut().await;
    gate.open.add_permits(1);
    assert_eq!(ticking.await.unwrap().unwrap().assigned, 0);
    assert!(!world.is_assigned(&tickets[0]).await && world.free().await.is_empty());
    proxy.pass().await;
    eventually("the pair plays", PATIENCE, async || {
        let _ = engine.tick().await;
        world.is_assigned(&tickets[0]).await
    })
    .await;
    assert_assigned_once(&world, &tickets).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn late_write_does_not_make_a_second_match() {
    let mut redis = need!(Redis::private().await);
    let world = World::at(&redis.url()).await;
    let (gate, profile) = Gate::new(false);
    let engine = world.engine_with(vec![profile], patient());
    let rival = world.engine_over(world.another_store().await, vec![duels()], engine_config());
    let tickets: [TicketId; 4] = world.tickets(&[]).await;
    let ticking = tokio::spawn({
        let engine = engine.clone();
        async move { engine.tick().await }
    });
    gate.reached.acquire().await.unwrap().forget();
    redis.pause().await.unwrap();
    gate.open.add_permits(1);
    // The engine has given up, but the command still sits in the socket.
    assert_eq!(ticking.await.unwrap().unwrap().failures, 1);
    redis.resume().unwrap();
    eventually("all play", PATIENCE, async || {
        let (_, _) = tokio::join!(engine.tick(), rival.tick());
        for ticket in &tickets {
            if !world.store.find(ticket).await.is_ok_and(|found| found.assignment.is_some()) {
                return false;
            }
        }
        true
    })
    .await;
    assert_assigned_once(&world, &tickets).await;
}
