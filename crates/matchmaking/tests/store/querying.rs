//! Queries of match functions: what they find, in every store.

use std::collections::BTreeSet;
use std::time::Duration;

use buffa::Message;
use futures::TryStreamExt;
use futures::future::join_all;
use matchmaking::QueryKind;
use matchmaking::store::{AssignOutcome, AssignmentGroup, ClaimOutcome, ClaimRequest, DirectGroup, Holder};
use proto::openmatch;
use testkit::Seed;

use crate::pools::{found, found_ids, random_steps, run};
use crate::setup::{Setup, group, id, ids, ticket};

for_every_store! {
    query_finds_exactly_the_active_tickets,
    pending_ticket_is_found_again_after_the_timeout,
    queries_at_once_share_a_refresh,
    every_step_records_its_changes,
    queries_agree_with_a_check_of_each_ticket,
    pages_hold_ten_tickets_and_the_last_one_the_rest,
    ticket_that_left_is_not_in_a_later_page,
    tickets_beyond_the_memory_are_refused,
}

pub(crate) fn everything() -> openmatch::Pool {
    openmatch::Pool::default()
}

pub(crate) fn names(numbers: impl IntoIterator<Item = usize>) -> BTreeSet<String> {
    ids(numbers).iter().map(ToString::to_string).collect()
}

async fn query_finds_exactly_the_active_tickets(setup: Setup) {
    let tickets = setup.open().await;
    let (queries, other) = (tickets.queries(), tickets.elsewhere().await);
    assert_eq!(found(&queries, everything()).await, names([]));
    tickets.create_all(0..6).await;
    assert_eq!(found(&queries, everything()).await, names(0..6));
    assert_eq!(other.take(3).await, ids(0..3));
    assert_eq!(found(&queries, everything()).await, names(3..6), "pending tickets are not active");
    other.release(&ids([0, 1])).await.unwrap();
    assert_eq!(found(&queries, everything()).await, names([0, 1, 3, 4, 5]));
    let outcomes = other.assign(&[group("match", ids([0, 3]))]).await.unwrap();
    assert_eq!(outcomes, [AssignOutcome::Assigned]);
    assert_eq!(found(&queries, everything()).await, names([1, 4, 5]));
    other.delete(&id(1)).await.unwrap();
    other.deindex(&id(4)).await.unwrap();
    assert_eq!(found(&queries, everything()).await, names([5]));
    other.create(ticket(7)).await.unwrap();
    assert_eq!(found(&queries, everything()).await, names([5, 7]));
    assert_eq!((tickets.scans("start"), tickets.scans("foreign"), tickets.scans("missed")), (1, 0, 0));
}

async fn pending_ticket_is_found_again_after_the_timeout(setup: Setup) {
    let tickets = setup.with(|rules| rules.pending_timeout = Duration::from_secs(1)).open().await;
    let queries = tickets.queries();
    tickets.create_all(0..2).await;
    assert_eq!(found(&queries, everything()).await.len(), 2);
    tickets.take(2).await;
    if !tickets.is_in_redis() {
        assert_eq!(found(&queries, everything()).await.len(), 0);
        tickets.pass(Duration::from_millis(1001));
    }
    testkit::eventually("they are active", crate::setup::PATIENCE, async || {
        found_ids(&queries, everything()).await.len() == 2
    })
    .await;
}

async fn queries_at_once_share_a_refresh(setup: Setup) {
    let tickets = setup.open().await;
    let queries = tickets.queries();
    for number in 0..30 {
        tickets.create(ticket(number)).await.unwrap();
        // Each sees the ticket, whichever refresh it takes part in.
        let at_once = join_all((0..8).map(|_| found(&queries, everything()))).await;
        assert!(at_once.iter().all(|found| found.len() == number + 1), "{at_once:?}");
    }
    assert_eq!(tickets.scans("start"), 1);
}

