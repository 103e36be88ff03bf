//! Claims: no ticket has two, and an old one changes nothing.

use std::time::Duration;

use buffa::Message;
use bytes::Bytes;
use futures::future::join_all;
use matchmaking::model::TicketId;
use matchmaking::store::{
    AssignOutcome, AssignmentGroup, Claim, ClaimOutcome, ClaimRequest, DirectGroup, Holder, Obstacle,
};
use proto::openmatch;
use testkit::eventually;

use crate::setup::{PATIENCE, Setup, Tickets, group, id, ids, matches, shuffled};

for_every_store! {
    late_release_changes_nothing,
    fetched_tickets_can_join_a_claim,
    late_assignment_changes_nothing,
    released_tickets_cannot_be_assigned_under_the_old_claim,
    match_of_a_director_is_claimed_as_a_whole_or_not_at_all,
    match_without_tickets_is_claimed,
    claims_of_one_call_have_numbers_of_their_own,
    expired_claim_can_be_taken_over,
    directors_and_engines_never_share_a_ticket,
    release_all_frees_every_ticket,
    holder_of_a_claim_is_known,
    director_assigns_groups_as_a_whole,
    director_learns_what_prevents_an_assignment,
    group_of_two_holders_is_refused_for_the_second,
    group_of_two_matches_is_refused_unless_the_call_has_all_their_tickets,
    match_can_be_assigned_ticket_by_ticket,
    tickets_of_an_engine_can_be_assigned_by_a_director,
}

fn request(numbers: impl IntoIterator<Item = usize>) -> ClaimRequest {
    let holder = Holder { profile: "duel".to_owned(), function: "mmf:50502".to_owned() };
    ClaimRequest { number: None, holder, tickets: ids(numbers), backfill: None }
}

async fn claim(tickets: &Tickets, numbers: impl IntoIterator<Item = usize>) -> Claim {
    match tickets.store.claim(&[request(numbers)]).await.unwrap()[..] {
        [ClaimOutcome::Claimed(claim)] => claim,
        ref other => panic!("{other:?}"),
    }
}

fn direct(name: &str, numbers: impl IntoIterator<Item = usize>) -> DirectGroup {
    let AssignmentGroup { tickets, encoded_match, .. } = group(name, ids(numbers));
    let assignment = openmatch::Assignment { connection: name.to_owned(), ..Default::default() };
    DirectGroup { tickets, assignment: assignment.encode_to_bytes(), encoded_match }
}

async fn fetched_tickets_can_join_a_claim(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..4).await;
    let engine = "engine".into();
    let first = tickets.fetch(&engine, 2).await.unwrap();
    let fetch_more = || tickets.fetch_joining(&engine, 1, Some(first.claim));
    let more = fetch_more().await.unwrap();
    assert_eq!((more.ids, more.claim), (ids([2]), first.claim));
    let other = tickets.fetch(&"other".into(), 10).await.unwrap();
    assert_eq!(other.ids, ids([3]));
    assert_ne!(other.claim, first.claim);
    let none = fetch_more().await.unwrap();
    assert_eq!((none.ids, none.claim), (vec![], first.claim));
    // A match of both fetches is under one claim.
    let both = AssignmentGroup { claim: Some(first.claim), ..group("both", ids([0, 2])) };
    let stolen = AssignmentGroup { claim: Some(first.claim), ..group("stolen", ids([1, 3])) };
    let outcomes = tickets.assign(&[both, stolen]).await.unwrap();
    assert_eq!(outcomes, [AssignOutcome::Assigned, AssignOutcome::Stale(id(3))]);
    assert_eq!(tickets.release_claim(first.claim, &ids([1, 3])).await.unwrap(), 1);
    assert_eq!(tickets.take(10).await, ids([1]));
}

/// Opens a store with a short pending timeout in which a late and a quick engine both fetched tickets 0 to 2.
async fn late_and_quick(setup: Setup) -> (Tickets, Claim, Tickets, Claim) {
    let late = setup.with(|rules| rules.pending_timeout = Duration::from_secs(1)).open().await;
    let quick = late.elsewhere().await;
    late.create_all(0..3).await;
    let fetched = late.fetch(&"late".into(), 10).await.unwrap();
    assert_eq!(fetched.ids, ids(0..3));
    let newer = eventually("the tickets are active again", PATIENCE, async || {
        quick.pass(Duration::from_millis(200));
        let fetched = quick.fetch(&"quick".into(), 10).await.unwrap();
        (fetched.ids == ids(0..3)).then_some(fetched.claim)
    })
    .await;
    assert_ne!(fetched.claim, newer);
    (late, fetched.claim, quick, newer)
}

