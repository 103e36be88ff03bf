//! The commands of `playhouse rules` that call a running process.

use std::io::Read as _;
use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};

use super::read;
use crate::cli::{AdminArgs, DefinitionArgs, RulesCommand};
use crate::commands::admin::{AdminClient, query};
use crate::commands::{ExitStatus, encoded, items, text};
use crate::{print, print_error};

pub(super) async fn run(target: &AdminArgs, command: &RulesCommand) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(target.admin.as_deref(), &target.from, &target.operator)?;
    let show: fn(&Value) -> String = match command {
        RulesCommand::List => list,
        RulesCommand::Show { .. } => |found| text(&found["text"]).trim_end().to_owned(),
        RulesCommand::History { .. } => history,
        RulesCommand::Diff { .. } => diff,
        _ => changed,
    };
    let found = call(&admin, command).await?;
    for warning in items(&found, "warnings") {
        print_error(&format!("warning: {}", text(warning)));
    }
    print(&if target.json { found.to_string() } else { show(&found) })?;
    Ok(ExitStatus::Done)
}

/// Calls the admin API.
async fn call(admin: &AdminClient, command: &RulesCommand) -> anyhow::Result<Value> {
    let send = async |method: Method, path: String, body: Value| {
        admin.send(method, &path, |request| request.json(&body)).await
    };
    let number = |number: Option<i64>| number.map(|number| number.to_string());
    Ok(match command {
        RulesCommand::Show { definition, at } => {
            let path = query(&path(definition, ""), [("version", number(*at).as_ref())]);
            let found = admin.call(Method::GET, &path).await?;
            if found["text"].is_null() {
                anyhow::bail!(
                    "{} {} was removed by {}; `playhouse rules history` shows its versions, and `rollback` brings it back",
                    text(&found["kind"]),
                    definition.name,
                    text(&found["author"])
                );
            }
            found
        }
        RulesCommand::History { definition, limit } => {
            admin.call(Method::GET, &path(definition, &format!("/history?limit={limit}"))).await?
        }
        RulesCommand::Set { definition, file, expected, dry_run } => {
            let body = json!({
                "text": text_of(file)?, "expected_version": expected.expected_version, "dry_run": dry_run,
            });
            let mut found = send(Method::PUT, path(definition, ""), body).await?;
            found["dry_run"] = (*dry_run).into();
            found
        }
        RulesCommand::Diff { definition, file: Some(file), .. } => {
            let body = json!({ "text": text_of(file)?, "dry_run": true });
            send(Method::PUT, path(definition, ""), body).await?
        }
        RulesCommand::Diff { definition, from_version, to, .. } => {
            let given = [("from", number(*from_version)), ("to", number(*to))];
            let given = given.iter().map(|(name, value)| (*name, value.as_ref()));
            admin.call(Method::GET, &query(&path(definition, "/diff"), given)).await?
        }
        RulesCommand::Rollback { definition, to, expected } => {
            let body = json!({ "version": to, "expected_version": expected.expected_version });
            send(Method::POST, path(definition, "/rollback"), body).await?
        }
        RulesCommand::Remove { definition, expected } => {
            let expected = number(expected.expected_version);
            let path = query(&path(definition, ""), [("expected_version", expected.as_ref())]);
            admin.call(Method::DELETE, &path).await?
        }
        // The others need no process.
        _ => admin.call(Method::GET, "/definitions").await?,
    })
}

fn path(DefinitionArgs { name, kind }: &DefinitionArgs, rest: &str) -> String {
    format!("/definitions/{kind}/{}{rest}", encoded(name))
}

/// Reads a file, or standard input.
fn text_of(file: &Path) -> anyhow::Result<String> {
    if file != Path::new("-") {
        return read(file);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

fn list(found: &Value) -> String {
    let mut lines = vec![format!(
        "{:<10} {:<24} {:>7}  {:<8} {:<26} {:<16} note",
        "kind", "name", "version", "origin", "changed", "by"
    )];
    lines.extend(items(found, "definitions").iter().map(|definition| {
        let cell = |name: &str| definition[name].as_str().unwrap_or("-").to_owned();
        let line = format!(
            "{:<10} {:<24} {:>7}  {:<8} {:<26} {:<16} {}",
            cell("kind"),
            cell("name"),
            definition["version"].as_i64().unwrap_or_default(),
            cell("origin"),
            cell("created_at"),
            cell("author"),
            cell("note"),
        );
        line.trim_end().to_owned()
    }));
    lines.push(format!(
        "\nstored revision {}; this process runs revision {}",
        found["revision"], found["active_revision"]
    ));
    let mistakes = found["rejected"]["mistakes"].as_array();
    lines.extend(
        mistakes.into_iter().flatten().map(|mistake| format!("cannot be used here: {}", text(mistake))),
    );
    lines.join("\n")
}

fn history(found: &Value) -> String {
    let mut lines = vec![format!("{:>7}  {:<8} {:<26} {:<16} note", "version", "origin", "changed", "by")];
    lines.extend(items(found, "versions").iter().map(|version| {
        let cell = |name: &str| version[name].as_str().unwrap_or("-").to_owned();
        let number = version["version"].as_i64().unwrap_or_default();
        let (origin, at, author) = (cell("origin"), cell("created_at"), cell("author"));
        format!("{number:>7}  {origin:<8} {at:<26} {author:<16} {}", cell("note"))
    }));
    if found["in_file"] == true {
        lines.push(format!("{:>7}  {:<8} {:<26} {:<16} from the configuration file", 0, "file", "-", "-"));
    }
    lines.join("\n")
}

fn diff(found: &Value) -> String {
    let lines = diff_lines(found);
    if lines.is_empty() { "no difference".to_owned() } else { lines.join("\n") }
}

fn diff_lines(found: &Value) -> Vec<&str> {
    items(found, "diff").iter().map(text).collect()
}

fn changed(found: &Value) -> String {
    let name = format!("{} {}", text(&found["kind"]), text(&found["name"]));
    let (version, revision) = (&found["version"], &found["revision"]);
    if found["changed"] == false {
        return format!("{name} is unchanged: it already has this text, at version {version}");
    }
    let what = if found["dry_run"] == true {
        format!("{name} would be version {version}; nothing was changed")
    } else {
        format!("{name} is now version {version}, revision {revision}; every process uses it within a second")
    };
    let mut lines = diff_lines(found);
    lines.push(&what);
    lines.join("\n")
}
