//! `playhouse doctor`

use base::Clock;
use base::finding::{Finding, Verdict};
use service::{Examined, StoreConfigs};

use reqwest::Method;
use serde_json::Value;

use super::admin::Admin;
use super::{Outcome, items, layers, settings, text};
use crate::cli::{AsOperator, Doctor, From};
use crate::services::{SERVICES, migrations};
use crate::{Settings, answer};

pub(super) async fn run(args: Doctor) -> anyhow::Result<Outcome> {
    let settings = settings(layers(&args.from)?)?.config;
    let clock = Clock::system();
    let mut examined = examine_stores(&settings, &clock).await;
    for service in SERVICES.iter() {
        examined.extend(service.examine(&settings.shared, &clock).await);
    }
    examined.extend(examine_fleet(&settings, &args.from).await);
    for Examined { name, place, findings } in &examined {
        answer(&format!("{name:<8} {place}"))?;
        for finding in findings {
            show(finding)?;
        }
    }
    let count = |verdict| {
        examined.iter().flat_map(|part| &part.findings).filter(|finding| finding.verdict == verdict).count()
    };
    let (failures, warnings) = (count(Verdict::Failure), count(Verdict::Warning));
    answer(&format!("\n{failures} failed, {warnings} to mind"))?;
    Ok(if failures == 0 { Outcome::Done } else { Outcome::Failed })
}

async fn examine_stores(settings: &Settings, clock: &Clock) -> Vec<Examined> {
    let StoreConfigs { db, redis_store, bus, .. } = &settings.shared.stores;
    let examined = |name, place, findings| Examined { name, place, findings };
    vec![
        examined("db", db.url.to_string(), db::examine(db, &migrations(), clock).await),
        examined("locks", locks_at(settings), examine_locks(settings).await),
        examined(
            "redis",
            redis_store.url.to_string(),
            redis_store::examine(redis_store, &SERVICES.scripts(), clock).await,
        ),
        examined("bus", bus.url.to_string(), bus::examine(bus, clock).await),
    ]
}

/// Judges the fleet as `playhouse status` does: a process that runs is asked. If none answers, the database knows at least who runs.
async fn examine_fleet(settings: &Settings, from: &From) -> Option<Examined> {
    let config: &fleet::Config = settings.shared.get();
    let (running, findings) = fleet::examine(&settings.shared.stores.db, &config.expected).await?;
    for process in &running {
        // Without an operator token in the environment the rows have to do.
        let Ok(admin) = Admin::find(Some(&process.admin), from, &AsOperator::default()) else { break };
        if let Ok(status) = admin.ask(Method::GET, "/status").await {
            let findings = items(&status, "findings").iter().map(finding).collect();
            return Some(Examined { name: "status", place: admin.url().to_owned(), findings });
        }
    }
    // Before the first start, and beside an embedded store that no process has, nothing is wrong.
    if running.is_empty() && settings.shared.stores.db.url.is_embedded() {
        return None;
    }
    Some(Examined { name: "fleet", place: "rows of db".to_owned(), findings })
}

fn finding(shown: &Value) -> Finding {
    let what = format!("{}: {}", text(&shown["part"]), text(&shown["what"]));
    let advice = shown["advice"].as_str().unwrap_or_default();
    match text(&shown["verdict"]) {
        "good" => Finding::good(what),
        "warning" => Finding::warning(what, advice),
        _ => Finding::failure(what, advice),
    }
}

fn locks_at(settings: &Settings) -> String {
    let place = if settings.shared.stores.db.url.is_embedded() { "in process" } else { "rows of db" };
    place.to_owned()
}

async fn examine_locks(settings: &Settings) -> Vec<Finding> {
    match settings.shared.stores.db.server() {
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
