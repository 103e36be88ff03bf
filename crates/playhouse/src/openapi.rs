//! The description of the service API.

use serde_json::{Value, json};
use utoipa::OpenApi;

use crate::VERSION;

/// The description in OpenAPI 3.1, made of what the services say of themselves.
pub(crate) fn document() -> Value {
    let mut api = account::http::Api::openapi();
    api.merge(entitlement::Api::openapi());
    // It is made of plain values.
    let mut document = serde_json::to_value(&api).unwrap_or_default();
    document["info"] = json!({
        "title": "Playhouse service API",
        "version": VERSION,
        "description": "For services of yours: shops, game servers, tools. Every request carries the token of a service: \
            `Authorization: Bearer TOKEN`. Errors are problem documents (RFC 9457).",
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    });
    document["components"]["securitySchemes"] = json!({ "service": { "type": "http", "scheme": "bearer", "description": "`playhouse token` makes one." } });
    document["security"] = json!([{ "service": [] }]);
    document["components"]["schemas"]["Problem"] = json!({
        "type": "object",
        "required": ["type", "title", "status", "request_id"],
        "properties": {
            "type": { "type": "string", "description": "Stable: what went wrong, as a URN." },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": ["string", "null"], "description": "What to do about it." },
            "request_id": { "type": "string", "description": "To be found in our logs." },
        },
    });
    for operation in document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut()) {
        for operation in operation.as_object_mut().into_iter().flat_map(|methods| methods.values_mut()) {
            describe_problems(operation);
        }
    }
    document
}

/// Every answer that is an error has the same form, and every request may be refused.
fn describe_problems(operation: &mut Value) {
    let content =
        json!({ "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } });
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    for (status, what) in [
        ("401", "The token is missing or unknown"),
        ("403", "The service lacks the right"),
        ("503", "A store is away; try again"),
    ] {
        responses.entry(status).or_insert_with(|| json!({ "description": what }));
    }
    for (_, response) in responses.iter_mut().filter(|(status, _)| status.starts_with(['4', '5'])) {
        response["content"] = content.clone();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// `docs/openapi.json` is this document. INSTA_UPDATE=always writes it anew.
    #[test]
    fn the_document_in_docs_is_what_is_served() {
        crate::assert_in_docs("openapi.json", &document());
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_operation_has_a_summary() {
        let document = document();
        let text = document.to_string();
        let references: BTreeSet<&str> =
            text.split("\"$ref\":\"#").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(references.len() > 5);
        for reference in references {
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                assert!(operation["summary"].is_string(), "{method} {path}");
            }
        }
    }
}
