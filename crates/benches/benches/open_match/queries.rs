//! QueryTickets: a pool of one ticket in a hundred, compared with a scan of Redis per query, and the memory of the index.
//!
//! The scan is what a service without an index does: SMEMBERS, MGET, and a check of each ticket. It reads only the field that
//! it checks, so a real one takes longer.

use std::time::{Duration, Instant};

use benches::Usage;
use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use testkit::bench::Report;

use crate::connect::Connection;
use crate::subject::Subject;
use crate::tickets;

const QUERY_TICKETS: &str = "/openmatch.QueryService/QueryTickets";
const CREATE_TICKET: &str = "/openmatch.FrontendService/CreateTicket";

/// How often each is measured.
const QUERIES: u32 = 200;
const SCANS: u32 = 10;

/// How many tickets a scan reads at a time.
const SCAN_BATCH: usize = 5_000;

/// What queries have taken so far.
#[derive(Clone, Copy)]
struct Cost {
    cpu: Duration,
    redis: Duration,
    commands: u64,
}

/// Measures queries at this many tickets. Returns how much faster than a scan they are.
pub(crate) async fn measure(count: u32, report: &mut Report) -> f64 {
    let subject = Subject::start().await;
    let mut redis = subject.connect_to_redis().await;
    tickets::fill(&mut redis, count).await;
    let (min, max) = (f64::from(count / 2), f64::from(count / 2 + count / 100));
    let mut connection = Connection::open(&subject.address).await;
    let query = tickets::query(min, max);
    let expected = count_tickets(&connection.stream(QUERY_TICKETS, &query).await);
    assert_eq!(expected, count as usize / 100);

    let mut times = Vec::new();
    let mut cost = Cost { cpu: Duration::ZERO, redis: Duration::ZERO, commands: 0 };
    for number in 0..QUERIES {
        // Tickets arrive meanwhile, so that the index has something to read.
        let ticket = tickets::bytes(1, &tickets::search_fields(count + number));
        connection.call(CREATE_TICKET, &ticket).await;
        let before = cost_of(&subject, subject.program.pid(), &mut redis).await;
        let start = Instant::now();
        let found = count_tickets(&connection.stream(QUERY_TICKETS, &query).await);
        times.push(start.elapsed());
        assert_eq!(found, expected);
        add(&mut cost, before, cost_of(&subject, subject.program.pid(), &mut redis).await);
    }
    let ours = show("QueryTickets", times, cost, report);

    let mut times = Vec::new();
    let mut cost = Cost { cpu: Duration::ZERO, redis: Duration::ZERO, commands: 0 };
    for _ in 0..SCANS {
        let before = cost_of(&subject, std::process::id(), &mut redis).await;
        let start = Instant::now();
        let found = scan(&mut redis, min, max).await;
        times.push(start.elapsed());
        assert_eq!(found, expected);
        add(&mut cost, before, cost_of(&subject, std::process::id(), &mut redis).await);
    }
    let theirs = show("a scan of Redis", times, cost, report);
    report.measure("query_ms", ours.as_secs_f64() * 1000.0);
    report.measure("scan_ms", theirs.as_secs_f64() * 1000.0);
    theirs.as_secs_f64() / ours.as_secs_f64()
}

/// Counts the tickets in responses, each of which is only field 1.
fn count_tickets(responses: &[Vec<u8>]) -> usize {
    let mut count = 0;
    for response in responses {
        tickets::find(response, 1, |_| count += 1);
    }
    count
}

async fn scan(redis: &mut MultiplexedConnection, min: f64, max: f64) -> usize {
    let ids: Vec<Bytes> = redis::cmd("SMEMBERS").arg("allTickets").query_async(redis).await.unwrap();
    let mut found = 0;
    for ids in ids.chunks(SCAN_BATCH) {
        let ids: Vec<&[u8]> = ids.iter().map(|id| &id[..]).collect();
        let data: Vec<Option<Bytes>> = redis::cmd("MGET").arg(&ids).query_async(redis).await.unwrap();
        found += data.iter().flatten().filter(|ticket| tickets::is_in(ticket, min, max)).count();
    }
    found
}

async fn cost_of(subject: &Subject, pid: u32, redis: &mut MultiplexedConnection) -> Cost {
    let stats: String = redis::cmd("INFO").arg("stats").query_async(redis).await.unwrap();
    let commands = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    Cost {
        cpu: Usage::of(pid).cpu,
        redis: Usage::of(subject.redis.pid().unwrap()).cpu,
        commands: commands.unwrap().trim().parse().unwrap(),
    }
}

fn add(cost: &mut Cost, before: Cost, after: Cost) {
    cost.cpu += after.cpu - before.cpu;
    cost.redis += after.redis - before.redis;
    // The second INFO counts itself.
    cost.commands += after.commands - before.commands - 1;
}

/// Adds a row with the figures per query. Returns the median time.
fn show(name: &str, mut times: Vec<Duration>, cost: Cost, report: &mut Report) -> Duration {
    times.sort();
    let count = times.len() as u32;
    let median = times[times.len() / 2];
    let millis = |time: Duration| format!("{:.2}", time.as_secs_f64() * 1000.0);
    let commands = format!("{:.1}", cost.commands as f64 / f64::from(count));
    report.row([
        name.to_owned(),
        millis(median),
        millis(cost.cpu / count),
        millis(cost.redis / count),
        commands,
    ]);
    median
}

/// Measures the memory of the index, and how long it takes to fill it.
pub(crate) async fn measure_memory(count: u32, report: &mut Report) {
    let subject = Subject::start().await;
    let mut redis = subject.connect_to_redis().await;
    tickets::fill(&mut redis, count).await;
    let mut connection = Connection::open(&subject.address).await;
    let before = Usage::of(subject.program.pid()).memory;
    let start = Instant::now();
    assert_eq!(count_tickets(&connection.stream(QUERY_TICKETS, &tickets::query(0.0, 1.0)).await), 1);
    let fill = start.elapsed();
    let grown = Usage::of(subject.program.pid()).memory.saturating_sub(before);
    report.measure("index_tickets", f64::from(count));
    report.measure("index_bytes_per_ticket", grown as f64 / f64::from(count));
    report.measure("ticket_bytes", (tickets::search_fields(1).len() + 22) as f64);
    report.measure("index_fill_s", fill.as_secs_f64());
}
