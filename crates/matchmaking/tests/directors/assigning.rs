//! `AssignTickets`, `ReleaseTickets` and `ReleaseAllTickets`.

use matchmaking::Error;
use matchmaking::store::DeleteOutcome;
use proto::openmatch::assignment_failure::Cause;
use proto::openmatch::{AssignmentFailure, AssignmentGroup, Match, Ticket};

use crate::on_both_stores;
use crate::servers::{Kind, function, proposal};
use crate::world::{World, config, fetch_profile, group, id, read};

on_both_stores! {
    groups_are_assigned_recorded_and_notified_once,
    empty_request_is_fine,
    arguments_are_checked_in_the_order_of_the_original,
    missing_tickets_are_reported_and_the_others_assigned,
    assigned_ticket_is_not_assigned_to_something_else,
    group_that_mixes_two_claims_is_assigned_in_part,
    late_director_does_not_split_newer_matches,
    assigned_ticket_is_gone_from_matchmaking,
    match_names_the_profile_of_its_claim,
    released_tickets_can_be_matched_again,
    unknown_tickets_are_released_without_an_error,
}

fn failures(failures: &[AssignmentFailure]) -> Vec<(&str, Cause)> {
    failures.iter().map(|failure| (failure.ticket_id.as_str(), failure.cause.as_known().unwrap())).collect()
}

async fn groups_are_assigned_recorded_and_notified_once(world: World) {
    let [a, b, c] = world.tickets().await;
    let backend = world.backend(config());
    let request = || vec![group("one", &[&a, &b]), group("two", &[&c])];
    for attempt in 0..3 {
        let failed = backend.assign_tickets(request()).await.unwrap();
        assert!(failed.is_empty(), "attempt {attempt}: {failed:?}");
    }
    for (ticket, connection) in [(&a, "one"), (&b, "one"), (&c, "two")] {
        assert_eq!(world.connection(ticket).await.as_deref(), Some(connection));
    }
    let mut recorded: Vec<_> = world.recorded().into_iter().map(|match_| match_.ticket_ids).collect();
    recorded.sort_by_key(Vec::len);
    assert_eq!(
        recorded,
        [vec![c.id.clone()], vec![a.id.clone(), b.id.clone()]],
        "a repetition makes no match"
    );
    assert_eq!(world.store.unrecorded_size().await.unwrap().0, 0);
}

async fn empty_request_is_fine(world: World) {
    assert!(world.backend(config()).assign_tickets(Vec::new()).await.unwrap().is_empty());
}

async fn arguments_are_checked_in_the_order_of_the_original(world: World) {
    let a = world.ticket().await;
    let backend = world.backend(config());
    let invalid = async |groups| match backend.assign_tickets(groups).await {
        Err(Error::Invalid(text)) => text,
        other => panic!("{other:?}"),
    };
    let bare = AssignmentGroup { ticket_ids: vec![a.id.clone()], ..Default::default() };
    assert_eq!(invalid(vec![group("x", &[])]).await, "AssignmentGroupTicketIds is empty");
    assert_eq!(invalid(vec![AssignmentGroup::default()]).await, "AssignmentGroup.Assignment is required");
    assert_eq!(invalid(vec![bare]).await, "AssignmentGroup.Assignment is required");
    let repeated = format!("Ticket id {} is assigned multiple times in one assign tickets call", a.id);
    assert_eq!(invalid(vec![group("x", &[&a, &a])]).await, repeated);
    assert_eq!(invalid(vec![group("x", &[&a]), group("y", &[&a])]).await, repeated);
    assert_eq!(world.connection(&a).await, None, "nothing of an invalid request is written");
}

async fn missing_tickets_are_reported_and_the_others_assigned(world: World) {
    let [a, b, c] = world.tickets().await;
    assert_eq!(world.store.delete(&id(&b)).await.unwrap(), DeleteOutcome::Deleted);
    let mut odd = group("x", &[&a, &b, &c]);
    odd.ticket_ids.push("no ticket".to_owned());
    let failed = world.backend(config()).assign_tickets(vec![odd]).await.unwrap();
    let mut found = failures(&failed);
    found.sort_by_key(|(id, _)| *id != "no ticket");
    assert_eq!(found, [("no ticket", Cause::TICKET_NOT_FOUND), (&*b.id, Cause::TICKET_NOT_FOUND)]);
    assert_eq!(world.connection(&a).await.as_deref(), Some("x"));
    assert_eq!(world.connection(&c).await.as_deref(), Some("x"));
    let recorded = world.recorded();
    assert_eq!(recorded.len(), 1);
    assert_eq!(recorded[0].ticket_ids, [a.id, c.id], "the match has the tickets that were assigned");
}

async fn assigned_ticket_is_not_assigned_to_something_else(world: World) {
    let [a, b] = world.tickets().await;
    let backend = world.backend(config());
    backend.assign_tickets(vec![group("first", &[&a])]).await.unwrap();
    let failed = backend.assign_tickets(vec![group("late", &[&a, &b])]).await.unwrap();
    assert_eq!(failures(&failed), [(&*a.id, Cause::UNKNOWN)]);
    assert_eq!(world.connection(&a).await.as_deref(), Some("first"));
    assert_eq!(world.connection(&b).await.as_deref(), Some("late"));
}

