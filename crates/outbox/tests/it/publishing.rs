//! What the relay does with each kind of row.

use super::*;

on_both!(
    committed_events_are_published_in_order,
    permanently_refused_event_fails_and_blocks_only_its_key,
    unreadable_row_fails,
    republished_event_is_stored_once,
    event_without_a_key_is_independent,
    all_events_of_a_batch_row_are_published,
    batch_row_is_appended_once,
    only_the_permanently_refused_event_of_a_batch_fails,
    unreadable_bytes_are_kept_as_a_failed_row,
);

async fn committed_events_are_published_in_order(pair: &Pair) {
    let outbox = pair.outbox();
    let events = [event("a", 1), event("b", 2), event("a", 3)];
    pair.append(&outbox, &events).await;
    let mut tx = pair.db.begin().await.unwrap();
    outbox.append(&mut tx, &[(Uuid::nil(), event("a", 4))]);
    tx.rollback().await.unwrap();
    let report = pair.relay(&outbox).tick().await.unwrap();
    assert_eq!(report.finished.done, 3);
    let published = pair.published().await;
    // The third follows the first of its key in a second round.
    assert_eq!(numbers(&published), [1, 2, 3]);
    assert_eq!(published[0]["id"], events[0].id.to_string());
    assert_eq!(published[0]["type"], "playhouse.test.happened.v1");
    assert_eq!(published[0]["partitionkey"], "a");
    assert_eq!(published[0]["traceparent"], "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    assert_eq!(states(&outbox).await, [State::Done; 3]);
}

async fn permanently_refused_event_fails_and_blocks_only_its_key(pair: &Pair) {
    let outbox = pair.outbox();
    let large = Event { data: Json::from_value(&"x".repeat(1 << 20)).unwrap(), ..event("a", 1) };
    let bad_subject = Event { subject: "test.*".to_owned(), ..event("b", 2) };
    pair.append(&outbox, &[large, bad_subject, event("a", 3), event("c", 4)]).await;
    let relay = pair.relay(&outbox);
    while relay.tick().await.unwrap().claimed > 0 {}
    assert_eq!(numbers(&pair.published().await), [4]);
    let failed = outbox.queue().list(Filter::Failed, 10).await.unwrap();
    assert_eq!(failed.len(), 2);
    assert!(failed.iter().any(|row| row.cause.as_deref().unwrap().contains("too large")), "{failed:?}");
    let blocked = outbox.queue().blocked_keys(10).await.unwrap();
    let a = blocked.iter().find(|blocked| blocked.key == "a").unwrap();
    assert_eq!(a.waiting, 1);
    outbox.queue().skip(a.number).await.unwrap().unwrap();
    while relay.tick().await.unwrap().claimed > 0 {}
    assert_eq!(numbers(&pair.published().await), [4, 3]);
}

async fn unreadable_row_fails(pair: &Pair) {
    let outbox = pair.outbox();
    let mut tx = pair.db.begin().await.unwrap();
    let unreadable =
        work_queue::NewItem { id: Uuid::now_v7(), user: Uuid::nil(), key: "a", payload: b"no event" };
    outbox.queue().push(&mut tx, &[unreadable]);
    tx.commit().await.unwrap();
    pair.append(&outbox, &[event("b", 1)]).await;
    let report = pair.relay(&outbox).tick().await.unwrap();
    assert_eq!((report.finished.failed, report.finished.done), (1, 1));
    assert_eq!(states(&outbox).await, [State::Failed, State::Done]);
}

async fn republished_event_is_stored_once(pair: &Pair) {
    let outbox = pair.outbox();
    let events: Vec<Event> = (0..10).map(|n| event("a", n)).collect();
    pair.append(&outbox, &events).await;
    let relay = pair.relay(&outbox);
    relay.tick().await.unwrap();
    assert_eq!(outbox.queue().reopen_done_since(Timestamp::from_millis(0)).await.unwrap(), 10);
    assert_eq!(states(&outbox).await, [State::Pending; 10]);
    assert_eq!(relay.tick().await.unwrap().finished.done, 10);
    assert_eq!(numbers(&pair.published().await), (0..10).collect::<Vec<_>>());
}

async fn event_without_a_key_is_independent(pair: &Pair) {
    let outbox = pair.outbox();
    let large = Event { data: Json::from_value(&"x".repeat(1 << 20)).unwrap(), key: None, ..event("", 1) };
    pair.append(&outbox, &[large, Event { key: None, ..event("", 2) }]).await;
    let report = pair.relay(&outbox).tick().await.unwrap();
    assert_eq!((report.finished.failed, report.finished.done), (1, 1));
}

/// While the bus stores nothing, no attempt is counted.
#[tokio::test(flavor = "multi_thread")]
async fn unreachable_bus_uses_up_no_attempts() {
    let mut nats = testkit::need!(Nats::private().await);
    let place = TestDatabase::sqlite().unwrap();
    let config = bus::Config { timeout: Duration::from_millis(500), ..bus_config(&nats.url(), "away") };
    let pair = Pair::open(place, config).await;
    let outbox = pair.outbox();
    pair.append(&outbox, &[event("a", 1), event("a", 2), event("b", 3)]).await;
    nats.kill().await.unwrap();
    let relay = pair.relay(&outbox);
    for _ in 0..10 {
        assert_eq!(relay.tick().await.unwrap().finished.not_attempted, 3);
    }
    let rows = outbox.queue().list(Filter::Open, 10).await.unwrap();
    assert!(rows.iter().all(|row| row.attempts == 0 && row.cause.is_some()), "{rows:?}");
    nats.start_again().await.unwrap();
    testkit::eventually("the events are published", PATIENCE, async || {
        relay.tick().await.unwrap();
        states(&outbox).await == [State::Done; 3]
    })
    .await;
    let published = pair.published().await;
    assert_eq!(numbers(&published).iter().filter(|n| **n < 3).copied().collect::<Vec<_>>(), [1, 2]);
    assert!(!pair.place.is_server());
}

/// The stream answers 400 to every event, for more attempts than an event has.
#[tokio::test(flavor = "multi_thread")]
async fn refusing_bus_uses_up_no_attempts() {
    let pair = testkit::need!(Pair::on_servers().await);
    let outbox = pair.outbox();
    let client = async_nats::connect(pair.bus_config.url.server().unwrap().as_str()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    let name = &pair.bus_config.stream;
    let original = jetstream.get_stream(name).await.unwrap().cached_info().config.clone();
    let sealed = async_nats::jetstream::stream::Config { sealed: true, ..original };
    jetstream.update_stream(&sealed).await.unwrap();

    let large = Event { data: Json::from_value(&"x".repeat(1 << 20)).unwrap(), ..event("large", 0) };
    pair.append(&outbox, &[event("a", 1), event("a", 2), event("b", 3), large]).await;
    let relay = pair.relay(&outbox);
    testkit::eventually("the permanently refused event has failed", PATIENCE, async || {
        relay.tick().await.unwrap();
        states(&outbox).await[3] == State::Failed
    })
    .await;
    for _ in 0..10 {
        let report = relay.tick().await.unwrap();
        assert_eq!((report.finished.failed, report.finished.retry, report.finished.done), (0, 0, 0));
    }
    let rows = outbox.queue().list(Filter::Open, 10).await.unwrap();
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row.attempts == 0), "{rows:?}");
    assert!(rows.iter().any(|row| row.cause.as_deref().unwrap().contains("sealed")), "{rows:?}");

    jetstream.delete_stream(name).await.unwrap();
    testkit::eventually("the events are published", PATIENCE, async || {
        relay.tick().await.unwrap();
        states(&outbox).await[..3] == [State::Done; 3]
    })
    .await;
    let published = numbers(&pair.published().await);
    assert_eq!(published.iter().filter(|n| **n < 3).copied().collect::<Vec<_>>(), [1, 2]);
    // The event that can never be stored is kept, with its bytes and the cause.
    let failed = &outbox.queue().list(Filter::Failed, 10).await.unwrap()[0];
    assert!(failed.cause.as_deref().unwrap().contains("too large") && failed.payload.len() > 1 << 20);
}

