//! Backfills: each call, and backfills that claimed matches create and update.

use std::time::Duration;

use buffa::{Message, MessageField};
use bytes::Bytes;
use futures::TryStreamExt;
use matchmaking::model::{BackfillId, Moment, TicketId};
use matchmaking::store::{
    AcknowledgeOutcome, AssignBackfillOutcome, Assignments, ClaimOutcome, ClaimRequest, DeleteOutcome, Holder,
};
use matchmaking::{BackfillLimits, Error, Frontend, ProposedBackfill, Queries, QueryKind};
use proto::openmatch::double_range_filter::Exclude;
use proto::openmatch::{Assignment, Backfill, QueryBackfillsResponse, SearchFields};
use runtime::Drain;
use testkit::{Redis, eventually, need};

use crate::pools::{Filters, found_backfills};
use crate::setup::{PATIENCE, Setup, Tickets, group, id, ids, sorted};

for_every_store! {
    created_backfill_is_read_as_it_was_sent_with_id_time_and_generation,
    update_ignores_what_the_server_sets,
    calls_about_unknown_backfills_fail,
    match_creates_its_backfill_and_its_tickets_wait_for_the_game_server,
    match_updates_a_backfill_of_the_same_generation_only,
    match_with_a_taken_ticket_leaves_its_backfill_alone,
    update_and_delete_release_the_waiting_tickets,
    cancelled_ticket_does_not_block_the_others,
    ticket_that_is_claimed_elsewhere_has_left_the_backfill,
    ticket_that_a_director_assigned_has_left_the_backfill,
    repeated_acknowledgement_assigns_once_and_lists_once,
    interrupted_acknowledgement_lists_its_tickets_again,
    unacknowledged_backfill_expires_and_releases_its_tickets,
    acknowledged_backfill_does_not_expire,
    loop_deletes_backfills_that_redis_would_keep,
    query_returns_the_backfills_of_a_pool_in_pages,
    query_finds_each_backfill_as_it_was_last_changed,
    query_finds_a_backfill_until_it_expires,
}

/// Returns a backfill with this tag.
pub(crate) fn tagged(tag: &str) -> Backfill {
    let fields = SearchFields {
        tags: vec![tag.to_owned()],
        double_args: [("slots".to_owned(), 3.0)].into_iter().collect(),
        ..Default::default()
    };
    Backfill { search_fields: MessageField::some(fields), ..Default::default() }
}

const LIMITS: BackfillLimits = BackfillLimits { max_size: 65_536, max_fields: 100 };

fn sorted_by_id(mut backfills: Vec<Backfill>) -> Vec<Backfill> {
    backfills.sort_by(|a, b| a.id.cmp(&b.id));
    backfills
}

/// Claims these tickets in a match with this backfill.
pub(crate) async fn try_claim(
    tickets: &Tickets,
    backfill: Backfill,
    ids: Vec<TicketId>,
) -> (ClaimOutcome, Backfill) {
    let proposed = ProposedBackfill::read(backfill, Moment::from(tickets.clock.now()), LIMITS).unwrap();
    let holder = Holder { profile: "profile".to_owned(), function: "function".to_owned() };
    let request = ClaimRequest { number: None, holder, tickets: ids, backfill: Some(proposed.change) };
    (tickets.claim(&[request]).await.unwrap().remove(0), proposed.returned)
}

pub(crate) async fn claim_with(tickets: &Tickets, backfill: Backfill, ids: Vec<TicketId>) -> Backfill {
    let (outcome, returned) = try_claim(tickets, backfill, ids).await;
    assert!(matches!(outcome, ClaimOutcome::Claimed(_)), "{outcome:?}");
    returned
}

/// Claims these tickets in a match that creates a backfill. Returns it.
pub(crate) async fn claim_with_new(tickets: &Tickets, ids: Vec<TicketId>) -> Backfill {
    claim_with(tickets, tagged("new"), ids).await
}

pub(crate) fn server(connection: &str) -> Option<Assignment> {
    Some(Assignment { connection: connection.to_owned(), ..Default::default() })
}

