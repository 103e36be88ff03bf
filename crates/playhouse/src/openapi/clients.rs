//! Changes to a document that make generated clients simple and robust.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

const SCHEMAS: &str = "#/components/schemas/";

/// Renames a schema and the references to it.
pub(super) fn rename_schema(document: &mut Value, from: &str, to: &str) {
    if let Some(schemas) = document["components"]["schemas"].as_object_mut()
        && let Some(schema) = schemas.remove(from)
    {
        schemas.insert(to.to_owned(), schema);
    }
    let (from, to) = (format!("{SCHEMAS}{from}"), format!("{SCHEMAS}{to}"));
    for_each_object(document, &mut |object| match object.get_mut("$ref") {
        Some(Value::String(reference)) if *reference == from => reference.clone_from(&to),
        _ => {}
    });
}

/// Removes `null` from the types of optional properties and parameters, because clients need a wrapper type for a field that is
/// absent, null or a value. Callers may omit such a field, and responses omit it. A response field that can be null is required.
///
/// Lists keep it: clients in Java send an empty list, which is not the same as none, for a list that is not nullable.
pub(super) fn omit_nulls(document: &mut Value) {
    for_each_object(document, &mut |object| {
        let required = object.get("required").cloned().unwrap_or_default();
        let is_required =
            |name: &str| required.as_array().is_some_and(|names| names.iter().any(|it| it == name));
        if let Some(Value::Object(properties)) = object.get_mut("properties") {
            let optional = properties.iter_mut().filter(|(name, _)| !is_required(name));
            optional.for_each(|(_, schema)| remove_null(schema));
        }
        if object.contains_key("in") && required != true {
            object.get_mut("schema").into_iter().for_each(remove_null);
        }
    });
}

/// Writes "any JSON" as `true` instead of `{}`, for which clients in Go have pointers to interfaces.
pub(super) fn simplify_any(document: &mut Value) {
    for_each_object(document, &mut |object| match object.get_mut("additionalProperties") {
        Some(any) if any.as_object().is_some_and(Map::is_empty) => *any = Value::Bool(true),
        _ => {}
    });
}

/// Removes `additionalProperties: false` from the schemas of responses. A client that refuses unknown fields would fail as soon as
/// a new version adds one.
pub(super) fn allow_new_fields(document: &mut Value) {
    for name in schemas_of_responses(document) {
        if let Some(schema) = document["components"]["schemas"][name].as_object_mut() {
            schema.remove("additionalProperties");
        }
    }
}

/// Returns the names of all schemas that responses contain.
pub(super) fn schemas_of_responses(document: &Value) -> BTreeSet<String> {
    let operations =
        document["paths"].as_object().into_iter().flat_map(Map::values).filter_map(Value::as_object);
    let responses = operations.flat_map(Map::values).map(|operation| &operation["responses"]);
    let mut next: Vec<String> = responses.flat_map(references).collect();
    let mut found = BTreeSet::new();
    while let Some(name) = next.pop() {
        let schema = &document["components"]["schemas"][&name];
        if found.insert(name) {
            next.extend(references(schema));
        }
    }
    found
}

/// Returns the names of the schemas that a value refers to.
fn references(value: &Value) -> Vec<String> {
    let (text, before) = (value.to_string(), format!("\"$ref\":\"{SCHEMAS}"));
    let names = text.split(&before).skip(1).filter_map(|rest| rest.split('"').next());
    names.map(ToOwned::to_owned).collect()
}

fn remove_null(schema: &mut Value) {
    if let Some(object) = schema.as_object_mut() {
        object.retain(|key, value| key != "default" || !value.is_null());
    }
    if let Some(Value::Array(types)) = schema.get_mut("type")
        && !types.iter().any(|one| one == "array")
    {
        types.retain(|one| one != "null");
        if let [one] = types.as_slice() {
            schema["type"] = one.clone();
        }
    }
}

fn for_each_object(value: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            change(object);
            object.values_mut().for_each(|value| for_each_object(value, change));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| for_each_object(value, change)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_optional_properties_and_parameters_lose_null() {
        let nullable = json!({ "type": ["string", "null"] });
        let parameter = json!({ "name": "state", "in": "query", "required": false, "schema": nullable });
        let list = json!({ "type": ["array", "null"] });
        let schema = json!({
            "properties": { "absent": nullable, "null": nullable, "list": list }, "required": ["null"],
        });
        let mut document = json!({ "parameters": [parameter], "schema": schema });
        omit_nulls(&mut document);
        assert_eq!(document["parameters"][0]["schema"]["type"], "string");
        assert_eq!(document["schema"]["properties"]["absent"]["type"], "string");
        assert_eq!(document["schema"]["properties"]["null"], nullable);
        assert_eq!(document["schema"]["properties"]["list"], list);
    }

    #[test]
    fn responses_may_get_new_fields_and_requests_may_not() {
        let refers = |name: &str| json!({ "schema": { "$ref": format!("{SCHEMAS}{name}") } });
        let closed = |inner: Value| json!({ "additionalProperties": false, "inner": inner });
        let mut document = json!({
            "paths": { "/a": { "post": { "requestBody": refers("Asked"), "responses": { "200": refers("Answer") } } } },
            "components": { "schemas": {
                "Asked": closed(json!({})), "Answer": closed(refers("Part")), "Part": closed(refers("Answer")),
            } },
        });
        allow_new_fields(&mut document);
        let schemas = &document["components"]["schemas"];
        let is_closed = |name: &str| schemas[name].get("additionalProperties").is_some();
        assert_eq!(["Asked", "Answer", "Part"].map(is_closed), [true, false, false]);
    }

    #[test]
    fn renamed_schema_is_referred_to_by_its_new_name() {
        let mut document = json!({
            "paths": [{ "$ref": format!("{SCHEMAS}OldName") }, { "$ref": format!("{SCHEMAS}OldNames") }],
            "components": { "schemas": { "OldName": { "type": "object" }, "OldNames": {} } },
        });
        rename_schema(&mut document, "OldName", "New");
        assert_eq!(document["paths"][0]["$ref"], format!("{SCHEMAS}New"));
        assert_eq!(document["paths"][1]["$ref"], format!("{SCHEMAS}OldNames"));
        assert_eq!(document["components"]["schemas"]["New"], json!({ "type": "object" }));
    }
}