async fn every_step_records_its_changes(setup: Setup) {
    use matchmaking::Queue;

    use crate::setup::{to, user};
    let tickets = setup.open().await;
    let queries = tickets.queries();
    let gone = Duration::from_millis(300);
    let waits = Queue { cancel_when_gone: Some(gone), allow_other_queues: true, ..Queue::default() };
    let players = tickets.players([("duel", waits.clone()), ("ranked", waits)]);
    assert_eq!(found(&queries, everything()).await.len(), 0);
    let duel = players.join(user(0), to("duel")).await.unwrap().ticket;
    assert_eq!(found(&queries, everything()).await.len(), 1);
    players.join(user(1), to("ranked")).await.unwrap();
    tickets.play("played", &[&duel]).await;
    assert_eq!(found(&queries, everything()).await.len(), 1);
    tickets.pass(Duration::from_secs(1));
    testkit::eventually("one is swept", crate::setup::PATIENCE, async || {
        tickets.cancel_overdue().await.unwrap() == 1
    })
    .await;
    assert_eq!(found(&queries, everything()).await.len(), 0);
    // A few hundred: with declared keys, Redis compares each key of a script with all of them.
    tickets.create_all(0..300).await;
    assert_eq!(found(&queries, everything()).await.len(), 300);
    assert_eq!(tickets.take(250).await.len(), 250);
    assert_eq!(found(&queries, everything()).await.len(), 50);
    tickets.release(&ids(0..200)).await.unwrap();
    assert_eq!(found(&queries, everything()).await.len(), 250);
    tickets.assign(&[group("many", ids(0..150)), group("few", ids(150..152))]).await.unwrap();
    assert_eq!(found(&queries, everything()).await.len(), 98);
    let claim = |number| ClaimRequest {
        number: None,
        holder: Holder::default(),
        backfill: None,
        tickets: ids([number, number + 1]),
    };
    let outcomes = tickets.claim(&[claim(160), claim(161), claim(162)]).await.unwrap();
    assert_eq!(found(&queries, everything()).await.len(), 94);
    let ClaimOutcome::Claimed(first) = outcomes[0] else { panic!("{outcomes:?}") };
    tickets.release_claim(first, &ids(160..164)).await.unwrap();
    assert_eq!(found(&queries, everything()).await.len(), 96);
    tickets.release_all().await.unwrap();
    assert_eq!(found(&queries, everything()).await.len(), 148);
    let AssignmentGroup { tickets: members, encoded_match, .. } = group("direct", ids(170..180));
    let direct = DirectGroup { tickets: members, assignment: encoded_match.clone(), encoded_match };
    tickets.assign_directly(&[direct]).await.unwrap();
    assert_eq!(found(&queries, everything()).await.len(), 138);
    assert_eq!((tickets.scans("start"), tickets.scans("foreign"), tickets.scans("missed")), (1, 0, 0));
}

async fn queries_agree_with_a_check_of_each_ticket(setup: Setup) {
    let tickets = setup.with(|rules| rules.pending_timeout = Duration::from_secs(86_400)).open().await;
    let steps = random_steps(Seed::new().choices(0).u64(..), 60);
    run(&tickets, &steps).await;
}

/// Returns the sizes of the pages of a query.
async fn pages(queries: &matchmaking::Queries) -> Vec<usize> {
    let pages = queries.query(Some(everything()), QueryKind::Tickets).await.unwrap();
    let size =
        |page: bytes::Bytes| openmatch::QueryTicketsResponse::decode_from_slice(&page).unwrap().tickets.len();
    pages.map_ok(size).try_collect().await.unwrap()
}

async fn pages_hold_ten_tickets_and_the_last_one_the_rest(setup: Setup) {
    let tickets = setup.open().await;
    let queries = tickets.queries();
    assert_eq!(pages(&queries).await, [0; 0], "no match is no response");
    tickets.create_all(0..51).await;
    assert_eq!(pages(&queries).await, [10, 10, 10, 10, 10, 1]);
}

async fn ticket_that_left_is_not_in_a_later_page(setup: Setup) {
    let tickets = setup.open().await;
    let queries = tickets.queries();
    tickets.create_all(0..20).await;
    let mut slow = Box::pin(queries.query(Some(everything()), QueryKind::Ids).await.unwrap());
    let first = slow.try_next().await.unwrap().unwrap();
    let first = openmatch::QueryTicketIdsResponse::decode_from_slice(&first).unwrap().ids;
    let rest: Vec<usize> = (0..20).filter(|number| !first.contains(&id(*number).to_string())).collect();
    tickets.delete(&id(rest[0])).await.unwrap();
    // Takes the place of the one that left, and is not part of the older answer.
    tickets.create(ticket(20)).await.unwrap();
    assert_eq!(found(&queries, everything()).await.len(), 20);
    let second = slow.try_next().await.unwrap().unwrap();
    let second = openmatch::QueryTicketIdsResponse::decode_from_slice(&second).unwrap().ids;
    assert_eq!(second.into_iter().collect::<BTreeSet<String>>(), names(rest[1..].iter().copied()));
    assert!(slow.try_next().await.unwrap().is_none());
}

async fn tickets_beyond_the_memory_are_refused(setup: Setup) {
    use base::error::Coded;
    let tickets = setup.open().await;
    tickets.create_all(0..200).await;
    let queries = tickets.queries_with(|config| config.max_memory = 20_000);
    for _ in 0..2 {
        let error = queries.query(Some(everything()), QueryKind::Ids).await.map(drop).unwrap_err();
        assert_eq!(error.code(), base::Code::RateLimited);
        assert!(error.to_string().contains("matchmaking.query_max_memory"), "{error}");
    }
    assert_eq!(tickets.scans("start"), 1, "the second query does not try again at once");
}
