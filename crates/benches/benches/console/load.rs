//! The load of players, without and with open consoles.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use open_match_load::Histogram;
use testkit::bench::Report;
use tokio::task::JoinSet;

use crate::args::Args;
use crate::consoles::Consoles;
use crate::fleet::{Cpu, Fleet, Player, grant};
use crate::http::{Connection, bearer, request};
use crate::screens::{Session, millis};

/// How many players are active at a time. Each sends one request after the other.
const CONNECTIONS: usize = 32;
const WARM_UP: Duration = Duration::from_secs(2);
/// How long the product gets to finish the work of the last measurement, and of opening the consoles.
const SETTLE: Duration = Duration::from_secs(5);

/// Players who each receive a grant, then open the game and their inbox.
pub(crate) struct Load {
    players: Vec<Player>,
    /// The number of the next grant.
    next: AtomicU64,
}

struct Run {
    times: Histogram,
    took: Duration,
    cpu: Cpu,
}

impl Run {
    fn rate(&self) -> f64 {
        self.times.count() as f64 / self.took.as_secs_f64()
    }

    fn cpu_per_request(&self) -> f64 {
        let Cpu { product, sql, redis } = self.cpu;
        (product + sql + redis).as_secs_f64() * 1e6 / self.times.count() as f64
    }
}

impl Load {
    pub(crate) const fn new(players: Vec<Player>) -> Self {
        Self { players, next: AtomicU64::new(0) }
    }

    /// Measures the throughput without and with consoles, in turns. Returns the median of the ratios of the rounds.
    ///
    /// Every second round begins with the consoles, because the tables grow while this runs.
    pub(crate) async fn compare(
        self,
        fleet: &Fleet,
        args: &Args,
        sessions: &[Session],
        paths: &[String],
        report: &mut Report,
    ) -> f64 {
        let load = Arc::new(self);
        load.run(fleet, WARM_UP).await;
        let (mut without, mut with, mut ratios, mut done) = (Vec::new(), Vec::new(), Vec::new(), (0, 0));
        for round in 0..args.rounds {
            let mut rates = [0.0; 2];
            for has_consoles in if round.is_multiple_of(2) { [false, true] } else { [true, false] } {
                let consoles = match has_consoles {
                    true => Some(Consoles::open(fleet, sessions, paths).await),
                    false => None,
                };
                tokio::time::sleep(SETTLE).await;
                let run = load.run(fleet, args.seconds()).await;
                rates[usize::from(has_consoles)] = run.rate();
                if has_consoles { &mut with } else { &mut without }.push(run);
                if let Some((changes, fetches)) = consoles.map(|consoles| consoles.counts()) {
                    done = (done.0 + changes, done.1 + fetches);
                }
            }
            let [alone, beside] = rates;
            eprintln!(
                "round {round}: {alone:.0}/s without consoles, {beside:.0}/s with, ratio {:.3}",
                beside / alone
            );
            ratios.push(beside / alone);
        }
        ratios.sort_by(f64::total_cmp);
        let ratio = median(&ratios);
        let (without, with) = (middle(without), middle(with));
        for (name, run) in [("players, no console open", &without), ("players, consoles open", &with)] {
            report.row([
                name.to_owned(),
                format!("{:.1}", millis(run.times.quantile(0.5))),
                format!("{:.1}", millis(run.times.quantile(0.99))),
                format!("{:.0} requests/s, {:.0} us CPU each", run.rate(), run.cpu_per_request()),
            ]);
        }
        let watched = args.seconds().as_secs_f64() * args.rounds as f64;
        report.row([
            format!("{} consoles beside none", sessions.len()),
            format!("{ratio:.3}"),
            format!("{:.3} to {:.3}", ratios[0], ratios[ratios.len() - 1]),
            format!("{:.1} changes/s, {:.1} fetches/s", done.0 as f64 / watched, done.1 as f64 / watched),
        ]);
        report.measure("lowest_ratio", ratios[0]);
        report.measure("per_second", without.rate());
        report.measure("with_consoles_per_second", with.rate());
        report.measure("p99_ms", millis(without.times.quantile(0.99)));
        report.measure("with_consoles_p99_ms", millis(with.times.quantile(0.99)));
        report.measure("console_fetches_per_second", done.1 as f64 / watched);
        ratio
    }

    async fn run(self: &Arc<Self>, fleet: &Fleet, length: Duration) -> Run {
        let tokens: Arc<Vec<String>> =
            Arc::new(self.players.iter().map(|player| bearer(&fleet.token(player))).collect());
        let mut tasks = JoinSet::new();
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push((fleet.connect("gateway").await, fleet.connect("service_api").await));
        }
        let (before, began) = (fleet.cpu(), Instant::now());
        for (gateway, service_api) in connections {
            tasks.spawn(Arc::clone(self).play(gateway, service_api, Arc::clone(&tokens), began + length));
        }
        let all = tasks.join_all().await;
        let (took, cpu) = (began.elapsed(), fleet.cpu().since(before));
        let mut times = Histogram::default();
        all.iter().for_each(|one| times.merge(one));
        Run { times, took, cpu }
    }

    async fn play(
        self: Arc<Self>,
        mut gateway: Connection,
        mut service_api: Connection,
        tokens: Arc<Vec<String>>,
        end: Instant,
    ) -> Histogram {
        let mut times = Histogram::default();
        while Instant::now() < end {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let at = number as usize % self.players.len();
            let steps = [
                (&mut service_api, grant(&self.players[at], number)),
                (&mut gateway, request("GET", "/v1/me", &tokens[at], "")),
            ];
            for (connection, request) in steps {
                times.record(timed(connection, &request).await);
            }
            let inbox = request("GET", "/v1/notifications", &tokens[at], "");
            times.record(timed(&mut gateway, &inbox).await);
        }
        times
    }
}

async fn timed(connection: &mut Connection, request: &[u8]) -> Duration {
    let began = Instant::now();
    let response = connection.send(request).await;
    let took = began.elapsed();
    assert_eq!(response.status / 100, 2, "{}\n{}", response.head, response.text());
    took
}

/// Returns the run with the median rate.
fn middle(mut runs: Vec<Run>) -> Run {
    runs.sort_by(|one, other| one.rate().total_cmp(&other.rate()));
    runs.swap_remove(runs.len() / 2)
}

/// Returns the median of sorted numbers.
fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[half - 1], sorted[half]) } else { sorted[half] }
}
