//! Backfills of rule sets: created with their match, joined by tickets of engines, closed when full.

use buffa::Message;
use matchmaking::Error;
use matchmaking::model::{BackfillId, Moment, TicketId};
use matchmaking::store::{
    AssignBackfillOutcome, AssignOutcome, AssignmentGroup, Claim, ClaimOutcome, DeleteOutcome, NewRoom, Room,
    RoomJoin, RoomOrigin, RoomOutcome, RoomTeam, Seat,
};
use proto::openmatch::Backfill;
use testkit::eventually;

use crate::backfills::{server, try_claim};
use crate::setup::{PATIENCE, Setup, Tickets, group, id, ids, sorted};

for_every_store! {
    match_and_its_backfill_are_created_both_or_neither,
    joined_tickets_take_places_and_those_that_leave_open_them_again,
    tickets_of_another_claim_do_not_join,
    backfill_of_another_generation_is_not_joined,
    director_cannot_add_tickets,
    server_keeps_its_own_data_beside_the_seats,
    full_backfill_is_closed_once_its_game_server_knows,
    interrupted_acknowledgement_keeps_a_full_backfill,
    assigned_ticket_keeps_its_seat_when_an_old_acknowledgement_goes_on,
    ticket_that_left_and_joins_again_takes_one_place,
    unacknowledged_backfill_expires_with_its_seats,
}

/// Returns the seat of a ticket with so many players.
pub(crate) fn seat(team: &str, size: usize) -> Seat {
    Seat {
        team: team.to_owned(),
        size,
        waited: 1,
        players: serde_json::json!([{ "id": "p" }]),
        roles: Vec::new(),
    }
}

/// Returns a backfill for a match of these tickets, which are in team red.
pub(crate) fn room(tickets: &[TicketId], open: usize) -> NewRoom {
    let id = BackfillId::generate(Moment::from_micros(1_772_366_400_000_000));
    let fixed = Backfill { id: id.to_string(), ..Default::default() }.encode_to_bytes();
    let origin = RoomOrigin { profile: "coop".to_owned(), ..RoomOrigin::default() };
    let team = |name: &str, open| RoomTeam { name: name.to_owned(), open };
    let seats = tickets.iter().map(|id| (id.clone(), seat("red", 1))).collect();
    NewRoom { id, fixed, room: Room { origin, teams: vec![team("red", open), team("blue", 0)] }, seats }
}

/// Begins a match, fills it and closes its backfill.
pub(crate) async fn run_every_step(tickets: &Tickets, numbers: [usize; 4]) {
    let [one, two, three, four] = numbers;
    let backfill = begin(tickets, [one, two], 1).await;
    tickets.create_all([three, four]).await;
    let late = vec![(id(three), seat("red", 1))];
    assert_eq!(join(tickets, &backfill, late.clone()).await, RoomOutcome::Joined);
    tickets.release(&ids([three])).await.unwrap();
    assert_eq!(places(tickets, &backfill).await.0, [1, 0]);
    assert_eq!(join(tickets, &backfill, late).await, RoomOutcome::Joined);
    assert_eq!(acknowledge(tickets, &backfill).await.unwrap(), ids([three]));
    assert!(tickets.backfill_status(&backfill).await.unwrap().is_none());
}

/// Makes a match of these tickets with a backfill. Returns it.
async fn begin(tickets: &Tickets, numbers: [usize; 2], open: usize) -> BackfillId {
    let members = ids(numbers);
    tickets.create_all(numbers).await;
    let new = room(&members, open);
    let backfill = new.id.clone();
    let assigned =
        tickets.assign(&[AssignmentGroup { room: Some(new), ..group("begun", members) }]).await.unwrap();
    assert_eq!(assigned, [AssignOutcome::Assigned]);
    backfill
}

/// Fetches all tickets that wait, and lets these join. Releases the others.
async fn join(tickets: &Tickets, backfill: &BackfillId, seats: Vec<(TicketId, Seat)>) -> RoomOutcome {
    let fetched = tickets.fetch(&"engine".into(), 100).await.unwrap();
    let others: Vec<TicketId> =
        fetched.ids.into_iter().filter(|id| !seats.iter().any(|(joined, _)| joined == id)).collect();
    tickets.release_claim(fetched.claim, &others).await.unwrap();
    join_under(tickets, backfill, fetched.claim, seats).await
}

