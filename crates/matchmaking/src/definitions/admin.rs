//! The admin API's `/definitions`: rule sets, profiles and queues, their history and their changes.

use axum::Json;
use axum::extract::{Path, Query};
use axum::response::{IntoResponse, Response};
use base::error::{Coded, chain};
use http::{HeaderMap, HeaderName};
use http_server::{JsonBody, Problem};
use screens::{FieldKind, FormField, Operation};
use serde::Deserialize;
use serde_json::{Value, json};
use service::{DryRun, Open, Operator, OperatorRoute};

use super::change::{Change, Changed, DefinitionError, DefinitionView, NewContent};
use super::model::{Definition, DefinitionKey, DefinitionKind};
use super::{Definitions, diff};

/// The header with the reason for a change. The audit log has it too.
const NOTE: HeaderName = HeaderName::from_static("x-audit-note");
/// The default number of listed versions.
const DEFAULT_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 1_000;

const SET: Operation = Operation::new(
    "Set",
    "Every process uses the new text within a second. Waiting tickets are matched by it; existing matches stay.",
    "playhouse rules set {name} FILE --kind {kind} [--expected-version {expected_version}]",
)
.begins_with("/definitions/{kind}/{name}")
.checked()
.fields(&[
    FormField::path("kind", "What", FieldKind::OneOf(&["rule-set", "profile", "queue"])),
    FormField::path("name", "Name", FieldKind::Text),
    FormField::body("text", "Text", FieldKind::LongText)
        .hint("A rule set, or what the table of a profile or queue contains in the configuration file"),
    FormField::body("expected_version", "Expected version", FieldKind::HiddenNumber)
        .optional()
        .from_member("version"),
]);
const ROLL_BACK: Operation = Operation::new(
    "Roll back",
    "The text of the earlier version becomes the newest version. Every process uses it within a second.",
    "playhouse rules rollback {name} --to {version} --kind {kind} [--expected-version {expected_version}]",
)
.fields(&[
    FormField::body("version", "Version", FieldKind::Number)
        .hint("0 is the version in the configuration file"),
    FormField::body("expected_version", "Expected version", FieldKind::HiddenNumber).optional(),
]);
const REMOVE: Operation = Operation::new(
    "Remove",
    "A removed profile makes no matches, and nobody can join a removed queue. Waiting tickets keep waiting. The history stays, and a rollback \
     brings it back.",
    "playhouse rules remove {name} --kind {kind} [--expected-version {expected_version}]",
)
.dangerous()
.fields(&[
    FormField::query("expected_version", "Expected version", FieldKind::HiddenNumber).optional(),
]);

/// Returns the routes: `/definitions` (list), `/definitions/{kind}/{name}`, its `history`, `diff` and `rollback`.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/definitions", list),
        OperatorRoute::get("/definitions/{kind}/{name}", show),
        OperatorRoute::get("/definitions/{kind}/{name}/history", history),
        OperatorRoute::get("/definitions/{kind}/{name}/diff", compare),
        OperatorRoute::put("/definitions/{kind}/{name}", set).operation(SET),
        OperatorRoute::delete("/definitions/{kind}/{name}", remove).operation(REMOVE),
        OperatorRoute::post("/definitions/{kind}/{name}/rollback", roll_back).operation(ROLL_BACK),
    ]
}

pub(crate) fn problem(error: DefinitionError) -> Problem {
    if let DefinitionError::Database(error) = &error {
        tracing::error!(cause = chain(error), "Cannot read or change definitions");
    }
    let problem = Problem::new(error.code()).detail(error.to_string());
    match error {
        DefinitionError::Mistakes(mistakes) => {
            problem.cause("matchmaking:definition-mistakes").with("mistakes", mistakes)
        }
        DefinitionError::Conflict { current, .. } => {
            problem.cause("matchmaking:definition-conflict").with("current_version", current)
        }
        _ => problem,
    }
}

pub(crate) fn parse_key(kind: &str, name: &str) -> Result<DefinitionKey, DefinitionError> {
    let kind = DefinitionKind::parse(kind).ok_or_else(|| {
        let words = DefinitionKind::ALL.map(DefinitionKind::word).join(", ");
        DefinitionError::Invalid(format!("there is no kind {kind:?}; the kinds are {words}"))
    })?;
    config::check_table_name(name).map_err(DefinitionError::Invalid)?;
    Ok(DefinitionKey::new(kind, name))
}

async fn list(Open(definitions): Open<Definitions>) -> Result<Json<Value>, Problem> {
    let (revision, views) = definitions.list().await.map_err(problem)?;
    let listed: Vec<Value> = views.iter().map(summary).collect();
    let rejected = definitions.rejected();
    Ok(Json(json!({
        "revision": revision,
        // Of the process that answers.
        "active_revision": definitions.active().revision,
        "rejected": rejected.map(|rejected| json!({ "revision": rejected.revision, "mistakes": rejected.mistakes })),
        "definitions": listed,
    })))
}

#[derive(Deserialize)]
struct ShowQuery {
    version: Option<i64>,
}

async fn show(
    Open(definitions): Open<Definitions>,
    Path((kind, name)): Path<(String, String)>,
    Query(query): Query<ShowQuery>,
) -> Result<Json<Value>, Problem> {
    let key = parse_key(&kind, &name).map_err(problem)?;
    let view = definitions.show(&key, query.version).await.map_err(problem)?;
    let mut shown = summary(&view);
    shown["text"] = view.text.into();
    Ok(Json(shown))
}

