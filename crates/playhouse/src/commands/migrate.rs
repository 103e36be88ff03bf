//! `playhouse migrate`

use db::Db;

use super::{Outcome, layers, settings};
use crate::answer;
use crate::cli::Migrate;
use crate::start::MIGRATIONS;

pub(super) async fn run(args: Migrate) -> anyhow::Result<Outcome> {
    let settings = settings(layers(&args.from)?)?.config;
    let db = Db::open(&settings.db).await?;
    let outcome = if args.dry_run { show(&db).await } else { migrate(&db).await };
    db.close().await;
    Ok(outcome?)
}

async fn migrate(db: &Db) -> Result<Outcome, db::Error> {
    let applied = db.migrate(MIGRATIONS).await?;
    for migration in &applied {
        answer(&format!("applied  {migration}"));
    }
    if applied.is_empty() {
        answer("nothing to do: all migrations are applied");
    }
    Ok(Outcome::Done)
}

async fn show(db: &Db) -> Result<Outcome, db::Error> {
    let status = db.migration_status(MIGRATIONS).await?;
    for (state, migrations) in
        [("applied", &status.applied), ("pending", &status.pending), ("newer", &status.newer)]
    {
        for migration in migrations {
            answer(&format!("{state:<8} {migration}"));
        }
    }
    Ok(if status.pending.is_empty() { Outcome::Done } else { Outcome::Failed })
}
