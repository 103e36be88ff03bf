//! Checks that the server's version and settings support the guarantees we give.

use base::Clock;
use base::finding::{Finding, version};

use crate::{Config, Db, DbUrl, Dialect, Error, Migrations};

const OLDEST_MYSQL: (u32, u32) = (8, 0);
const OLDEST_MARIADB: (u32, u32) = (10, 6);

/// The health check has one connection outside the pool.
const HEALTH_CONNECTIONS: u32 = 1;

/// Examines the store and its settings. Changes no data and does not disturb a process that has the store open.
pub async fn examine(config: &Config, sets: &[Migrations], clock: &Clock) -> Vec<Finding> {
    if let DbUrl::Sqlite(path) = &config.url
        && !path.exists()
    {
        let what = format!("{} does not exist yet", path.display());
        return vec![Finding::failure(what, "run `playhouse migrate`, which creates it")];
    }
    match run_checks(config, sets, clock).await {
        Ok(findings) => findings,
        Err(error) => {
            let advice =
                "start the database, or correct db.url; for a single process, `sqlite:PATH` needs no server";
            vec![Finding::failure(base::error::chain(&error), advice)]
        }
    }
}

async fn run_checks(config: &Config, sets: &[Migrations], clock: &Clock) -> Result<Vec<Finding>, Error> {
    let db = Db::open_read_only(config).await?;
    let mut findings = vec![check_version(&db.version().await?)];
    match db.dialect() {
        Dialect::Sqlite => findings.push(check_integrity(&db).await?),
        Dialect::MySql => {
            findings.push(check_server(&db).await?);
            findings.extend(check_durability(&db).await?);
            findings.push(check_connections(&db, config.max_connections + HEALTH_CONNECTIONS).await?);
            findings.push(Finding::clock(db.now().await?.distance(clock.now())));
        }
    }
    findings.extend(check_migrations(&db, sets).await);
    db.close().await;
    Ok(findings)
}

fn check_version(found: &str) -> Finding {
    let (program, number) = found.split_once(' ').unwrap_or((found, ""));
    let recent_enough = match program {
        "MySQL" => version(number) >= OLDEST_MYSQL,
        "MariaDB" => version(number) >= OLDEST_MARIADB,
        _ => true,
    };
    Finding::check(recent_enough, found, || {
        Finding::failure(format!("{found} is too old"), "use MySQL 8.0 or newer, or MariaDB 10.6 or newer")
    })
}

async fn check_server(db: &Db) -> Result<Finding, Error> {
    match db.require_supported_server().await {
        Ok(()) => Ok(Finding::good("SKIP LOCKED works")),
        Err(Error::UnsupportedServer(what)) => {
            Ok(Finding::failure(what, "use MySQL 8.0 or newer, or MariaDB 10.6 or newer"))
        }
        Err(error) => Err(error),
    }
}

async fn check_integrity(db: &Db) -> Result<Finding, Error> {
    let mut connection = db.connection().await?;
    let answer: String =
        crate::on!(connection, raw => sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(raw).await?);
    Ok(Finding::check(answer == "ok", "the file is intact", || {
        Finding::failure(format!("the file is damaged: {answer}"), "restore it from a backup")
    }))
}

async fn check_durability(db: &Db) -> Result<Vec<Finding>, Error> {
    let flush = db.server_variable("innodb_flush_log_at_trx_commit").await?.unwrap_or_default();
    let mut findings = vec![Finding::check(
        flush == "1",
        "commits are flushed to disk before they are acknowledged",
        || {
            Finding::failure(
                format!("a crash may lose committed transactions (innodb_flush_log_at_trx_commit = {flush})"),
                "set innodb_flush_log_at_trx_commit = 1",
            )
        },
    )];
    if db.server_variable("log_bin").await?.as_deref() == Some("ON") {
        let sync = db.server_variable("sync_binlog").await?.unwrap_or_default();
        findings.push(Finding::check(
            sync == "1",
            "the binary log is flushed to disk before a commit is acknowledged",
            || {
                Finding::warning(
                    format!("after a crash a replica may miss committed transactions (sync_binlog = {sync})"),
                    "set sync_binlog = 1",
                )
            },
        ));
    }
    Ok(findings)
}

async fn check_connections(db: &Db, ours: u32) -> Result<Finding, Error> {
    let theirs =
        db.server_variable("max_connections").await?.and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
    Ok(Finding::check(
        ours < theirs,
        format!("allows {theirs} connections; a process uses up to {ours}"),
        || {
            Finding::warning(
                format!("allows {theirs} connections, but one process may use {ours}"),
                "raise the server's max_connections, or lower db.max_connections",
            )
        },
    ))
}

async fn check_migrations(db: &Db, sets: &[Migrations]) -> Vec<Finding> {
    let status = match db.migration_status(sets).await {
        Ok(status) => status,
        Err(error) => {
            return vec![Finding::failure(
                base::error::chain(&error),
                "use the version of playhouse that created these tables",
            )];
        }
    };
    let pending = status.pending.join(", ");
    let up_to_date = Finding::check(status.pending.is_empty(), "all migrations are applied", || {
        Finding::failure(format!("migrations are pending: {pending}"), "run `playhouse migrate`")
    });
    let newer = (!status.newer.is_empty()).then(|| {
        let what = format!("migrated by a newer version: {}", status.newer.join(", "));
        Finding::warning(what, "finish rolling out the newer version")
    });
    std::iter::once(up_to_date).chain(newer).collect()
}
