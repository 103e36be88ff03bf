//! Bulk actions change nothing if another number of items matches than the operator saw.

use screens::{FieldKind, FormField, Operation, Place};
use service::OperatorRow;

use super::*;

/// A number that nothing in a new process has.
const SEEN: u64 = 987;

/// Builds the call of an operation as its form does, with this number.
fn call(process: &TestProcess, row: &OperatorRow, operation: &Operation) -> RequestBuilder {
    let value = |field: &FormField| match (field.name, field.kind) {
        ("expected", _) => Some(json!(SEEN)),
        ("title", _) => Some(json!("Maintenance tonight")),
        // The form has the key of its draft.
        ("key", FieldKind::Hidden) => Some(json!("draft-1")),
        _ if !field.is_required => None,
        _ if field.hint.starts_with("20") => Some(json!("2026-03-01T12:00:00Z")),
        _ => panic!("{} {}: give `{}` a value", row.method(), row.path(), field.name),
    };
    let given = |place: Place| {
        let fields = operation.fields.iter().filter(move |field| field.place == place);
        fields.filter_map(|field| Some((field.name.to_owned(), value(field)?)))
    };
    let query: Vec<(String, String)> = given(Place::Query)
        .map(|(name, value)| (name, value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
        .collect();
    let path = row.path().replace("{name}", "partner");
    let url = Url::parse_with_params(&process.url("admin", &path), query).unwrap();
    let request = process.client.request(row.method().into(), url).bearer_auth(OPERATOR_TOKEN);
    let request = request.header("idempotency-key", &path);
    let body: serde_json::Map<String, Value> = given(Place::Body).collect();
    if body.is_empty() { request } else { request.json(&body) }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_bulk_action_is_refused_if_the_number_has_changed() {
    let webhook = "[notification.webhooks.partner]\nurl = \"http://127.0.0.1:9/\"\n\
        secrets = [\"whsec_ZXhhbXBsZSBvZiBhIHNlY3JldCBvZiB3ZWJob29r\"]\nallow_networks = [\"127.0.0.0/8\"]\n";
    let process = TestProcess::start_with_config(webhook).await;
    let mut refused = Vec::new();
    for (row, operation) in playhouse::console_operations() {
        if !operation.fields.iter().any(|field| field.name == "expected") {
            continue;
        }
        let what = format!("{} {}", row.method(), row.path());
        let (status, problem) = send(call(&process, &row, &operation)).await;
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(
            (400..500).contains(&status) && detail.contains(&format!("you saw {SEEN}")),
            "{what}: {status} {problem}"
        );
        refused.push(what);
    }
    for what in [
        "POST /dlq/replay",
        "POST /dlq/discard",
        "POST /outbox/retry",
        "POST /outbox/skip",
        "POST /outbox/republish",
        "POST /webhooks/{name}/recover",
        "POST /broadcasts",
        "POST /allocations/retry",
    ] {
        assert!(
            refused.iter().any(|refused| refused == what),
            "{what} does not ask for the number: {refused:?}"
        );
    }
    let (_, jobs) = shop::admin_get(process.url("admin", "/jobs")).await;
    assert_eq!(jobs["jobs"], json!([]), "a refused action has started a job");
}