async fn join_under(
    tickets: &Tickets,
    backfill: &BackfillId,
    claim: Claim,
    seats: Vec<(TicketId, Seat)>,
) -> RoomOutcome {
    let generation = tickets.read_backfills(std::slice::from_ref(backfill)).await.unwrap().remove(0);
    let generation = generation.map_or(1, |data| data.generation);
    let join = RoomJoin { id: backfill.clone(), generation, claim, seats };
    tickets.join_rooms(&[join]).await.unwrap().remove(0)
}

/// Returns the open places of the teams, and who has a seat.
pub(crate) async fn places(tickets: &Tickets, backfill: &BackfillId) -> (Vec<usize>, Vec<TicketId>) {
    let open = tickets.open_rooms(std::slice::from_ref(backfill)).await.unwrap().remove(0);
    (open.room.teams.iter().map(|team| team.open).collect(), open.seats.into_keys().collect())
}

async fn acknowledge(tickets: &Tickets, backfill: &BackfillId) -> Result<Vec<TicketId>, Error> {
    let answer = tickets.frontend.backfills().acknowledge(backfill.as_str(), server("server")).await?;
    Ok(sorted(answer.tickets.iter().map(|ticket| TicketId::parse(&ticket.id).unwrap())))
}

async fn match_and_its_backfill_are_created_both_or_neither(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..5).await;
    let with_room = |name: &str, members: Vec<TicketId>| AssignmentGroup {
        room: Some(room(&members, 2)),
        ..group(name, members)
    };
    let groups = [with_room("one", ids([0, 1])), with_room("two", ids([1, 2])), group("three", ids([3]))];
    let outcomes = tickets.assign(&groups).await.unwrap();
    assert_eq!(outcomes, [AssignOutcome::Assigned, AssignOutcome::Refused(id(1)), AssignOutcome::Assigned]);
    let made = groups[0].room.clone().unwrap();
    assert_eq!(tickets.live_backfills().await.unwrap(), std::slice::from_ref(&made.id));
    let open = tickets.open_rooms(std::slice::from_ref(&made.id)).await.unwrap().remove(0);
    assert_eq!((open.generation, open.room, open.seats), (1, made.room, made.seats));
    // In one call with matches without a backfill, each has its own.
    let last = with_room("last", ids([2, 4]));
    let backfill = last.room.as_ref().unwrap().id.clone();
    tickets.assign(&[group("unknown", ids([9])), last]).await.unwrap();
    assert_eq!(places(&tickets, &backfill).await, (vec![2, 0], ids([2, 4])));
}

async fn joined_tickets_take_places_and_those_that_leave_open_them_again(setup: Setup) {
    let tickets = setup.open().await;
    let backfill = begin(&tickets, [0, 1], 4).await;
    tickets.create_all(2..5).await;
    let seats = vec![(id(2), seat("red", 1)), (id(3), seat("red", 2)), (id(4), seat("red", 1))];
    assert_eq!(join(&tickets, &backfill, seats).await, RoomOutcome::Joined);
    assert_eq!(places(&tickets, &backfill).await, (vec![0, 0], ids([0, 1, 2, 3, 4])));
    assert_eq!(tickets.take(10).await, [], "they wait for the game server");
    assert_eq!(tickets.delete(&id(3)).await.unwrap(), DeleteOutcome::Deleted);
    tickets.release(&ids([4])).await.unwrap();
    assert_eq!(places(&tickets, &backfill).await, (vec![3, 0], ids([0, 1, 2])));
    assert_eq!(acknowledge(&tickets, &backfill).await.unwrap(), ids([2]));
    assert_eq!(places(&tickets, &backfill).await, (vec![3, 0], ids([0, 1, 2])));
    assert_eq!(tickets.take(10).await, ids([4]));
}

async fn tickets_of_another_claim_do_not_join(setup: Setup) {
    let tickets = setup.open().await;
    let backfill = begin(&tickets, [0, 1], 2).await;
    tickets.create_all(2..4).await;
    let old = tickets.fetch(&"old".into(), 10).await.unwrap();
    tickets.release_claim(old.claim, &ids([3])).await.unwrap();
    let new = tickets.fetch(&"new".into(), 10).await.unwrap();
    assert_eq!(new.ids, ids([3]));
    let both = || vec![(id(2), seat("red", 1)), (id(3), seat("red", 1))];
    assert_eq!(join_under(&tickets, &backfill, old.claim, both()).await, RoomOutcome::Stale(id(3)));
    tickets.release_claim(new.claim, &ids([3])).await.unwrap();
    assert_eq!(join_under(&tickets, &backfill, old.claim, both()).await, RoomOutcome::Refused(id(3)));
    assert_eq!(places(&tickets, &backfill).await, (vec![2, 0], ids([0, 1])));
    // What is done under the claim of before changes nothing once a ticket has joined.
    let first = vec![(id(2), seat("red", 1))];
    assert_eq!(join_under(&tickets, &backfill, old.claim, first).await, RoomOutcome::Joined);
    tickets.release_claim(old.claim, &ids([2])).await.unwrap();
    let late = AssignmentGroup { claim: Some(old.claim), ..group("late", ids([2])) };
    assert_eq!(tickets.assign(&[late]).await.unwrap(), [AssignOutcome::Stale(id(2))]);
    assert_eq!(acknowledge(&tickets, &backfill).await.unwrap(), ids([2]));
}

