//! The wiring of the locks: on the database's rows, or in process where the database is.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::Query;
use base::Clock;
use db::{Migration, Migrations};
use hierlock::{Error, HotRow, Locks, Progress, Provision};
use serde::Deserialize;
use serde_json::{Value, json};
use service::{Open, OperatorRoute};

use crate::Settings;

/// The tables of the locks. Where the database is embedded, locks are in process and need none.
pub(crate) const MIGRATIONS: Migrations = Migrations {
    component: "hierlock",
    list: &[
        Migration { version: 1, name: "hier_lock_buckets", sqlite: NOT_NEEDED, mysql: hierlock::SCHEMA[0] },
        Migration { version: 2, name: "hier_lock_space", sqlite: NOT_NEEDED, mysql: hierlock::SCHEMA[1] },
    ],
};

const NOT_NEEDED: &str = "-- Locks are in process.";
/// How often a long provisioning is heard of.
const NEWS: Duration = Duration::from_secs(5);
const LISTED: usize = 20;

/// Opens the locks, and makes their buckets first if the process may migrate.
pub(super) async fn open(settings: &Settings, clock: &Clock) -> Result<Locks, Error> {
    let options = &settings.locks;
    let Some(server) = settings.shared.stores.db.server() else {
        return Ok(Locks::in_process(options, clock));
    };
    let provision = Provision::new(server.clone(), options.buckets);
    if !provision.is_complete().await? {
        if !settings.shared.stores.db.migrate {
            // If it is other buckets that are there, opening says so.
            Locks::mysql(server, options).await?.close().await;
            // As with a migration that is pending: better no process than one that fails now and then.
            return Err(Error::NotProvisioned);
        }
        provision.run(log()).await?;
    }
    Locks::mysql(server, options).await
}

/// Logs how far the making of buckets is, now and then.
fn log() -> impl FnMut(Progress) {
    let mut last = None;
    move |Progress { total, present, made, .. }| {
        if present == total || last.is_none_or(|last: Instant| last.elapsed() >= NEWS) {
            last = Some(Instant::now());
            tracing::info!(total, present, made, "making the buckets of the locks");
        }
    }
}

/// `/locks/hot`: the rows that this process has waited for the longest.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![OperatorRoute::get("/locks/hot", hot)]
}

#[derive(Deserialize)]
struct Limit {
    limit: Option<usize>,
}

async fn hot(Open(locks): Open<Locks>, Query(query): Query<Limit>) -> Json<Value> {
    let rows = locks.hot(query.limit.unwrap_or(LISTED));
    let seconds = |time: Duration| time.as_secs_f64();
    let rows = rows.into_iter().map(|HotRow { row, waits, total, longest }| {
        json!({
            "level": row.level.word(), "bucket": row.bucket, "waits": waits,
            "total_seconds": seconds(total), "longest_seconds": seconds(longest),
        })
    });
    Json(json!({ "rows": rows.collect::<Vec<_>>() }))
}
