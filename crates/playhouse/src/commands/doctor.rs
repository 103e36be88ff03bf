//! `playhouse doctor`

use base::Clock;
use base::finding::{Finding, Verdict};

use super::{Outcome, layers, settings};
use crate::cli::Doctor;
use crate::start::MIGRATIONS;
use crate::{Settings, answer};

pub(super) async fn run(args: Doctor) -> anyhow::Result<Outcome> {
    let settings = settings(layers(&args.from)?)?.config;
    let clock = Clock::system();
    let stores = [
        ("db", settings.db.url.to_string(), db::examine(&settings.db, MIGRATIONS, &clock).await),
        ("locks", locks_at(&settings), examine_locks(&settings).await),
        ("hot", settings.hot.url.to_string(), redis_store::examine(&settings.hot, &clock).await),
        ("bus", settings.bus.url.to_string(), bus::examine(&settings.bus, &clock).await),
        ("identity", settings.identity.issuer.to_string(), oidc::examine(&settings.identity, &clock).await),
    ];
    for (name, url, findings) in &stores {
        answer(&format!("{name:<8} {url}"))?;
        for finding in findings {
            show(finding)?;
        }
    }
    let count = |verdict| {
        stores.iter().flat_map(|(_, _, findings)| findings).filter(|f| f.verdict == verdict).count()
    };
    let (failures, warnings) = (count(Verdict::Failure), count(Verdict::Warning));
    answer(&format!("\n{failures} failed, {warnings} to mind"))?;
    Ok(if failures == 0 { Outcome::Done } else { Outcome::Failed })
}

fn locks_at(settings: &Settings) -> String {
    let place = if settings.db.url.is_embedded() { "in process" } else { "rows of db" };
    place.to_owned()
}

async fn examine_locks(settings: &Settings) -> Vec<Finding> {
    match settings.db.server() {
        Some(server) => hierlock::examine(server, &settings.locks).await,
        None => vec![Finding::good("serves this process only")],
    }
}

fn show(finding: &Finding) -> anyhow::Result<()> {
    let mark = match finding.verdict {
        Verdict::Good => "ok",
        Verdict::Warning => "mind",
        Verdict::Failure => "FAIL",
    };
    answer(&format!("  {mark:<5} {}", finding.what))?;
    match &finding.advice {
        Some(advice) => answer(&format!("        → {advice}")),
        None => Ok(()),
    }
}
