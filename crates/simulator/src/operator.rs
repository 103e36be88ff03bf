//! The operator of the simulation: prepares the drop, opens it, and reads the truth at the end.

use serde_json::{Value, json};

use crate::api::{Api, Call, GaveUp};
use crate::history::{DropTruth, LineEntry};
use crate::scenario::DropPlan;

const PAGE: usize = 1_000;
/// The drop opens by hand. Until then players can join.
const NEVER: &str = "2126-01-01T00:00:00Z";

/// Creates a drop that players can join and that is not open yet. Returns its id.
pub(crate) async fn create_drop(
    api: &Api,
    plan: &DropPlan,
    run: &str,
    resource: &str,
) -> Result<String, GaveUp> {
    let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let drop = json!({
        "name": format!("simulation {run}"), "resource": resource, "stock": plan.stock,
        "terms": {
            "price": { "amount": plan.price, "currency": plan.currency }, "per_player": 1,
            "reservation_ms": millis(plan.reservation),
            "admission": {
                "batch": plan.batch, "period_ms": millis(plan.period), "capacity": u64::from(plan.batch) * 20,
                "lifetime_ms": 120_000, "arrive_within_ms": 10_000,
            },
        },
    });
    let call = Call::post("create the drop", "/drops").json(&drop).key(format!("simulation-{run}"));
    let created = api.operate(&call).await?;
    let drop_id = created["drop_id"].as_str().unwrap_or_default().to_owned();
    let schedule = Call::post("schedule the drop", format!("/drops/{drop_id}/schedule"));
    api.operate(&schedule.json(&json!({ "opens_at": NEVER }))).await?;
    Ok(drop_id)
}

pub(crate) async fn open_drop(api: &Api, drop_id: &str) -> Result<(), GaveUp> {
    let answer = api.operator(&Call::post("open the drop", format!("/drops/{drop_id}/open"))).await?;
    // A retry of a request whose answer was lost finds the drop open.
    if answer.is_success() || answer.cause() == "wrong-state" {
        return Ok(());
    }
    Err(GaveUp(format!("the drop {drop_id} cannot be opened: {}", answer.describe())))
}

/// Reads how many players wait and how many units are available.
pub(crate) async fn watch_drop(api: &Api, drop_id: &str) -> Option<(u64, u64)> {
    let found = api.operate(&Call::get("watch the drop", format!("/drops/{drop_id}"))).await.ok()?;
    Some((found["waiting"].as_u64()?, found["stock"]["available"].as_u64()?))
}

/// Ends the drop, so that nothing of the simulation is left open.
pub(crate) async fn close_drop(api: &Api, drop_id: &str) -> Result<(), GaveUp> {
    let call = Call::post("close the drop", format!("/drops/{drop_id}/close"));
    api.operator(&call.json(&json!({ "force": true }))).await.map(drop)
}

/// Reads what the instance knows of the drop.
pub(crate) async fn read_drop(api: &Api, drop_id: &str) -> Result<DropTruth, GaveUp> {
    let audit = api.operate(&Call::get("audit the drop", format!("/drops/{drop_id}/audit"))).await?;
    let count = |name: &str| audit["stock"][name].as_i64().unwrap_or_default();
    let differences = audit["differences"].as_array().into_iter().flatten().map(Value::to_string).collect();
    let (total, sold) = (count("initial") + count("adjusted"), count("sold"));
    let mut truth = DropTruth { drop_id: drop_id.to_owned(), total, sold, differences, line: Vec::new() };
    let mut after = String::new();
    loop {
        let path = format!("/drops/{drop_id}/entries?limit={PAGE}{after}");
        let page = api.operate(&Call::get("read the line", path)).await?;
        truth.line.extend(page["entries"].as_array().into_iter().flatten().map(entry));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return Ok(truth),
        }
    }
}

fn entry(value: &Value) -> LineEntry {
    let text = |name: &str| value[name].as_str().map(ToOwned::to_owned);
    LineEntry {
        user_id: text("user_id").unwrap_or_default(),
        state: text("state").unwrap_or_default(),
        number: value["number"].as_u64().unwrap_or_default(),
        place: value["place"].as_u64().unwrap_or_default(),
        entered_at: text("entered_at"),
    }
}