/// Acknowledges a backfill. Returns the tickets that the answer lists.
async fn acknowledge(frontend: &Frontend, backfill: &Backfill, connection: &str) -> Vec<TicketId> {
    let answer = frontend.backfills().acknowledge(&backfill.id, server(connection)).await.unwrap();
    let listed = answer.tickets.iter().map(|ticket| {
        assert_eq!(ticket.assignment.connection, connection);
        TicketId::parse(&ticket.id).unwrap()
    });
    sorted(listed)
}

fn text(error: &Error) -> String {
    error.to_string()
}

async fn created_backfill_is_read_as_it_was_sent_with_id_time_and_generation(setup: Setup) {
    let tickets = setup.open().await;
    let backfills = tickets.frontend.backfills();
    let sent = Backfill { id: "theirs".to_owned(), generation: 7, ..tagged("desert") };
    let created = backfills.create(Some(sent.clone())).await.unwrap();
    let another = backfills.create(Some(sent.clone())).await.unwrap();
    assert_ne!(created.id, another.id);
    assert!(
        created.id.len() == 20
            && created.id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'v').contains(&b))
    );
    assert!(created.create_time.is_set());
    let expected =
        Backfill { id: created.id.clone(), create_time: created.create_time.clone(), generation: 1, ..sent };
    assert_eq!(created, expected);
    let elsewhere = tickets.elsewhere().await;
    assert_eq!(elsewhere.frontend.backfills().get(&created.id).await.unwrap(), created);
}

async fn update_ignores_what_the_server_sets(setup: Setup) {
    let tickets = setup.open().await;
    let backfills = tickets.frontend.backfills();
    let created = backfills.create(Some(tagged("desert"))).await.unwrap();
    let sent = Backfill { id: created.id.clone(), generation: 42, ..tagged("forest") };
    let updated = backfills.update(Some(sent.clone())).await.unwrap();
    assert_eq!(updated, Backfill { generation: 2, create_time: created.create_time.clone(), ..sent });
    assert_eq!(backfills.get(&created.id).await.unwrap(), updated);
    backfills.delete(&created.id).await.unwrap();
    let gone = backfills.get(&created.id).await.unwrap_err();
    assert_eq!(text(&gone), format!("Backfill id: {} not found", created.id));
    backfills.delete(&created.id).await.unwrap();
}

async fn calls_about_unknown_backfills_fail(setup: Setup) {
    let tickets = setup.open().await;
    let backfills = tickets.frontend.backfills();
    let unknown = "dbt8pcfejq8o287bsa0g";
    for id in [unknown, "odd id", ""] {
        assert_eq!(text(&backfills.get(id).await.unwrap_err()), format!("Backfill id: {id} not found"));
    }
    let with = |id: &str| Backfill { id: id.to_owned(), ..Default::default() };
    let messages = [
        text(&backfills.create(None).await.unwrap_err()),
        text(
            &backfills
                .create(Some(Backfill { create_time: MessageField::some(Default::default()), ..with("") }))
                .await
                .unwrap_err(),
        ),
        text(&backfills.update(None).await.unwrap_err()),
        text(&backfills.update(Some(with(""))).await.unwrap_err()),
        text(&backfills.update(Some(with(unknown))).await.unwrap_err()),
        text(&backfills.delete("").await.unwrap_err()),
        text(&backfills.acknowledge("", server("s")).await.unwrap_err()),
        text(&backfills.acknowledge(unknown, None).await.unwrap_err()),
        text(&backfills.acknowledge(unknown, server("s")).await.unwrap_err()),
    ];
    let expected = [
        ".backfill is required",
        "backfills cannot be created with create time set",
        ".backfill is required",
        "backfill ID should exist",
        "Backfill id: dbt8pcfejq8o287bsa0g not found",
        ".BackfillId is required",
        ".BackfillId is required",
        ".Assignment is required",
        "Backfill id: dbt8pcfejq8o287bsa0g not found",
    ];
    assert_eq!(messages, expected);
    backfills.delete(unknown).await.unwrap();
    backfills.delete("odd id").await.unwrap();
}