async fn late_release_changes_nothing(setup: Setup) {
    let (late, old, quick, new) = late_and_quick(setup).await;
    assert_eq!(late.release_claim(old, &ids(0..3)).await.unwrap(), 3);
    let groups = [AssignmentGroup { claim: Some(new), ..group("quick", ids([0, 1])) }];
    assert_eq!(quick.assign(&groups).await.unwrap(), [AssignOutcome::Assigned]);
    assert_eq!(quick.release_claim(new, &ids(0..3)).await.unwrap(), 0, "assigned tickets have no claim");
    assert_eq!(late.take(10).await, ids([2]));
}

async fn late_assignment_changes_nothing(setup: Setup) {
    let (late, old, quick, new) = late_and_quick(setup).await;
    let of = |claim, name, numbers: [usize; 2]| AssignmentGroup {
        claim: Some(claim),
        ..group(name, ids(numbers))
    };
    assert_eq!(late.assign(&[of(old, "late", [0, 1])]).await.unwrap(), [AssignOutcome::Stale(id(0))]);
    assert_eq!(late.connection_of(&id(0)).await, None);
    assert_eq!(late.unrecorded_size().await.unwrap().0, 0);
    assert_eq!(quick.assign(&[of(new, "quick", [0, 1])]).await.unwrap(), [AssignOutcome::Assigned]);
    assert_eq!(late.connection_of(&id(0)).await.as_deref(), Some("quick"));
}

async fn released_tickets_cannot_be_assigned_under_the_old_claim(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..2).await;
    let fetched = tickets.fetch(&"engine".into(), 10).await.unwrap();
    tickets.release(&ids([1])).await.unwrap();
    let late = AssignmentGroup { claim: Some(fetched.claim), ..group("late", ids(0..2)) };
    assert_eq!(tickets.assign(&[late]).await.unwrap(), [AssignOutcome::Refused(id(1))]);
    assert_eq!(tickets.take(10).await, ids([1]));
}

async fn match_of_a_director_is_claimed_as_a_whole_or_not_at_all(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..7).await;
    tickets.delete(&id(6)).await.unwrap();
    assert_eq!(tickets.take(1).await, ids([0]));
    let requests = [request([1, 2]), request([2, 3]), request([3, 0]), request([4, 6]), request([3, 4])];
    let outcomes = tickets.claim(&requests).await.unwrap();
    let refused = |number| ClaimOutcome::Refused(id(number));
    assert_eq!(outcomes[1..4], [refused(2), refused(0), refused(6)]);
    assert!(
        matches!(outcomes[0], ClaimOutcome::Claimed(_)) && matches!(outcomes[4], ClaimOutcome::Claimed(_))
    );
    assert_eq!(tickets.take(10).await, ids([5]), "the refused matches hold no ticket");
}

async fn match_without_tickets_is_claimed(setup: Setup) {
    let tickets = setup.open().await;
    let outcomes = tickets.claim(&[request([])]).await.unwrap();
    assert!(matches!(outcomes[..], [ClaimOutcome::Claimed(_)]), "{outcomes:?}");
}

async fn claims_of_one_call_have_numbers_of_their_own(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..3).await;
    let first = claim(&tickets, [0]).await;
    let again = ClaimRequest { number: Some(first.number()), ..request([1]) };
    let outcomes = tickets.claim(&[again]).await.unwrap();
    let [ClaimOutcome::Claimed(second)] = outcomes[..] else { panic!("{outcomes:?}") };
    let other = claim(&tickets, [2]).await;
    assert_ne!(first.number(), second.number());
    assert_ne!(first.number(), other.number());
    assert!(first.is_of_director() && second.is_of_director() && other.is_of_director());
    // But one holder, so that its Director may put them into one group.
    let done = tickets.assign_directly(&[direct("both", [0, 1])]).await.unwrap();
    assert_eq!(done.obstacles, [[None, None]]);
}

