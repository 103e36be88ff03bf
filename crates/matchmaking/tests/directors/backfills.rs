//! `FetchMatches` with match functions that create and update backfills.

use std::time::Duration;

use buffa::{Message, MessageField};
use bytes::Bytes;
use futures::TryStreamExt;
use matchmaking::{BackendConfig, QueryKind};
use proto::openmatch::{
    Assignment, Backfill, Match, Pool, QueryBackfillsResponse, SearchFields, TagPresentFilter, Ticket,
};
use testkit::eventually;

use crate::servers::{KINDS, Kind, evaluator, function, proposal};
use crate::world::{World, config, fetch, read};
use crate::{PATIENCE, on_both_stores};

on_both_stores! {
    new_backfill_is_created_with_its_match,
    existing_backfill_is_updated_and_its_game_server_gets_the_tickets,
    match_with_too_large_a_backfill_is_skipped,
    match_with_a_stale_backfill_is_skipped_and_the_stream_goes_on,
    evaluated_match_creates_its_backfill,
    ; in_process:
    new_backfill_of_a_match_that_reaches_nobody_is_gone,
    existing_backfill_of_a_match_that_reaches_nobody_keeps_its_tickets,
}

fn tagged(tag: &str) -> Backfill {
    let search_fields = SearchFields { tags: vec![tag.to_owned()], ..Default::default() };
    Backfill { search_fields: MessageField::some(search_fields), ..Default::default() }
}

fn with_backfill(name: &str, tickets: &[&Ticket], backfill: &Backfill) -> Match {
    Match {
        backfill: MessageField::some(backfill.clone()),
        allocate_gameserver: true,
        ..proposal(name, tickets)
    }
}

/// Runs a match function that returns these matches.
async fn propose(world: &World, kind: Kind, proposals: Vec<Match>) -> (Vec<Match>, Option<String>) {
    let function = function(kind, move |_, sender| {
        let proposals = proposals.clone();
        async move {
            for proposal in proposals {
                sender.send(Ok(proposal)).await.unwrap();
            }
        }
    });
    read(fetch(&world.backend(config()), &function.await).await).await
}

/// Queries the backfills with a tag.
async fn found(world: &World, tag: &str) -> Vec<Backfill> {
    let filter = TagPresentFilter { tag: tag.to_owned(), ..Default::default() };
    let pool = Pool { name: tag.to_owned(), tag_present_filters: vec![filter], ..Default::default() };
    let pages = world.queries().query(Some(pool), QueryKind::Backfills).await.unwrap();
    let pages: Vec<Bytes> = pages.try_collect().await.unwrap();
    let read = |page: &Bytes| QueryBackfillsResponse::decode_from_slice(page).unwrap().backfills;
    pages.iter().flat_map(read).collect()
}

async fn acknowledge(world: &World, backfill: &Backfill, connection: &str) -> Vec<String> {
    let assignment = Assignment { connection: connection.to_owned(), ..Default::default() };
    let answer = world.frontend.backfills().acknowledge(&backfill.id, Some(assignment)).await.unwrap();
    let mut ids: Vec<String> = answer.tickets.iter().map(|ticket| ticket.id.clone()).collect();
    ids.sort();
    ids
}

fn ids(tickets: &[&Ticket]) -> Vec<String> {
    let mut ids: Vec<String> = tickets.iter().map(|ticket| ticket.id.clone()).collect();
    ids.sort();
    ids
}

async fn new_backfill_is_created_with_its_match(world: World) {
    for kind in KINDS {
        let tag = format!("{kind:?}");
        let [a, b] = world.tickets().await;
        // A match function may set the creation time.
        let create_time = MessageField::some(Default::default());
        let sent = with_backfill("1", &[&a, &b], &Backfill { create_time, ..tagged(&tag) });
        let (matches, error) = propose(&world, kind, vec![sent.clone()]).await;
        assert_eq!((matches.len(), error), (1, None));
        let created = matches[0].backfill.as_option().unwrap().clone();
        assert_eq!((created.generation, created.id.len()), (1, 20));
        assert_eq!(matches[0], Match { backfill: MessageField::some(created.clone()), ..sent });
        assert_eq!(found(&world, &tag).await, std::slice::from_ref(&created));
        assert!(!world.is_free(&a).await && !world.is_free(&b).await);
        assert_eq!(acknowledge(&world, &created, "server").await, ids(&[&a, &b]));
        assert_eq!(world.connection(&a).await.as_deref(), Some("server"));
    }
}

async fn existing_backfill_is_updated_and_its_game_server_gets_the_tickets(world: World) {
    for kind in KINDS {
        let a = world.ticket().await;
        let tag = format!("{kind:?}");
        let created = world.frontend.backfills().create(Some(tagged("before"))).await.unwrap();
        let proposed = Backfill { search_fields: tagged(&tag).search_fields, ..created.clone() };
        let sent = with_backfill("1", &[&a], &proposed);
        assert_eq!(propose(&world, kind, vec![sent.clone()]).await, (vec![sent], None), "unchanged");
        assert_eq!(found(&world, &tag).await, [Backfill { generation: 2, ..proposed }]);
        assert_eq!(acknowledge(&world, &created, "server").await, ids(&[&a]));
        // The game server's own update counts as well.
        let updated = Backfill { search_fields: tagged("full").search_fields, ..created };
        assert_eq!(world.frontend.backfills().update(Some(updated)).await.unwrap().generation, 3);
        assert!(found(&world, &tag).await.is_empty());
        assert_eq!(found(&world, "full").await.len(), 1);
        world.frontend.backfills().delete(&found(&world, "full").await[0].id).await.unwrap();
    }
}

