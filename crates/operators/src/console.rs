//! The screen of the audit log.

use base::error::{Coded, chain};
use base::{Code, Timestamp};
use http_server::Problem;
use screens::{Block, Cell, Filter, Section, Table, Tone, View};
use service::{Menu, Screen, ScreenRequest};

use crate::audit_log::{AuditEntry, AuditFilter, AuditLog, AuditOutcome, Page};

const PATH: &str = "/console/audit-log";

/// How many entries a page shows.
const PAGE: u32 = 50;

const OUTCOMES: [(&str, &str); 7] = [
    ("", "Any"),
    ("done", "Done"),
    ("dry-run", "Dry run"),
    ("refused", "Refused"),
    ("failed", "Failed"),
    ("committed", "Committed, response unknown"),
    ("unknown", "Unknown"),
];

/// Returns the screen of the audit log.
pub(crate) fn screens() -> Vec<Screen> {
    vec![Screen::listed(Menu::System, PATH, "Audit log", "Who did what?", read)]
}

async fn read(log: AuditLog, request: ScreenRequest) -> Result<View, Problem> {
    let filter = filter(&request)?;
    let before = request.query("before").map(str::parse).transpose();
    let before = before.map_err(|_| invalid("`before` is the number of an entry."))?;
    // One more than a page tells whether there is a next one.
    let entries = log.list(&filter, Page::Before(before), PAGE + 1).await.map_err(|error| {
        tracing::error!(cause = chain(&error), "cannot read the audit log");
        Problem::new(error.code()).detail("The database does not answer: run `playhouse doctor`.")
    })?;
    Ok(view(&request, &entries))
}

fn view(request: &ScreenRequest, entries: &[AuditEntry]) -> View {
    let form = Filter::new("Filter")
        .text("actor", "Actor", "ada", request.query("actor"))
        .text("action", "Action", "POST /drops", request.query("action"))
        .text("target", "Target", "an id", request.query("target"))
        .choice("outcome", "Outcome", &OUTCOMES, request.query("outcome"))
        .text("since", "Since", "2026-03-01T00:00:00Z", request.query("since"))
        .text("until", "Until", "2026-03-02T00:00:00Z", request.query("until"));
    let titles = ["Time", "Actor", "Action", "Target", "Outcome", "Note", "From", "Request"];
    let empty = "No entry matches. Every change by an operator, here, by command or by API, is listed here with its outcome.";
    let mut table = Table::new(&titles, empty);
    table.page_key = Some("before");
    let shown = &entries[..entries.len().min(PAGE as usize)];
    for entry in shown {
        table.push(row(entry), []);
    }
    if entries.len() > shown.len() {
        table.next = shown.last().map(|last| format!("before={}", last.number));
    }
    View::new().section(Section::new("entries", "Changes").block(form).block(table)).section(
        Section::new("export", "Export")
            .text("This command prints the entries of this filter as JSON lines.")
            .block(Block::Code(command(request))),
    )
}

fn row(entry: &AuditEntry) -> [Cell; 8] {
    let (tone, outcome) = match entry.outcome {
        AuditOutcome::Done => (Tone::Good, "Done"),
        AuditOutcome::DryRun => (Tone::Neutral, "Dry run"),
        AuditOutcome::Refused => (Tone::Warning, "Refused"),
        AuditOutcome::Failed => (Tone::Bad, "Failed"),
        AuditOutcome::Committed => (Tone::Warning, "Committed"),
        AuditOutcome::Unknown => (Tone::Warning, "Unknown"),
    };
    let outcome = match entry.status {
        Some(status) => format!("{outcome} ({status})"),
        None => outcome.to_owned(),
    };
    [
        Cell::Time(entry.at),
        Cell::Many(vec![
            Cell::link(&entry.actor, with_query("actor", &entry.actor)),
            Cell::text(&entry.actor_kind),
        ]),
        Cell::code(&entry.action),
        Cell::code(&entry.target),
        Cell::state(tone, outcome),
        Cell::optional(entry.note.as_ref(), Cell::text),
        Cell::optional(entry.address.as_ref(), Cell::code),
        Cell::optional(entry.request_id.as_ref(), |id| {
            Cell::id(id, format!("/console/trace?id={}", encode(id)))
        }),
    ]
}

