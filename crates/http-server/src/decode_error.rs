//! The error texts for bodies and queries that cannot be decoded.
//!
//! Serde's own texts name Rust types and are written for the developers of the server. The texts here name the field and say
//! what it must be.

use std::error::Error;

use axum::extract::rejection::{BytesRejection, FailedToBufferBody, JsonRejection, QueryRejection};
use serde_json::error::Category;
use serde_path_to_error::Path;

/// Describes a JSON body that cannot be decoded.
pub(crate) fn describe_body(rejection: &JsonRejection) -> String {
    match rejection {
        JsonRejection::MissingJsonContentType(_) => {
            "Send the body as JSON, with the header `Content-Type: application/json`.".to_owned()
        }
        JsonRejection::BytesRejection(rejection) => describe_bytes(rejection),
        other => {
            let at_path = find::<serde_path_to_error::Error<serde_json::Error>>(other);
            let error = at_path.map(|error| error.inner()).or_else(|| find::<serde_json::Error>(other));
            match (error, at_path) {
                (Some(error), Some(at_path)) if error.classify() == Category::Data => {
                    let message = error.to_string();
                    let position = format!(" at line {} column {}", error.line(), error.column());
                    let message = message.strip_suffix(&position).unwrap_or(&message);
                    describe("The body", at_path.path(), message)
                }
                (Some(error), _) => {
                    let (line, column) = (error.line(), error.column());
                    format!("The body is not valid JSON: line {line}, column {column}.")
                }
                (None, _) => "The body is not valid JSON.".to_owned(),
            }
        }
    }
}

/// Describes a body that cannot be read.
pub(crate) fn describe_bytes(rejection: &BytesRejection) -> String {
    match rejection {
        BytesRejection::FailedToBufferBody(FailedToBufferBody::LengthLimitError(_)) => {
            "The body is too large.".to_owned()
        }
        _ => "The body could not be read to its end.".to_owned(),
    }
}

/// Describes a query that cannot be decoded.
pub(crate) fn describe_query(rejection: &QueryRejection) -> String {
    match find::<serde_path_to_error::Error<serde::de::value::Error>>(rejection) {
        Some(error) => describe("The query", error.path(), &error.inner().to_string()),
        None => "The query is not valid.".to_owned(),
    }
}

/// Finds an error of type `E` in the chain of sources.
fn find<'e, E: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Translates a message of serde about the value at `path`. `whole` names the whole input.
fn describe(whole: &str, path: &Path, message: &str) -> String {
    let path = if path.iter().len() == 0 { String::new() } else { path.to_string() };
    let subject = if path.is_empty() { whole.to_owned() } else { format!("`{path}`") };
    if let Some(field) = quoted(message, "missing field `") {
        let field = if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") };
        return format!("`{field}` is required.");
    }
    // The path ends with the key that serde was reading.
    if message.starts_with("unknown field `") {
        return format!("{subject} is not a known field.");
    }
    if let Some(field) = quoted(message, "duplicate field `") {
        return format!("`{field}` is given twice.");
    }
    if let Some((value, names)) =
        message.strip_prefix("unknown variant `").and_then(|rest| rest.rsplit_once("`, expected "))
    {
        let names: Vec<&str> = names.split('`').skip(1).step_by(2).collect();
        let one_of = if names.len() > 1 { "one of " } else { "" };
        return format!("{subject} must be {one_of}{}, not `{value}`.", names.join(", "));
    }
    if message.starts_with("invalid type: ") || message.starts_with("invalid value: ") {
        let expected = message.rsplit_once(", expected ").map_or("another value", |(_, expected)| expected);
        return format!("{subject} must be {}.", plain_type(expected));
    }
    match plain_parse_error(message) {
        Some(expected) => format!("{subject} must be {expected}."),
        None => format!("{subject} is not valid: {message}."),
    }
}

/// Returns the name between `prefix` and the next backtick.
fn quoted<'a>(message: &'a str, prefix: &str) -> Option<&'a str> {
    message.strip_prefix(prefix)?.split('`').next()
}

/// Names an expected type without Rust's terms.
fn plain_type(expected: &str) -> &str {
    match expected {
        "a boolean" => "true or false",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number that is not negative",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a borrowed string" => "a string",
        "a sequence" => "a list",
        "a map" => "an object",
        "unit" => "null",
        other if other.starts_with("struct ") => "an object",
        other => other,
    }
}

