//! Assigning matches: as a whole or not at all, and no ticket twice.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use matchmaking::model::TicketId;
use matchmaking::store::{AssignOutcome, AssignmentGroup, Assignments, StoredTicket, WatchState};
use testkit::eventually;
use tokio::sync::Barrier;

use crate::setup::{
    PATIENCE, Setup, Tickets, connection, group, id, ids, matches, only, shuffled, sorted, ticket,
};

for_every_store! {
    match_assigns_its_tickets_and_removes_them_from_matchmaking,
    tickets_of_a_match_can_have_different_assignments,
    ticket_and_assignment_expire_after_the_assigned_ttl,
    assigned_ticket_lives_as_long_as_its_assignment,
    only_the_blocked_match_is_refused_and_names_the_ticket,
    refusal_names_the_first_blocking_ticket,
    refused_match_writes_nothing,
    first_of_two_matches_that_share_a_ticket_wins,
    more_than_a_thousand_tickets_are_assigned_in_one_call,
    match_of_more_than_a_thousand_tickets_is_assigned_as_a_whole,
    match_with_a_missing_ticket_is_assigned_without_the_check,
    assignment_is_never_overwritten_without_the_check,
    late_engine_is_refused,
    engines_with_the_same_tickets_assign_each_once,
    concurrent_engines_never_share_a_ticket,
}

async fn match_assigns_its_tickets_and_removes_them_from_matchmaking(setup: Setup) {
    let tickets = setup.open().await;
    let other = tickets.elsewhere().await;
    tickets.create_all(0..5).await;
    assert_eq!(tickets.take(4).await, ids(0..4));
    assert_eq!(tickets.connection_of(&id(0)).await, None);
    let groups = [group("one", ids([0, 2])), group("two", ids([1]))];
    assert_eq!(tickets.assign(&groups).await.unwrap(), [AssignOutcome::Assigned, AssignOutcome::Assigned]);
    for (number, name) in [(0, "one"), (2, "one"), (1, "two")] {
        for _ in 0..3 {
            let found = other.find(&id(number)).await.unwrap();
            assert_eq!(found.data, Some(ticket(number).data));
            assert_eq!(connection(&found.assignment.unwrap()), name);
        }
    }
    tickets.release(&ids(0..4)).await.unwrap();
    assert_eq!(other.take(10).await, ids([3, 4]));
    assert_eq!(other.all().await, ids([3, 4]));
}

async fn ticket_and_assignment_expire_after_the_assigned_ttl(setup: Setup) {
    let ttl = Duration::from_millis(700);
    let tickets = setup.with(|rules| rules.assigned_ttl = ttl).open().await;
    tickets.create_all(0..2).await;
    let before = tickets.clock.now();
    tickets.assign(&[group("match", ids(0..2))]).await.unwrap();
    eventually("both are gone", PATIENCE, async || {
        tickets.pass(Duration::from_millis(50));
        let found = (tickets.find(&id(0)).await.unwrap(), tickets.find(&id(1)).await.unwrap());
        found == (StoredTicket::default(), StoredTicket::default())
    })
    .await;
    let lived = tickets.clock.now().distance(before);
    assert!(lived >= ttl, "{lived:?}");
    assert_eq!(tickets.watch_states(&ids(0..2)).await.unwrap(), [WatchState::Gone, WatchState::Gone]);
    assert_eq!(tickets.counter("tickets_repaired"), 0, "they had left matchmaking");
}

async fn assigned_ticket_lives_as_long_as_its_assignment(setup: Setup) {
    let tickets = setup.open().await;
    let short = Duration::from_secs(5);
    let mut ticket = ticket(0);
    ticket.ttl = short;
    tickets.create(ticket).await.unwrap();
    tickets.assign(&[group("match", ids([0]))]).await.unwrap();
    let ttl = tickets.status(&id(0)).await.unwrap().ttl.unwrap();
    assert!(short < ttl && ttl <= tickets.setup.rules.assigned_ttl, "{ttl:?}");
}

/// Creates one ticket in each state: waiting, unknown, deleted, deindexed, expired and assigned, at these numbers.
async fn create_one_ticket_of_each_state(tickets: &Tickets) {
    tickets.create_all([0, 2, 3, 5, 10, 11, 12, 13, 14, 15]).await;
    let mut short = ticket(4);
    short.ttl = Duration::from_millis(50);
    tickets.create(short).await.unwrap();
    tickets.take(100).await;
    tickets.delete(&id(2)).await.unwrap();
    tickets.deindex(&id(3)).await.unwrap();
    tickets.assign(&[group("before", ids([5]))]).await.unwrap();
    eventually("it has expired", PATIENCE, async || {
        tickets.pass(Duration::from_millis(10));
        tickets.find(&id(4)).await.unwrap() == StoredTicket::default()
    })
    .await;
}