async fn match_creates_its_backfill_and_its_tickets_wait_for_the_game_server(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..3).await;
    let created = claim_with_new(&tickets, ids([0, 1])).await;
    assert_eq!(tickets.frontend.backfills().get(&created.id).await.unwrap(), created);
    assert_eq!(created.generation, 1);
    // No engine can take tickets that wait for the game server.
    assert_eq!(tickets.take(10).await, ids([2]));

    let elsewhere = tickets.elsewhere().await;
    assert_eq!(acknowledge(&elsewhere.frontend, &created, "server").await, ids([0, 1]));
    for number in [0, 1] {
        assert_eq!(tickets.connection_of(&id(number)).await.as_deref(), Some("server"));
        assert_eq!(tickets.delete(&id(number)).await.unwrap(), DeleteOutcome::AlreadyAssigned);
    }
    assert_eq!(tickets.all().await, ids([2]));
}

async fn match_updates_a_backfill_of_the_same_generation_only(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..4).await;
    let created = claim_with_new(&tickets, ids([0])).await;
    let proposed = Backfill { id: created.id.clone(), generation: 1, ..tagged("fuller") };
    let returned = claim_with(&tickets, proposed.clone(), ids([1])).await;
    assert_eq!(returned, proposed, "the match is returned as it was proposed");
    let read = tickets.frontend.backfills().get(&created.id).await.unwrap();
    assert_eq!(
        read,
        Backfill { generation: 2, create_time: created.create_time.clone(), ..proposed.clone() }
    );

    // The same proposal again, an older one, and one about a backfill that does not exist.
    let unknown = Backfill { id: "dbt8pcfejq8o287bsa0g".to_owned(), ..proposed.clone() };
    let older = Backfill { generation: 0, ..proposed.clone() };
    for stale in [proposed, older, unknown] {
        assert_eq!(try_claim(&tickets, stale, ids([2])).await.0, ClaimOutcome::StaleBackfill);
    }
    assert_eq!(tickets.frontend.backfills().get(&created.id).await.unwrap(), read);
    assert_eq!(tickets.take(10).await, ids([2, 3]), "nothing was claimed");
    assert_eq!(acknowledge(&tickets.frontend, &created, "server").await, ids([0, 1]));
}

async fn match_with_a_taken_ticket_leaves_its_backfill_alone(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..2).await;
    assert_eq!(tickets.take(1).await, ids([0]));
    let (outcome, returned) = try_claim(&tickets, tagged("new"), ids([0, 1])).await;
    assert_eq!(outcome, ClaimOutcome::Refused(id(0)));
    assert!(tickets.frontend.backfills().get(&returned.id).await.is_err());
    let existing = tickets.frontend.backfills().create(Some(tagged("old"))).await.unwrap();
    assert_eq!(try_claim(&tickets, existing.clone(), ids([0, 1])).await.0, ClaimOutcome::Refused(id(0)));
    assert_eq!(tickets.frontend.backfills().get(&existing.id).await.unwrap(), existing);
    assert_eq!(tickets.take(10).await, ids([1]));
}

async fn update_and_delete_release_the_waiting_tickets(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..3).await;
    let created = claim_with_new(&tickets, ids([0, 1])).await;
    let updated = tickets.frontend.backfills().update(Some(created.clone())).await.unwrap();
    assert_eq!(acknowledge(&tickets.frontend, &created, "server").await, []);
    assert_eq!(tickets.take(1).await, ids([0]), "it is active again");
    claim_with(&tickets, updated, ids([1, 2])).await;
    assert_eq!(tickets.take(10).await, []);
    tickets.frontend.backfills().delete(&created.id).await.unwrap();
    assert_eq!(tickets.take(10).await, ids([1, 2]));
}

