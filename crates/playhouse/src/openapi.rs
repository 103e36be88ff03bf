//! The OpenAPI descriptions of the service API and of the gateway.
//!
//! Programs generate clients from them: operation ids become methods, tags become classes, and schemas become types. So all of these
//! are names that a person would have chosen. `cargo xtask test-clients` compiles and runs such clients.

mod clients;

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
    let mut document = described(api, info, schemes, &refusals);
    document["servers"] = json!([{
        "url": "http://127.0.0.1:8081",
        "description": "The default of `listen.service_api`. Give your client the address of your own.",
    }]);
    // The gateway's clients know it under its old name.
    clients::rename_schema(&mut document, "EntitlementView", "Entitlement");
    clients::omit_nulls(&mut document);
    clients::simplify_any(&mut document);
    document
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
    let mut document = described(api, info, schemes, &refusals);
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

/// Errors of every request. Each operation lists all its statuses, because `default` would hide undocumented ones from
/// `cargo xtask fuzz-api`, and clients decode the problem of a listed status only.
const COMMON_ERRORS: [(&str, &str); 2] = [
    ("400", "The request cannot be read"),
    ("500", "An error of Playhouse; the log has the cause under `request_id`"),
];
/// Errors of requests with a body.
const BODY_ERRORS: [(&str, &str); 3] = [
    ("408", "The body did not arrive in time"),
    ("413", "The body is too large"),
    ("415", "The body is not JSON"),
];
/// Errors of requests that need a sign-in.
const SIGN_IN_ERRORS: [&str; 3] = ["401", "403", "426"];

/// Completes the description of routes with the schemes, the errors and the schema of problems that they all share.
fn described(api: OpenApi, info: Value, schemes: Value, refusals: &[(&str, &str)]) -> Value {
    // Cannot fail: the document consists of plain values.
    let mut document = serde_json::to_value(&api).unwrap_or_default();
    // Its memory serves what is added below.
    drop(api);
    document["info"] = info;
    document["security"] =
        schemes.as_object().into_iter().flatten().map(|(name, _)| json!({ name: [] })).collect();
    document["components"]["securitySchemes"] = schemes;
    document["components"]["schemas"]["Problem"] = json!({
        "type": "object",
        "description": "An error (RFC 9457).",
        "required": ["type", "title", "status", "detail", "request_id"],
        "properties": {
            "type": { "type": "string", "description": "What went wrong, as a stable URN." },
            "title": { "type": "string" },
            "status": { "type": "integer", "format": "int32" },
            "detail": { "type": "string", "description": "Details, and what to do." },
            "request_id": { "type": "string", "description": "The id of the request in the server's logs." },
        },
    });
    for operation in document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut()) {
        for operation in operation.as_object_mut().into_iter().flat_map(|methods| methods.values_mut()) {
            describe_problems(operation, refusals);
        }
    }
    clients::allow_new_fields(&mut document);
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

    /// Generators refuse repeated ids. An id of two words says what the method does to what.
    #[test]
    fn operation_ids_of_the_service_api_are_unique_and_have_a_verb_and_a_noun() {
        let document = document(SERVICES);
        let mut seen = BTreeSet::new();
        for (route, operation) in operations(&document) {
            let id = operation["operationId"].as_str().unwrap_or_default();
            assert!(seen.insert(id), "{route}: the id {id:?} is taken");
            assert!(id.contains('_'), "{route}: the id {id:?} does not name what it is about");
        }
        assert!(seen.contains("sign_in") && seen.contains("grant_entitlement"), "{seen:?}");
    }

    #[test]
    fn every_operation_has_one_described_tag() {
        for document in [document(SERVICES), gateway_document(SERVICES)] {
            let tags = document["tags"].as_array().unwrap();
            let described: BTreeSet<_> = tags.iter().filter_map(|tag| tag["name"].as_str()).collect();
            assert_eq!(described.len(), tags.len(), "{tags:?}");
            for (route, operation) in operations(&document) {
                let used = operation["tags"].as_array().unwrap();
                assert!(
                    used.len() == 1 && described.contains(used[0].as_str().unwrap()),
                    "{route}: {used:?}"
                );
            }
        }
    }

    /// Generators invent names for schemas that have none (`InlineObject1`), and some cannot read a choice of types.
    #[test]
    fn every_object_of_the_service_api_has_a_name_and_one_form() {
        let document = document(SERVICES);
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            let text = schema.to_string();
            assert!(
                !text.contains("\"oneOf\"") && !text.contains("\"anyOf\""),
                "{name} is a choice of types"
            );
            let parts = schema["allOf"].as_array().into_iter().flatten().chain([schema]);
            for (field, schema) in parts.filter_map(|part| part["properties"].as_object()).flatten() {
                let is_nameless = [schema, &schema["items"]].iter().any(|it| it.get("properties").is_some());
                assert!(!is_nameless, "{name}.{field} is an object without a name");
            }
        }
    }

    #[test]
    fn every_error_of_the_service_api_is_a_problem() {
        let problem = json!({ "$ref": "#/components/schemas/Problem" });
        for (route, operation) in operations(&document(SERVICES)) {
            let responses = operation["responses"].as_object().unwrap();
            let errors = responses.iter().filter(|(status, _)| status.starts_with(['4', '5']));
            for (status, response) in errors.clone() {
                let schema = &response["content"]["application/problem+json"]["schema"];
                assert_eq!(schema, &problem, "{route}: {status}");
            }
            assert!(errors.count() >= 5, "{route}");
        }
    }

    #[test]
    fn ids_and_times_of_the_service_api_have_formats() {
        let document = document(SERVICES);
        let ids = ["user_id", "account_id", "drop_id", "order_id", "reservation_id", "event_id"];
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            let parts = schema["allOf"].as_array().into_iter().flatten().chain([schema]);
            for (field, schema) in parts.filter_map(|part| part["properties"].as_object()).flatten() {
                let is_time = field.ends_with("_at")
                    || ["at", "since", "as_of", "valid_until"].contains(&field.as_str());
                let expected = if is_time { "date-time" } else { "uuid" };
                if is_time || ids.contains(&field.as_str()) {
                    assert_eq!(schema["format"], expected, "{name}.{field}");
                }
            }
        }
        for (route, operation) in operations(&document) {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let name = parameter["name"].as_str().unwrap();
                assert!(!ids.contains(&name) || parameter["schema"]["format"] == "uuid", "{route}: {name}");
            }
        }
    }

    #[test]
    fn responses_may_get_new_fields() {
        for document in [document(SERVICES), gateway_document(SERVICES)] {
            for name in clients::schemas_of_responses(&document) {
                let schema = &document["components"]["schemas"][&name];
                assert_ne!(schema["additionalProperties"], false, "{name}");
            }
        }
    }

    fn operations(document: &Value) -> impl Iterator<Item = (String, &Value)> {
        let paths = document["paths"].as_object().unwrap().iter();
        paths.flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().iter();
            methods.map(move |(method, operation)| (format!("{method} {path}"), operation))
        })
    }

    fn check_references(document: &Value) {
        let text = document.to_string();
        let references: BTreeSet<&str> =
            text.split("\"$ref\":\"#").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(references.len() > 5);
        for reference in references {
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
        for (route, operation) in operations(document) {
            assert!(operation["summary"].is_string(), "{route}");
        }
    }
}
