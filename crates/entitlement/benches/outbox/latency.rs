//! Measures the time from the commit of an event until it is in the event stream, without other load.

use std::time::Instant;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use base::id::{ProcessId, Uuid};
use futures::StreamExt;
use outbox::Relay;
use runtime::Drain;

use super::*;

const EVENTS: usize = 500;

pub(super) async fn run(report: &mut Report) {
    let server = server().await;
    let database = server.database().await;
    let (db, _) = open(&database, 16).await;
    let (nats, bus) = nats().await;
    let outbox = outbox(&db, queue_config());
    let stop = Drain::new();
    let relay = Relay::new(ProcessId::generate(), outbox.clone(), bus);
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { relay.run(stop).await.unwrap() }
    });
    let client = async_nats::connect(nats.url()).await.unwrap();
    let stream = async_nats::jetstream::new(client).get_stream("PLAYHOUSE").await.unwrap();
    let reader = pull::Config {
        ack_policy: AckPolicy::None,
        deliver_policy: DeliverPolicy::New,
        ..pull::Config::default()
    };
    let mut messages = stream.create_consumer(reader).await.unwrap().messages().await.unwrap();
    let mut times = Vec::new();
    for n in 0..EVENTS {
        let mut tx = db.begin().await.unwrap();
        outbox.append(&mut tx, &[(Uuid::nil(), drain::event(n))]);
        tx.commit().await.unwrap();
        let committed = Instant::now();
        messages.next().await.unwrap().unwrap();
        times.push(committed.elapsed().as_secs_f64() * 1_000.0);
        tokio::time::sleep(Duration::from_millis(fastrand::u64(5..20))).await;
    }
    stop.request();
    running.await.unwrap();
    times.sort_by(f64::total_cmp);
    let (p50, p99) = (times[EVENTS / 2], times[EVENTS * 99 / 100]);
    eprintln!("commit to stream, idle: p50 {p50:.2} ms, p99 {p99:.2} ms (goal: p99 < 20 ms)");
    report.row([
        "commit to stream, idle, ms (p50, p99)".to_owned(),
        format!("{p50:.2}"),
        format!("{p99:.2}"),
        String::new(),
        "p99 < 20".to_owned(),
        String::new(),
    ]);
    report.measure("latency_p50_ms", p50);
    report.measure("latency_p99_ms", p99);
}