/// Reads the filter in the URL.
fn filter(request: &ScreenRequest) -> Result<AuditFilter, Problem> {
    let time = |name: &str| -> Result<Option<Timestamp>, Problem> {
        let parse = |text: &str| {
            text.parse().map_err(|error: base::InvalidTime| invalid(format!("`{name}` is {error}.")))
        };
        request.query(name).map(parse).transpose()
    };
    let outcome = |word: &str| {
        AuditOutcome::parse(word)
            .ok_or_else(|| invalid(format!("`outcome` must be one of {}.", AuditOutcome::words())))
    };
    let text = |name: &str| request.query(name).map(str::to_owned);
    Ok(AuditFilter {
        actor: text("actor"),
        action: text("action"),
        target: text("target"),
        since: time("since")?,
        until: time("until")?,
        outcome: request.query("outcome").map(outcome).transpose()?,
    })
}

/// Returns the command that exports the entries of the filter. Values are quoted for a shell.
fn command(request: &ScreenRequest) -> String {
    let names = ["actor", "action", "target", "outcome", "since", "until"];
    let given = names.iter().filter_map(|name| Some((name, request.query(name)?)));
    given.fold("playhouse audit-log export".to_owned(), |command, (name, value)| {
        format!("{command} --{name} '{}'", value.replace('\'', "'\\''"))
    })
}

pub(crate) fn with_query(name: &str, value: &str) -> String {
    format!("{PATH}?{name}={}", encode(value))
}

/// Percent-encodes a value of a query.
fn encode(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => encoded.push(char::from(byte)),
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

fn invalid(detail: impl Into<String>) -> Problem {
    Problem::new(Code::InvalidArgument).detail(detail)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use base::id::Uuid;

    use super::*;

    fn request(query: &[(&str, &str)]) -> ScreenRequest {
        let query = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        ScreenRequest { parameters: BTreeMap::new(), query }
    }

    fn entry(number: i64) -> AuditEntry {
        AuditEntry {
            number,
            id: Uuid::nil(),
            at: Timestamp::from_millis(number),
            listener: "admin".to_owned(),
            actor_kind: "operator".to_owned(),
            actor: "ada & co".to_owned(),
            proof: "configured-token".to_owned(),
            subject: None,
            action: "POST /drops/{drop_id}/pause".to_owned(),
            target: "/drops/1/pause".to_owned(),
            address: None,
            request_id: Some("r/1".to_owned()),
            note: None,
            outcome: AuditOutcome::Done,
            status: Some(200),
            finished: None,
        }
    }

    fn table(view: &View) -> &Table {
        let tables = view.sections[0].blocks.iter();
        tables
            .rev()
            .find_map(|block| if let Block::Table(table) = block { Some(table) } else { None })
            .unwrap()
    }

    #[test]
    fn full_page_leads_to_the_next_one() {
        let entries: Vec<AuditEntry> = (0..=i64::from(PAGE)).rev().map(entry).collect();
        let view = view(&request(&[]), &entries);
        assert_eq!(table(&view).rows.len(), PAGE as usize);
        assert_eq!(table(&view).next.as_deref(), Some("before=1"));
        let view = super::view(&request(&[]), &entries[1..]);
        assert_eq!(table(&view).rows.len(), PAGE as usize);
        assert_eq!(table(&view).next, None);
    }

    #[test]
    fn entry_links_to_its_actor_and_its_trace() {
        let cells = row(&entry(1));
        let Cell::Many(actor) = &cells[1] else { panic!("{cells:?}") };
        assert_eq!(actor[0], Cell::link("ada & co", "/console/audit-log?actor=ada%20%26%20co"));
        assert_eq!(cells[7], Cell::id("r/1", "/console/trace?id=r%2F1"));
    }

    #[test]
    fn export_command_quotes_the_filter() {
        assert_eq!(command(&request(&[])), "playhouse audit-log export");
        let quoted = command(&request(&[("actor", "o'hara $(x)"), ("since", "1d"), ("before", "7")]));
        assert_eq!(quoted, "playhouse audit-log export --actor 'o'\\''hara $(x)' --since '1d'");
    }

    #[test]
    fn wrong_filter_is_refused() {
        for wrong in [("outcome", "odd"), ("since", "yesterday"), ("until", "x")] {
            assert!(filter(&request(&[wrong])).is_err(), "{wrong:?}");
        }
        let filter = filter(&request(&[("outcome", "failed"), ("actor", " "), ("target", "7")])).unwrap();
        assert_eq!((filter.outcome, filter.actor), (Some(AuditOutcome::Failed), None));
        assert_eq!(filter.target.as_deref(), Some("7"));
    }
}