async fn only_the_blocked_match_is_refused_and_names_the_ticket(setup: Setup) {
    let tickets = setup.open().await;
    create_one_ticket_of_each_state(&tickets).await;
    let groups = [
        group("good", ids([0, 10])),
        group("unknown", ids([11, 1])),
        group("deleted", ids([2, 12])),
        group("out", ids([13, 3])),
        group("expired", ids([4])),
        group("assigned", ids([14, 5])),
        group("good too", ids([15])),
    ];
    let refused = |number| AssignOutcome::Refused(id(number));
    let expected = [
        AssignOutcome::Assigned,
        refused(1),
        refused(2),
        refused(3),
        refused(4),
        refused(5),
        AssignOutcome::Assigned,
    ];
    assert_eq!(tickets.assign(&groups).await.unwrap(), expected);
    assert_eq!(tickets.connection_of(&id(5)).await.as_deref(), Some("before"));
    assert_eq!(tickets.connection_of(&id(15)).await.as_deref(), Some("good too"));
}

async fn refusal_names_the_first_blocking_ticket(setup: Setup) {
    let tickets = setup.open().await;
    create_one_ticket_of_each_state(&tickets).await;
    let groups = [group("one", ids([11, 3, 2, 5])), group("two", ids([12, 5, 1, 3]))];
    let outcomes = tickets.assign(&groups).await.unwrap();
    assert_eq!(outcomes, [AssignOutcome::Refused(id(3)), AssignOutcome::Refused(id(5))]);
}

async fn refused_match_writes_nothing(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..3).await;
    assert_eq!(tickets.take(10).await, ids(0..3));
    tickets.delete(&id(1)).await.unwrap();
    let outcome = tickets.assign(&[group("match", ids(0..3))]).await.unwrap();
    assert_eq!(outcome, [AssignOutcome::Refused(id(1))]);
    let seen = [WatchState::Waiting, WatchState::Gone, WatchState::Waiting];
    assert_eq!(tickets.watch_states(&ids(0..3)).await.unwrap(), seen);
    assert_eq!(tickets.unrecorded_size().await.unwrap().0, 0);
    let ttl = tickets.status(&id(0)).await.unwrap().ttl.unwrap();
    assert!(ttl > Duration::from_secs(500), "{ttl:?}");
    tickets.release(&ids(0..3)).await.unwrap();
    assert_eq!(tickets.take(10).await, ids([0, 2]), "who is left waits on");
}

async fn first_of_two_matches_that_share_a_ticket_wins(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..6).await;
    let groups = [
        group("first", ids([0, 1])),
        group("second", ids([2, 1])),
        // The ticket that the second match did not get is free for the third.
        group("third", ids([2, 3])),
    ];
    let outcomes = tickets.assign(&groups).await.unwrap();
    assert_eq!(outcomes, [AssignOutcome::Assigned, AssignOutcome::Refused(id(1)), AssignOutcome::Assigned]);
    for (number, name) in [(0, "first"), (1, "first"), (2, "third"), (3, "third")] {
        assert_eq!(tickets.connection_of(&id(number)).await.as_deref(), Some(name));
    }
    assert_eq!(tickets.all().await, ids([4, 5]));
}

async fn more_than_a_thousand_tickets_are_assigned_in_one_call(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..2600).await;
    for gone in [5, 1001, 2599] {
        tickets.delete(&id(gone)).await.unwrap();
    }
    // The tickets of each match are far apart.
    let groups: Vec<AssignmentGroup> =
        (0..1300).map(|number| group(&format!("match {number}"), ids([number, number + 1300]))).collect();
    let outcomes = tickets.assign(&groups).await.unwrap();
    assert_eq!(outcomes.len(), groups.len());
    for (number, outcome) in outcomes.iter().enumerate() {
        let gone = [5, 1001, 2599].into_iter().find(|gone| gone % 1300 == number);
        assert_eq!(*outcome, gone.map_or(AssignOutcome::Assigned, |gone| AssignOutcome::Refused(id(gone))));
    }
    assert_eq!(tickets.all().await, ids([1299, 1305, 2301]));
    let seen = tickets.watch_states(&ids(0..2600)).await.unwrap();
    for (number, seen) in seen.into_iter().enumerate() {
        match number {
            5 | 1001 | 2599 => assert_eq!(seen, WatchState::Gone),
            1299 | 1305 | 2301 => assert_eq!(seen, WatchState::Waiting),
            _ => {
                let WatchState::Assigned(assignment) = seen else { panic!("{number}: {seen:?}") };
                assert_eq!(connection(&assignment), format!("match {}", number % 1300));
            }
        }
    }
    let entries = tickets.entries().await;
    let received: Vec<_> = entries.iter().flat_map(|entry| matches(&entry.matches)).collect();
    assert_eq!(received.len(), 1297);
}

