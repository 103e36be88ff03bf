//! The matcher at 1,000 to 100,000 waiting tickets, beside a naive quadratic matcher and beside grouping by arrival.
//!
//! Times are the processor time of the one thread that works, so that other programs on the machine hardly change them. On an idle
//! core a pass takes as long.

#![expect(clippy::print_stdout, reason = "the report is the output of a benchmark")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use rules::{Options, Player, RuleSet, Ticket, Value};

/// As in the product.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Waiting tickets, and how many passes are measured. Only a hundred passes have a 99th percentile.
const SIZES: [(usize, usize); 3] = [(1_000, 100), (10_000, 100), (100_000, 10)];
/// The sizes and passes of the naive matcher, which sees the same pools as ours.
const NAIVE: [(usize, usize); 2] = [(1_000, 100), (10_000, 20)];
const NOW: i64 = 120_000;
const REGIONS: [&str; 6] = ["ap", "au", "eu", "me", "sa", "us"];

const DUEL: &str = r#"
name = "duel"
[attributes.skill]
type = "number"
[teams.player]
count = 2
max = 1
[rules.skill]
type = "batch-distance"
attribute = "skill"
max = 50
relax = [{ after = 10, max = { by = 10, every = 1, limit = 500 } }]
"#;

const TEAMS: &str = r#"
name = "teams"
[attributes.skill]
type = "number"
[teams.side]
count = 2
max = 5
[rules.skill]
type = "batch-distance"
attribute = "skill"
max = 100
relax = [{ after = 30, max = 200 }]
[rules.region]
type = "latency"
max = 80
[quality]
attribute = "skill"
balance = 1
"#;

const ROLES: &str = r#"
name = "roles"
role_attribute = "roles"
max_party = 3
[attributes.skill]
type = "number"
[attributes.roles]
type = "string-list"
[teams.side]
count = 2
max = 5
roles = { tank = 1, healer = 1, damage = 3 }
[rules.skill]
type = "batch-distance"
attribute = "skill"
max = 150
relax = [{ after = 30, max = 300 }]
[rules.fair]
type = "distance"
measurements = "avg(teams[*].players.attributes[skill])"
reference = "avg(flatten(teams[*].players.attributes[skill]))"
max = 50
[rules.region]
type = "latency"
max = 80
[quality]
attribute = "skill"
balance = 1
"#;

const ROYALE: &str = r#"
name = "royale"
[teams.all]
min = 40
max = 60
[rules.region]
type = "latency"
max = 80
relax = [{ after = 30, max = 150 }]
[quality]
latency = 1
"#;

/// A small generator (SplitMix64), so that every run has the same population.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() * limit as f64) as usize
    }

    /// About a normal distribution.
    fn skill(&mut self) -> f64 {
        let sum: f64 = (0..12).map(|_| self.next()).sum();
        1500.0 + (sum - 6.0) * 300.0
    }
}

fn population(count: usize, has_parties: bool, seed: u64) -> Vec<Ticket> {
    let mut random = Random(seed);
    (0..count)
        .map(|at| ticket(at, -((random.next() * 60_000.0) as i64) + NOW, has_parties, &mut random))
        .collect()
}

fn ticket(at: usize, created: i64, has_parties: bool, random: &mut Random) -> Ticket {
    let home = random.below(REGIONS.len());
    let size = match random.next() {
        share if !has_parties || share < 0.6 => 1,
        share if share < 0.85 => 2,
        _ => 3,
    };
    let base = random.skill();
    let latency: BTreeMap<Arc<str>, f64> = REGIONS
        .iter()
        .enumerate()
        .map(|(region, name)| {
            let hops = (region as i64 - home as i64).unsigned_abs() as f64;
            ((*name).into(), 20.0 + 45.0 * hops + random.next() * 30.0)
        })
        .collect();
    let players = (0..size).map(|member| {
        let mut roles: Vec<Arc<str>> =
            vec![["damage", "damage", "damage", "tank", "healer"][random.below(5)].into()];
        if random.next() < 0.5 {
            roles.push(["damage", "tank", "healer"][random.below(3)].into());
        }
        let skill = base + random.next() * 60.0 - 30.0;
        let attributes =
            [("skill".into(), Value::Number(skill)), ("roles".into(), Value::TextList(roles))].into();
        Player { id: format!("p{at}/{member}").into(), attributes, latency: latency.clone() }
    });
    Ticket { id: format!("t{at}").into(), created, players: players.collect() }
}