#[derive(Deserialize)]
struct HistoryQuery {
    before: Option<i64>,
    limit: Option<u32>,
}

async fn history(
    Open(definitions): Open<Definitions>,
    Path((kind, name)): Path<(String, String)>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<Value>, Problem> {
    let key = parse_key(&kind, &name).map_err(problem)?;
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let (versions, is_configured) = definitions.history(&key, query.before, limit).await.map_err(problem)?;
    let versions: Vec<Value> = versions.iter().map(version).collect();
    Ok(Json(json!({ "kind": kind, "name": name, "in_file": is_configured, "versions": versions })))
}

#[derive(Deserialize)]
struct DiffQuery {
    from: i64,
    /// The newest one if it is missing.
    to: Option<i64>,
}

/// Shows the difference between two versions.
async fn compare(
    Open(definitions): Open<Definitions>,
    Path((kind, name)): Path<(String, String)>,
    Query(query): Query<DiffQuery>,
) -> Result<Json<Value>, Problem> {
    let key = parse_key(&kind, &name).map_err(problem)?;
    let from = definitions.show(&key, Some(query.from)).await.map_err(problem)?;
    let to = definitions.show(&key, query.to).await.map_err(problem)?;
    let text = |view: &DefinitionView| view.text.clone().unwrap_or_default();
    let diff = diff(&text(&from), &text(&to));
    let diff: Vec<&str> = diff.lines().collect();
    Ok(Json(json!({ "kind": kind, "name": name, "from": from.version, "to": to.version, "diff": diff })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetBody {
    text: String,
    expected_version: Option<i64>,
    #[serde(default)]
    dry_run: bool,
}

async fn set(
    Open(definitions): Open<Definitions>,
    operator: Operator,
    Path((kind, name)): Path<(String, String)>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<SetBody>,
) -> Result<Response, Problem> {
    let key = parse_key(&kind, &name).map_err(problem)?;
    let change = Change {
        // Browsers send forms with the line ends of Windows.
        content: NewContent::Text(body.text.replace("\r\n", "\n")),
        expected: body.expected_version,
        dry_run: body.dry_run,
        ..change(key, &operator, &headers)
    };
    let changed = definitions.change(&change).await.map_err(problem)?;
    Ok(respond(&change, changed))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RollBackBody {
    version: i64,
    expected_version: Option<i64>,
}

async fn roll_back(
    Open(definitions): Open<Definitions>,
    operator: Operator,
    Path((kind, name)): Path<(String, String)>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<RollBackBody>,
) -> Result<Response, Problem> {
    let key = parse_key(&kind, &name).map_err(problem)?;
    let change = Change {
        content: NewContent::Version(body.version),
        expected: body.expected_version,
        ..change(key, &operator, &headers)
    };
    let changed = definitions.change(&change).await.map_err(problem)?;
    Ok(respond(&change, changed))
}

#[derive(Deserialize)]
struct RemoveQuery {
    expected_version: Option<i64>,
}

async fn remove(
    Open(definitions): Open<Definitions>,
    operator: Operator,
    Path((kind, name)): Path<(String, String)>,
    headers: HeaderMap,
    Query(query): Query<RemoveQuery>,
) -> Result<Response, Problem> {
    let key = parse_key(&kind, &name).map_err(problem)?;
    let change = Change { expected: query.expected_version, ..change(key, &operator, &headers) };
    let changed = definitions.change(&change).await.map_err(problem)?;
    Ok(respond(&change, changed))
}

/// Returns a change by this operator that removes the definition.
fn change(key: DefinitionKey, operator: &Operator, headers: &HeaderMap) -> Change {
    Change {
        key,
        content: NewContent::Removed,
        expected: None,
        author: operator.name.clone(),
        note: headers.get(NOTE).map(|note| String::from_utf8_lossy(note.as_bytes()).into_owned()),
        dry_run: false,
    }
}

fn respond(change: &Change, changed: Changed) -> Response {
    let Changed { version, revision, is_changed, diff, warnings } = changed;
    if is_changed && !change.dry_run {
        tracing::info!(definition = %change.key, version, revision, author = change.author, "Changed a definition");
    }
    let body = Json(json!({
        "kind": change.key.kind.word(), "name": change.key.name, "version": version, "revision": revision,
        "changed": is_changed, "diff": diff.lines().collect::<Vec<_>>(), "warnings": warnings,
    }));
    let mut response = body.into_response();
    if change.dry_run {
        response.extensions_mut().insert(DryRun);
    }
    response
}

fn summary(view: &DefinitionView) -> Value {
    let mut summary = json!({
        "kind": view.key.kind.word(), "name": view.key.name, "version": view.version, "origin": view.origin,
    });
    if let Some(stored) = &view.stored {
        summary["revision"] = stored.revision.into();
        summary["author"] = stored.author.as_str().into();
        summary["note"] = stored.note.as_deref().into();
        summary["created_at"] = stored.created_at.to_rfc3339().into();
    }
    summary
}

fn version(definition: &Definition) -> Value {
    json!({
        "version": definition.version, "revision": definition.revision, "origin": definition.content.word(),
        "author": definition.author, "note": definition.note, "created_at": definition.created_at.to_rfc3339(),
    })
}
