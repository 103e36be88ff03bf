//! Calls of the admin API that a form describes.

use std::collections::BTreeMap;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use screens::{FieldKind, FormField, Operation, Place};
use serde_json::{Map, Value};
use service::{OperatorRow, RouteMethod};

/// Characters that are escaped in a segment of a path and in a query.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b':');

/// Escapes a text for a segment of a path or a query.
pub(crate) fn escape(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// The values that an operator entered, by the name of the parameter or field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entered {
    pub(crate) parameters: BTreeMap<String, String>,
    pub(crate) fields: BTreeMap<String, String>,
}

impl Entered {
    /// Returns the value of a field that is not blank.
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }
}

/// A call of the admin API.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) method: RouteMethod,
    /// The path with its query.
    pub(crate) target: String,
    pub(crate) body: Option<Value>,
}

impl Call {
    /// Builds the call of an operation. Fails with a text for the operator if a value is missing or has the wrong type.
    pub(crate) fn build(row: &OperatorRow, operation: &Operation, entered: &Entered) -> Result<Self, String> {
        let (mut query, mut body) = (Vec::new(), Map::new());
        for field in operation.fields {
            if field.place == Place::Path {
                let is_given = entered.parameters.get(field.name).is_some_and(|text| !text.trim().is_empty());
                if !is_given {
                    return Err(format!("Fill in \"{}\".", field.label));
                }
                continue;
            }
            let value = match entered.field(field.name) {
                Some(text) => value_of(field, text)?,
                None if field.kind == FieldKind::Flag => Value::Bool(false),
                None if field.is_required => return Err(format!("Fill in \"{}\".", field.label)),
                None => continue,
            };
            match field.place {
                // Part of the target.
                Place::Path => {}
                Place::Query => query.push(format!("{}={}", field.name, escape(&plain(&value)))),
                Place::Body => insert(&mut body, field.name, value),
            }
        }
        let mut target = path(row.path(), &entered.parameters)?;
        if !query.is_empty() {
            target = format!("{target}?{}", query.join("&"));
        }
        let has_body = operation.fields.iter().any(|field| field.place == Place::Body);
        Ok(Self { method: row.method(), target, body: has_body.then_some(Value::Object(body)) })
    }

    /// Makes a call that only checks what it would change.
    pub(crate) fn into_check(mut self) -> Self {
        if let Some(Value::Object(body)) = &mut self.body {
            body.insert("dry_run".to_owned(), Value::Bool(true));
        }
        self
    }

    /// Returns the command that makes this call without the console. Its idempotency key is part of the text, so a command that is pasted
    /// twice changes something once.
    pub(crate) fn curl(&self, origin: &str, idempotency_key: &str) -> String {
        let Self { method, target, body } = self;
        let mut text = format!(
            "curl -X {method} {} \\\n  -H \"authorization: Bearer $PLAYHOUSE_OPERATOR_TOKEN\"",
            quoted(&format!("{origin}{target}"))
        );
        if *method == RouteMethod::Post {
            text += &format!(" \\\n  -H 'idempotency-key: {idempotency_key}'");
        }
        if let Some(body) = body {
            text +=
                &format!(" \\\n  -H 'content-type: application/json' \\\n  -d {}", quoted(&body.to_string()));
        }
        text
    }
}

/// Fills a template such as `playhouse dlq replay [--cause {cause}]` with the values of a form.
pub(crate) fn command(template: &str, entered: &Entered) -> String {
    let find = |name: &str| entered.parameters.get(name).map(String::as_str).or_else(|| entered.field(name));
    // Returns none if a value is missing.
    let fill = |part: &str| -> Option<String> {
        let (mut text, mut rest) = (String::new(), part);
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}')?;
            text += before;
            text += &quoted_if_needed(find(name)?);
            rest = after;
        }
        Some(text + rest)
    };
    let (mut text, mut rest) = (String::new(), template);
    while let Some((before, after)) = rest.split_once('[') {
        let (optional, after) = after.split_once(']').unwrap_or((after, ""));
        text += &fill(before).unwrap_or_else(|| placeholders(before));
        text += &fill(optional).unwrap_or_default();
        rest = after;
    }
    text += &fill(rest).unwrap_or_else(|| placeholders(rest));
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Shows the placeholders of a part whose values are not entered yet: `{drop_id}` as `DROP_ID`.
fn placeholders(part: &str) -> String {
    let (mut text, mut rest) = (String::new(), part);
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        text += before;
        text += &name.to_uppercase();
        rest = after;
    }
    text + rest
}