async fn claim_for(world: &World, profile: &str, tickets: &[&Ticket]) {
    assert_eq!(propose(world, profile, vec![proposal(profile, tickets)]).await, 1);
}

/// Returns how many of these proposals of one call were claimed.
async fn propose(world: &World, profile: &str, sent: Vec<Match>) -> usize {
    let function = function(Kind::Grpc, move |_, proposals| {
        let sent = sent.clone();
        async move {
            for proposal in sent {
                proposals.send(Ok(proposal)).await.unwrap();
            }
        }
    })
    .await;
    let (matches, error) = read(fetch_profile(&world.backend(config()), &function, profile).await).await;
    assert_eq!(error, None);
    matches.len()
}

/// A Director that was paused until its claim ended assigns its match, whose tickets are in two matches of another Director.
async fn late_director_does_not_split_newer_matches(world: World) {
    let [a, b, c, d] = world.tickets().await;
    claim_for(&world, "late", &[&a, &b]).await;
    // As after the timeout.
    world.backend(config()).release_all_tickets().await.unwrap();
    let matches = vec![proposal("1", &[&a, &c]), proposal("2", &[&b, &d])];
    assert_eq!(propose(&world, "newer", matches).await, 2);
    let failed = world.backend(config()).assign_tickets(vec![group("late", &[&a, &b])]).await.unwrap();
    assert_eq!(failures(&failed), [(&*a.id, Cause::UNKNOWN), (&*b.id, Cause::UNKNOWN)]);
    let newer = vec![group("one", &[&a, &c]), group("two", &[&b, &d])];
    let failed = world.backend(config()).assign_tickets(newer).await.unwrap();
    assert_eq!(failures(&failed), []);
    for (ticket, connection) in [(&a, "one"), (&c, "one"), (&b, "two"), (&d, "two")] {
        assert_eq!(world.connection(ticket).await.as_deref(), Some(connection));
    }
    assert_eq!(world.recorded().len(), 2);
}

async fn group_that_mixes_two_claims_is_assigned_in_part(world: World) {
    let [a, b, c] = world.tickets().await;
    claim_for(&world, "first", &[&a]).await;
    claim_for(&world, "second", &[&b]).await;
    let failed = world.backend(config()).assign_tickets(vec![group("x", &[&a, &b, &c])]).await.unwrap();
    assert_eq!(failures(&failed), [(&*b.id, Cause::UNKNOWN)]);
    assert_eq!(world.connection(&c).await.as_deref(), Some("x"));
    assert_eq!(world.connection(&b).await, None, "the claim of another call holds it");
    assert!(!world.is_free(&b).await);
}

async fn assigned_ticket_is_gone_from_matchmaking(world: World) {
    let a = world.ticket().await;
    let backend = world.backend(config());
    backend.assign_tickets(vec![group("x", &[&a])]).await.unwrap();
    assert!(world.store.list(10).await.unwrap().0.is_empty());
    assert_eq!(world.store.delete(&id(&a)).await.unwrap(), DeleteOutcome::AlreadyAssigned);
    let sent = proposal("1", &[&a]);
    let function = function(Kind::Grpc, move |_, proposals| {
        let sent = sent.clone();
        async move { proposals.send(Ok(sent)).await.unwrap() }
    })
    .await;
    let (matches, _) = read(fetch_profile(&backend, &function, "late").await).await;
    assert!(matches.is_empty(), "a late match function proposes an assigned ticket");
}

async fn match_names_the_profile_of_its_claim(world: World) {
    let a = world.ticket().await;
    claim_for(&world, "ranked", &[&a]).await;
    world.backend(config()).assign_tickets(vec![group("x", &[&a])]).await.unwrap();
    assert_eq!(world.recorded()[0].match_profile, "ranked");
}

async fn released_tickets_can_be_matched_again(world: World) {
    let [a, b, c] = world.tickets().await;
    claim_for(&world, "first", &[&a, &b]).await;
    claim_for(&world, "second", &[&c]).await;
    let backend = world.backend(config());
    backend.release_tickets(&[&a.id]).await.unwrap();
    assert!(world.is_free(&a).await && !world.is_free(&b).await && !world.is_free(&c).await);
    claim_for(&world, "again", &[&a]).await;
    backend.release_all_tickets().await.unwrap();
    assert!(world.is_free(&a).await && world.is_free(&b).await && world.is_free(&c).await);
    claim_for(&world, "all", &[&a, &b, &c]).await;
}

async fn unknown_tickets_are_released_without_an_error(world: World) {
    let backend = world.backend(config());
    backend.release_tickets(&[] as &[&str]).await.unwrap();
    backend.release_tickets(&["unknown", "no ticket", ""]).await.unwrap();
    backend.release_all_tickets().await.unwrap();
}
