//! The intake: events per second that become inbox rows, compared with only reading them from JetStream.

use std::time::{Duration, Instant};

use async_nats::jetstream;
use async_nats::jetstream::consumer::pull;
use futures::StreamExt;
use futures::future::join_all;
use serde_json::json;
use sqlx::Connection;
use sqlx::mysql::MySqlConnection;
use testkit::bench::Report;

use crate::fleet::Fleet;

const EVENTS: usize = 30_000;
const BATCH: usize = 1_000;
const USERS: u64 = 1_000;
const TIMEOUT: Duration = Duration::from_secs(300);

pub(crate) async fn run(report: &mut Report) {
    let fleet = Fleet::start("").await;
    let client = async_nats::connect(fleet.nats.url()).await.unwrap();
    let jetstream = jetstream::new(client);
    let mut sql = MySqlConnection::connect(fleet.database.url()).await.unwrap();
    // Events for unknown users have no recipients.
    let users: Vec<String> =
        (0..USERS).map(|n| format!("(X'{}', 'active', '', 1)", user(n).replace('-', ""))).collect();
    let insert = format!("INSERT INTO users (user_id, state, roles, created_at) VALUES {}", users.join(", "));
    sqlx::raw_sql(sqlx::AssertSqlSafe(insert)).execute(&mut sql).await.unwrap();
    // Paused while the events are published, so that the whole backlog is measured.
    fleet.running.pause().await;
    for start in (0..EVENTS).step_by(BATCH) {
        let publish =
            (start..start + BATCH).map(|n| jetstream.publish("playhouse.bench.granted.v1", event(n).into()));
        let acks = join_all(publish).await.into_iter().map(Result::unwrap);
        join_all(acks.map(IntoFuture::into_future)).await.into_iter().for_each(|ack| drop(ack.unwrap()));
    }
    let raw = read(&jetstream).await;
    let (before, began) = (count(&mut sql).await, Instant::now());
    fleet.running.resume();
    while count(&mut sql).await < before + EVENTS as i64 {
        assert!(began.elapsed() < TIMEOUT, "too slow");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let ours = EVENTS as f64 / began.elapsed().as_secs_f64();
    report.row([
        "intake: events into inboxes per second".to_owned(),
        format!("{ours:.0}"),
        format!("{raw:.0}"),
        format!("{:.2}", ours / raw),
        String::new(),
        "JetStream: fetched in batches, each acknowledged and confirmed".to_owned(),
    ]);
    report.measure("intake_per_second", ours);
    report.measure("jetstream_per_second", raw);
}

/// Returns an event as a service of the game might publish it. It uses the template of a grant.
fn event(n: usize) -> String {
    let user = user(n as u64 % USERS);
    json!({
        "specversion": "1.0", "id": format!("01990000-0001-7000-8000-{n:012x}"), "source": "/bench",
        "type": "playhouse.entitlement.granted.v1", "time": "2026-03-01T12:00:00Z",
        "partitionkey": user, "datacontenttype": "application/json",
        "data": {
            "user_id": user, "account_id": user, "resource": format!("r{n}"), "version": 1, "state": "ACTIVE",
            "occurred_at": "2026-03-01T12:00:00Z",
        },
    })
    .to_string()
}

fn user(n: u64) -> String {
    format!("01990000-0000-7000-8000-{n:012x}")
}

async fn count(sql: &mut MySqlConnection) -> i64 {
    let (rows,): (i64,) = sqlx::query_as("SELECT COUNT(*) FROM notification").fetch_one(sql).await.unwrap();
    rows
}

/// Returns the events per second of a consumer that only reads and acknowledges.
async fn read(jetstream: &jetstream::Context) -> f64 {
    let stream = jetstream.get_stream("PLAYHOUSE").await.unwrap();
    let config = pull::Config { durable_name: Some("raw".to_owned()), ..pull::Config::default() };
    let consumer = stream.create_consumer(config).await.unwrap();
    let (began, mut read) = (Instant::now(), 0);
    while read < EVENTS {
        let batch = consumer.fetch().max_messages(256).messages().await.unwrap();
        let messages: Vec<_> = batch.map(Result::unwrap).collect().await;
        read += messages.len();
        join_all(messages.iter().map(|message| message.double_ack()))
            .await
            .into_iter()
            .for_each(Result::unwrap);
    }
    EVENTS as f64 / began.elapsed().as_secs_f64()
}
