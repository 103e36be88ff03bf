//! What a stream costs while nothing happens on it: of a ticket, and of the stock of a drop that all watch.

use std::time::{Duration, Instant};

use benches::Usage;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use testkit::bench::Report;

use crate::reference;
use crate::subject::{Gateway, open_stream};

/// How many streams each player has: as many as they may.
const EACH: usize = 5;
/// How long they are looked at: two of their heartbeats.
const LENGTH: Duration = Duration::from_secs(32);

/// Both ends of every stream are files, the other one in a process that is started after this.
pub(crate) fn allow_many_files() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
}

pub(crate) async fn measure(gateway: &Gateway, count: usize, report: &mut Report) {
    let players = gateway.players(count.div_ceil(EACH)).await;
    let tickets = gateway.tickets(&players).await;
    let before = Usage::of(gateway.pid());
    let streams = gateway.streams(&tickets, count).await;
    let (opened, began) = (Usage::of(gateway.pid()), Instant::now());
    tokio::time::sleep(LENGTH).await;
    let (after, took) = (Usage::of(gateway.pid()), began.elapsed());
    drop(streams);

    // Whatever is more: the heartbeats may need memory too.
    let grown = opened.memory.max(after.memory).saturating_sub(before.memory);
    let each = grown as f64 / count as f64;
    let share = 100.0 * (after.cpu - opened.cpu).as_secs_f64() / took.as_secs_f64();
    report.row([
        format!("{count} idle streams"),
        format!("{each:.0} bytes each"),
        format!("{share:.1} % CPU"),
    ]);
    report.measure("bytes_per_stream", each);
    report.measure("idle_streams_cpu_percent", share);
}

/// Streams of one stock, beside axum's own server-sent events. Each server is new, as memory that was freed is not always given back.
pub(crate) async fn measure_stock(gateway: &Gateway, count: usize, report: &mut Report) {
    let players = gateway.players(1 + count.div_ceil(EACH)).await;
    let (first, players) = players.split_at(1);
    let drop_id = gateway.drop().await;
    // What the first stream needs is needed once.
    let first = gateway.stock_streams(&drop_id, first, 1).await;
    let before = Usage::of(gateway.pid());
    let streams = gateway.stock_streams(&drop_id, players, count).await;
    let (opened, began) = (Usage::of(gateway.pid()), Instant::now());
    tokio::time::sleep(LENGTH).await;
    let (after, took) = (Usage::of(gateway.pid()), began.elapsed());
    drop((first, streams));
    // Full syncs are sent meanwhile.
    let grown = opened.memory.max(after.memory).saturating_sub(before.memory);
    let each = grown as f64 / count as f64;
    let share = 100.0 * (after.cpu - opened.cpu).as_secs_f64() / took.as_secs_f64();

    let reference = reference::start().await;
    let mut streams = vec![open_stream(reference.address(), "/events", "host: bench\r\n", b"hello").await];
    let before = Usage::of(reference.pid());
    for _ in 0..count {
        streams.push(open_stream(reference.address(), "/events", "host: bench\r\n", b"hello").await);
    }
    let after = Usage::of(reference.pid());
    let theirs = after.memory.saturating_sub(before.memory) as f64 / count as f64;

    report.row([
        format!("{count} streams of one stock"),
        format!("{each:.0} bytes each"),
        format!("{share:.1} % CPU"),
    ]);
    report.row([format!("{count} streams of axum"), format!("{theirs:.0} bytes each")]);
    report.measure("bytes_per_stock_stream", each);
    report.measure("bytes_per_axum_stream", theirs);
    report.measure("stock_streams_cpu_percent", share);
}