async fn backfill_of_another_generation_is_not_joined(setup: Setup) {
    let tickets = setup.open().await;
    let backfill = begin(&tickets, [0, 1], 2).await;
    tickets.create_all(2..4).await;
    let fetched = tickets.fetch(&"engine".into(), 10).await.unwrap();
    let of = |number, generation| RoomJoin {
        id: backfill.clone(),
        generation,
        claim: fetched.claim,
        seats: vec![(id(number), seat("red", 2))],
    };
    let outcomes = tickets.join_rooms(&[of(2, 1), of(3, 1), of(3, 3)]).await.unwrap();
    assert_eq!(outcomes, [RoomOutcome::Joined, RoomOutcome::StaleBackfill, RoomOutcome::StaleBackfill]);
    assert_eq!(places(&tickets, &backfill).await, (vec![0, 0], ids([0, 1, 2])));
    tickets.delete_backfill(&backfill).await.unwrap();
    assert_eq!(tickets.join_rooms(&[of(3, 2)]).await.unwrap(), [RoomOutcome::StaleBackfill]);
    // A backfill of a Director has no seats.
    let created = tickets.frontend.backfills().create(Some(Backfill::default())).await.unwrap();
    let theirs = RoomJoin { id: BackfillId::parse(&created.id).unwrap(), ..of(3, 1) };
    assert_eq!(
        tickets.join_rooms(std::slice::from_ref(&theirs)).await.unwrap(),
        [RoomOutcome::StaleBackfill]
    );
    assert_eq!(tickets.open_rooms(&[theirs.id]).await.unwrap(), []);
}

async fn director_cannot_add_tickets(setup: Setup) {
    let tickets = setup.open().await;
    let backfill = begin(&tickets, [0, 1], 2).await;
    tickets.create_all(2..3).await;
    let found = tickets.frontend.backfills().get(backfill.as_str()).await.unwrap();
    assert_eq!(try_claim(&tickets, found, ids([2])).await.0, ClaimOutcome::StaleBackfill);
    assert_eq!(tickets.take(10).await, ids([2]));
}

async fn server_keeps_its_own_data_beside_the_seats(setup: Setup) {
    let tickets = setup.open().await;
    let backfill = begin(&tickets, [0, 1], 2).await;
    tickets.create_all(2..3).await;
    assert_eq!(join(&tickets, &backfill, vec![(id(2), seat("red", 1))]).await, RoomOutcome::Joined);
    let sent = Backfill { id: backfill.to_string(), ..crate::backfills::tagged("mine") };
    let updated = tickets.frontend.backfills().update(Some(sent)).await.unwrap();
    assert_eq!((updated.generation, updated.search_fields.double_args["open"]), (3, 2.0));
    assert_eq!(updated.search_fields.tags, ["mine"]);
    assert_eq!(places(&tickets, &backfill).await, (vec![2, 0], ids([0, 1])));
    assert_eq!(join(&tickets, &backfill, vec![(id(2), seat("red", 1))]).await, RoomOutcome::Joined);
    let read = tickets.frontend.backfills().get(backfill.as_str()).await.unwrap();
    assert_eq!((read.search_fields.tags.len(), read.search_fields.double_args["open"]), (1, 1.0));
}

