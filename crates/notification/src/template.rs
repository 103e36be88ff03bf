//! Texts with fields in them: `You received {resource}`.
//!
//! `{field}` stands for a field of the data that is always there; `{field|fallback}` for one that may be absent, with what is written
//! then. `{{` and `}}` are braces. That a field exists is found out at start-up, so that nobody is sent half a sentence.

use std::fmt::{self, Write};

use serde_json::Value;

/// A text with fields, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextTemplate(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Plain(String),
    Field { name: String, fallback: Option<String> },
}

/// What is known of the fields of some data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// Those that are always there.
    pub always: Vec<String>,
    /// Those that may be absent.
    pub sometimes: Vec<String>,
}

/// A field that should be there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the field {0:?} is not in its data, or is no text or number")]
pub struct Missing(pub String);

impl Fields {
    /// Those that a JSON schema of an object tells of, as far as they can be written into a text.
    pub fn of_schema(schema: &Value) -> Self {
        let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut fields = Self::default();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            if !is_writable(property) {
                continue;
            }
            let is_always = required.iter().any(|required| required == name) && !may_be(property, "null");
            if is_always { &mut fields.always } else { &mut fields.sometimes }.push(name.clone());
        }
        fields
    }

    fn listed(&self) -> String {
        let all: Vec<&str> = self.always.iter().chain(&self.sometimes).map(String::as_str).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    }
}

impl TextTemplate {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, brace) = rest.split_at(at);
            plain.push_str(before);
            if let Some(after) = brace.strip_prefix("{{").or_else(|| brace.strip_prefix("}}")) {
                plain.push_str(&brace[..1]);
                rest = after;
                continue;
            }
            let field = brace.strip_prefix('{').and_then(|field| field.split_once('}'));
            let Some((field, after)) = field else {
                return Err(format!("a brace stands alone in {text:?}: write `{{{{` or `}}}}` for a brace"));
            };
            let (name, fallback) = match field.split_once('|') {
                Some((name, fallback)) => (name, Some(fallback.to_owned())),
                None => (field, None),
            };
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(is_name) {
                return Err(format!("{{{field}}} names no field: letters, digits and `_` are expected"));
            }
            if !plain.is_empty() {
                pieces.push(Piece::Plain(std::mem::take(&mut plain)));
            }
            pieces.push(Piece::Field { name: name.to_owned(), fallback });
            rest = after;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            pieces.push(Piece::Plain(plain));
        }
        Ok(Self(pieces))
    }

    /// Whether it says what to write where this field is absent.
    pub(crate) fn can_do_without(&self, field: &str) -> bool {
        let without =
            |piece: &Piece| matches!(piece, Piece::Field { name, fallback: Some(_) } if name == field);
        self.0.iter().any(without)
    }

    /// What is wrong with it for data that has these fields.
    pub fn check(&self, fields: &Fields) -> Result<(), String> {
        for piece in &self.0 {
            let Piece::Field { name, fallback } = piece else { continue };
            if fields.always.contains(name) {
                continue;
            }
            if !fields.sometimes.contains(name) {
                return Err(format!("there is no field {name:?}; there is {}", fields.listed()));
            }
            if fallback.is_none() {
                return Err(format!(
                    "the field {name:?} may be absent: write {{{name}|…}} with what to say then"
                ));
            }
        }
        Ok(())
    }

    /// The text for some data.
    pub fn render(&self, data: &Value) -> Result<String, Missing> {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Plain(plain) => text.push_str(plain),
                Piece::Field { name, fallback } => match (written(&data[name]), fallback) {
                    (Some(written), _) => text.push_str(&written),
                    (None, Some(fallback)) => text.push_str(fallback),
                    (None, None) => return Err(Missing(name.clone())),
                },
            }
        }
        Ok(text)
    }
}

/// As it was written.
impl fmt::Display for TextTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in &self.0 {
            match piece {
                Piece::Plain(plain) => f.write_str(&plain.replace('{', "{{").replace('}', "}}"))?,
                Piece::Field { name, fallback: None } => write!(f, "{{{name}}}")?,
                Piece::Field { name, fallback: Some(fallback) } => write!(f, "{{{name}|{fallback}}}")?,
            }
        }
        Ok(())
    }
}

/// Whether a schema allows values of a type.
fn may_be(schema: &Value, kind: &str) -> bool {
    let own = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().any(|allowed| allowed == kind),
        allowed => allowed == kind,
    };
    own || alternatives(schema).any(|schema| may_be(schema, kind))
}

fn alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    ["oneOf", "anyOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten()
}

/// Whether what a schema describes can be a part of a text.
fn is_writable(schema: &Value) -> bool {
    !may_be(schema, "object") && (schema["items"].is_null() || is_writable(&schema["items"]))
}

fn written(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Array(items) => {
            let mut text = String::new();
            for (at, item) in items.iter().enumerate() {
                let separator = if at == 0 { "" } else { ", " };
                // To write to a String cannot fail.
                let _ = write!(text, "{separator}{}", written(item)?);
            }
            Some(text)
        }
        Value::Null | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rendered(text: &str, data: &Value) -> Result<String, String> {
        TextTemplate::parse(text)?.render(data).map_err(|missing| missing.to_string())
    }

    #[test]
    fn fields_are_filled_in() {
        let data = json!({ "resource": "sword", "quantity": 3, "new": true, "players": ["a", "b"], "o": {} });
        assert_eq!(rendered("{resource} x{quantity} {new} {players}", &data).unwrap(), "sword x3 true a, b");
        assert_eq!(rendered("{{{resource}}} {{}}", &data).unwrap(), "{sword} {}");
        assert_eq!(rendered("{gone|one} of {quantity|none}", &data).unwrap(), "one of 3");
        assert_eq!(rendered("", &data).unwrap(), "");
        for absent in ["{gone}", "{o}"] {
            assert!(rendered(absent, &data).unwrap_err().contains("is not in its data"), "{absent}");
        }
    }

    #[test]
    fn what_is_no_template_is_refused() {
        let text = "{{a}} {b} {c|d}";
        assert_eq!(TextTemplate::parse(text).unwrap().to_string(), text);
        for wrong in ["{", "}", "{a", "a}", "{}", "{a b}", "{a.b}", "{|x}"] {
            assert!(TextTemplate::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn unknown_fields_and_those_that_may_be_absent_are_found_beforehand() {
        let schema = json!({
            "required": ["resource", "nested"],
            "properties": {
                "resource": { "type": "string" }, "quantity": { "type": ["integer", "null"] },
                "nested": { "type": "object" },
            },
        });
        let fields = Fields::of_schema(&schema);
        let check = |text: &str| TextTemplate::parse(text).unwrap().check(&fields);
        assert_eq!(check("{resource} {quantity|1}"), Ok(()));
        assert_eq!(
            check("{resorce}"),
            Err("there is no field \"resorce\"; there is resource, quantity".to_owned())
        );
        assert!(check("{quantity}").unwrap_err().contains("may be absent: write {quantity|…}"));
        assert!(check("{nested}").is_err());
    }
}
