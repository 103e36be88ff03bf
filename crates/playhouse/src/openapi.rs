//! The OpenAPI descriptions of the service API and of the gateway.

use serde_json::{Value, json};
use service::{Service, Services};
use utoipa::openapi::OpenApi;

use crate::VERSION;

/// Returns the service API as an OpenAPI 3.1 document, merged from the descriptions of these services.
pub(crate) fn document(services: Services) -> Value {
    let api = merged(services.iter().filter_map(Service::service_api));
    let info = json!({
        "title": "Playhouse service API",
        "version": VERSION,
        "description": "For your services: shops, game servers, tools. Every request needs a token: `Authorization: Bearer \
            TOKEN`. Errors are problem documents (RFC 9457).",
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    });
    let schemes = json!({ "service": {
        "type": "http", "scheme": "bearer",
        "description": "A token from `playhouse token NAME`, or an access token of the issuer for a client with the role of a service.",
    } });
    let refusals = [
        ("401", "The token is missing or unknown"),
        ("403", "The service lacks the right"),
        ("503", "A store does not answer; try again"),
    ];
    described(&api, info, schemes, &refusals)
}

/// Returns the gateway's API as an OpenAPI 3.1 document, merged from the descriptions of these services.
pub(crate) fn gateway_document(services: Services) -> Value {
    let info = json!({
        "title": "Playhouse",
        "version": VERSION,
        "description": "For game clients and web pages. A game client sends the issuer's access token: `Authorization: Bearer \
            TOKEN`. A web page uses a session, which starts at `/login`, and sends `X-Playhouse-CSRF: 1` with every request \
            that changes something. The header `RateLimit` of each response shows what is left. Errors are problem documents \
            (RFC 9457).",
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    });
    let schemes = json!({
        "token": { "type": "http", "scheme": "bearer", "bearerFormat": "JWT",
            "description": "An access token of the issuer. For development: `playhouse token --user NAME`." },
        "session": { "type": "apiKey", "in": "cookie", "name": "__Host-Http-playhouse",
            "description": "A session starts at `/login`. Without TLS, on a local machine, the cookie is named `playhouse`." },
    });
    let refusals = [
        ("401", "The caller is not signed in, or the sign-in has expired"),
        ("403", "The caller may not do this, is banned, or sent no `X-Playhouse-CSRF`"),
        ("414", "The path and the query are too long"),
        ("426", "The client is too old; `update_url` links to a newer version"),
        ("429", "Too many requests; `Retry-After` says when to try again"),
        ("503", "A dependency does not answer; try again"),
        ("504", "The request took too long; try again"),
    ];
    let api = merged(services.iter().filter_map(Service::gateway_api));
    let mut document = described(&api, info, schemes, &refusals);
    describe_home(&mut document, services);
    document
}

/// Adds the parts of `/v1/home` that services add, in the same form as the gateway's own parts.
fn describe_home(document: &mut Value, services: Services) {
    let schemas = &mut document["components"]["schemas"];
    for part in services.home_parts() {
        let own = schemas["Part_Me"].clone();
        let mut with_data = own["oneOf"][0].clone();
        with_data["properties"]["data"] = json!({ "$ref": format!("#/components/schemas/{}", part.schema) });
        let name = format!("Part_{}", part.schema);
        schemas["Home"]["properties"][part.name] = json!({ "$ref": format!("#/components/schemas/{name}") });
        if let Some(required) = schemas["Home"]["required"].as_array_mut() {
            required.push(json!(part.name));
        }
        schemas[name] =
            json!({ "description": own["description"], "oneOf": [with_data, own["oneOf"][1].clone()] });
    }
}

/// Merges the descriptions of several services.
fn merged(mut apis: impl Iterator<Item = OpenApi>) -> OpenApi {
    let first = apis.next().unwrap_or_default();
    apis.fold(first, |mut all, api| {
        all.merge(api);
        all
    })
}

/// Errors of every request.
const COMMON_ERRORS: [(&str, &str); 1] = [("400", "The request cannot be read")];
/// Errors of requests with a body.
const BODY_ERRORS: [(&str, &str); 3] = [
    ("408", "The body did not arrive in time"),
    ("413", "The body is too large"),
    ("415", "The body is not JSON"),
];
/// Errors of requests that need a sign-in.
const SIGN_IN_ERRORS: [&str; 3] = ["401", "403", "426"];

/// Completes the description of routes with the schemes, the errors and the schema of problems that they all share.
fn described(api: &OpenApi, info: Value, schemes: Value, refusals: &[(&str, &str)]) -> Value {
    // Cannot fail: the document consists of plain values.
    let mut document = serde_json::to_value(api).unwrap_or_default();
    document["info"] = info;
    document["security"] =
        schemes.as_object().into_iter().flatten().map(|(name, _)| json!({ name: [] })).collect();
    document["components"]["securitySchemes"] = schemes;
    document["components"]["schemas"]["Problem"] = json!({
        "type": "object",
        "required": ["type", "title", "status", "request_id"],
        "properties": {
            "type": { "type": "string", "description": "What went wrong, as a stable URN." },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": ["string", "null"], "description": "Details, and what to do." },
            "request_id": { "type": "string", "description": "The id of the request in the server's logs." },
        },
    });
    for operation in document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut()) {
        for operation in operation.as_object_mut().into_iter().flat_map(|methods| methods.values_mut()) {
            describe_problems(operation, refusals);
        }
    }
    document
}

/// Adds the shared errors to an operation, and gives every error the content type of problems.
fn describe_problems(operation: &mut Value, refusals: &[(&str, &str)]) {
    let content =
        json!({ "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } });
    let has_body = operation.get("requestBody").is_some();
    let is_for_anyone = operation["security"] == json!([{}]);
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    let refusals = refusals.iter().filter(|(status, _)| !is_for_anyone || !SIGN_IN_ERRORS.contains(status));
    let body = BODY_ERRORS.iter().filter(|_| has_body);
    for (status, what) in COMMON_ERRORS.iter().chain(body).chain(refusals) {
        responses.entry(*status).or_insert_with(|| json!({ "description": what }));
    }
    for (_, response) in responses.iter_mut().filter(|(status, _)| status.starts_with(['4', '5'])) {
        response["content"] = content.clone();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::services::SERVICES;

    /// `docs/reference/openapi.json` and `docs/reference/openapi-gateway.json` are these documents. INSTA_UPDATE=always updates them.
    #[test]
    fn documents_in_docs_are_up_to_date() {
        crate::assert_in_docs("openapi.json", &document(SERVICES));
        crate::assert_in_docs("openapi-gateway.json", &gateway_document(SERVICES));
    }

    #[test]
    fn every_reference_resolves_and_every_operation_has_a_summary() {
        [document(SERVICES), gateway_document(SERVICES)].iter().for_each(check_references);
    }

    fn check_references(document: &Value) {
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
