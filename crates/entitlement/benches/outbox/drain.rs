//! Measures how fast a relay drains the outbox, compared with the same without publishing and with publishing alone.

use std::time::Instant;

use base::Timestamp;
use base::id::{ProcessId, Uuid};
use bus::{Event, EventId, Json};
use outbox::Relay;
use runtime::Drain;
use serde_json::json;
use work_queue::{Filter, Handler, Item, ItemOutcome, Worker};

use super::*;

const ROWS: usize = 200_000;
/// How many keys the events have.
const KEYS: usize = 50_000;
const ROUNDS: usize = 3;

pub(super) async fn run(report: &mut Report) -> f64 {
    let server = server().await;
    let (nats, bus) = nats().await;
    let (mut ours, mut without, mut publishing) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let database = server.database().await;
        let (db, _) = open(&database, 16).await;
        let outbox = outbox(&db, queue_config());
        fill(&db, &outbox).await;
        let worker = Worker::new(outbox.queue().clone(), NoPublish, ProcessId::generate());
        without.push(drain(&outbox, async |drain| worker.run(drain).await.unwrap()).await);
        db.close().await;

        let database = server.database().await;
        let (db, _) = open(&database, 16).await;
        let outbox = super::outbox(&db, queue_config());
        fill(&db, &outbox).await;
        let relay = Relay::new(ProcessId::generate(), outbox.clone(), bus.clone());
        ours.push(drain(&outbox, async |drain| relay.run(drain).await.unwrap()).await);
        db.close().await;

        publishing.push(publish_alone(&bus).await);
        eprintln!("round: {:?} {:?} {:?}", ours.last(), without.last(), publishing.last());
    }
    drop(nats);
    let (ours, without, publishing) = (median(ours), median(without), median(publishing));
    let what = "relay: events drained/s of 200,000";
    let ratio = add_row(report, what, ours, without, ">= 0.6", "claim and finalise alone");
    let of_publishing = add_row(report, what, ours, publishing, "-", "pipelined JetStream publishing alone");
    report.measure("drained", ours);
    report.measure("of_publishing", of_publishing);
    ratio
}

/// Finishes items without publishing them.
struct NoPublish;

impl Handler for NoPublish {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
        vec![ItemOutcome::Done; items.len()]
    }
}

pub(super) fn event(n: usize) -> Event {
    let data = json!({
        "user_id": "0198c0de-0000-7000-8000-000000000001", "account_id": "0198c0de-0000-7000-8000-000000000002",
        "resource": format!("item-{n}"), "version": n / KEYS + 1, "state": "ACTIVE",
        "occurred_at": "2026-03-01T12:00:00.000Z", "reference": format!("order-{n}"),
    });
    Event {
        id: EventId::generate(),
        subject: "entitlement.granted.v1".to_owned(),
        kind: "playhouse.entitlement.granted.v1".to_owned(),
        source: "/playhouse/entitlement".to_owned(),
        time: Timestamp::from_millis(1_772_366_400_000),
        key: Some(format!("entitlement/{}", n % KEYS)),
        traceparent: None,
        data: Json::from_value(&data).unwrap(),
    }
}

async fn fill(db: &Db, outbox: &Outbox) {
    let user = Uuid::nil();
    for start in (0..ROWS).step_by(2_000) {
        let mut tx = db.begin().await.unwrap();
        let events: Vec<(Uuid, Event)> = (start..start + 2_000).map(|n| (user, event(n))).collect();
        outbox.append(&mut tx, &events);
        tx.commit().await.unwrap();
    }
}

/// Runs until the outbox has no open rows. Returns the rows per second.
async fn drain(outbox: &Outbox, run: impl AsyncFn(Drain)) -> f64 {
    let (stop, start) = (Drain::new(), Instant::now());
    let watching = async {
        while !outbox.queue().list(Filter::Open, 1).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let took = start.elapsed();
        stop.request();
        took
    };
    let (_, took) = tokio::join!(run(stop.clone()), watching);
    ROWS as f64 / took.as_secs_f64()
}

async fn publish_alone(bus: &Bus) -> f64 {
    let events: Vec<Event> = (0..ROWS).map(event).collect();
    let start = Instant::now();
    for batch in events.chunks(500 * 3) {
        assert!(bus.publish(batch).await.iter().all(Result::is_ok));
    }
    ROWS as f64 / start.elapsed().as_secs_f64()
}
