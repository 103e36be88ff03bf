//! Tests that the console's forms make requests that the handlers accept.

use screens::{FieldKind, FormField};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::*;
use crate::model::Terms;

/// Returns a value that an operator might enter in a field.
fn sample(field: &FormField) -> Value {
    match (field.kind, field.name) {
        (FieldKind::Number, "per_player" | "terms.per_player") => json!(2),
        (FieldKind::Number | FieldKind::HiddenNumber, _) => json!(5_000),
        (FieldKind::Flag, _) => json!(true),
        (FieldKind::OneOf(words), _) => json!(words[words.len() - 1]),
        (FieldKind::Json, "on") => json!(true),
        (FieldKind::Json, "who" | "terms.who") => json!({ "role": "beta" }),
        (FieldKind::Json, "lanes" | "terms.lanes") => json!(["founder"]),
        (FieldKind::Json, name) => panic!("{name}"),
        (_, "price.currency" | "terms.price.currency") => json!("EUR"),
        (_, "opens_at" | "closes_at") => json!("2026-12-01T18:00:00Z"),
        _ => json!("text"),
    }
}

/// Builds the JSON body of the form of a route: with all fields, or only with those that are required.
fn body(route: &str, is_complete: bool) -> Value {
    let find = |one: &OperatorRoute| format!("{} {}", one.row.method(), one.row.path()) == route;
    let operation = operator_routes().into_iter().find(find).unwrap().operation.unwrap();
    let mut body = Map::new();
    for field in operation.fields.iter().filter(|field| is_complete || field.is_required) {
        let (mut at, mut name) = (&mut body, field.name);
        while let Some((outer, inner)) = name.split_once('.') {
            at = at.entry(outer).or_insert_with(|| json!({})).as_object_mut().unwrap();
            name = inner;
        }
        at.insert(name.to_owned(), sample(field));
    }
    Value::Object(body)
}

fn assert_accepted<T: DeserializeOwned>(route: &str) {
    for is_complete in [true, false] {
        let body = body(route, is_complete);
        if let Err(error) = serde_json::from_value::<T>(body.clone()) {
            panic!("{route} refuses {body}: {error}");
        }
    }
}

#[test]
fn forms_make_bodies_that_the_handlers_accept() {
    assert_accepted::<drops::CreateRequest>("POST /drops");
    assert_accepted::<drops::ScheduleRequest>("POST /drops/{drop_id}/schedule");
    assert_accepted::<drops::EndRequest>("POST /drops/{drop_id}/close");
    assert_accepted::<drops::EndRequest>("POST /drops/{drop_id}/cancel");
    assert_accepted::<drops::EveryoneWaitsRequest>("PUT /drops/{drop_id}/everyone-waits");
    assert_accepted::<drops::MessageRequest>("PUT /drops/{drop_id}/message");
    assert_accepted::<drops::PaceRequest>("PUT /drops/{drop_id}/pace");
    assert_accepted::<Terms>("PUT /drops/{drop_id}/terms");
    assert_accepted::<stock::AdjustRequest>("POST /drops/{drop_id}/stock");
    assert_accepted::<orders::SettleRequest>("POST /orders/{order_id}/settle");
    let terms: Terms = serde_json::from_value(body("PUT /drops/{drop_id}/terms", true)).unwrap();
    assert_eq!(terms.check(), Ok(()));
}

#[test]
fn every_change_is_offered_as_an_operation() {
    for route in operator_routes() {
        let is_change = route.row.access() == Access::Change;
        assert_eq!(route.operation.is_some(), is_change, "{:?}", route.row);
    }
}
