//! `playhouse doctor`

use base::Clock;
use base::finding::{Finding, Verdict};
use service::{DependencyCheck, StoreConfigs};

use reqwest::Method;
use serde_json::Value;

use super::admin::AdminClient;
use super::{ExitStatus, items, layers, settings, text};
use crate::cli::{ConfigArgs, Doctor, OperatorArgs};
use crate::services::{SERVICES, migrations};
use crate::{Settings, print};

pub(super) async fn run(args: Doctor) -> anyhow::Result<ExitStatus> {
    let settings = settings(layers(&args.from)?)?.config;
    let clock = Clock::system();
    let mut examined = examine_stores(&settings, &clock).await;
    for service in SERVICES.iter() {
        examined.extend(service.examine(&settings.shared, &clock).await);
    }
    examined.extend(examine_fleet(&settings, &args.from).await);
    for DependencyCheck { name, address, findings } in &examined {
        print(&format!("{name:<8} {address}"))?;
        for finding in findings {
            show(finding)?;
        }
    }
    let count = |verdict| {
        examined.iter().flat_map(|part| &part.findings).filter(|finding| finding.verdict == verdict).count()
    };
    let (failures, warnings) = (count(Verdict::Failure), count(Verdict::Warning));
    print(&format!("\n{failures} failed, {}", base::counted(warnings, "warning")))?;
    Ok(if failures == 0 { ExitStatus::Done } else { ExitStatus::Failed })
}

async fn examine_stores(settings: &Settings, clock: &Clock) -> Vec<DependencyCheck> {
    let StoreConfigs { db, redis_store, bus, .. } = &settings.shared.stores;
    let examined = |name, address, findings| DependencyCheck { name, address, findings };
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

/// Returns the findings of `playhouse status` from a running process. If none answers, examines the processes that the database lists.
async fn examine_fleet(settings: &Settings, from: &ConfigArgs) -> Option<DependencyCheck> {
    let config: &fleet::Config = settings.shared.get();
    let (running, findings) = fleet::examine(&settings.shared.stores.db, &config.expected).await?;
    for process in &running {
        // Without an operator token in the environment, the rows in the database have to suffice.
        let Ok(admin) = AdminClient::new(Some(&process.admin), from, &OperatorArgs::default()) else { break };
        if let Ok(status) = admin.call(Method::GET, "/status").await {
            let findings = items(&status, "findings").iter().map(finding).collect();
            return Some(DependencyCheck { name: "status", address: admin.url().to_owned(), findings });
        }
    }
    // An embedded store without a process is fine: nothing was started yet, or everything is stopped.
    if running.is_empty() && settings.shared.stores.db.url.is_embedded() {
        return None;
    }
    Some(DependencyCheck { name: "fleet", address: "rows in db".to_owned(), findings })
}

/// Parses a finding from the response of `/status`.
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
    let place = if settings.shared.stores.db.url.is_embedded() { "in process" } else { "rows in db" };
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
        Verdict::Warning => "warn",
        Verdict::Failure => "FAIL",
    };
    print(&format!("  {mark:<5} {}", finding.what))?;
    match &finding.advice {
        Some(advice) => print(&format!("        → {advice}")),
        None => Ok(()),
    }
}