async fn expired_claim_can_be_taken_over(setup: Setup) {
    let tickets = setup.with(|rules| rules.pending_timeout = Duration::from_secs(1)).open().await;
    tickets.create_all(0..2).await;
    let old = claim(&tickets, 0..2).await;
    let new = eventually("the claim has expired", PATIENCE, async || {
        tickets.pass(Duration::from_millis(200));
        match tickets.claim(&[request(0..2)]).await.unwrap()[..] {
            [ClaimOutcome::Claimed(claim)] => Some(claim),
            _ => None,
        }
    })
    .await;
    assert_eq!(tickets.release_claim(old, &ids(0..2)).await.unwrap(), 2);
    assert_eq!(tickets.release_claim(new, &ids(0..2)).await.unwrap(), 0);
    assert_eq!(tickets.take(10).await, ids(0..2));
}

async fn directors_and_engines_never_share_a_ticket(setup: Setup) {
    const COUNT: usize = 400;
    let tickets = setup.open().await;
    tickets.create_all(shuffled(COUNT)).await;
    let mut holders = Vec::new();
    for number in 0..6 {
        let tickets = tickets.elsewhere().await;
        holders.push(tokio::spawn(async move {
            if number % 2 == 0 {
                let mut held = Vec::new();
                for _ in 0..5 {
                    held.extend(tickets.take(20).await);
                }
                return held;
            }
            let order = shuffled(COUNT);
            let mut held: Vec<TicketId> = Vec::new();
            for pairs in order.chunks(10) {
                let requests: Vec<ClaimRequest> =
                    pairs.chunks(2).map(|pair| request(pair.iter().copied())).collect();
                let outcomes = tickets.claim(&requests).await.unwrap();
                for (request, outcome) in requests.into_iter().zip(outcomes) {
                    if matches!(outcome, ClaimOutcome::Claimed(_)) {
                        held.extend(request.tickets);
                    }
                }
            }
            held
        }));
    }
    let mut held: Vec<TicketId> = join_all(holders).await.into_iter().flat_map(Result::unwrap).collect();
    let count = held.len();
    assert!(count > COUNT / 2, "{count}");
    held.sort();
    held.dedup();
    assert_eq!(held.len(), count, "a ticket has two holders");
}

async fn release_all_frees_every_ticket(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..4).await;
    assert_eq!(tickets.take(2).await, ids(0..2));
    claim(&tickets, [2]).await;
    assert_eq!(tickets.release_all().await.unwrap(), 3);
    assert_eq!(tickets.release_all().await.unwrap(), 0);
    assert_eq!(tickets.take(10).await, ids(0..4));
}

async fn holder_of_a_claim_is_known(setup: Setup) {
    let tickets = setup.open().await;
    let other = tickets.elsewhere().await;
    tickets.create_all(0..3).await;
    assert_eq!(tickets.take(1).await, ids([0]));
    claim(&tickets, [1]).await;
    let holder = Some(request([]).holder);
    assert_eq!(other.holders(&ids([1, 2, 0])).await.unwrap(), [holder.clone(), None, None]);
    assert_eq!(other.status(&id(1)).await.unwrap().holder, holder);
    assert_eq!(other.status(&id(0)).await.unwrap().holder, None);
}

async fn director_assigns_groups_as_a_whole(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..5).await;
    claim(&tickets, [0, 1]).await;
    let groups = [direct("one", [0, 1]), direct("two", [2, 9]), direct("three", [3])];
    let done = tickets.assign_directly(&groups).await.unwrap();
    assert_eq!(done.obstacles, [vec![None, None], vec![None, Some(Obstacle::NotFound)], vec![None]]);
    let made: Vec<Bytes> = done.batches.iter().map(|batch| batch.matches.clone()).collect();
    assert_eq!(matches(&made.concat()).len(), 2);
    assert_eq!(tickets.all().await, ids([2, 4]));
    assert_eq!(tickets.entries().await.len(), 1, "they wait for the recorder");
    tickets.notify(&done.batches, matchmaking::store::AfterNotify::Remove).await.unwrap();
    for (number, name) in [(0, Some("one")), (1, Some("one")), (2, None), (3, Some("three"))] {
        assert_eq!(tickets.connection_of(&id(number)).await.as_deref(), name);
    }
}

