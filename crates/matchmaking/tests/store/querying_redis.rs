//! Queries while Redis is changed by other programs, unreachable or emptied.

use std::time::Duration;

use base::Code;
use base::error::Coded;
use matchmaking::{Queries, QueryKind};
use testkit::{FaultProxy, Redis, eventually, need};

use crate::pools::{found, found_ids};
use crate::querying::{everything, names};
use crate::setup::{PATIENCE, Raw, Setup, Tickets, data, id, ticket};

/// Creates a ticket as a program does that records no changes.
async fn write(tickets: &Tickets, raw: &mut Raw, number: usize) {
    raw.set(&tickets.key(id(number).as_str()), &data(number), 600).await;
    raw.ask::<()>(&["SADD", &tickets.key("allTickets"), id(number).as_str()]).await;
}

async fn ttl(tickets: &Tickets, raw: &mut Raw) -> i64 {
    raw.ask(&["PTTL", &tickets.key("ticketChanges")]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_recorded_only_while_there_are_queries() {
    let tickets = Setup::script(need!(Redis::shared().await)).open().await;
    let mut raw = tickets.raw().await;
    tickets.create_all(0..2).await;
    assert_eq!(ttl(&tickets, &mut raw).await, -2, "nobody queries");
    let queries = tickets.queries_with(|config| config.idle_timeout = Duration::from_millis(300));
    assert_eq!(found(&queries, everything()).await, names(0..2));
    let life = ttl(&tickets, &mut raw).await;
    assert!((1..=15_000).contains(&life), "{life}");
    // Ticks keep it alive.
    raw.ask::<()>(&["PEXPIRE", &tickets.key("ticketChanges"), "5000"]).await;
    queries.tick().await;
    assert!(ttl(&tickets, &mut raw).await > 5000);
    // They stop without queries.
    tokio::time::sleep(Duration::from_millis(400)).await;
    raw.ask::<()>(&["DEL", &tickets.key("ticketChanges")]).await;
    queries.tick().await;
    assert_eq!(ttl(&tickets, &mut raw).await, -2);
    tickets.create_all(2..3).await;
    assert_eq!(ttl(&tickets, &mut raw).await, -2);
    assert_eq!(found(&queries, everything()).await, names(0..3));
    assert_eq!(tickets.scans("start"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn tickets_of_another_program_are_found_at_once() {
    let tickets = Setup::lock(need!(Redis::shared().await)).open().await;
    let (mut raw, queries) = (tickets.raw().await, tickets.queries());
    tickets.create_all(0..3).await;
    assert_eq!(found(&queries, everything()).await, names(0..3));
    write(&tickets, &mut raw, 5).await;
    assert_eq!(found(&queries, everything()).await, names([0, 1, 2, 5]));
    let (now, _): (i64, u64) = raw.ask(&["TIME"]).await;
    let pending = tickets.key("proposed_ticket_ids");
    raw.ask::<()>(&["ZADD", &pending, &now.to_string(), id(0).as_str()]).await;
    assert_eq!(found(&queries, everything()).await, names([1, 2, 5]));
    raw.ask::<()>(&["ZREM", &pending, id(0).as_str()]).await;
    raw.ask::<()>(&["SREM", &tickets.key("allTickets"), id(1).as_str()]).await;
    assert_eq!(found(&queries, everything()).await, names([0, 2, 5]));
    assert_eq!((tickets.scans("start"), tickets.scans("foreign")), (1, 3));
    // An exchange that changes no count.
    raw.ask::<()>(&["SREM", &tickets.key("allTickets"), id(2).as_str()]).await;
    write(&tickets, &mut raw, 6).await;
    raw.ask::<()>(&["ZADD", &pending, &now.to_string(), id(0).as_str()]).await;
    assert_eq!(found(&queries, everything()).await, names([5, 6]));
    raw.ask::<()>(&["ZREM", &pending, id(0).as_str()]).await;
    raw.ask::<()>(&["ZADD", &pending, &now.to_string(), id(5).as_str()]).await;
    eventually("the exchange is noticed", Duration::from_secs(3), async || {
        found_ids(&queries, everything()).await == names([0, 6])
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_without_a_readable_ticket_are_counted_and_not_found() {
    let tickets = Setup::script(need!(Redis::shared().await)).open().await;
    let (mut raw, queries) = (tickets.raw().await, tickets.queries());
    tickets.create_all(0..2).await;
    raw.ask::<()>(&["SADD", &tickets.key("allTickets"), "empty", "not an id", "broken"]).await;
    raw.set(&tickets.key("broken"), b"\xff\xff", 600).await;
    raw.ask::<()>(&["ZADD", &tickets.key("proposed_ticket_ids"), "1", "left behind"]).await;
    for _ in 0..3 {
        assert_eq!(found(&queries, everything()).await, names(0..2));
    }
    assert_eq!((tickets.scans("start"), tickets.scans("foreign")), (1, 0));
    // One that was left without its data is found once it exists.
    tickets.create(ticket(3)).await.unwrap();
    raw.ask::<()>(&["DEL", &tickets.key(id(0).as_str())]).await;
    tickets.deindex(&id(0)).await.unwrap();
    assert_eq!(found(&queries, everything()).await, names([1, 3]));
}

#[tokio::test(flavor = "multi_thread")]
async fn ticket_is_not_found_after_its_lifetime() {
    let tickets = Setup::script(need!(Redis::shared().await)).open().await;
    let queries = tickets.queries();
    let fields = matchmaking::model::SearchFields::default();
    let kept = tickets.frontend.create_from_fields(fields.clone()).await.unwrap();
    let ttl = buffa_types::google::protobuf::Int64Value { value: 300_000_000, ..Default::default() };
    let ttl = buffa_types::google::protobuf::Any {
        type_url: "type.googleapis.com/google.protobuf.Int64Value".to_owned(),
        value: buffa::Message::encode_to_bytes(&ttl),
        ..Default::default()
    };
    let short = proto::openmatch::Ticket {
        persistent_field: [("ttl".to_owned(), ttl)].into_iter().collect(),
        ..Default::default()
    };
    tickets.frontend.create(Some(short)).await.unwrap();
    eventually("it expires", PATIENCE, async || found_ids(&queries, everything()).await.len() == 1).await;
    assert!(found(&queries, everything()).await.contains(kept.as_str()));
    assert_eq!(tickets.scans("foreign"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn index_starts_over_when_changes_were_missed() {
    let redis = need!(Redis::private().await);
    let tickets = Setup::script(&redis).open().await;
    let (mut raw, queries) = (tickets.raw().await, tickets.queries());
    tickets.create_all(0..3).await;
    assert_eq!(found(&queries, everything()).await, names(0..3));
    let changes = tickets.key("ticketChanges");
    // Trimmed, expired, and expired and begun again by another process.
    tickets.create_all(3..4).await;
    raw.ask::<()>(&["XTRIM", &changes, "MAXLEN", "0"]).await;
    assert_eq!(found(&queries, everything()).await, names(0..4));
    raw.ask::<()>(&["DEL", &changes]).await;
    tickets.create_all(4..5).await;
    tickets.delete(&id(0)).await.unwrap();
    assert_eq!(found(&queries, everything()).await, names(1..5));
    raw.ask::<()>(&["DEL", &changes]).await;
    assert_eq!(found(&tickets.queries(), everything()).await, names(1..5));
    tickets.create_all(5..6).await;
    assert_eq!(found(&queries, everything()).await, names(1..6));
    assert_eq!(tickets.scans("missed"), 3);

    raw.ask::<()>(&["FLUSHALL"]).await;
    assert_eq!(found(&queries, everything()).await, names([]));
    tickets.create_all(2..4).await;
    assert_eq!(found(&queries, everything()).await, names(2..4));
    assert_eq!((tickets.scans("missed"), tickets.scans("foreign")), (4, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_missed_by_a_scan_while_tickets_come_and_go() {
    let tickets = Setup::script(need!(Redis::shared().await)).open().await;
    let mut raw = tickets.raw().await;
    tickets.create_all(0..8000).await;
    let queries = tickets.queries();
    let changing = async {
        for number in 0..2000 {
            tickets.delete(&id(number * 4)).await.unwrap();
            tickets.create(ticket(8000 + number)).await.unwrap();
        }
    };
    let querying = async {
        for _ in 0..20 {
            raw.ask::<()>(&["DEL", &tickets.key("ticketChanges")]).await;
            found_ids(&queries, everything()).await;
        }
    };
    futures::join!(changing, querying);
    let expected = (0..10_000).filter(|number| *number >= 8000 || number % 4 != 0);
    assert_eq!(found(&queries, everything()).await, names(expected));
    assert_eq!(tickets.scans("foreign"), 0);
}

async fn code(queries: &Queries) -> Result<(), Code> {
    let answer = queries.query(Some(everything()), QueryKind::Ids).await;
    answer.map(drop).map_err(|error| error.code())
}

#[tokio::test(flavor = "multi_thread")]
async fn index_is_used_until_it_is_too_old() {
    let redis = need!(Redis::private().await);
    let proxy = FaultProxy::to(redis.addr()).await;
    let setup = Setup::script(&redis);
    let other = setup.open().await;
    let tickets = setup.through(proxy.url(&redis.url()), Duration::from_millis(300)).open().await;
    tickets.create_all(0..3).await;
    let queries = tickets.queries_with(|config| config.max_age = Duration::from_secs(4));
    let strict = tickets.queries();
    assert_eq!(code(&strict).await, Ok(()));
    assert_eq!(found(&queries, everything()).await, names(0..3));
    proxy.cut().await;
    other.create(ticket(3)).await.unwrap();
    other.delete(&id(0)).await.unwrap();
    assert_eq!(found(&queries, everything()).await, names(0..3), "as old as it may be");
    assert_eq!(code(&strict).await, Err(Code::Unavailable), "it must not be old at all");
    eventually("it is too old", PATIENCE, async || code(&queries).await == Err(Code::Unavailable)).await;
    proxy.pass().await;
    eventually("queries are answered again", PATIENCE, async || code(&queries).await.is_ok()).await;
    assert_eq!(found(&queries, everything()).await, names(1..4));
    assert_eq!(code(&strict).await, Ok(()));
    assert_eq!((tickets.scans("start"), tickets.scans("missed")), (2, 0), "what was missed was read");

    // A connection that breaks in the middle of a scan.
    let mut raw = other.raw().await;
    other.create_all(10..5000).await;
    raw.ask::<()>(&["DEL", &other.key("ticketChanges")]).await;
    proxy.delay(Duration::from_millis(20)).await;
    let broken = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        proxy.cut().await;
    };
    let (during, ()) = futures::join!(code(&queries), broken);
    assert_eq!(during, Err(Code::Unavailable));
    proxy.pass().await;
    eventually("queries are answered again", PATIENCE, async || code(&queries).await.is_ok()).await;
    assert_eq!(found(&queries, everything()).await, names((1..4).chain(10..5000)));
}
