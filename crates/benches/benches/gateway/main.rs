//! Compares `/v1/me` with a bearer token, the same request refused by the address limit, and an empty axum handler: with the same
//! client, in turns on the same machine. It also measures idle streams: of tickets, and of the stock of one drop compared with
//! axum's server-sent events.
//!
//! `cargo xtask bench gateway` runs everything; with `-- --streams-only` only the streams. The gateway is the release build with
//! embedded stores and the builtin issuer. The requests come through a trusted proxy from many addresses, so that limits are counted
//! but never exceeded.

#![expect(clippy::unwrap_used, reason = "benchmarks may panic")]

mod args;
mod client;
mod idle;
mod reference;
mod subject;

use std::time::Duration;

use benches::Usage;
use clap::Parser;
use testkit::bench::Report;

use args::Args;
use client::{OK, Run, TOO_MANY};
use subject::Gateway;

/// The reference process uses the same allocator as the product.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How often each is measured, in turns, and for how long.
const ROUNDS: usize = 5;
const LENGTH: Duration = Duration::from_secs(4);
const WARM_UP: Duration = Duration::from_secs(1);
/// How many requests are in flight, each on its own connection.
const CONNECTIONS: usize = 64;
/// How many players send requests.
const PLAYERS: usize = 500;

fn main() {
    if reference::is_reference() {
        return reference::serve();
    }
    let args = Args::parse();
    idle::allow_many_files();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let gateway = Gateway::start(&args.program()).await;
        let mut report = Report::new("gateway").columns(["", "requests/s", "p50", "p99", "CPU per request"]);
        let ratio = match args.streams_only {
            true => None,
            false => {
                let refusing = Gateway::refusing(&args.program()).await;
                Some(compare(&gateway, &refusing, &mut report).await)
            }
        };
        idle::measure(&gateway, args.streams, &mut report).await;
        drop(gateway);
        idle::measure_stock(&Gateway::start(&args.program()).await, args.streams, &mut report).await;
        report.finish(ratio).unwrap();
    });
}

/// Returns our rate divided by the reference's.
async fn compare(gateway: &Gateway, refusing: &Gateway, report: &mut Report) -> f64 {
    let players = gateway.players(PLAYERS).await;
    let requests: Vec<Vec<u8>> =
        players.iter().enumerate().map(|(at, token)| client::request("/v1/me", token, at)).collect();
    let reference = reference::start().await;
    let empty = vec![client::request("/", "", 0)];

    // All requests come from one address with valid tokens. The first one is accepted.
    let tokens = refusing.players(PLAYERS).await;
    let from_one: Vec<Vec<u8>> = tokens.iter().map(|token| client::request("/v1/me", token, 0)).collect();
    client::once(refusing.address(), &from_one[..1]).await;

    let (mut ours, mut theirs, mut refusals) = (Vec::new(), Vec::new(), Vec::new());
    // The first request of a player registers the user, which is not measured.
    client::once(gateway.address(), &requests).await;
    client::run(gateway.address(), &requests, OK, CONNECTIONS, WARM_UP).await;
    client::run(reference.address(), &empty, OK, CONNECTIONS, WARM_UP).await;
    client::run(refusing.address(), &from_one, TOO_MANY, CONNECTIONS, WARM_UP).await;
    for _ in 0..ROUNDS {
        theirs.push(
            measured(reference.pid(), client::run(reference.address(), &empty, OK, CONNECTIONS, LENGTH))
                .await,
        );
        ours.push(
            measured(gateway.pid(), client::run(gateway.address(), &requests, OK, CONNECTIONS, LENGTH)).await,
        );
        refusals.push(
            measured(
                refusing.pid(),
                client::run(refusing.address(), &from_one, TOO_MANY, CONNECTIONS, LENGTH),
            )
            .await,
        );
    }
    let (ours, theirs, refusals) = (median(ours), median(theirs), median(refusals));

    let rows = [
        ("/v1/me, bearer token", &ours),
        ("the same, refused (429)", &refusals),
        ("empty axum handler", &theirs),
    ];
    for (name, measure) in rows {
        report.row([
            name.to_owned(),
            format!("{:.0}", measure.rate()),
            format!("{:.2} ms", millis(measure.run.times.quantile(0.5))),
            format!("{:.2} ms", millis(measure.run.times.quantile(0.99))),
            format!("{:.1} us", measure.cpu_per_request()),
        ]);
    }
    // Both include the cost of HTTP and sockets. Subtracting the empty handler leaves the gateway's own cost.
    let added = |measure: &Measure| measure.cpu_per_request() - theirs.cpu_per_request();
    let (share, share_added) =
        (refusals.cpu_per_request() / ours.cpu_per_request(), added(&refusals) / added(&ours));
    report.row([
        "refused / accepted".to_owned(),
        format!("{:.2}", refusals.rate() / ours.rate()),
        String::new(),
        String::new(),
        format!("{share:.2} (without the cost of an empty handler: {share_added:.2})"),
    ]);
    report.measure("refused_per_second", refusals.rate());
    report.measure("refused_cpu_us", refusals.cpu_per_request());
    report.measure("refused_cpu_share", share);
    report.measure("refused_cpu_share_added", share_added);
    report.measure("me_per_second", ours.rate());
    report.measure("empty_per_second", theirs.rate());
    report.measure("me_p99_ms", millis(ours.run.times.quantile(0.99)));
    report.measure("empty_p99_ms", millis(theirs.run.times.quantile(0.99)));
    report.measure("me_cpu_us", ours.cpu_per_request());
    report.measure("empty_cpu_us", theirs.cpu_per_request());
    ours.rate() / theirs.rate()
}

/// A run, and the server's processor time.
struct Measure {
    run: Run,
    cpu: Duration,
}

impl Measure {
    fn rate(&self) -> f64 {
        self.run.times.count() as f64 / self.run.took.as_secs_f64()
    }

    fn cpu_per_request(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.run.times.count() as f64
    }
}

async fn measured(pid: u32, run: impl Future<Output = Run>) -> Measure {
    let before = Usage::of(pid).cpu;
    let run = run.await;
    Measure { run, cpu: Usage::of(pid).cpu - before }
}

/// Returns the run with the median rate.
fn median(mut measures: Vec<Measure>) -> Measure {
    measures.sort_by(|one, other| one.rate().total_cmp(&other.rate()));
    measures.swap_remove(measures.len() / 2)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