async fn match_of_more_than_a_thousand_tickets_is_assigned_as_a_whole(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..2500).await;
    tickets.create_all(3000..5500).await;
    tickets.delete(&id(5499)).await.unwrap();
    let groups = [group("small", ids([])), group("whole", ids(0..2500)), group("not", ids(3000..5500))];
    let outcomes = tickets.assign(&groups[1..]).await.unwrap();
    assert_eq!(outcomes, [AssignOutcome::Assigned, AssignOutcome::Refused(id(5499))]);
    assert_eq!(tickets.all().await, ids(3000..5499));
    let seen = tickets.watch_states(&ids(0..2500)).await.unwrap();
    assert!(seen.iter().all(|seen| matches!(seen, WatchState::Assigned(_))));
}

async fn match_with_a_missing_ticket_is_assigned_without_the_check(setup: Setup) {
    let tickets = setup.with(|rules| rules.check_tickets = false).open().await;
    tickets.create_all(0..3).await;
    assert_eq!(tickets.take(10).await, ids(0..3));
    tickets.delete(&id(1)).await.unwrap();
    tickets.deindex(&id(2)).await.unwrap();
    let outcomes = tickets.assign(&[group("match", ids(0..3))]).await.unwrap();
    assert_eq!(outcomes, [AssignOutcome::Assigned]);
    for number in 0..3 {
        assert_eq!(tickets.connection_of(&id(number)).await.as_deref(), Some("match"));
    }
    assert_eq!(tickets.find(&id(1)).await.unwrap().data, None);
    assert_eq!(tickets.all().await, []);
    tickets.release(&ids(0..3)).await.unwrap();
    assert_eq!(tickets.take(10).await, [], "nothing is left active");
}

async fn assignment_is_never_overwritten_without_the_check(setup: Setup) {
    let tickets = setup.with(|rules| rules.check_tickets = false).open().await;
    tickets.create_all(0..4).await;
    tickets.assign(&[group("first", ids([0, 1]))]).await.unwrap();
    let groups = [group("second", ids([2, 1])), group("third", ids([3])), group("fourth", ids([3]))];
    let outcomes = tickets.assign(&groups).await.unwrap();
    assert_eq!(
        outcomes,
        [AssignOutcome::Refused(id(1)), AssignOutcome::Assigned, AssignOutcome::Refused(id(3))]
    );
    for (number, name) in [(0, Some("first")), (1, Some("first")), (2, None), (3, Some("third"))] {
        assert_eq!(tickets.connection_of(&id(number)).await.as_deref(), name);
    }
}

async fn late_engine_is_refused(setup: Setup) {
    let late = setup.with(|rules| rules.pending_timeout = Duration::from_secs(1)).open().await;
    let quick = late.elsewhere().await;
    late.create_all(0..3).await;
    assert_eq!(late.take(10).await, ids(0..3));
    eventually("the others see them again", PATIENCE, async || {
        quick.pass(Duration::from_millis(200));
        quick.take(10).await == ids(0..3)
    })
    .await;
    assert_eq!(quick.assign(&[group("quick", ids([0, 1]))]).await.unwrap(), [AssignOutcome::Assigned]);
    let outcomes = late.assign(&[group("late", ids([1, 2])), group("sole", ids([0]))]).await.unwrap();
    assert_eq!(outcomes, [AssignOutcome::Refused(id(1)), AssignOutcome::Refused(id(0))]);
    for (number, name) in [(0, Some("quick")), (1, Some("quick")), (2, None)] {
        assert_eq!(late.connection_of(&id(number)).await.as_deref(), name);
    }
    late.release(&ids(0..3)).await.unwrap();
    assert_eq!(quick.take(10).await, ids([2]), "what was assigned does not come back");
}