async fn match_with_too_large_a_backfill_is_skipped(world: World) {
    let [a, b, c] = world.tickets().await;
    let existing = world.frontend.backfills().create(Some(tagged("as it was"))).await.unwrap();
    let tags = |count: usize, tag: &str| Backfill {
        search_fields: MessageField::some(SearchFields {
            tags: vec![tag.to_owned(); count],
            ..Default::default()
        }),
        ..Default::default()
    };
    let updated = Backfill { search_fields: tags(1, &"x".repeat(65_536)).search_fields, ..existing.clone() };
    let proposals = vec![
        with_backfill("1", &[&a], &tags(101, "many")),
        with_backfill("2", &[&b], &updated),
        with_backfill("3", &[&c], &tags(100, "fits")),
    ];
    let (matches, error) = propose(&world, Kind::Grpc, proposals).await;
    assert_eq!((crate::world::names(&matches), error), (vec!["3"], None));
    assert!(world.is_free(&a).await && world.is_free(&b).await && !world.is_free(&c).await);
    assert_eq!(found(&world, "as it was").await, [existing]);
}

async fn match_with_a_stale_backfill_is_skipped_and_the_stream_goes_on(world: World) {
    let [a, b, c, d] = world.tickets().await;
    let backfills = world.frontend.backfills();
    let created = backfills.create(Some(tagged("one"))).await.unwrap();
    let older = Backfill { generation: 0, ..created.clone() };
    let deleted = backfills.create(Some(tagged("two"))).await.unwrap();
    backfills.delete(&deleted.id).await.unwrap();
    let odd = Backfill { id: "odd".to_owned(), ..tagged("three") };
    let proposals = vec![
        with_backfill("1", &[&a], &older),
        with_backfill("2", &[&b], &deleted),
        with_backfill("3", &[&c], &odd),
        with_backfill("4", &[&d], &created),
        // The one before has changed it.
        with_backfill("5", &[&a], &created),
    ];
    let (matches, error) = propose(&world, Kind::Grpc, proposals).await;
    assert_eq!((crate::world::names(&matches), error), (vec!["4"], None));
    for ticket in [&a, &b, &c] {
        assert!(world.is_free(ticket).await, "{}", ticket.id);
    }
    assert_eq!(acknowledge(&world, &created, "server").await, ids(&[&d]));
}

/// Calls a match function with these proposals, and gives up once the tickets are claimed.
async fn fetch_and_leave(world: &World, tickets: &[&Ticket], proposals: Vec<Match>) {
    let function = function(Kind::Grpc, move |_, sender| {
        let proposals = proposals.clone();
        async move {
            for proposal in proposals {
                let _ = sender.send(Ok(proposal)).await;
            }
            sender.closed().await;
        }
    });
    let stream = fetch(&world.backend(config()), &function.await).await;
    for ticket in tickets {
        eventually("it is claimed", PATIENCE, async || !world.is_free(ticket).await).await;
    }
    drop(stream);
}

async fn new_backfill_of_a_match_that_reaches_nobody_is_gone(world: World) {
    let a = world.ticket().await;
    fetch_and_leave(&world, &[&a], vec![with_backfill("1", &[&a], &tagged("new"))]).await;
    eventually("its ticket is released", PATIENCE, async || world.is_free(&a).await).await;
    eventually("it is gone", PATIENCE, async || found(&world, "new").await.is_empty()).await;
}

/// The match function has taken a place off the fields of the backfill. If its ticket were released, the place would stay empty.
async fn existing_backfill_of_a_match_that_reaches_nobody_keeps_its_tickets(world: World) {
    let [a, b] = world.tickets().await;
    let existing = world.frontend.backfills().create(Some(tagged("one place"))).await.unwrap();
    let full = Backfill { search_fields: tagged("full").search_fields, ..existing.clone() };
    let proposals = vec![with_backfill("1", &[&a], &full), proposal("2", &[&b])];
    fetch_and_leave(&world, &[&a, &b], proposals).await;
    eventually("the other match is released", PATIENCE, async || world.is_free(&b).await).await;
    assert!(!world.is_free(&a).await, "it waits for the game server");
    assert_eq!(acknowledge(&world, &existing, "server").await, ids(&[&a]));
    assert_eq!(world.connection(&a).await.as_deref(), Some("server"));
    assert_eq!(found(&world, "full").await.len(), 1);
}

async fn evaluated_match_creates_its_backfill(world: World) {
    let a = world.ticket().await;
    let evaluator = evaluator(Kind::Grpc, async |mut matches, chosen| {
        while let Some(proposal) = matches.recv().await {
            assert_eq!(proposal.backfill.id, "", "it does not exist yet");
            chosen.send(Ok(proposal.match_id)).unwrap();
        }
    });
    let address = evaluator.await.parse().unwrap();
    let evaluated = BackendConfig {
        registration_window: Duration::from_millis(50),
        evaluator: Some(address),
        ..config()
    };
    let sent = with_backfill("1", &[&a], &tagged("new"));
    let function = function(Kind::Grpc, move |_, sender| {
        let sent = sent.clone();
        async move { sender.send(Ok(sent)).await.unwrap() }
    });
    let (matches, error) = read(fetch(&world.backend(evaluated), &function.await).await).await;
    assert_eq!((matches.len(), error), (1, None));
    let created = matches[0].backfill.as_option().unwrap();
    assert_eq!(found(&world, "new").await, std::slice::from_ref(created));
    assert_eq!(acknowledge(&world, created, "server").await, ids(&[&a]));
}