async fn cancelled_ticket_does_not_block_the_others(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..3).await;
    let created = claim_with_new(&tickets, ids([0, 1, 2])).await;
    assert_eq!(tickets.delete(&id(0)).await.unwrap(), DeleteOutcome::Deleted);
    // One of them is cancelled between the two steps of the acknowledgement.
    let backfill = BackfillId::parse(&created.id).unwrap();
    let AcknowledgeOutcome::Acknowledged(found) = tickets.acknowledge_backfill(&backfill).await.unwrap()
    else {
        panic!("it is live")
    };
    assert_eq!(found.waiting, ids([1, 2]));
    assert_eq!(tickets.delete(&id(1)).await.unwrap(), DeleteOutcome::Deleted);
    let (match_, assignment) = (group("server", ids([1, 2])), server("server").unwrap().encode_to_bytes());
    let assigned = tickets
        .assign_backfill(
            &backfill,
            &found.waiting,
            &Assignments::Shared(assignment.clone()),
            &match_.encoded_match,
        )
        .await
        .unwrap();
    assert!(matches!(assigned, AssignBackfillOutcome::Refused(left) if left == ids([1])));
    assert_eq!(tickets.connection_of(&id(2)).await, None, "nothing was assigned");
    assert_eq!(acknowledge(&tickets.frontend, &created, "server").await, ids([2]));
}

async fn ticket_that_is_claimed_elsewhere_has_left_the_backfill(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..2).await;
    let created = claim_with_new(&tickets, ids([0, 1])).await;
    tickets.release(&ids([0])).await.unwrap();
    let other = claim_with_new(&tickets, ids([0])).await;
    assert_eq!(acknowledge(&tickets.frontend, &created, "first").await, ids([1]));
    assert_eq!(acknowledge(&tickets.frontend, &other, "second").await, ids([0]));
    // Neither does the deletion of a backfill touch a ticket that has left it.
    tickets.create_all(2..3).await;
    let created = claim_with_new(&tickets, ids([2])).await;
    tickets.release(&ids([2])).await.unwrap();
    claim_with_new(&tickets, ids([2])).await;
    tickets.frontend.backfills().delete(&created.id).await.unwrap();
    assert_eq!(tickets.take(10).await, []);
}

async fn ticket_that_a_director_assigned_has_left_the_backfill(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..2).await;
    let created = claim_with_new(&tickets, ids([0, 1])).await;
    tickets.assign(&[group("director", ids([0]))]).await.unwrap();
    assert_eq!(acknowledge(&tickets.frontend, &created, "server").await, ids([1]));
    assert_eq!(tickets.connection_of(&id(0)).await.as_deref(), Some("director"));
}

async fn repeated_acknowledgement_assigns_once_and_lists_once(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..2).await;
    let created = claim_with_new(&tickets, ids([0])).await;
    assert_eq!(acknowledge(&tickets.frontend, &created, "server").await, ids([0]));
    assert_eq!(acknowledge(&tickets.frontend, &created, "elsewhere").await, []);
    assert_eq!(tickets.connection_of(&id(0)).await.as_deref(), Some("server"));
    claim_with(&tickets, created.clone(), ids([1])).await;
    assert_eq!(acknowledge(&tickets.frontend, &created, "server").await, ids([1]), "the next ticket");
}

async fn interrupted_acknowledgement_lists_its_tickets_again(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..2).await;
    let created = claim_with_new(&tickets, ids([0, 1])).await;
    let backfill = BackfillId::parse(&created.id).unwrap();
    // The process dies after it has assigned the tickets, and the recovery notifies the players.
    let (match_, assignment) = (group("server", ids([0, 1])), server("server").unwrap().encode_to_bytes());
    let assigned = tickets
        .assign_backfill(
            &backfill,
            &ids([0, 1]),
            &Assignments::Shared(assignment.clone()),
            &match_.encoded_match,
        )
        .await;
    let AssignBackfillOutcome::Assigned(batch) = assigned.unwrap() else { panic!("both wait") };
    tickets.notify(&[batch], matchmaking::store::AfterNotify::Keep).await.unwrap();
    assert_eq!(acknowledge(&tickets.frontend, &created, "server").await, ids([0, 1]));
    assert_eq!(acknowledge(&tickets.frontend, &created, "server").await, []);
}

