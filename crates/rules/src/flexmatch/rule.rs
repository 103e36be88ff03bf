//! One rule.

use super::expansion::Expansions;
use super::{Draft, as_number, quoted, to_toml};
use crate::document::{Data, Node};
use crate::fields::Fields;

/// A type with its name here, and its fields with their names here.
type Renamed = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const TYPES: &[Renamed] = &[
    ("comparison", "comparison", &[("operation", "operation")]),
    ("distance", "distance", &[("minDistance", "min"), ("maxDistance", "max")]),
    ("batchDistance", "batch-distance", &[("batchAttribute", "attribute"), ("maxDistance", "max")]),
    ("collection", "collection", &[("operation", "operation"), ("minCount", "min"), ("maxCount", "max")]),
    (
        "latency",
        "latency",
        &[("maxLatency", "max"), ("maxDistance", "max_distance"), ("distanceReference", "distance_from")],
    ),
    (
        "absoluteSort",
        "absolute-sort",
        &[("sortDirection", "direction"), ("sortAttribute", "attribute"), ("mapKey", "key")],
    ),
    (
        "distanceSort",
        "distance-sort",
        &[("sortDirection", "direction"), ("sortAttribute", "attribute"), ("mapKey", "key")],
    ),
    ("compound", "compound", &[("statement", "statement")]),
];

pub(super) fn read(fields: &Fields<'_>, expansions: &Expansions, age: &str, draft: &mut Draft) {
    fields.required("name");
    fields.required("type");
    let (Some(name), Some(kind)) = (fields.text("name"), fields.text("type")) else { return };
    let Some((_, ours, renamed)) = TYPES.iter().find(|(theirs, ..)| *theirs == kind) else {
        let known = TYPES.iter().map(|(theirs, ..)| *theirs);
        fields.report().add_unknown(fields.position(), format!("{name}: no such type: {kind}"), kind, known);
        return;
    };
    draft.describe(fields);
    draft.line(format!("[rules.{}]\ntype = {}", quoted(name), quoted(ours)));
    let mut known = vec!["name", "type", "description", "measurements", "referenceValue", "partyAggregation"];
    if let Some(node) = fields.get("measurements") {
        draft.line(format!("measurements = {}", to_toml(node)));
    }
    for (theirs, ours) in renamed.iter() {
        known.push(theirs);
        let Some(node) = fields.get(theirs) else { continue };
        let value = match (*ours, &node.data, as_number(node)) {
            ("min" | "max" | "max_distance", _, Some(number)) => number.to_string(),
            ("key", Data::Text(key), _) => quoted(key.trim_end_matches("Value")),
            ("direction" | "distance_from", Data::Text(word), _) => quoted(&word.to_lowercase()),
            _ => to_toml(node),
        };
        draft.line(format!("{ours} = {value}"));
    }
    if let Some(node) = fields.get("referenceValue") {
        draft.line(format!("reference = {}", reference(kind, node, fields, draft)));
    }
    party(kind, fields, draft);
    expansions.write("rules", name, age, draft);
    draft.note_unread(fields, &known);
}

/// Returns the reference. A number may be written as a text.
fn reference(kind: &str, node: &Node, fields: &Fields<'_>, draft: &Draft) -> String {
    let texts = fields.texts("measurements").join(" ");
    let reads_texts =
        draft.attributes.iter().any(|(name, kind)| kind != "number" && texts.contains(&format!("[{name}]")));
    match as_number(node) {
        Some(number) if kind == "distance" || !reads_texts => number.to_string(),
        _ => to_toml(node),
    }
}

fn party(kind: &str, fields: &Fields<'_>, draft: &mut Draft) {
    let party = fields.text("partyAggregation");
    match (kind, party) {
        ("latency", _) => draft.note(
            fields.position(),
            "latency rules hold for each player; FlexMatch may take the average of a party",
        ),
        ("collection", None) => {
            let texts = fields.texts("measurements").join(" ");
            if draft
                .attributes
                .iter()
                .any(|(name, kind)| kind == "string-list" && texts.contains(&format!("attributes[{name}]")))
            {
                draft.note(
                    fields.position(),
                    "each player of a party counts; FlexMatch's default makes one list of a party. For that, add party = \"union\"",
                );
            }
        }
        ("compound", Some(party)) => {
            draft.note(
                fields.position(),
                format!("partyAggregation {party} is not kept: a compound rule has none"),
            );
        }
        (_, None) => {}
        (_, Some(party)) => draft.line(format!("party = {}", quoted(party))),
    }
}
