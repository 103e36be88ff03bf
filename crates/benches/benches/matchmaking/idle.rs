//! The cost of idle watchers.

use std::time::Duration;

use open_match_load::Options;

use crate::args::Args;
use crate::results::{Results, Row};
use crate::system::{SystemKind, TestBed};
use crate::usage::{Cpu, commands_so_far};

const WATCHERS: usize = 10_000;
/// More than for players, so that no server's limit of streams per connection is reached.
const CONNECTIONS: usize = 128;
const SETTLE: Duration = Duration::from_secs(2);

pub(crate) async fn watchers(test_bed: &TestBed, kind: SystemKind, args: &Args, results: &mut Results) {
    // Without an engine, so that no ticket is matched.
    let system = test_bed.start(kind, 0).await;
    let options = Options { connections: Some(CONNECTIONS), ..Options::default() };
    let idle = open_match_load::idle(&system.target, &options, WATCHERS).await.unwrap();
    tokio::time::sleep(SETTLE).await;
    let mut redis = system.connect().await;
    let (commands, cpu) = (commands_so_far(&mut redis).await, Cpu::of(&system));
    let time = args.seconds(10);
    tokio::time::sleep(time).await;
    let cpu = Cpu::of(&system).since(cpu);
    // One of them is the INFO command itself.
    let commands = commands_so_far(&mut redis).await - commands - 1;
    assert_eq!(idle.waiting(), WATCHERS, "{}: {:?}", kind.name(), idle.errors().first());
    let percent = |used: Duration| used.as_secs_f64() / time.as_secs_f64() * 100.0;
    results.print(kind, &format!("{WATCHERS} idle watchers: {cpu:?}, {commands} Redis commands in {time:?}"));
    results.add(Row::IdleCpu, kind, percent(cpu.total()));
    results.add(Row::IdleCpuRedis, kind, percent(cpu.redis));
    results.add(Row::IdleCommands, kind, commands as f64 / time.as_secs_f64());
}
