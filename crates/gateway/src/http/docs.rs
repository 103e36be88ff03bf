//! The description of the API as a page: what the OpenAPI document says, in an order that people read.

use std::fmt::Write;

use base::html::escaped;
use serde_json::Value;

/// The description, as it is served.
#[derive(Clone, Debug)]
pub(crate) struct Description {
    /// The OpenAPI document.
    pub(crate) document: String,
    /// The same as HTML.
    pub(crate) page: String,
}

impl Description {
    pub(crate) fn new(document: &Value) -> Self {
        Self { document: document.to_string(), page: page(document) }
    }
}

fn page(document: &Value) -> String {
    let mut html = format!("<p>{}</p>\n{}", prose(&document["info"]["description"]), contents(document));
    for tag in document["tags"].as_array().into_iter().flatten() {
        let name = tag["name"].as_str().unwrap_or_default();
        let _ =
            writeln!(html, "<h2 id=\"{0}\">{0}</h2>\n<p>{1}</p>", escaped(name), prose(&tag["description"]));
        for (path, methods) in document["paths"].as_object().into_iter().flatten() {
            for (method, operation) in methods.as_object().into_iter().flatten() {
                if operation["tags"][0] == name {
                    describe(&mut html, document, &format!("{} {path}", method.to_uppercase()), operation);
                }
            }
        }
    }
    html
}

fn describe(html: &mut String, document: &Value, route: &str, operation: &Value) {
    let (method, path) = route.split_once(' ').unwrap_or_default();
    let id = operation["operationId"].as_str().unwrap_or_default();
    let _ = writeln!(
        html,
        "<h3 id=\"{}\"><span class=\"method\">{method}</span><code>{}</code></h3>\n<p><strong>{}.</strong> {}</p>",
        escaped(id),
        escaped(path),
        prose(&operation["summary"]),
        prose(&operation["description"]),
    );
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let rows: Vec<String> = parameters
        .map(|parameter| {
            let (name, place) = (prose(&parameter["name"]), prose(&parameter["in"]));
            format!(
                "<tr><td><code>{name}</code></td><td>{place}</td><td>{}</td></tr>",
                prose(&parameter["description"])
            )
        })
        .collect();
    if !rows.is_empty() {
        let _ =
            writeln!(html, "<table><tr><th>Parameter</th><th>in</th><th></th></tr>{}</table>", rows.concat());
    }
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    if !body.is_null() {
        fields(html, document, "The body", body);
    }
    let mut others = String::new();
    for (status, response) in operation["responses"].as_object().into_iter().flatten() {
        let (status, said) = (escaped(status), prose(&response["description"]));
        let answer = &response["content"]["application/json"]["schema"];
        if answer.is_null() {
            let _ = write!(others, "<tr><td><code>{status}</code></td><td>{said}</td></tr>");
        } else {
            let _ = writeln!(html, "<p><code>{status}</code> {said}</p>");
            fields(html, document, "The answer", answer);
        }
    }
    let _ = writeln!(html, "<table class=\"answers\">{others}</table>");
}

/// Everything there is, as a way to get there.
fn contents(document: &Value) -> String {
    let mut list = String::new();
    for (path, methods) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            let id = operation["operationId"].as_str().unwrap_or_default();
            let _ = writeln!(
                list,
                "<li><a href=\"#{}\"><span class=\"method\">{}</span><code>{}</code></a></li>",
                escaped(id),
                method.to_uppercase(),
                escaped(path),
            );
        }
    }
    format!("<nav><ul>\n{list}</ul></nav>\n")
}

fn fields(html: &mut String, document: &Value, what: &str, schema: &Value) {
    let schema = resolved(document, schema);
    let required =
        |name: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name));
    let rows: Vec<String> = schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, field)| {
            let need = if required(name) { "" } else { "?" };
            let (kind, said) = (kind(field), prose(&field["description"]));
            format!(
                "<tr><td><code>{}{need}</code></td><td>{}</td><td>{said}</td></tr>",
                escaped(name),
                escaped(&kind)
            )
        })
        .collect();
    if !rows.is_empty() {
        let _ = writeln!(html, "<table><tr><th>{what}</th><th></th><th></th></tr>{}</table>", rows.concat());
    }
    if !schema["example"].is_null() {
        let text = serde_json::to_string_pretty(&schema["example"]).unwrap_or_default();
        let _ = writeln!(html, "<pre>{}</pre>", escaped(&text));
    }
}

fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let reference = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    reference.and_then(|pointer| document.pointer(pointer)).unwrap_or(schema)
}

/// What a field is, in a word or two.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        return name.rsplit('/').next().unwrap_or_default().to_owned();
    }
    if let Some(options) = schema["oneOf"].as_array() {
        let options: Vec<String> = options.iter().map(kind).filter(|kind| kind != "null").collect();
        return options.join(" or ");
    }
    let kinds = match &schema["type"] {
        Value::Array(kinds) => {
            kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect()
        }
        kind => kind.as_str().unwrap_or_default().to_owned(),
    };
    match kinds.as_str() {
        "array" => format!("list of {}", kind(&schema["items"])),
        other => schema["format"].as_str().unwrap_or(other).to_owned(),
    }
}

/// A text with its `code` marked.
fn prose(text: &Value) -> String {
    let text = escaped(text.as_str().unwrap_or_default());
    let pieces = text.split('`').enumerate();
    pieces
        .map(|(at, piece)| if at % 2 == 1 { format!("<code>{piece}</code>") } else { piece.to_owned() })
        .collect()
}
