//! The cost of idle streams.

use std::time::{Duration, Instant};

use benches::Usage;
use futures::StreamExt;
use testkit::bench::Report;

use crate::fleet::Fleet;

const STREAMS: usize = 10_000;
/// As many as are allowed.
const PER_PLAYER: usize = 5;
const LENGTH: Duration = Duration::from_secs(30);

pub(crate) async fn run(report: &mut Report) {
    let fleet = Fleet::start("").await;
    let players = fleet.players(STREAMS / PER_PLAYER).await;
    let before = Usage::of(fleet.pid());
    let opening = (0..STREAMS).map(|at| fleet.events(&players[at / PER_PLAYER]));
    let streams: Vec<_> = futures::stream::iter(opening).buffer_unordered(64).collect().await;
    // Memory for opening them is freed within some seconds.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (opened, began) = (Usage::of(fleet.pid()), Instant::now());
    tokio::time::sleep(LENGTH).await;
    let cpu = Usage::of(fleet.pid()).cpu - opened.cpu;
    let share = 100.0 * cpu.as_secs_f64() / began.elapsed().as_secs_f64();
    let bytes = opened.memory.saturating_sub(before.memory) as f64 / streams.len() as f64;
    report.row([
        format!("{} idle streams", streams.len()),
        format!("{:.1} kB each", bytes / 1e3),
        format!("{share:.1} % of a core"),
        String::new(),
        "< 20 kB".to_owned(),
    ]);
    report.measure("idle_kb_per_stream", bytes / 1e3);
    report.measure("idle_cpu_percent", share);
}