async fn full_backfill_is_closed_once_its_game_server_knows(setup: Setup) {
    let tickets = setup.open().await;
    let backfill = begin(&tickets, [0, 1], 2).await;
    tickets.create_all(2..4).await;
    assert_eq!(join(&tickets, &backfill, vec![(id(2), seat("red", 1))]).await, RoomOutcome::Joined);
    assert_eq!(acknowledge(&tickets, &backfill).await.unwrap(), ids([2]));
    assert_eq!(acknowledge(&tickets, &backfill).await.unwrap(), []);
    assert_eq!(join(&tickets, &backfill, vec![(id(3), seat("red", 1))]).await, RoomOutcome::Joined);
    assert_eq!(tickets.live_backfills().await.unwrap().len(), 1, "its last ticket waits");
    assert_eq!(acknowledge(&tickets, &backfill).await.unwrap(), ids([3]));
    assert_eq!(tickets.live_backfills().await.unwrap(), []);
    assert!(matches!(acknowledge(&tickets, &backfill).await, Err(Error::BackfillNotFound(_))));
}

async fn interrupted_acknowledgement_keeps_a_full_backfill(setup: Setup) {
    let tickets = setup.open().await;
    let backfill = begin(&tickets, [0, 1], 1).await;
    tickets.create_all(2..3).await;
    assert_eq!(join(&tickets, &backfill, vec![(id(2), seat("red", 1))]).await, RoomOutcome::Joined);
    // A process that dies after the assignment, before its answer.
    let (match_, assignments) = {
        let group = group("server", ids([2]));
        (group.encoded_match, group.assignments)
    };
    tickets.assign_backfill(&backfill, &ids([2]), &assignments, &match_).await.unwrap();
    assert!(!tickets.mark_listed(&backfill, &ids([9])).await.unwrap());
    let batches = tickets.entries().await;
    tickets.notify(&batches, matchmaking::store::AfterNotify::Keep).await.unwrap();
    assert_eq!(acknowledge(&tickets, &backfill).await.unwrap(), ids([2]), "the next answer lists it");
    assert_eq!(tickets.live_backfills().await.unwrap(), []);
}

async fn assigned_ticket_keeps_its_seat_when_an_old_acknowledgement_goes_on(setup: Setup) {
    let tickets = setup.open().await;
    let backfill = begin(&tickets, [0, 1], 2).await;
    tickets.create_all(2..3).await;
    assert_eq!(join(&tickets, &backfill, vec![(id(2), seat("red", 1))]).await, RoomOutcome::Joined);
    assert_eq!(acknowledge(&tickets, &backfill).await.unwrap(), ids([2]));
    // A process that was paused since it had listed the ticket.
    let late = group("late", ids([2]));
    let refused =
        tickets.assign_backfill(&backfill, &ids([2]), &late.assignments, &late.encoded_match).await.unwrap();
    assert!(matches!(refused, AssignBackfillOutcome::Refused(left) if left == ids([2])));
    assert_eq!(places(&tickets, &backfill).await, (vec![1, 0], ids([0, 1, 2])));
}

async fn ticket_that_left_and_joins_again_takes_one_place(setup: Setup) {
    let tickets = setup.open().await;
    let backfill = begin(&tickets, [0, 1], 3).await;
    tickets.create_all(2..3).await;
    for _ in 0..2 {
        assert_eq!(join(&tickets, &backfill, vec![(id(2), seat("red", 1))]).await, RoomOutcome::Joined);
        tickets.release(&ids([2])).await.unwrap();
    }
    assert_eq!(join(&tickets, &backfill, vec![(id(2), seat("red", 1))]).await, RoomOutcome::Joined);
    assert_eq!(places(&tickets, &backfill).await, (vec![2, 0], ids([0, 1, 2])));
}

async fn unacknowledged_backfill_expires_with_its_seats(setup: Setup) {
    let setup = setup.with(|rules| rules.pending_timeout = std::time::Duration::from_secs(5));
    let tickets = setup.open().await;
    let backfill = begin(&tickets, [0, 1], 2).await;
    tickets.create_all(2..3).await;
    assert_eq!(join(&tickets, &backfill, vec![(id(2), seat("red", 1))]).await, RoomOutcome::Joined);
    tickets.pass(tickets.setup.rules.backfill_expiry());
    eventually("it expires", PATIENCE, async || {
        tickets.open_rooms(std::slice::from_ref(&backfill)).await.unwrap().is_empty()
    })
    .await;
    let fetched = tickets.fetch(&"engine".into(), 10).await.unwrap();
    assert_eq!(
        join_under(&tickets, &backfill, fetched.claim, vec![(id(2), seat("red", 1))]).await,
        RoomOutcome::StaleBackfill
    );
    eventually("its ticket is released", PATIENCE, async || {
        tickets.expire_backfills().await.unwrap();
        tickets.backfill_status(&backfill).await.unwrap().is_none()
    })
    .await;
    assert_eq!(tickets.take(10).await, ids([2]));
}
