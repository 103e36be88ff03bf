//! Text templates: `You received {resource}`.
//!
//! `{field}` is replaced by a field that the data always has, `{field|fallback}` by one that may be absent. `{{` and `}}` are braces.
//! Fields are checked at start-up, so that no player receives half a sentence.

use std::fmt::{self, Write};

use serde_json::Value;

/// A parsed text template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextTemplate(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Plain(String),
    Field { name: String, fallback: Option<String> },
}

/// The known fields of the data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// The fields that are always present.
    pub always: Vec<String>,
    /// The fields that may be absent.
    pub sometimes: Vec<String>,
}

/// A field without a fallback is absent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the field {0:?} is not in the data, or is not a text or a number")]
pub struct MissingField(pub String);

impl Fields {
    /// Returns the fields in the JSON schema of an object that can be rendered into a text.
    pub fn from_schema(schema: &Value) -> Self {
        let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut fields = Self::default();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            if !is_renderable(property) {
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
                return Err(format!(
                    "an unmatched brace in {text:?}: write `{{{{` or `}}}}` for a literal brace"
                ));
            };
            let (name, fallback) = match field.split_once('|') {
                Some((name, fallback)) => (name, Some(fallback.to_owned())),
                None => (field, None),
            };
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(is_name) {
                return Err(format!(
                    "{{{field}}} is not the name of a field: only letters, digits and `_` are allowed"
                ));
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

    /// Whether it has a fallback for this field.
    pub(crate) fn has_fallback(&self, field: &str) -> bool {
        let is_fallback =
            |piece: &Piece| matches!(piece, Piece::Field { name, fallback: Some(_) } if name == field);
        self.0.iter().any(is_fallback)
    }

    /// Checks it against the fields of the data. Fails with the first mistake.
    pub fn check(&self, fields: &Fields) -> Result<(), String> {
        for piece in &self.0 {
            let Piece::Field { name, fallback } = piece else { continue };
            if fields.always.contains(name) {
                continue;
            }
            if !fields.sometimes.contains(name) {
                return Err(format!("there is no field {name:?}; the fields are {}", fields.listed()));
            }
            if fallback.is_none() {
                return Err(format!(
                    "the field {name:?} may be absent: write {{{name}|…}} with a fallback text"
                ));
            }
        }
        Ok(())
    }

    /// Renders the text with this data.
    pub fn render(&self, data: &Value) -> Result<String, MissingField> {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Plain(plain) => text.push_str(plain),
                Piece::Field { name, fallback } => match (rendered(&data[name]), fallback) {
                    (Some(value), _) => text.push_str(&value),
                    (None, Some(fallback)) => text.push_str(fallback),
                    (None, None) => return Err(MissingField(name.clone())),
                },
            }
        }
        Ok(text)
    }
}

/// Writes the template in its source form.
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

/// Whether values of a schema can be rendered into a text.
fn is_renderable(schema: &Value) -> bool {
    !may_be(schema, "object") && (schema["items"].is_null() || is_renderable(&schema["items"]))
}

fn rendered(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Array(items) => {
            let mut text = String::new();
            for (at, item) in items.iter().enumerate() {
                let separator = if at == 0 { "" } else { ", " };
                // Writing to a String cannot fail.
                let _ = write!(text, "{separator}{}", rendered(item)?);
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

    fn render(text: &str, data: &Value) -> Result<String, String> {
        TextTemplate::parse(text)?.render(data).map_err(|missing| missing.to_string())
    }

    #[test]
    fn fields_are_filled_in() {
        let data = json!({ "resource": "sword", "quantity": 3, "new": true, "players": ["a", "b"], "o": {} });
        assert_eq!(render("{resource} x{quantity} {new} {players}", &data).unwrap(), "sword x3 true a, b");
        assert_eq!(render("{{{resource}}} {{}}", &data).unwrap(), "{sword} {}");
        assert_eq!(render("{gone|one} of {quantity|none}", &data).unwrap(), "one of 3");
        assert_eq!(render("", &data).unwrap(), "");
        for absent in ["{gone}", "{o}"] {
            assert!(render(absent, &data).unwrap_err().contains("is not in the data"), "{absent}");
        }
    }

    #[test]
    fn invalid_templates_are_refused() {
        let text = "{{a}} {b} {c|d}";
        assert_eq!(TextTemplate::parse(text).unwrap().to_string(), text);
        for invalid in ["{", "}", "{a", "a}", "{}", "{a b}", "{a.b}", "{|x}"] {
            assert!(TextTemplate::parse(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn check_finds_unknown_fields_and_optional_fields_without_a_fallback() {
        let schema = json!({
            "required": ["resource", "nested"],
            "properties": {
                "resource": { "type": "string" }, "quantity": { "type": ["integer", "null"] },
                "nested": { "type": "object" },
            },
        });
        let fields = Fields::from_schema(&schema);
        let check = |text: &str| TextTemplate::parse(text).unwrap().check(&fields);
        assert_eq!(check("{resource} {quantity|1}"), Ok(()));
        assert_eq!(
            check("{resorce}"),
            Err("there is no field \"resorce\"; the fields are resource, quantity".to_owned())
        );
        assert!(check("{quantity}").unwrap_err().contains("may be absent: write {quantity|…}"));
        assert!(check("{nested}").is_err());
    }
}
