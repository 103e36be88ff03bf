//! The descriptions of what we serve.

use serde_json::{Value, json};
use service::{Service, Services};
use utoipa::openapi::OpenApi;

use crate::VERSION;

/// The service API in OpenAPI 3.1, made of the descriptions of these services.
pub(crate) fn document(services: Services) -> Value {
    let api = merged(services.iter().filter_map(Service::service_api));
    let info = json!({
        "title": "Playhouse service API",
        "version": VERSION,
        "description": "For services of yours: shops, game servers, tools. Every request carries a token: `Authorization: \
            Bearer TOKEN`. Errors are problem documents (RFC 9457).",
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    });
    let schemes = json!({ "service": {
        "type": "http", "scheme": "bearer",
        "description": "`playhouse token` makes one; or an access token of the issuer, for a client with the role of a service.",
    } });
    let refusals = [
        ("401", "The token is missing or unknown"),
        ("403", "The service lacks the right"),
        ("503", "A store is away; try again"),
    ];
    described(&api, info, schemes, &refusals)
}

/// The API for players in OpenAPI 3.1, made of the descriptions of these services.
pub(crate) fn gateway_document(services: Services) -> Value {
    let info = json!({
        "title": "Playhouse",
        "version": VERSION,
        "description": "For game clients and web pages. A game client sends the issuer's access token: `Authorization: Bearer \
            TOKEN`. A page has a session, which begins at `/login`, and sends `X-Playhouse-CSRF: 1` with every request that \
            changes something. Every answer says in `RateLimit` what is left. Errors are problem documents (RFC 9457).",
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    });
    let schemes = json!({
        "token": { "type": "http", "scheme": "bearer", "bearerFormat": "JWT",
            "description": "An access token of the issuer. For development: `playhouse token --user NAME`." },
        "session": { "type": "apiKey", "in": "cookie", "name": "__Host-Http-playhouse",
            "description": "Begins at `/login`. Without TLS, on one's own machine, the cookie is `playhouse`." },
    });
    let refusals = [
        ("401", "Nobody is signed in, or not any more"),
        ("403", "The caller may not do this, is banned, or sent no `X-Playhouse-CSRF`"),
        ("414", "The path and the query are too long"),
        ("426", "The client is too old; `update_url` says where there is a newer one"),
        ("429", "Too many requests; `Retry-After` says when to come back"),
        ("503", "A part that is needed is away; try again"),
        ("504", "It took too long; try again"),
    ];
    let api = merged(services.iter().filter_map(Service::gateway_api));
    let mut document = described(&api, info, schemes, &refusals);
    describe_home(&mut document, services);
    document
}

/// Adds the parts of `/v1/home` that services bring, in the form that the gateway's own parts have.
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

/// Merges the descriptions of several services into that of the first.
fn merged(mut apis: impl Iterator<Item = OpenApi>) -> OpenApi {
    let first = apis.next().unwrap_or_default();
    apis.fold(first, |mut all, api| {
        all.merge(api);
        all
    })
}

/// What a request may be answered whatever it asks for.
const MISTAKES: [(&str, &str); 1] = [("400", "The request cannot be read")];
/// And one with a body.
const BODY_MISTAKES: [(&str, &str); 3] = [
    ("408", "The body did not arrive in time"),
    ("413", "The body is too large"),
    ("415", "The body is not JSON"),
];
/// What only those are told who have to say who they are.
const NOT_FOR_ANYONE: [&str; 3] = ["401", "403", "426"];

/// What a set of routes says of itself, with what holds for all of them.
fn described(api: &OpenApi, info: Value, schemes: Value, refusals: &[(&str, &str)]) -> Value {
    // It is made of plain values.
    let mut document = serde_json::to_value(api).unwrap_or_default();
    document["info"] = info;
    document["security"] =
        schemes.as_object().into_iter().flatten().map(|(name, _)| json!({ name: [] })).collect();
    document["components"]["securitySchemes"] = schemes;
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
            describe_problems(operation, refusals);
        }
    }
    document
}

/// Every answer that is an error has the same form, and every request may be refused.
fn describe_problems(operation: &mut Value, refusals: &[(&str, &str)]) {
    let content =
        json!({ "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } });
    let has_body = operation.get("requestBody").is_some();
    let is_for_anyone = operation["security"] == json!([{}]);
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    let asked = refusals.iter().filter(|(status, _)| !is_for_anyone || !NOT_FOR_ANYONE.contains(status));
    let body = BODY_MISTAKES.iter().filter(|_| has_body);
    for (status, what) in MISTAKES.iter().chain(body).chain(asked) {
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

    /// `docs/openapi.json` and `docs/openapi-gateway.json` are these documents. INSTA_UPDATE=always writes them anew.
    #[test]
    fn the_documents_in_docs_are_what_is_served() {
        crate::assert_in_docs("openapi.json", &document(SERVICES));
        crate::assert_in_docs("openapi-gateway.json", &gateway_document(SERVICES));
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_operation_has_a_summary() {
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