fn skill(ticket: &Ticket) -> f64 {
    let values = ticket.players.iter().map(|player| match player.attributes.get("skill") {
        Some(Value::Number(skill)) => *skill,
        _ => 0.0,
    });
    values.sum::<f64>() / ticket.players.len() as f64
}

/// Groups tickets by arrival, as the engine's function "fifo" does. That one is in a crate that uses this one.
fn group_by_arrival(tickets: &[Arc<Ticket>], size: usize) -> Vec<Vec<Arc<Ticket>>> {
    tickets.chunks_exact(size).map(<[_]>::to_vec).collect()
}

/// What one would write first: for each ticket look at all others, sort them by distance, and take the nearest that share a region.
fn naive(tickets: &[Ticket], now: i64) -> usize {
    let mut order: Vec<usize> = (0..tickets.len()).collect();
    order.sort_by_key(|at| tickets[*at].created);
    let mut taken = vec![false; tickets.len()];
    let mut matched = 0;
    for pivot in order {
        if taken[pivot] {
            continue;
        }
        let limit = if now - tickets[pivot].created >= 30_000 { 200.0 } else { 100.0 };
        let mine = skill(&tickets[pivot]);
        let mut near: Vec<(f64, usize)> = (0..tickets.len())
            .filter(|at| *at != pivot && !taken[*at])
            .map(|at| ((skill(&tickets[at]) - mine).abs(), at))
            .filter(|(distance, _)| *distance <= limit)
            .collect();
        near.sort_by(|one, two| one.0.total_cmp(&two.0));
        let found = REGIONS.iter().find_map(|region| {
            let reaches = |at: usize| tickets[at].players[0].latency[*region] <= 80.0;
            let mut chosen = vec![pivot];
            let (mut low, mut high) = (mine, mine);
            for (_, at) in near.iter().filter(|(_, at)| reaches(pivot) && reaches(*at)) {
                let other = skill(&tickets[*at]);
                if high.max(other) - low.min(other) <= limit {
                    (low, high) = (low.min(other), high.max(other));
                    chosen.push(*at);
                }
                if chosen.len() == 10 {
                    return Some(chosen);
                }
            }
            None
        });
        if let Some(chosen) = found {
            matched += chosen.len();
            chosen.into_iter().for_each(|at| taken[at] = true);
        }
    }
    matched
}

/// The passes over pools of one kind, the shortest first. The counts are those of the last one.
#[derive(Default)]
struct Row {
    matched: usize,
    passes: Vec<Duration>,
    cut_short: usize,
}

impl Row {
    fn add(&mut self, time: Duration, matched: usize, cut_short: usize) {
        let at = self.passes.partition_point(|pass| *pass < time);
        self.passes.insert(at, time);
        (self.matched, self.cut_short) = (matched, cut_short);
    }

    fn median(&self) -> Duration {
        self.passes[self.passes.len() / 2]
    }

    /// Returns the 99th percentile, if there are passes enough for one.
    fn p99(&self) -> Option<Duration> {
        (self.passes.len() >= 100).then(|| self.passes[(self.passes.len() * 99).div_ceil(100) - 1])
    }

    fn longest(&self) -> Duration {
        self.passes[self.passes.len() - 1]
    }
}

/// Returns for how long this thread has worked.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has this clock").into()
}

fn measure(rules: &RuleSet, count: usize, repetitions: usize, has_parties: bool) -> Row {
    let mut row = Row::default();
    for seed in 0..repetitions {
        measure_pass(rules, &population(count, has_parties, seed as u64), seed as u64, &mut row);
    }
    row
}