/// Fills in the parameters of a path.
pub(crate) fn path(pattern: &str, parameters: &BTreeMap<String, String>) -> Result<String, String> {
    let segment = |segment: &str| match segment.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
        None => Ok(segment.to_owned()),
        Some(name) => match parameters.get(name).filter(|value| !value.is_empty()) {
            Some(value) => Ok(escape(value.trim())),
            None => Err(format!("The form has no {name}. Open it from its screen again.")),
        },
    };
    Ok(pattern.split('/').map(segment).collect::<Result<Vec<_>, _>>()?.join("/"))
}

fn value_of(field: &FormField, text: &str) -> Result<Value, String> {
    match field.kind {
        FieldKind::Number | FieldKind::HiddenNumber => {
            let number = serde_json::from_str::<Value>(text).ok().filter(Value::is_number);
            number.ok_or_else(|| format!("\"{}\" must be a number.", field.label))
        }
        FieldKind::Flag => Ok(Value::Bool(matches!(text, "on" | "true"))),
        FieldKind::Json => {
            serde_json::from_str(text).map_err(|error| format!("\"{}\" is not JSON: {error}.", field.label))
        }
        FieldKind::OneOf(words) if !words.contains(&text) => {
            Err(format!("\"{}\" must be one of {}.", field.label, words.join(", ")))
        }
        FieldKind::Text | FieldKind::LongText | FieldKind::OneOf(_) | FieldKind::Hidden => {
            Ok(Value::String(text.to_owned()))
        }
    }
}

/// Returns the text of a value in a query.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Inserts a member. A dot in the name makes a member of a member.
fn insert(body: &mut Map<String, Value>, name: &str, value: Value) {
    match name.split_once('.') {
        None => {
            body.insert(name.to_owned(), value);
        }
        Some((outer, inner)) => {
            let member = body.entry(outer).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(member) = member {
                insert(member, inner, value);
            }
        }
    }
}

/// Quotes a text for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

pub(crate) fn quoted_if_needed(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@=,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) { text.to_owned() } else { quoted(text) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use service::OperatorRoute;

    use super::*;

    const PACE: Operation =
        Operation::new("Set the pace", "…", "playhouse drops pace {drop_id} [--batch {pace.batch}]").fields(
            &[
                FormField::body("pace.batch", "Players", FieldKind::Number),
                FormField::body("everyone", "Everyone", FieldKind::Flag),
                FormField::query("cause", "Cause", FieldKind::Text).optional(),
            ],
        );

    fn entered(fields: &[(&str, &str)]) -> Entered {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Entered { parameters: [own(&("drop_id", "a/b"))].into(), fields: fields.iter().map(own).collect() }
    }

    fn build(fields: &[(&str, &str)]) -> Result<Call, String> {
        let route = OperatorRoute::put("/drops/{drop_id}/pace", async || ());
        Call::build(&route.row, &PACE, &entered(fields))
    }

    #[test]
    fn form_becomes_path_query_and_body() {
        let call = build(&[("pace.batch", " 5 "), ("everyone", "on"), ("cause", "too large")]).unwrap();
        assert_eq!(call.target, "/drops/a%2Fb/pace?cause=too%20large");
        assert_eq!(call.body, Some(json!({ "pace": { "batch": 5 }, "everyone": true })));
        assert!(
            call.curl("http://127.0.0.1:1", "k")
                .starts_with("curl -X PUT 'http://127.0.0.1:1/drops/a%2Fb/pace?")
        );
        assert_eq!(
            build(&[("pace.batch", "5")]).unwrap().body,
            Some(json!({ "pace": { "batch": 5 }, "everyone": false }))
        );
    }

    #[test]
    fn missing_and_mistyped_values_are_explained() {
        assert_eq!(build(&[]).unwrap_err(), "Fill in \"Players\".");
        assert_eq!(build(&[("pace.batch", "five")]).unwrap_err(), "\"Players\" must be a number.");
    }

    #[test]
    fn command_leaves_out_what_was_not_entered() {
        let template = PACE.command;
        assert_eq!(command(template, &entered(&[("pace.batch", "5")])), "playhouse drops pace a/b --batch 5");
        assert_eq!(command(template, &entered(&[])), "playhouse drops pace a/b");
        assert_eq!(command("playhouse x {id} {why}", &Entered::default()), "playhouse x ID WHY");
        assert_eq!(
            command(
                "playhouse x {drop_id}",
                &Entered {
                    parameters: [("drop_id".to_owned(), "a'b $c".to_owned())].into(),
                    ..Entered::default()
                }
            ),
            "playhouse x 'a'\\''b $c'"
        );
    }
}