/// Names the type that a text was expected to contain, by the message of its parser.
fn plain_parse_error(message: &str) -> Option<&'static str> {
    Some(match message {
        "invalid digit found in string"
        | "cannot parse integer from empty string"
        | "number too large to fit in target type"
        | "number too small to fit in target type" => "a whole number within its range",
        "invalid float literal" | "cannot parse float from empty string" => "a number",
        "provided string was not `true` or `false`" => "true or false",
        _ if message.starts_with("UUID parsing failed") => "a UUID",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use axum::Json;
    use axum::extract::Query;
    use http::Uri;
    use serde::Deserialize;
    use serde::de::DeserializeOwned;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Mark {
        Seen,
        Read,
        Unread,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Only {
        One,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only decoded")]
    struct Price {
        amount: u32,
        currency: Option<String>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only decoded")]
    struct Request {
        mark: Mark,
        #[serde(default)]
        marks: Vec<Mark>,
        only: Option<Only>,
        name: Option<String>,
        count: Option<i64>,
        ratio: Option<f64>,
        is_on: Option<bool>,
        price: Option<Price>,
        #[serde(default)]
        numbers: BTreeMap<String, f64>,
    }

    fn body<T: DeserializeOwned>(text: &str) -> String {
        let Err(rejection) = Json::<T>::from_bytes(text.as_bytes()) else { panic!("{text} is valid") };
        describe_body(&rejection)
    }

    fn assert_bodies(cases: &[(&str, &str)]) {
        for (text, expected) in cases {
            assert_eq!(body::<Request>(text), *expected, "{text}");
        }
    }

    #[test]
    fn unknown_value_is_answered_with_the_known_ones() {
        assert_bodies(&[
            (r#"{"mark":"reed"}"#, "`mark` must be one of seen, read, unread, not `reed`."),
            (
                r#"{"mark":"`, expected `x`"}"#,
                "`mark` must be one of seen, read, unread, not ``, expected `x``.",
            ),
            (
                r#"{"mark":"read","marks":["seen","reed"]}"#,
                "`marks[1]` must be one of seen, read, unread, not `reed`.",
            ),
            (r#"{"mark":"read","only":"two"}"#, "`only` must be one, not `two`."),
        ]);
    }

    #[test]
    fn missing_field_is_named() {
        assert_bodies(&[
            ("{}", "`mark` is required."),
            (r#"{"mark":"read","price":{"currency":"EUR"}}"#, "`price.amount` is required."),
        ]);
    }

    #[test]
    fn unknown_field_is_named() {
        assert_bodies(&[
            (r#"{"mark":"read","colour":"red"}"#, "`colour` is not a known field."),
            (r#"{"mark":"read","price":{"amount":1,"price":2}}"#, "`price.price` is not a known field."),
        ]);
    }

    #[test]
    fn repeated_field_is_named() {
        assert_bodies(&[(r#"{"mark":"read","name":"a","name":"b"}"#, "`name` is given twice.")]);
    }

    #[test]
    fn wrong_type_is_answered_with_the_right_one() {
        assert_bodies(&[
            (r#"{"mark":"read","name":1}"#, "`name` must be a string."),
            (r#"{"mark":"read","name":{"expected":", expected x"}}"#, "`name` must be a string."),
            (r#"{"mark":"read","count":"1"}"#, "`count` must be a whole number."),
            (r#"{"mark":"read","count":1.5}"#, "`count` must be a whole number."),
            (r#"{"mark":"read","ratio":"1"}"#, "`ratio` must be a number."),
            (r#"{"mark":"read","is_on":"yes"}"#, "`is_on` must be true or false."),
            (r#"{"mark":"read","marks":"seen"}"#, "`marks` must be a list."),
            (r#"{"mark":"read","numbers":[]}"#, "`numbers` must be an object."),
            (r#"{"mark":"read","numbers":{"level":"high"}}"#, "`numbers.level` must be a number."),
            (r#"{"mark":"read","price":1}"#, "`price` must be an object."),
            (
                r#"{"mark":"read","price":{"amount":-1}}"#,
                "`price.amount` must be a whole number from 0 to 4294967295.",
            ),
            ("1", "The body must be an object."),
            ("\"x\"", "The body must be an object."),
        ]);
        assert_eq!(body::<base::id::Uuid>("\"ada\""), "The body must be a UUID.");
    }

    #[test]
    fn invalid_syntax_is_answered_with_its_position() {
        assert_bodies(&[
            (r#"{"mark"x}"#, "The body is not valid JSON: line 1, column 8."),
            ("{\n  \"mark\":,\n}", "The body is not valid JSON: line 2, column 10."),
            (r#"{"mark":"read""#, "The body is not valid JSON: line 1, column 14."),
            (r#"{"mark":"read"} x"#, "The body is not valid JSON: line 1, column 17."),
            ("", "The body is not valid JSON: line 1, column 0."),
        ]);
    }

    #[test]
    fn query_has_the_same_texts() {
        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "only decoded")]
        struct List {
            issuer: String,
            limit: Option<u32>,
            all: Option<bool>,
            show: Option<Mark>,
        }
        for (query, expected) in [
            ("limit=1", "`issuer` is required."),
            ("issuer=i&limit=many", "`limit` must be a whole number within its range."),
            ("issuer=i&limit=-1", "`limit` must be a whole number within its range."),
            ("issuer=i&all=yes", "`all` must be true or false."),
            ("issuer=i&show=reed", "`show` must be one of seen, read, unread, not `reed`."),
        ] {
            let uri: Uri = format!("/?{query}").parse().unwrap();
            let rejection = Query::<List>::try_from_uri(&uri).err().unwrap();
            assert_eq!(describe_query(&rejection), expected, "{query}");
        }
    }
}
