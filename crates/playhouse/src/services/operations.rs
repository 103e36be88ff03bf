//! What the console offers agrees with the command line, and leaves out no change.

use clap::Parser;
use screens::{FieldKind, Operation};
use service::{Access, OperatorRow};

use super::SERVICES;
use crate::Cli;

/// Changes that the console does not offer, with the reason.
const NOT_OFFERED: [(&str, &str); 1] =
    [("POST /issuer/tokens", "for curl and scripts in development; no token reaches a browser")];
/// A broadcast has either a template or texts of its own, in one language or in several.
const BROADCAST: &str = "POST /broadcasts";
/// Forms whose fields are optional one by one, and whose command needs one of them.
const CHOSEN: [(&str, &str); 3] = [
    (BROADCAST, "{title}"),
    // Without a text the form clears the message, for which the command has `--clear`.
    ("PUT /drops/{drop_id}/message", "{message}"),
    ("PUT /drops/{drop_id}/pace", "{batch}"),
];

fn name(row: &OperatorRow) -> String {
    format!("{} {}", row.method(), row.path())
}

/// A value that a field of the form may have.
fn sample(operation: &Operation, name: &str) -> String {
    let field = operation.fields.iter().find(|known| known.name == name);
    match field.map(|field| field.kind) {
        Some(FieldKind::Number | FieldKind::HiddenNumber) => "3".to_owned(),
        Some(FieldKind::Flag) => "true".to_owned(),
        Some(FieldKind::OneOf(words)) => words[0].to_owned(),
        Some(FieldKind::Json) if name == "on" => "true".to_owned(),
        Some(FieldKind::Json) => "[]".to_owned(),
        _ if field.is_some_and(|field| field.hint.starts_with("20")) => "2026-03-01T12:00:00Z".to_owned(),
        Some(FieldKind::Text | FieldKind::LongText | FieldKind::Hidden) => "text".to_owned(),
        // Parameters of the path.
        None if name == "kind" => "profile".to_owned(),
        None if name == "session" => "7".to_owned(),
        None => "0198c0de-0000-7000-8000-000000000001".to_owned(),
    }
}

/// Fills the braces of a template. Leaves out the parts in brackets that are not kept.
fn filled(operation: &Operation, keeps: impl Fn(&str) -> bool) -> String {
    let (mut text, mut rest) = (String::new(), operation.command);
    while let Some(at) = rest.find(['[', ']', '{']) {
        text += &rest[..at];
        match &rest[at..=at] {
            "{" => {
                let (field, after) = rest[at + 1..].split_once('}').unwrap();
                text += &sample(operation, field);
                rest = after;
            }
            "[" if !keeps(rest[at + 1..].split_once(']').unwrap().0) => {
                rest = rest[at..].split_once(']').unwrap().1;
            }
            _ => rest = &rest[at + 1..],
        }
    }
    text + rest
}

#[test]
fn every_command_that_the_console_shows_is_one() {
    let mut wrong = Vec::new();
    for route in SERVICES.operator_routes() {
        let Some(operation) = &route.operation else { continue };
        let route_row = route.row;
        let is_broadcast = name(&route.row) == BROADCAST;
        let is_chosen = |part: &str| {
            CHOSEN.iter().any(|(route, chosen)| *route == name(&route_row) && part.contains(chosen))
        };
        // The screen gives every bulk action the number of items.
        let least = |part: &str| part.contains("{expected}") || is_chosen(part);
        let most = |part: &str| !is_broadcast || !part.contains("{template}") && !part.contains("{texts}");
        for command in [filled(operation, least), filled(operation, most)] {
            if let Err(error) = Cli::try_parse_from(command.split_whitespace()) {
                let error = error.to_string();
                wrong.push(format!("{}: {command}: {}", name(&route.row), error.lines().next().unwrap()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_change_is_offered_by_the_console() {
    let changes = SERVICES.operator_routes().into_iter().filter(|route| route.row.access() == Access::Change);
    let missing: Vec<String> =
        changes.filter(|route| route.operation.is_none()).map(|route| name(&route.row)).collect();
    let known: Vec<&str> = NOT_OFFERED.iter().map(|(route, _)| *route).collect();
    assert_eq!(missing, known, "give each an `.operation(…)`, or a reason");
}
