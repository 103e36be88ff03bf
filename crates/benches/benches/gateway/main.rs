//! `/v1/me` with a bearer token, the same refused because its address is beyond its limit, and an empty handler of axum: the same
//! client, one after the other on the same machine, in turns. And what an idle stream costs: of a ticket, and of the stock of
//! one drop beside axum's own server-sent events.
//!
//! `cargo xtask bench gateway` runs all of it, and with `-- --streams-only` the last part. The gateway is the product as it is shipped,
//! embedded, with the builtin issuer; the requests come through a trusted proxy from many addresses, so that limits are counted and
//! do not bite.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails has failed")]

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

/// As the product has it, for the process that it is compared with.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How often the two are measured, in turns, and for how long each time.
const ROUNDS: usize = 5;
const LENGTH: Duration = Duration::from_secs(4);
const WARM_UP: Duration = Duration::from_secs(1);
/// How many requests are under way at once, each on a connection of its own.
const CONNECTIONS: usize = 64;
/// How many players call.
const PLAYERS: usize = 500;

fn main() {
    if reference::is_wanted() {
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

/// Our rate divided by theirs.
async fn compare(gateway: &Gateway, refusing: &Gateway, report: &mut Report) -> f64 {
    let players = gateway.players(PLAYERS).await;
    let requests: Vec<Vec<u8>> =
        players.iter().enumerate().map(|(at, token)| client::request("/v1/me", token, at)).collect();
    let reference = reference::start().await;
    let empty = vec![client::request("/", "", 0)];

    // All from one address, each with a good token. The first one is let in.
    let tokens = refusing.players(PLAYERS).await;
    let from_one: Vec<Vec<u8>> = tokens.iter().map(|token| client::request("/v1/me", token, 0)).collect();
    client::once(refusing.address(), &from_one[..1]).await;

    let (mut ours, mut theirs, mut refusals) = (Vec::new(), Vec::new(), Vec::new());
    // Who is new is registered, which is not what this is about.
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
    // What HTTP and the sockets cost is in both. What we add to that is the empty handler's cost subtracted.
    let added = |measure: &Measure| measure.cpu_per_request() - theirs.cpu_per_request();
    let (share, share_added) =
        (refusals.cpu_per_request() / ours.cpu_per_request(), added(&refusals) / added(&ours));
    report.row([
        "refused / accepted".to_owned(),
        format!("{:.2}", refusals.rate() / ours.rate()),
        String::new(),
        String::new(),
        format!("{share:.2} (without what an empty handler costs: {share_added:.2})"),
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

/// A run, and what the server used for it.
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

/// The middle one by its rate.
fn median(mut measures: Vec<Measure>) -> Measure {
    measures.sort_by(|one, other| one.rate().total_cmp(&other.rate()));
    measures.swap_remove(measures.len() / 2)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
