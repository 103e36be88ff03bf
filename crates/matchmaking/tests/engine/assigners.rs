//! Failing assigners: how often they are called, what operators see, and what happens to the tickets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::IntoResponse;
use matchmaking::MatchmakingAdmin;
use matchmaking::engine::{EngineConfig, Profile};
use matchmaking::model::TicketId;
use testkit::eventually;

use crate::loops::Running;
use crate::plugins::{assigner, duels, servers};
use crate::webhook::{Service, all, profile};
use crate::world::{World, engine_config};
use crate::{PATIENCE, on_both_stores};

on_both_stores! {
    failing_service_is_called_with_backoff_and_holds_no_tickets,
    failing_plugin_is_called_with_backoff,
    profiles_with_the_same_assigner_share_its_breaker,
    operators_see_assigner_failure_and_recovery,
}

/// An engine that ticks as often as it can.
fn eager() -> EngineConfig {
    EngineConfig { tick: Duration::from_millis(20), assigner_timeout: PATIENCE, ..engine_config() }
}

/// How long failures are observed. The backoff is at least 125, 250, 500 and 1,000 ms, which leaves time for this many
/// calls.
const WATCHED: Duration = Duration::from_millis(1_800);
const CALLS: usize = 4;

async fn failing_service_is_called_with_backoff_and_holds_no_tickets(world: World) {
    let service = Service::start(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response()).await;
    let engine = world.engine_with(vec![profile(&service.url, None, &world.clock)], eager());
    let tickets: [TicketId; 4] = world.tickets(&[]).await;
    let running = Running::start(&engine);
    tokio::time::sleep(WATCHED).await;
    let calls = service.questions().len();
    assert!((2..=CALLS).contains(&calls), "{calls} calls");
    eventually("its tickets can be had by others while it rests", PATIENCE, async || {
        world.free().await == tickets
    })
    .await;
    running.stop().await;
    assert_eq!(world.free().await, tickets);
}

async fn failing_plugin_is_called_with_backoff(world: World) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let failing = assigner(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Err("no luck".into()) }
    });
    let engine = world.engine_with(vec![Profile { assigner: failing, ..duels() }], eager());
    let tickets: [TicketId; 2] = world.tickets(&[]).await;
    let running = Running::start(&engine);
    tokio::time::sleep(WATCHED).await;
    let calls = calls.load(Ordering::Relaxed);
    assert!((2..=CALLS).contains(&calls), "{calls} calls");
    running.stop().await;
    assert_eq!(world.free().await, tickets);
}

async fn profiles_with_the_same_assigner_share_its_breaker(world: World) {
    let service = Service::start(|_| StatusCode::FORBIDDEN.into_response()).await;
    let one = profile(&service.url, None, &world.clock);
    let other = Profile { name: "other".into(), ..one.clone() };
    let engine = world.engine_with(vec![one, other], eager());
    let [_, _, _, _] = world.tickets(&[]).await;
    let running = Running::start(&engine);
    tokio::time::sleep(WATCHED).await;
    running.stop().await;
    let calls = service.questions().len();
    assert!((2..=CALLS + 1).contains(&calls), "{calls} calls");
    let failures = world.store.assigner_failures().await.unwrap();
    let mut profiles: Vec<&str> = failures.iter().map(|failure| failure.profile.as_str()).collect();
    profiles.sort_unstable();
    assert_eq!(profiles, ["duels", "other"], "both are reported, whichever was asked for last");
}

async fn operators_see_assigner_failure_and_recovery(world: World) {
    let is_well = Arc::new(AtomicBool::new(false));
    let well = is_well.clone();
    let service = Service::start(move |question| match well.load(Ordering::Relaxed) {
        true => all(question),
        false => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    })
    .await;
    let profiles = vec![profile(&service.url, None, &world.clock)];
    // Another process, without an engine.
    let operator =
        MatchmakingAdmin::new(world.another_store().await, profiles.clone(), 100, world.clock.clone());
    let engine = world.engine_with(profiles, eager());
    let [first, second, odd] = world.tickets(&[]).await;
    world.store.delete(&odd).await.unwrap();
    let running = Running::start(&engine);
    let why = async |ticket: &TicketId| operator.show(ticket.as_str()).await.unwrap().why.join("\n");
    for ticket in [&first, &second] {
        eventually("the operator sees the players and the failure", PATIENCE, async || {
            let why = why(ticket).await;
            let expected = [
                "profile duels, pool pool: admitted, with 1 other ticket; 2 of 2 found",
                "fleet: the service answered 500 Internal Server Error",
            ];
            expected.iter().all(|part| why.contains(part)).then_some(()).ok_or(why)
        })
        .await;
    }
    is_well.store(true, Ordering::Relaxed);
    eventually("they play", PATIENCE, async || world.is_assigned(&second).await).await;
    let alone = world.ticket(&[]).await;
    eventually("the failure is forgotten", PATIENCE, async || {
        let why = why(&alone).await;
        (why.contains("1 of 2 found") && !why.contains("failed")).then_some(()).ok_or(why)
    })
    .await;
    running.stop().await;
}

/// A plugin in Rust can return data for a single ticket too.
#[tokio::test]
async fn plugin_can_return_data_per_ticket() {
    use matchmaking::model::Any;

    let world = World::in_memory();
    let any = |text: &'static str| Any { type_url: "example.com/Seat".to_owned(), value: text.into() };
    let seating = assigner(move |matches| async move {
        let mut found = servers(&matches);
        for ((_, assignment), made) in found.iter_mut().zip(&matches) {
            let seat = [("seat".to_owned(), any("first"))].into();
            assignment.of_ticket.insert(made.tickets[0].id.clone(), seat);
        }
        Ok(found)
    });
    let engine = world.engine(vec![Profile { assigner: seating, ..duels() }]);
    let [first, second] = world.tickets(&[]).await;
    assert_eq!(engine.tick().await.unwrap().assigned, 2);
    assert_eq!(world.assignment(&first).await.extensions["seat"].value.as_ref(), b"first");
    let second = world.assignment(&second).await.extensions;
    assert_eq!(second.keys().collect::<Vec<_>>(), ["match"]);
}