fn measure_pass(rules: &RuleSet, tickets: &[Ticket], seed: u64, row: &mut Row) {
    let started = processor_time();
    let pass = black_box(rules.find_matches(tickets, NOW, Options { seed, ..Options::default() }));
    let time = processor_time() - started;
    row.add(time, pass.matches.iter().map(|made| made.tickets().count()).sum(), pass.cut_short);
}

/// Measures our matcher and the naive one on the same pools, in turns.
fn compare(rules: &RuleSet, count: usize, repetitions: usize) -> (Row, Row) {
    let (mut ours, mut theirs) = (Row::default(), Row::default());
    for seed in 0..repetitions {
        let tickets = population(count, false, seed as u64);
        measure_pass(rules, &tickets, seed as u64, &mut ours);
        let started = processor_time();
        let matched = black_box(naive(&tickets, NOW));
        theirs.add(processor_time() - started, matched, 0);
    }
    (ours, theirs)
}

/// How good the matches of a stretch of time are.
#[derive(Default)]
struct Quality {
    imbalance: Vec<f64>,
    spread: Vec<f64>,
    latency: Vec<f64>,
    waits: Vec<f64>,
    left: usize,
}

impl Quality {
    fn add(&mut self, teams: &[Vec<&Ticket>], now: i64) {
        let mean =
            |team: &Vec<&Ticket>| team.iter().map(|ticket| skill(ticket)).sum::<f64>() / team.len() as f64;
        self.imbalance.push((mean(&teams[0]) - mean(&teams[1])).abs());
        let all: Vec<&Ticket> = teams.iter().flatten().copied().collect();
        let skills: Vec<f64> = all.iter().map(|ticket| skill(ticket)).collect();
        self.spread.push(
            skills.iter().copied().fold(f64::MIN, f64::max) - skills.iter().copied().fold(f64::MAX, f64::min),
        );
        let worst =
            |region: &&str| all.iter().map(|ticket| ticket.players[0].latency[*region]).fold(0.0, f64::max);
        self.latency.push(REGIONS.iter().map(worst).fold(f64::MAX, f64::min));
        self.waits.extend(all.iter().map(|ticket| (now - ticket.created) as f64 / 1000.0));
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn p99(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default()
}

/// Lets the same players arrive, 40 a second for two minutes, and matches them every second.
fn simulate(rules: Option<&RuleSet>) -> Quality {
    let mut random = Random(7);
    let mut waiting: Vec<Ticket> = Vec::new();
    let mut quality = Quality::default();
    let mut number = 0;
    for second in 1..=120_i64 {
        let now = second * 1000;
        for _ in 0..40 {
            let created = now - (random.next() * 1000.0) as i64;
            waiting.push(ticket(number, created, false, &mut random));
            number += 1;
        }
        waiting.sort_by_key(|ticket| ticket.created);
        let mut taken = vec![false; waiting.len()];
        let made: Vec<Vec<Vec<usize>>> = match rules {
            Some(rules) => {
                let pass = rules.find_matches(&waiting, now, Options::default());
                pass.matches
                    .into_iter()
                    .map(|made| made.teams.into_iter().map(|team| team.tickets).collect())
                    .collect()
            }
            None => (0..waiting.len() / 10)
                .map(|at| vec![(at * 10..at * 10 + 5).collect(), (at * 10 + 5..at * 10 + 10).collect()])
                .collect(),
        };
        for teams in made {
            let tickets: Vec<Vec<&Ticket>> =
                teams.iter().map(|team| team.iter().map(|at| &waiting[*at]).collect()).collect();
            quality.add(&tickets, now);
            teams.iter().flatten().for_each(|at| taken[*at] = true);
        }
        let mut taken = taken.iter();
        waiting.retain(|_| taken.next().is_some_and(|taken| !taken));
    }
    quality.left = waiting.len();
    quality
}

fn main() {
    let mut json = String::new();
    println!(
        "{:<28} {:>8} {:>9} {:>12} {:>7} {:>10} {:>8} {:>11} {:>10}",
        "workload",
        "waiting",
        "matched",
        "tickets/s",
        "passes",
        "median ms",
        "p99 ms",
        "longest ms",
        "cut short"
    );
    let mut show = |name: &str, count: usize, row: &Row| {
        let rate = row.matched as f64 / row.median().as_secs_f64();
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let (median, longest, passes) = (millis(row.median()), millis(row.longest()), row.passes.len());
        let p99 = row.p99().map_or_else(|| "-".to_owned(), |p99| format!("{:.1}", millis(p99)));
        println!(
            "{name:<28} {count:>8} {:>9} {rate:>12.0} {passes:>7} {median:>10.1} {p99:>8} {longest:>11.1} {:>10}",
            row.matched, row.cut_short
        );
        let _ = write!(
            json,
            "{}{{\"workload\":\"{name}\",\"waiting\":{count},\"matched\":{},\"passes\":{passes},\"median_ms\":{median:.3},\"longest_ms\":{longest:.3}}}",
            if json.is_empty() { "" } else { "," },
            row.matched
        );
    };
    let mut goal = Duration::ZERO;
    for (name, text, has_parties) in [
        ("1v1 by skill", DUEL, false),
        ("5v5 by skill and region", TEAMS, false),
        ("5v5 roles and parties", ROLES, true),
        ("60 players, latency", ROYALE, false),
    ] {
        let rules = RuleSet::parse(text).expect("the rule sets of the benchmark are valid");
        for (count, repetitions) in SIZES {
            let row = measure(&rules, count, repetitions, has_parties);
            show(name, count, &row);
            if text == TEAMS && count == 100_000 {
                goal = row.longest();
            }
        }
    }
    for (count, repetitions) in SIZES {
        let tickets: Vec<Arc<Ticket>> = population(count, false, 0).into_iter().map(Arc::new).collect();
        let mut passes: Vec<Duration> = (0..repetitions)
            .map(|_| {
                let started = processor_time();
                black_box(group_by_arrival(&tickets, 10));
                processor_time() - started
            })
            .collect();
        passes.sort();
        show("grouped by arrival", count, &Row { matched: count / 10 * 10, passes, cut_short: 0 });
    }
    let rules = RuleSet::parse(TEAMS).expect("the rule sets of the benchmark are valid");
    let mut ratio = 0.0;
    for (count, repetitions) in NAIVE {
        let (ours, theirs) = compare(&rules, count, repetitions);
        show("5v5, the same pools", count, &ours);
        show("naive, the same pools", count, &theirs);
        ratio = theirs.median().as_secs_f64() / ours.median().as_secs_f64();
    }
    println!(
        "\n{:<28} {:>14} {:>14} {:>16} {:>10} {:>10} {:>8}",
        "40 tickets/s for 120 s",
        "team balance",
        "skill spread",
        "worst latency ms",
        "wait s",
        "p99 wait",
        "left"
    );
    for (name, quality) in [("rules", simulate(Some(&rules))), ("grouped by arrival", simulate(None))] {
        println!(
            "{name:<28} {:>14.1} {:>14.1} {:>16.1} {:>10.1} {:>10.1} {:>8}",
            mean(&quality.imbalance),
            mean(&quality.spread),
            mean(&quality.latency),
            mean(&quality.waits),
            p99(&quality.waits),
            quality.left
        );
    }
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bench");
    let written = std::fs::create_dir_all(&folder).and_then(|()| {
        std::fs::write(folder.join("rules.json"), format!("{{\"ratio\":{ratio:.2},\"rows\":[{json}]}}\n"))
    });
    if let Err(error) = written {
        println!("cannot write the report: {error}");
    }
    println!("\nrules: ratio={ratio:.1} pass_100k_s={:.3}", goal.as_secs_f64());
}
