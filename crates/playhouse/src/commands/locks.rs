//! `playhouse locks`

mod hot;
mod progress;

use base::Clock;
use hierlock::matrix::Matrix;
use hierlock::simulate::Question;
use hierlock::{Locks, MySqlConnectOptions, Options, Provision, Space};

use self::progress::{Display, grouped};
use super::{Outcome, layers, settings};
use crate::answer;
use crate::cli::{self, LocksCommand};

pub(super) async fn run(args: cli::Locks) -> anyhow::Result<Outcome> {
    let settings = settings(layers(&args.from)?)?.config;
    let server = settings.shared.stores.db.server();
    match args.what {
        LocksCommand::Provision { rows_per_second } => match server {
            Some(server) => provision(server, settings.locks.buckets, rows_per_second).await,
            None => no_rows(),
        },
        LocksCommand::Status => match server {
            Some(server) => status(server, settings.locks.buckets).await,
            None => no_rows(),
        },
        LocksCommand::Simulate { ids, buckets, held } => {
            simulate(Question { ids, buckets: buckets.unwrap_or(settings.locks.buckets), held })
        }
        LocksCommand::Hot { limit, admin, operator } => {
            hot::run(&args.from, admin.as_deref(), &operator, limit, server).await
        }
        LocksCommand::Matrix => matrix(&settings.locks, server).await,
    }
}

fn no_rows() -> anyhow::Result<Outcome> {
    answer("locks are in process here, as db.url is a sqlite: file: there are no rows to make")?;
    Ok(Outcome::Done)
}

async fn provision(
    server: MySqlConnectOptions,
    buckets: u32,
    rows_per_second: Option<u32>,
) -> anyhow::Result<Outcome> {
    let provision = Provision::new(server, buckets);
    let provision = match rows_per_second {
        Some(rate) => provision.throttled(rate),
        None => provision,
    };
    let mut display = Display::new();
    let done = provision.run(|progress| display.show(&progress)).await;
    display.end();
    let done = done?;
    let seconds = done.elapsed.as_secs_f64();
    answer(&if done.made == 0 {
        format!("nothing to do: all {} rows are there", grouped(done.total))
    } else {
        let rate = grouped((done.made as f64 / seconds.max(0.001)) as u64);
        format!(
            "{} rows are there, {} of them new, made in {seconds:.1} s ({rate}/s)",
            grouped(done.total),
            grouped(done.made)
        )
    })?;
    Ok(Outcome::Done)
}

async fn status(server: MySqlConnectOptions, ours: u32) -> anyhow::Result<Outcome> {
    let Some(status) = Provision::status(server).await? else {
        answer("no buckets have been made yet; `playhouse locks provision` makes them")?;
        return Ok(Outcome::Failed);
    };
    answer(&format!("{} per level, about {} MiB\n", status.space, mib(&status.space)))?;
    answer(&format!("{:<10} {:>12} {:>12}  first missing", "level", "there", "missing"))?;
    for level in &status.levels {
        let first = level.first_missing.map_or_else(|| "-".to_owned(), |bucket| bucket.to_string());
        let (there, missing) = (grouped(level.present), grouped(level.missing));
        answer(&format!("{:<10} {there:>12} {missing:>12}  {first}", level.level.word()))?;
    }
    let verdict = if status.space.buckets != ours {
        format!("this configuration has locks.buckets = {ours}: a process with it does not start")
    } else if status.missing() > 0 || !status.complete {
        "not complete: `playhouse locks provision` makes what is missing".to_owned()
    } else {
        answer("\ncomplete")?;
        return Ok(Outcome::Done);
    };
    answer(&format!("\n{verdict}"))?;
    Ok(Outcome::Failed)
}

fn simulate(question: Question) -> anyhow::Result<Outcome> {
    let Question { ids, buckets, held } = question;
    let (found, space) = (question.answer(), Space::new(buckets));
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
            "{:>12}  of acquisitions wait for an id they have nothing to do with",
            percent(found.false_conflicts)
        ),
        format!("{:>12}  by the formula 1 - (1 - 1/buckets)^held", percent(found.expected)),
        format!(
            "{:>12}  of ids share their bucket with another; it matters while both are locked",
            percent(found.sharing)
        ),
        format!("{:>12}  ids in the fullest bucket", grouped(found.fullest.into())),
        format!("{:>12}  rows in all three levels, about {} MiB", grouped(space.rows()), mib(&space)),
    ];
    answer(&lines.join("\n"))?;
    Ok(Outcome::Done)
}

/// What the rows take up.
fn mib(space: &Space) -> String {
    grouped(space.bytes().div_ceil(1 << 20))
}

async fn matrix(options: &Options, server: Option<MySqlConnectOptions>) -> anyhow::Result<Outcome> {
    let locks = match server {
        Some(server) => Locks::mysql(server, options).await?,
        None => Locks::in_process(options, &Clock::system()),
    };
    let observed = Matrix::observe(&locks).await;
    locks.close().await;
    let Some(matrix) = observed? else {
        anyhow::bail!(
            "there are so few buckets that the targets share some; the matrix needs about a hundred"
        );
    };
    answer(&format!(
        "held by row, asked for by column: · passes, W waits and the server shows it, w waits, ! is wrong\n\n{matrix}\n"
    ))?;
    let count = |of: fn(&hierlock::matrix::Cell) -> bool| matrix.cells().filter(|cell| of(cell)).count();
    let (pairs, waits) = (matrix.cells().count(), count(|cell| cell.waited));
    let shown = match count(|cell| cell.server_agrees == Some(true)) {
        0 => String::new(),
        shown => format!("; the server's own tables show {shown} of the waits"),
    };
    let wrong = count(|cell| !cell.is_right());
    let verdict = if wrong == 0 {
        "all as the rules say".to_owned()
    } else {
        format!("{wrong} NOT as the rules say (!)")
    };
    answer(&format!("{pairs} pairs, {waits} wait, {verdict}{shown}"))?;
    Ok(if wrong == 0 { Outcome::Done } else { Outcome::Failed })
}