/// Checks that each ticket is in at most one match and has that match's assignment, and that the events list the same
/// matches.
async fn assert_consistent(tickets: &Tickets, made: &[AssignmentGroup], count: usize) {
    let mut match_of: HashMap<TicketId, &AssignmentGroup> = HashMap::new();
    for group in made {
        for id in &group.tickets {
            assert!(match_of.insert(id.clone(), group).is_none(), "{id} is in two matches");
        }
    }
    let all = ids(0..count);
    for (id, seen) in all.iter().zip(tickets.watch_states(&all).await.unwrap()) {
        match match_of.get(id) {
            Some(group) => assert_eq!(seen, WatchState::Assigned(only(group)), "{id}"),
            None => assert_eq!(seen, WatchState::Waiting, "{id}"),
        }
    }
    let left = all.into_iter().filter(|id| !match_of.contains_key(id));
    assert_eq!(tickets.all().await, left.collect::<Vec<_>>());
    let entries = tickets.entries().await;
    let received = entries.iter().flat_map(|entry| matches(&entry.matches));
    assert_eq!(sorted(received), sorted(made.iter().flat_map(|group| matches(&group.encoded_match))));
}

async fn engines_with_the_same_tickets_assign_each_once(setup: Setup) {
    const COUNT: usize = 300;
    let tickets = setup.open().await;
    tickets.create_all(0..COUNT).await;
    let barrier = Arc::new(Barrier::new(8));
    let mut engines = Vec::new();
    for engine in 0..8 {
        let (process, barrier) = (tickets.elsewhere().await, barrier.clone());
        engines.push(tokio::spawn(async move {
            let order = shuffled(COUNT);
            let name = |at| format!("match {at} of {engine}");
            let groups: Vec<AssignmentGroup> = order
                .chunks(3)
                .enumerate()
                .map(|(at, three)| group(&name(at), ids(three.iter().copied())))
                .collect();
            barrier.wait().await;
            let mut made = Vec::new();
            for groups in groups.chunks(5) {
                let outcomes = process.assign(groups).await.unwrap();
                let done =
                    groups.iter().zip(outcomes).filter(|(_, outcome)| *outcome == AssignOutcome::Assigned);
                made.extend(done.map(|(group, _)| group.clone()));
            }
            made
        }));
    }
    let made: Vec<AssignmentGroup> = join_all(engines).await.into_iter().flat_map(Result::unwrap).collect();
    assert!(made.len() > 10, "{}", made.len());
    assert_consistent(&tickets, &made, COUNT).await;
}

async fn concurrent_engines_never_share_a_ticket(setup: Setup) {
    const COUNT: usize = 1000;
    let tickets = setup.open().await;
    tickets.create_all(shuffled(COUNT)).await;
    let mut engines = Vec::new();
    for process in 0..4 {
        let tickets = tickets.elsewhere().await;
        engines.extend((0..25).map(|engine| {
            let tickets = tickets.clone();
            tokio::spawn(async move {
                let fetched = tickets.take(40).await;
                // Assign half of them in pairs; release the rest.
                let (half, rest) = fetched.split_at(fetched.len() / 2);
                let pairs = half.chunks_exact(2).map(<[TicketId]>::to_vec).enumerate();
                let groups: Vec<AssignmentGroup> = pairs
                    .map(|(pair, ids)| group(&format!("match {pair} of {process}-{engine}"), ids))
                    .collect();
                let outcomes = tickets.assign(&groups).await.unwrap();
                assert!(outcomes.iter().all(|outcome| *outcome == AssignOutcome::Assigned), "{outcomes:?}");
                tickets.release(rest).await.unwrap();
                groups
            })
        }));
    }
    let made: Vec<AssignmentGroup> = join_all(engines).await.into_iter().flat_map(Result::unwrap).collect();
    assert!(made.len() > 100, "{}", made.len());
    assert_consistent(&tickets, &made, COUNT).await;
}

async fn tickets_of_a_match_can_have_different_assignments(setup: Setup) {
    let tickets = setup.open().await;
    let other = tickets.elsewhere().await;
    tickets.create_all(0..5).await;
    let own = |name: &str| only(&group(name, Vec::new()));
    let each = AssignmentGroup {
        assignments: Assignments::PerTicket(vec![own("for 1"), own("for 3")]),
        ..group("each", ids([1, 3]))
    };
    let groups = [group("before", ids([0])), each, group("after", ids([2, 4]))];
    assert_eq!(tickets.assign(&groups).await.unwrap(), vec![AssignOutcome::Assigned; 3]);
    for (number, name) in [(0, "before"), (1, "for 1"), (2, "after"), (3, "for 3"), (4, "after")] {
        assert_eq!(other.connection_of(&id(number)).await.as_deref(), Some(name), "ticket {number}");
    }
}
