//! `playhouse migrate`

use db::{Db, DbUrl, Status};

use super::{Outcome, layers, settings};
use crate::answer;
use crate::cli::Migrate;
use crate::services::migrations;

pub(super) async fn run(args: Migrate) -> anyhow::Result<Outcome> {
    let settings = settings(layers(&args.from)?)?.config;
    if args.dry_run {
        return show(&status(&settings.shared.stores.db).await?);
    }
    let db = Db::open(&settings.shared.stores.db).await?;
    let applied = db.migrate(&migrations()).await;
    db.close().await;
    let applied = applied?;
    for migration in &applied {
        answer(&format!("applied  {migration}"))?;
    }
    if applied.is_empty() {
        answer("nothing to do: all migrations are applied")?;
    }
    Ok(Outcome::Done)
}

/// Looks, and neither creates nor takes anything.
async fn status(config: &db::Config) -> Result<Status, db::Error> {
    if let DbUrl::Sqlite(path) = &config.url
        && !path.exists()
    {
        return Ok(Status::of_nothing(&migrations()));
    }
    let db = Db::open_to_read(config).await?;
    let status = db.migration_status(&migrations()).await;
    db.close().await;
    status
}

fn show(status: &Status) -> anyhow::Result<Outcome> {
    for (state, migrations) in
        [("applied", &status.applied), ("pending", &status.pending), ("newer", &status.newer)]
    {
        for migration in migrations {
            answer(&format!("{state:<8} {migration}"))?;
        }
    }
    Ok(if status.pending.is_empty() { Outcome::Done } else { Outcome::Failed })
}
