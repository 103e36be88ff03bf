//! The API documentation as a page, rendered from the OpenAPI document.

use std::fmt::Write;
use std::sync::LazyLock;

use axum::body::Bytes;
use base::html::escape;
use serde_json::Value;

use super::pages::Page;

/// The API description, which is made when somebody first asks for it: an idle process does not hold it.
pub(crate) type LazyDescription = LazyLock<Description, Box<dyn FnOnce() -> Description + Send>>;

/// The API description in the forms that are served. Responses share it: a client that reads nothing must not hold a copy of its own.
#[derive(Clone, Debug)]
pub(crate) struct Description {
    /// The OpenAPI document.
    pub(crate) document: Bytes,
    /// The page that is rendered from the document.
    pub(crate) page: Bytes,
}

impl Description {
    pub(crate) fn new(document: &Value) -> Self {
        let links = "<a href=\"/\">Playhouse</a> · <a href=\"/openapi.json\">openapi.json</a>";
        let page = Page::new("Gateway API").small(links).html(&page(document));
        Self { document: document.to_string().into(), page: page.render().into() }
    }
}

fn page(document: &Value) -> String {
    let mut html = format!("<p>{}</p>\n{}", prose(&document["info"]["description"]), contents(document));
    for tag in document["tags"].as_array().into_iter().flatten() {
        let name = tag["name"].as_str().unwrap_or_default();
        let _ =
            writeln!(html, "<h2 id=\"{0}\">{0}</h2>\n<p>{1}</p>", escape(name), prose(&tag["description"]));
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
        escape(id),
        escape(path),
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
        fields(html, document, "Body", body);
    }
    let mut others = String::new();
    for (status, response) in operation["responses"].as_object().into_iter().flatten() {
        let (status, description) = (escape(status), prose(&response["description"]));
        let schema = &response["content"]["application/json"]["schema"];
        if schema.is_null() {
            let _ = write!(others, "<tr><td><code>{status}</code></td><td>{description}</td></tr>");
        } else {
            let _ = writeln!(html, "<p><code>{status}</code> {description}</p>");
            fields(html, document, "Response", schema);
        }
    }
    let _ = writeln!(html, "<table class=\"responses\">{others}</table>");
}

/// Renders the list of all operations with links.
fn contents(document: &Value) -> String {
    let mut list = String::new();
    for (path, methods) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            let id = operation["operationId"].as_str().unwrap_or_default();
            let _ = writeln!(
                list,
                "<li><a href=\"#{}\"><span class=\"method\">{}</span><code>{}</code></a></li>",
                escape(id),
                method.to_uppercase(),
                escape(path),
            );
        }
    }
    format!("<nav><ul>\n{list}</ul></nav>\n")
}

fn fields(html: &mut String, document: &Value, heading: &str, schema: &Value) {
    let schema = resolved(document, schema);
    let required =
        |name: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name));
    let rows: Vec<String> = schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, field)| {
            let optional = if required(name) { "" } else { "?" };
            let (kind, description) = (kind(field), prose(&field["description"]));
            format!(
                "<tr><td><code>{}{optional}</code></td><td>{}</td><td>{description}</td></tr>",
                escape(name),
                escape(&kind)
            )
        })
        .collect();
    if !rows.is_empty() {
        let _ =
            writeln!(html, "<table><tr><th>{heading}</th><th></th><th></th></tr>{}</table>", rows.concat());
    }
    if !schema["example"].is_null() {
        let text = serde_json::to_string_pretty(&schema["example"]).unwrap_or_default();
        let _ = writeln!(html, "<pre>{}</pre>", escape(&text));
    }
}

fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let reference = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    reference.and_then(|pointer| document.pointer(pointer)).unwrap_or(schema)
}

/// Names the type of a field.
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

/// Renders a text, with `code` marked.
fn prose(text: &Value) -> String {
    let text = escape(text.as_str().unwrap_or_default());
    let pieces = text.split('`').enumerate();
    pieces
        .map(|(at, piece)| if at % 2 == 1 { format!("<code>{piece}</code>") } else { piece.to_owned() })
        .collect()
}
