//! What streams cost on which nothing happens.

use std::time::{Duration, Instant};

use futures::StreamExt;
use testkit::bench::Report;

use crate::world::{World, usage};

const STREAMS: usize = 10_000;
/// As many as a player may have.
const PER_PLAYER: usize = 5;
const WATCHED: Duration = Duration::from_secs(30);

pub(crate) async fn run(report: &mut Report) {
    let world = World::start("").await;
    let players = world.players(STREAMS / PER_PLAYER).await;
    let (_, before) = usage(world.pid());
    let opening = (0..STREAMS).map(|at| world.events(&players[at / PER_PLAYER]));
    let streams: Vec<_> = futures::stream::iter(opening).buffer_unordered(64).collect().await;
    // What was needed to open them is given back within some seconds.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let ((cpu, after), began) = (usage(world.pid()), Instant::now());
    tokio::time::sleep(WATCHED).await;
    let share = 100.0 * (usage(world.pid()).0 - cpu).as_secs_f64() / began.elapsed().as_secs_f64();
    let bytes = after.saturating_sub(before) as f64 / streams.len() as f64;
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
