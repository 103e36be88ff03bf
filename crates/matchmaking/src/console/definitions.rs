//! Rule sets, profiles and queues: what counts, their history, and the differences between versions.

use http_server::Problem;
use screens::{ActionLink, Block, Cell, Filter, Section, Table, Tone, View};
use service::ScreenRequest;

use crate::definitions::admin::{parse_key, problem};
use crate::definitions::{Content, Definition, DefinitionKey, Definitions, diff};

/// How many versions are listed.
const LISTED: u32 = 100;

/// Lists all definitions.
pub(super) async fn list(definitions: Definitions, _: ScreenRequest) -> Result<View, Problem> {
    let (revision, views) = definitions.list().await.map_err(problem)?;
    let mut table = Table::new(
        &["What", "Name", "#Version", "Comes from", "Changed", "By", "Note"],
        "There are none. Add one, or add [matchmaking.profiles.NAME] to the configuration.",
    );
    for view in &views {
        let stored = view.stored.as_ref();
        let cells = [
            Cell::text(view.key.kind.title()),
            Cell::link(&view.key.name, href(&view.key)),
            Cell::number(view.version),
            origin(view.origin),
            Cell::optional(stored, |stored| Cell::Time(stored.created_at)),
            Cell::optional(stored, |stored| Cell::text(&stored.author)),
            Cell::optional(stored.and_then(|stored| stored.note.as_ref()), Cell::text),
        ];
        table.push(cells, []);
    }
    let mut section = Section::new("definitions", "Rule sets, profiles and queues");
    if let Some(rejected) = definitions.rejected() {
        let text = format!(
            "This process cannot use revision {}: {}",
            rejected.revision,
            rejected.mistakes.join("; ")
        );
        section = section.notice(Tone::Bad, text);
    }
    // Version 0: a definition that somebody else has added meanwhile is not replaced.
    let add = ActionLink::new("PUT /definitions/{kind}/{name}").value("expected_version", 0).label("Add");
    let about = format!("Revision {revision}. Every process follows a change within a second.");
    Ok(View::new().section(section.action(add).text(about).block(table)))
}

/// Shows one definition.
pub(super) async fn show(definitions: Definitions, request: ScreenRequest) -> Result<View, Problem> {
    let key = parse_key(request.parameter("kind"), request.parameter("name")).map_err(problem)?;
    let view = definitions.show(&key, None).await.map_err(problem)?;
    let (versions, is_configured) = definitions.history(&key, None, LISTED).await.map_err(problem)?;
    let mut section = Section::new("definition", "Active version").facts([
        ("What", Cell::text(key.kind.title())),
        ("Version", Cell::number(view.version)),
        ("Comes from", origin(view.origin)),
    ]);
    let link = |route| ActionLink::new(route).with("kind", key.kind.word()).with("name", &key.name);
    let expecting = |route| link(route).value("expected_version", view.version);
    section = match &view.text {
        Some(text) => section.block(Block::Code(text.clone())),
        None => section.notice(Tone::Warning, "Removed. Roll back to an earlier version to bring it back."),
    };
    if view.text.is_some() {
        // The form reads the text, which may be long, with its version.
        section = section
            .action(link("PUT /definitions/{kind}/{name}"))
            .action(expecting("DELETE /definitions/{kind}/{name}"));
    }

    let mut table = Table::new(
        &["#Version", "Changed", "By", "Note", "Comes from", "Difference"],
        "Never changed: the version in the configuration file is active.",
    );
    let roll_back = |version: i64| {
        (version != view.version)
            .then(|| expecting("POST /definitions/{kind}/{name}/rollback").value("version", version))
    };
    for version in &versions {
        let Definition { version: number, content, author, note, created_at, .. } = version;
        let changes = format!("{}?from={}&to={number}", href(&key), number - 1);
        let has_earlier = *number > 1 || is_configured;
        let cells = [
            Cell::number(*number),
            Cell::Time(*created_at),
            Cell::text(author),
            Cell::optional(note.as_ref(), Cell::text),
            origin(content.word()),
            if has_earlier { Cell::link("show changes", changes) } else { Cell::None },
        ];
        table.push(cells, roll_back(*number));
    }
    if is_configured {
        let cells =
            [Cell::number(0), Cell::None, Cell::None, Cell::None, origin(Content::File.word()), Cell::None];
        table.push(cells, roll_back(0));
    }
    let history = Section::new("history", "History").block(table);
    let compared = compare(&definitions, &key, &request).await?;
    Ok(View::titled(capitalised(&key)).section(section).section(history).section(compared))
}

/// Shows the difference between two versions.
async fn compare(
    definitions: &Definitions,
    key: &DefinitionKey,
    request: &ScreenRequest,
) -> Result<Section, Problem> {
    let (from, to) = (request.query("from"), request.query("to"));
    let filter = Filter::new("Compare");
    let filter = filter.text("from", "From version", "0 is the configuration file", from);
    let filter = filter.text("to", "To version", "empty: the active version", to);
    let section = Section::new("difference", "Difference").block(filter);
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
    let Some(from) = number(from) else { return Ok(section) };
    let from = definitions.show(key, Some(from)).await.map_err(problem)?;
    let to = definitions.show(key, number(to)).await.map_err(problem)?;
    let text = |text: Option<String>| text.unwrap_or_default();
    let found = diff(&text(from.text), &text(to.text));
    let about = format!("From version {} to version {}.", from.version, to.version);
    Ok(match found.is_empty() {
        true => section.text(format!("{about} They are the same.")),
        false => section.text(about).block(Block::Code(found)),
    })
}

fn href(key: &DefinitionKey) -> String {
    format!("/console/rules/{}/{}", key.kind.word(), key.name)
}

fn origin(word: &str) -> Cell {
    match word {
        "file" => Cell::text("configuration file"),
        "removed" => Cell::state(Tone::Warning, "REMOVED"),
        _ => Cell::text("set at run time"),
    }
}

fn capitalised(key: &DefinitionKey) -> String {
    let text = key.to_string();
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}