/// The stream has forgotten the ids, so a repeat would be stored twice.
#[tokio::test(flavor = "multi_thread")]
async fn event_republished_after_the_duplicate_window_is_stored_once() {
    const WINDOW: Duration = Duration::from_millis(200);
    let pair = testkit::need!(Pair::on_servers().await);
    let client = async_nats::connect(pair.bus_config.url.server().unwrap().as_str()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    let original = jetstream.get_stream(&pair.bus_config.stream).await.unwrap().cached_info().config.clone();
    let short = async_nats::jetstream::stream::Config { duplicate_window: WINDOW, ..original };
    jetstream.update_stream(&short).await.unwrap();
    let pair = Pair { bus: Bus::open(&pair.bus_config).await.unwrap(), ..pair };
    assert_eq!(pair.bus.dedupe_period(), WINDOW / 2);

    let outbox = pair.outbox();
    let relay = pair.relay(&outbox);
    let other = Event { subject: "test.other.v1".to_owned(), ..event("c", 5) };
    pair.append(&outbox, &[event("a", 1), event("a", 2), event("b", 3), event("b", 4), other]).await;
    while relay.tick().await.unwrap().claimed > 0 {}
    assert_eq!(pair.published().await.len(), 5);
    // Repeat a probe until its id is forgotten: then theirs are forgotten too.
    let probe = Event { subject: "test.probe".to_owned(), ..event("probe", 0) };
    testkit::eventually("ids are forgotten", PATIENCE, async || {
        pair.bus.publish(std::slice::from_ref(&probe)).await[0].as_ref().unwrap();
        pair.published().await.iter().filter(|published| published["id"] == probe.id.to_string()).count() > 1
    })
    .await;

    // One event is lost, the others are stored.
    let lost = pair.published().await.iter().position(|published| published["data"]["n"] == 3).unwrap();
    let stream = jetstream.get_stream(&pair.bus_config.stream).await.unwrap();
    stream.delete_message(lost as u64 + 1).await.unwrap();
    assert_eq!(outbox.queue().reopen_done_since(Timestamp::from_millis(0)).await.unwrap(), 5);
    pair.append(&outbox, &[event("a", 6)]).await;
    while relay.tick().await.unwrap().claimed > 0 {}
    assert!(states(&outbox).await.iter().all(|state| *state == State::Done));
    let mut published = numbers(&pair.published().await);
    published.retain(|n| *n != 0);
    published.sort_unstable();
    assert_eq!(published, [1, 2, 3, 4, 5, 6]);
}

async fn append_batch(pair: &Pair, outbox: &Outbox, id: Uuid, events: &[Event]) -> Result<(), db::Error> {
    let mut tx = pair.db.begin().await.unwrap();
    outbox.append_batch(&mut tx, id, events);
    tx.commit().await
}

async fn all_events_of_a_batch_row_are_published(pair: &Pair) {
    let outbox = pair.outbox();
    let events: Vec<Event> = (0..50).map(|n| event(&format!("key-{n}"), n)).collect();
    append_batch(pair, &outbox, Uuid::now_v7(), &events).await.unwrap();
    pair.append(&outbox, &[event("single", 50)]).await;
    let report = pair.relay(&outbox).tick().await.unwrap();
    assert_eq!(report.finished.done, 2);
    let published = pair.published().await;
    assert_eq!(numbers(&published), (0..=50).collect::<Vec<u64>>());
    assert_eq!(published[7]["id"], events[7].id.to_string());
    assert_eq!(published[7]["partitionkey"], "key-7");
    assert_eq!(states(&outbox).await, [State::Done; 2]);
}

async fn batch_row_is_appended_once(pair: &Pair) {
    let (outbox, id) = (pair.outbox(), Uuid::now_v7());
    append_batch(pair, &outbox, id, &[event("a", 1)]).await.unwrap();
    let again = append_batch(pair, &outbox, id, &[event("a", 2)]).await.unwrap_err();
    assert!(matches!(again, db::Error::Duplicate(_)), "{again:?}");
    pair.relay(&outbox).tick().await.unwrap();
    assert_eq!(numbers(&pair.published().await), [1]);
}

async fn only_the_permanently_refused_event_of_a_batch_fails(pair: &Pair) {
    let outbox = pair.outbox();
    let large = Event { data: Json::from_value(&"x".repeat(1 << 20)).unwrap(), ..event("b", 1) };
    let (id, large_id) = (Uuid::now_v7(), *large.id.as_uuid());
    let events = [event("a", 0), large, event("c", 2), event("d", 3)];
    append_batch(pair, &outbox, id, &events).await.unwrap();
    let relay = pair.relay(&outbox);
    while relay.tick().await.unwrap().claimed > 0 {}
    assert_eq!(numbers(&pair.published().await), [0, 2, 3]);
    assert_eq!(states(&outbox).await, [State::Done, State::Failed, State::Done, State::Done]);
    let failed = outbox.queue().find(large_id).await.unwrap().unwrap();
    assert!(failed.cause.as_deref().unwrap().contains("too large"), "{failed:?}");
    assert!(outbox.queue().find(id).await.unwrap().is_none(), "the split rows replace it");

    // A caller that does not know about its commit appends again: nothing changes.
    append_batch(pair, &outbox, id, &events).await.unwrap();
    while relay.tick().await.unwrap().claimed > 0 {}
    assert_eq!(numbers(&pair.published().await), [0, 2, 3]);
    assert_eq!(states(&outbox).await, [State::Done, State::Failed, State::Done, State::Done]);
}

/// One event of a row is refused permanently, one transiently (its subject is full), and one is stored.
#[tokio::test(flavor = "multi_thread")]
async fn stored_events_of_a_batch_are_not_published_again() {
    use async_nats::jetstream::stream;
    let pair = testkit::need!(Pair::on_servers().await);
    let client = async_nats::connect(pair.bus_config.url.server().unwrap().as_str()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    let original = jetstream.get_stream(&pair.bus_config.stream).await.unwrap().cached_info().config.clone();
    let one_each = stream::Config {
        max_messages_per_subject: 1,
        discard: stream::DiscardPolicy::New,
        discard_new_per_subject: true,
        ..original.clone()
    };
    jetstream.update_stream(&one_each).await.unwrap();
    let outbox = pair.outbox();
    let relay = pair.relay(&outbox);
    let to_full = |key, n| Event { subject: "test.full.v1".to_owned(), ..event(key, n) };
    pair.append(&outbox, &[to_full("first", 0)]).await;
    relay.tick().await.unwrap();

    let large = Event { data: Json::from_value(&"x".repeat(1 << 20)).unwrap(), ..event("a", 1) };
    let (refused, stored) = (to_full("b", 2), event("c", 3));
    let row = Uuid::now_v7();
    append_batch(&pair, &outbox, row, &[large.clone(), refused.clone(), stored.clone()]).await.unwrap();
    let created = outbox.queue().find(row).await.unwrap().unwrap().created;
    let find = async |event: &Event| outbox.queue().find(*event.id.as_uuid()).await.unwrap().unwrap();
    relay.tick().await.unwrap();
    let [large_row, refused_row, stored_row] =
        [find(&large).await, find(&refused).await, find(&stored).await];
    assert_eq!([large_row.state, refused_row.state], [State::Pending; 2]);
    // No relay claims the stored event, but an operator can still republish it.
    assert_eq!((stored_row.state, stored_row.created), (State::Done, created));
    // The refused event may have been stored: its row inherits the age and the lease number of the batch row.
    assert_eq!((refused_row.lease, refused_row.created), (1, created));

    testkit::eventually("the permanently refused event has failed", PATIENCE, async || {
        relay.tick().await.unwrap();
        find(&large).await.state == State::Failed
    })
    .await;
    assert_eq!(find(&refused).await.state, State::Pending);
    assert_eq!(find(&stored).await.lease, stored_row.lease, "no relay has claimed it");
    jetstream.update_stream(&original).await.unwrap();
    testkit::eventually("the refused event is published", PATIENCE, async || {
        relay.tick().await.unwrap();
        find(&refused).await.state == State::Done
    })
    .await;
    assert_eq!(numbers(&pair.published().await), [0, 3, 2]);
}

async fn unreadable_bytes_are_kept_as_a_failed_row(pair: &Pair) {
    let (outbox, id) = (pair.outbox(), Uuid::now_v7());
    let mut tx = pair.db.begin().await.unwrap();
    outbox.append_unreadable(&mut tx, id, b"{}\n{}");
    tx.commit().await.unwrap();
    pair.relay(&outbox).tick().await.unwrap();
    let row = outbox.queue().find(id).await.unwrap().unwrap();
    assert_eq!(row.state, State::Failed);
    assert!(row.payload.ends_with(b"{}\n{}"), "{row:?}");
    assert!(row.cause.unwrap().contains("could not be read"));
}
