//! `playhouse broadcasts`

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::{Map, Value};
use tokio::time::sleep;

use super::admin::{AdminClient, query};
use super::{ExitStatus, UsageError, counted, items, text};
use crate::cli::{BroadcastDraft, Broadcasts, BroadcastsCommand};
use crate::print;

/// How often `--watch` reads the broadcast.
const INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn run(args: Broadcasts) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let render = |found: &Value, to_text: fn(&Value) -> String| {
        if args.target.json { found.to_string() } else { to_text(found) }
    };
    let shown = match &args.command {
        BroadcastsCommand::Preview { draft } => {
            let given = draft.fields().into_iter().map(|(name, value)| (name, value.as_ref()));
            render(&admin.call(Method::GET, &query("/broadcasts/preview", given)).await?, preview)
        }
        BroadcastsCommand::Send { draft, expected, key } => {
            let body = draft.body(*expected, key.as_deref())?;
            render(&admin.send(Method::POST, "/broadcasts", |request| request.json(&body)).await?, sent)
        }
        BroadcastsCommand::List { state, limit } => {
            let path = format!("/broadcasts?state={state}&limit={limit}");
            render(&admin.call(Method::GET, &path).await?, list)
        }
        BroadcastsCommand::Show { broadcast, watch } => {
            let mut found = admin.call(Method::GET, &path(broadcast)).await?;
            while *watch && is_running(&found) {
                print(&render(&found, show))?;
                sleep(INTERVAL).await;
                found = admin.call(Method::GET, &path(broadcast)).await?;
            }
            render(&found, show)
        }
        BroadcastsCommand::Stop { broadcast } => {
            render(&admin.call(Method::POST, &format!("{}/stop", path(broadcast))).await?, stopped)
        }
        BroadcastsCommand::Resume { broadcast } => {
            render(&admin.call(Method::POST, &format!("{}/resume", path(broadcast))).await?, resumed)
        }
    };
    print(&shown)?;
    Ok(ExitStatus::Done)
}

impl BroadcastDraft {
    fn fields(&self) -> [(&'static str, &Option<String>); 8] {
        [
            ("title", &self.title),
            ("body", &self.body),
            ("language", &self.language),
            ("template", &self.template),
            ("texts", &self.texts),
            ("channels", &self.channels),
            ("data", &self.data),
            ("expires_at", &self.expires_at),
        ]
    }

    /// Returns the body of the request. Fails if --texts or --data are not JSON.
    fn body(&self, expected: Option<u64>, key: Option<&str>) -> Result<Value, UsageError> {
        let mut body = Map::new();
        for (name, value) in self.fields() {
            let Some(value) = value else { continue };
            let value = match name {
                "texts" | "data" => serde_json::from_str(value)
                    .map_err(|error| UsageError(format!("--{name} is not valid JSON: {error}")))?,
                _ => Value::from(value.as_str()),
            };
            body.insert(name.to_owned(), value);
        }
        body.extend(expected.map(|expected| ("expected".to_owned(), expected.into())));
        body.extend(key.map(|key| ("key".to_owned(), key.into())));
        Ok(Value::Object(body))
    }
}

fn preview(found: &Value) -> String {
    let more = if found["has_more"] == true { " or more" } else { "" };
    let channels = items(found, "channels").iter().map(text).collect::<Vec<_>>().join(", ");
    let mut lines = vec![format!(
        "{}{more} would get it, in the inbox and on: {channels}",
        counted(&found["recipients"], "player")
    )];
    for (language, words) in found["texts"].as_object().into_iter().flatten() {
        lines.push(format!("\n[{language}] {}", text(&words["title"])));
        lines.extend(words["body"].as_str().filter(|body| !body.is_empty()).map(ToOwned::to_owned));
    }
    lines.join("\n")
}

fn sent(found: &Value) -> String {
    let id = text(&found["id"]);
    format!(
        "{id} is being sent. `playhouse broadcasts show {id} --watch` shows the progress, `stop {id}` stops it"
    )
}

fn path(broadcast: &str) -> String {
    format!("/broadcasts/{}", utf8_percent_encode(broadcast, NON_ALPHANUMERIC))
}

fn is_running(found: &Value) -> bool {
    matches!(found["state"].as_str(), Some("PENDING" | "PROCESSING"))
}

fn list(found: &Value) -> String {
    let broadcasts = items(found, "broadcasts");
    if broadcasts.is_empty() {
        return "No broadcasts found. Completed ones are removed after notification.delivery.retention."
            .to_owned();
    }
    broadcasts.iter().map(show).collect::<Vec<_>>().join("\n")
}

fn show(found: &Value) -> String {
    let (id, state, notified) = (text(&found["id"]), text(&found["state"]), &found["notified"]);
    let title = text(&found["title"]);
    let mut line =
        format!("{id}  {state:<10} notified {notified:>9}  {}  {title:?}", text(&found["created"]));
    if let Some(cause) = found["cause"].as_str() {
        line.push_str(&format!("\n{:38}attempt {}: {cause}", "", found["attempts"]));
    }
    line
}

fn stopped(found: &Value) -> String {
    let id = text(&found["id"]);
    let notified = counted(&found["notified"], "player");
    format!("{id} is stopped after {notified}. `playhouse broadcasts resume {id}` continues it")
}

fn resumed(found: &Value) -> String {
    format!("{} continues after {}", text(&found["id"]), counted(&found["notified"], "player"))
}