async fn director_learns_what_prevents_an_assignment(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..4).await;
    tickets.deindex(&id(3)).await.unwrap();
    tickets.assign_directly(&[direct("first", [0, 1])]).await.unwrap();
    let again = tickets.assign_directly(&[direct("first", [0, 1]), direct("late", [0, 2])]).await.unwrap();
    let repeated = Some(Obstacle::Repeated);
    assert_eq!(again.obstacles, [vec![repeated, repeated], vec![Some(Obstacle::AssignedElsewhere), None]]);
    assert_eq!(again.batches.len(), 0);
    assert_eq!(tickets.all().await, ids([2]), "nothing of a refused group is written");
    let deindexed = tickets.assign_directly(&[direct("out", [3])]).await.unwrap();
    assert_eq!(deindexed.obstacles, [[None]], "a ticket outside of matchmaking can be assigned");
}

async fn group_of_two_holders_is_refused_for_the_second(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..4).await;
    claim(&tickets, [0, 1]).await;
    claim(&tickets, [2]).await;
    let done = tickets.assign_directly(&[direct("mixed", [0, 2, 3, 1])]).await.unwrap();
    assert_eq!(done.obstacles, [[None, Some(Obstacle::Claimed), None, None]]);
    assert_eq!(tickets.all().await, ids(0..4));
}

/// Claims two matches for one call.
async fn claim_two(tickets: &Tickets, one: [usize; 2], two: [usize; 2]) {
    let first = claim(tickets, one).await;
    let second = ClaimRequest { number: Some(first.number()), ..request(two) };
    let outcomes = tickets.claim(&[second]).await.unwrap();
    assert!(matches!(outcomes[..], [ClaimOutcome::Claimed(_)]), "{outcomes:?}");
}

async fn group_of_two_matches_is_refused_unless_the_call_has_all_their_tickets(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..5).await;
    claim_two(&tickets, [0, 2], [1, 3]).await;
    let claimed = Some(Obstacle::Claimed);
    // Of both matches a part, of one match a part and a free ticket, of one match all and of the other a part.
    let done = tickets.assign_directly(&[direct("late", [0, 1])]).await.unwrap();
    assert_eq!(done.obstacles, [[claimed, claimed]]);
    let done = tickets.assign_directly(&[direct("late", [4, 0])]).await.unwrap();
    assert_eq!(done.obstacles, [[None, claimed]]);
    let done = tickets.assign_directly(&[direct("late", [0, 2, 1])]).await.unwrap();
    assert_eq!(done.obstacles, [[None, None, claimed]]);
    assert_eq!(tickets.all().await, ids(0..5));
    // A Director may exchange the tickets of its matches.
    let done = tickets.assign_directly(&[direct("one", [0, 1]), direct("two", [2, 3])]).await.unwrap();
    assert_eq!(done.obstacles, [[None, None], [None, None]]);
    assert_eq!(tickets.all().await, ids([4]));
}

async fn match_can_be_assigned_ticket_by_ticket(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..4).await;
    claim_two(&tickets, [0, 1], [2, 3]).await;
    // In several calls, and in several groups of a call.
    for number in [0, 1] {
        let done = tickets.assign_directly(&[direct("one", [number])]).await.unwrap();
        assert_eq!(done.obstacles, [[None]]);
    }
    let done = tickets.assign_directly(&[direct("two", [2]), direct("three", [3])]).await.unwrap();
    assert_eq!(done.obstacles, [[None], [None]]);
    assert_eq!(tickets.all().await, ids([]));
}

async fn tickets_of_an_engine_can_be_assigned_by_a_director(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..2).await;
    let fetched = tickets.fetch(&"engine".into(), 10).await.unwrap();
    let done = tickets.assign_directly(&[direct("Director", [0])]).await.unwrap();
    assert_eq!(done.obstacles, [[None]]);
    let late = AssignmentGroup { claim: Some(fetched.claim), ..group("engine", ids(0..2)) };
    assert_eq!(tickets.assign(&[late]).await.unwrap(), [AssignOutcome::Refused(id(0))]);
}
