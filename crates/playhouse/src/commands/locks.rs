//! `playhouse locks`

mod hot;
mod progress;
mod waits;

use base::Clock;
use hierlock::matrix::Matrix;
use hierlock::simulate::Simulation;
use hierlock::{BucketSpace, LockManager, MySqlConnectOptions, Options, Provisioner};

use self::progress::{Display, grouped};
use super::{ExitStatus, layers, settings};
use crate::cli::{self, LocksCommand};
use crate::print;

pub(super) async fn run(args: cli::Locks) -> anyhow::Result<ExitStatus> {
    let settings = settings(layers(&args.from)?)?.config;
    let server = settings.shared.stores.db.server();
    match args.command {
        LocksCommand::Provision { rows_per_second } => match server {
            Some(server) => provision(server, settings.locks.buckets, rows_per_second).await,
            None => no_rows(),
        },
        LocksCommand::Status => match server {
            Some(server) => status(server, settings.locks.buckets).await,
            None => no_rows(),
        },
        LocksCommand::Simulate { ids, buckets, held } => {
            simulate(Simulation { ids, buckets: buckets.unwrap_or(settings.locks.buckets), held })
        }
        LocksCommand::Hot { limit, admin, operator } => {
            hot::run(&args.from, admin.as_deref(), &operator, limit, server).await
        }
        LocksCommand::Waits { limit, admin, operator } => {
            waits::run(&args.from, admin.as_deref(), &operator, limit).await
        }
        LocksCommand::End { session, admin, operator } => {
            waits::end(&args.from, admin.as_deref(), &operator, session).await
        }
        LocksCommand::Matrix => matrix(&settings.locks, server).await,
    }
}

fn no_rows() -> anyhow::Result<ExitStatus> {
    print("Nothing to do: db.url is a sqlite: file, so locks are in process and need no rows.")?;
    Ok(ExitStatus::Done)
}

async fn provision(
    server: MySqlConnectOptions,
    buckets: u32,
    rows_per_second: Option<u32>,
) -> anyhow::Result<ExitStatus> {
    let provision = Provisioner::new(server, buckets);
    let provision = match rows_per_second {
        Some(rate) => provision.throttled(rate),
        None => provision,
    };
    let mut display = Display::new();
    let done = provision.run(|progress| display.show(&progress)).await;
    display.end();
    let done = done?;
    let seconds = done.elapsed.as_secs_f64();
    print(&if done.created == 0 {
        format!("Nothing to do: all {} rows exist.", grouped(done.total))
    } else {
        let rate = grouped((done.created as f64 / seconds.max(0.001)) as u64);
        format!(
            "{} rows exist, {} of them created now in {seconds:.1} s ({rate}/s)",
            grouped(done.total),
            grouped(done.created)
        )
    })?;
    Ok(ExitStatus::Done)
}

async fn status(server: MySqlConnectOptions, ours: u32) -> anyhow::Result<ExitStatus> {
    let Some(status) = Provisioner::status(server).await? else {
        print("The lock rows do not exist yet: run `playhouse locks provision`.")?;
        return Ok(ExitStatus::Failed);
    };
    print(&format!("{} per level, about {} MiB\n", status.space, mib(&status.space)))?;
    print(&format!("{:<10} {:>12} {:>12}  first missing", "level", "present", "missing"))?;
    for level in &status.levels {
        let first = level.first_missing.map_or_else(|| "-".to_owned(), |bucket| bucket.to_string());
        let (present, missing) = (grouped(level.present), grouped(level.missing));
        print(&format!("{:<10} {present:>12} {missing:>12}  {first}", level.level.as_str()))?;
    }
    let verdict = if status.space.buckets != ours {
        format!("This configuration has locks.buckets = {ours}: a process with it does not start.")
    } else if status.missing() > 0 || !status.complete {
        "Not complete: `playhouse locks provision` creates the missing rows.".to_owned()
    } else {
        print("\nComplete.")?;
        return Ok(ExitStatus::Done);
    };
    print(&format!("\n{verdict}"))?;
    Ok(ExitStatus::Failed)
}

fn simulate(simulation: Simulation) -> anyhow::Result<ExitStatus> {
    let Simulation { ids, buckets, held } = simulation;
    let (found, space) = (simulation.run(), BucketSpace::new(buckets));
    let percent = |share: f64| match share * 100.0 {
        0.0 => "0 %".to_owned(),
        small if small < 0.001 => format!("{small:.1e} %"),
        percent => format!("{percent:.3} %"),
    };
    let lines = [
        format!(
            "{} ids of one level in {} buckets, {} of them locked at a time:\n",
            grouped(ids),
            grouped(buckets.into()),
            grouped(held)
        ),
        format!(
            "{:>12}  of acquisitions wait for an unrelated id in the same bucket",
            percent(found.false_conflicts)
        ),
        format!("{:>12}  by the formula 1 - (1 - 1/buckets)^held", percent(found.expected)),
        format!(
            "{:>12}  of ids share their bucket with another id; it matters while both are locked",
            percent(found.sharing)
        ),
        format!("{:>12}  ids in the fullest bucket", grouped(found.fullest.into())),
        format!("{:>12}  rows in all three levels, about {} MiB", grouped(space.rows()), mib(&space)),
    ];
    print(&lines.join("\n"))?;
    Ok(ExitStatus::Done)
}

/// Returns the size of the rows in MiB.
fn mib(space: &BucketSpace) -> String {
    grouped(space.bytes().div_ceil(1 << 20))
}

async fn matrix(options: &Options, server: Option<MySqlConnectOptions>) -> anyhow::Result<ExitStatus> {
    let locks = match server {
        Some(server) => LockManager::mysql(server, options).await?,
        None => LockManager::in_process(options, &Clock::system()),
    };
    let observed = Matrix::observe(&locks).await;
    locks.close().await;
    let Some(matrix) = observed? else {
        anyhow::bail!(
            "the matrix needs about a hundred buckets, so that its targets share none: raise locks.buckets"
        );
    };
    print(&format!(
        "Row: the lock that is held. Column: the lock that is requested.\n\
         · granted, W waits and the server shows it, w waits, ! differs from the rules\n\n{matrix}\n"
    ))?;
    let count = |of: fn(&hierlock::matrix::Cell) -> bool| matrix.cells().filter(|cell| of(cell)).count();
    let (pairs, waits) = (matrix.cells().count(), count(|cell| cell.waited));
    let confirmed = match count(|cell| cell.server_agrees == Some(true)) {
        0 => String::new(),
        confirmed => format!("; the server's own tables show {confirmed} of the waits"),
    };
    let wrong = count(|cell| !cell.is_correct());
    let verdict = if wrong == 0 {
        "all as the rules say".to_owned()
    } else {
        format!("{wrong} NOT as the rules say (!)")
    };
    print(&format!("{pairs} pairs, {waits} wait, {verdict}{confirmed}"))?;
    Ok(if wrong == 0 { ExitStatus::Done } else { ExitStatus::Failed })
}