async fn unacknowledged_backfill_expires_and_releases_its_tickets(setup: Setup) {
    let tickets = setup.with(|rules| rules.pending_timeout = Duration::from_secs(3)).open().await;
    tickets.create_all(0..2).await;
    let created = claim_with_new(&tickets, ids([0, 1])).await;
    let backfills = tickets.frontend.backfills();
    assert_eq!(tickets.expire_backfills().await.unwrap().backfills, 0);
    tickets.pass(tickets.setup.rules.backfill_expiry());
    eventually("it expires", PATIENCE, async || tickets.live_backfills().await.unwrap().is_empty()).await;
    let late = backfills.acknowledge(&created.id, server("server")).await.unwrap_err();
    assert_eq!(text(&late), format!("can not acknowledge an expired backfill, id: {}", created.id));
    let late = backfills.update(Some(created.clone())).await.unwrap_err();
    assert_eq!(text(&late), format!("can not update an expired backfill, id: {}", created.id));
    assert_eq!(try_claim(&tickets, created.clone(), vec![]).await.0, ClaimOutcome::StaleBackfill);
    let expired = tickets.elsewhere().await.expire_backfills().await.unwrap();
    assert_eq!((expired.backfills, expired.tickets, expired.left), (1, 2, 0));
    assert_eq!(tickets.take(10).await, ids([0, 1]));
    assert!(backfills.get(&created.id).await.is_err());
    assert_eq!(tickets.expire_backfills().await.unwrap().backfills, 0);
}

async fn acknowledged_backfill_does_not_expire(setup: Setup) {
    let tickets = setup.with(|rules| rules.pending_timeout = Duration::from_secs(3)).open().await;
    let backfills = tickets.frontend.backfills();
    let [kept, left] = [
        backfills.create(Some(tagged("kept"))).await.unwrap(),
        backfills.create(Some(tagged("left"))).await.unwrap(),
    ];
    // Acknowledges one of them until the other expires.
    eventually("the other expires", PATIENCE, async || {
        tickets.pass(Duration::from_millis(500));
        acknowledge(&tickets.frontend, &kept, "server").await;
        tickets.expire_backfills().await.unwrap().backfills == 1
    })
    .await;
    assert_eq!(backfills.get(&kept.id).await.unwrap(), kept);
    assert!(backfills.get(&left.id).await.is_err());
}

/// Nothing else deletes them: their keys have no TTL here.
async fn loop_deletes_backfills_that_redis_would_keep(setup: Setup) {
    let tickets = setup.with(|rules| rules.pending_timeout = Duration::from_secs(2)).open().await;
    tickets.create_all(0..1).await;
    let created = claim_with_new(&tickets, ids([0])).await;
    if tickets.is_in_redis() {
        let mut raw = tickets.raw().await;
        for key in ["backfillAcks".to_owned(), format!("backfill:{}", created.id)] {
            raw.ask::<()>(&["PERSIST", &tickets.key(&key)]).await;
        }
    }
    let (cleaner, drain) = (tickets.cleaner(), Drain::new());
    let running = tokio::spawn({
        let drain = drain.clone();
        async move { cleaner.run(drain).await }
    });
    let id = BackfillId::parse(&created.id).unwrap();
    eventually("it is deleted", PATIENCE, async || {
        tickets.pass(Duration::from_millis(200));
        tickets.backfill_status(&id).await.unwrap().is_none()
    })
    .await;
    eventually("its ticket is active", PATIENCE, async || tickets.take(1).await == ids([0])).await;
    assert_eq!(tickets.counter("backfills_expired"), 1);
    drain.request();
    assert!(running.await.unwrap().is_ok());
}

async fn query_returns_the_backfills_of_a_pool_in_pages(setup: Setup) {
    let tickets = setup.open().await;
    let backfills = tickets.frontend.backfills();
    let (queries, large) = (tickets.queries(), tickets.queries_with(|config| config.page_size = 100));
    for number in 0..51 {
        backfills.create(Some(tagged(if number % 3 == 0 { "desert" } else { "forest" }))).await.unwrap();
    }
    let pages = async |queries: &Queries, pool| -> Vec<usize> {
        let pages = queries.query(Some(pool), QueryKind::Backfills).await.unwrap();
        let size = |page: Bytes| QueryBackfillsResponse::decode_from_slice(&page).unwrap().backfills.len();
        pages.map_ok(size).try_collect().await.unwrap()
    };
    assert_eq!(pages(&queries, Filters::default().wire()).await, [10, 10, 10, 10, 10, 1]);
    let desert = Filters { tags: vec!["desert"], ..Filters::default() };
    assert_eq!(pages(&queries, desert.wire()).await, [10, 7]);
    let slots = |exclude| Filters { ranges: vec![("slots", 1.0, 3.0, exclude)], ..Filters::default() };
    assert_eq!(pages(&large, slots(Exclude::NONE).wire()).await, [51]);
    assert_eq!(pages(&large, slots(Exclude::MAX).wire()).await, Vec::<usize>::new());
}

