//! What a stream costs while nothing happens on it.

use std::time::{Duration, Instant};

use benches::Usage;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use testkit::bench::Report;

use crate::subject::Gateway;

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
