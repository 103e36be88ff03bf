//! `playhouse migrate`

use db::{Db, DbUrl, MigrationStatus};

use super::{ExitStatus, layers, settings};
use crate::cli::Migrate;
use crate::print;
use crate::services::migrations;

pub(super) async fn run(args: Migrate) -> anyhow::Result<ExitStatus> {
    let settings = settings(layers(&args.from)?)?.config;
    if args.dry_run {
        return show(&status(&settings.shared.stores.db).await?);
    }
    let db = Db::open(&settings.shared.stores.db).await?;
    let applied = db.migrate(&migrations()).await;
    db.close().await;
    let applied = applied?;
    for migration in &applied {
        print(&format!("applied  {migration}"))?;
    }
    if applied.is_empty() {
        print("Nothing to do: all migrations are applied.")?;
    }
    Ok(ExitStatus::Done)
}

/// Reads which migrations are applied. Creates nothing and takes no lock.
async fn status(config: &db::Config) -> Result<MigrationStatus, db::Error> {
    if let DbUrl::Sqlite(path) = &config.url
        && !path.exists()
    {
        return Ok(MigrationStatus::all_pending(&migrations()));
    }
    let db = Db::open_read_only(config).await?;
    let status = db.migration_status(&migrations()).await;
    db.close().await;
    status
}

fn show(status: &MigrationStatus) -> anyhow::Result<ExitStatus> {
    for (state, migrations) in
        [("applied", &status.applied), ("pending", &status.pending), ("newer", &status.newer)]
    {
        for migration in migrations {
            print(&format!("{state:<8} {migration}"))?;
        }
    }
    Ok(if status.pending.is_empty() { ExitStatus::Done } else { ExitStatus::Failed })
}