/// Every kind of change, made at another process.
async fn query_finds_each_backfill_as_it_was_last_changed(setup: Setup) {
    let tickets = setup.open().await;
    let (queries, other) = (tickets.queries(), tickets.elsewhere().await);
    let backfills = other.frontend.backfills();
    let query = async || sorted_by_id(found_backfills(&queries, Filters::default().wire()).await);
    assert_eq!(query().await, []);
    let first = backfills.create(Some(tagged("first"))).await.unwrap();
    other.create_all(0..2).await;
    let second = claim_with_new(&other, ids([0])).await;
    assert_eq!(query().await, sorted_by_id(vec![first.clone(), second.clone()]));
    // By a match, by the game server, and not by an acknowledgement.
    let proposed = Backfill { search_fields: tagged("proposed").search_fields, ..second.clone() };
    let second = Backfill { generation: 2, ..claim_with(&other, proposed, ids([1])).await };
    assert_eq!(query().await, sorted_by_id(vec![first.clone(), second.clone()]));
    let first = backfills.update(Some(Backfill { id: first.id, ..tagged("updated") })).await.unwrap();
    assert_eq!(query().await, sorted_by_id(vec![first.clone(), second.clone()]));
    let updated = Filters { tags: vec!["updated"], ..Filters::default() };
    assert_eq!(found_backfills(&queries, updated.wire()).await, std::slice::from_ref(&first));
    acknowledge(&other.frontend, &second, "server").await;
    assert_eq!(query().await, sorted_by_id(vec![first.clone(), second.clone()]));
    backfills.delete(&first.id).await.unwrap();
    assert_eq!(query().await, [second]);
    assert_eq!((tickets.scans("start"), tickets.scans("foreign"), tickets.scans("missed")), (1, 0, 0));
}

async fn query_finds_a_backfill_until_it_expires(setup: Setup) {
    let tickets = setup.with(|rules| rules.pending_timeout = Duration::from_secs(2)).open().await;
    let queries = tickets.queries();
    let backfills = tickets.frontend.backfills();
    let created = [
        backfills.create(Some(tagged("kept"))).await.unwrap(),
        backfills.create(Some(tagged("left"))).await.unwrap(),
    ];
    assert_eq!(found_backfills(&queries, Filters::default().wire()).await.len(), 2);
    eventually("the other expires", PATIENCE, async || {
        tickets.pass(Duration::from_millis(500));
        acknowledge(&tickets.frontend, &created[0], "server").await;
        found_backfills(&queries, Filters::default().wire()).await == [created[0].clone()]
    })
    .await;
    assert_eq!(tickets.scans("foreign"), 0);
}

/// So that nothing outlives its use when no process is left to clean up.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_backfill_expire_by_themselves() {
    let tickets = Setup::script(need!(Redis::shared().await)).open().await;
    tickets.create_all(0..1).await;
    let created = claim_with_new(&tickets, ids([0])).await;
    let mut raw = tickets.raw().await;
    let keys = [tickets.key("backfillAcks"), tickets.key(&format!("backfill:{}", created.id))];
    for key in &keys {
        let ttl: i64 = raw.ask(&["PTTL", key]).await;
        assert!((100_000..=120_000).contains(&ttl), "{key}: {ttl}");
        raw.ask::<()>(&["PEXPIRE", key, "30000"]).await;
    }
    acknowledge(&tickets.frontend, &created, "server").await;
    for key in &keys {
        let ttl: i64 = raw.ask(&["PTTL", key]).await;
        assert!(ttl > 100_000, "{key}: {ttl}");
    }
}
