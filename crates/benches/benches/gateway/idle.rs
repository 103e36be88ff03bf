//! The cost of idle streams: of tickets, and of the stock of one drop.

use std::time::{Duration, Instant};

use benches::Usage;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use testkit::bench::Report;

use crate::reference;
use crate::subject::{Gateway, open_stream};

/// The streams of each player: as many as are allowed.
const STREAMS_PER_PLAYER: usize = 5;
/// The duration of the measurement: two heartbeats.
const LENGTH: Duration = Duration::from_secs(32);

/// Raises the limit of open files, because each stream needs one here and one in the gateway, which inherits the limit.
pub(crate) fn allow_many_files() {
    let (_, maximum) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, maximum, maximum).unwrap();
}

pub(crate) async fn measure(gateway: &Gateway, count: usize, report: &mut Report) {
    let players = gateway.players(count.div_ceil(STREAMS_PER_PLAYER)).await;
    let tickets = gateway.tickets(&players).await;
    let before = Usage::of(gateway.pid());
    let streams = gateway.streams(&tickets, count).await;
    let (opened, began) = (Usage::of(gateway.pid()), Instant::now());
    tokio::time::sleep(LENGTH).await;
    let (after, took) = (Usage::of(gateway.pid()), began.elapsed());
    drop(streams);

    // The larger of the two, because heartbeats may need memory too.
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

/// Compares streams of one stock with axum's server-sent events. Each server is new, because freed memory may stay resident.
pub(crate) async fn measure_stock(gateway: &Gateway, count: usize, report: &mut Report) {
    let players = gateway.players(1 + count.div_ceil(STREAMS_PER_PLAYER)).await;
    let (first, players) = players.split_at(1);
    let drop_id = gateway.drop().await;
    // The first stream allocates what all streams share.
    let first = gateway.stock_streams(&drop_id, first, 1).await;
    let before = Usage::of(gateway.pid());
    let streams = gateway.stock_streams(&drop_id, players, count).await;
    let (opened, began) = (Usage::of(gateway.pid()), Instant::now());
    tokio::time::sleep(LENGTH).await;
    let (after, took) = (Usage::of(gateway.pid()), began.elapsed());
    drop((first, streams));
    // The larger of the two, because full syncs are sent meanwhile.
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
