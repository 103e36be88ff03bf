//! Checks the player routes of services.

use std::collections::HashMap;

use service::{OpenError, Row, Service, Services};

use super::NAME;

/// A route and its service.
#[derive(Clone, Copy)]
struct ServiceRow {
    row: Row,
    service: &'static str,
}

/// Fails if two routes match the same requests. The error names their services; the router would only panic.
pub(super) fn check(own: &[Row], services: Services) -> Result<(), OpenError> {
    let own = own.iter().map(|row| ServiceRow { row: *row, service: NAME });
    let of_service = |service: &'static dyn Service| {
        let rows = service.player_routes().into_iter().map(|route| route.row);
        rows.map(|row| ServiceRow { row, service: service.name() })
    };
    let mut known: HashMap<String, Vec<ServiceRow>> = HashMap::new();
    for second in own.chain(services.iter().flat_map(of_service)) {
        let same_shape = known.entry(shape(second.row.path)).or_default();
        if let Some(first) = same_shape.iter().find(|first| is_conflict(&first.row, &second.row)) {
            return Err(OpenError::RouteTwice {
                first: name(&first.row),
                first_service: first.service,
                second: name(&second.row),
                second_service: second.service,
            });
        }
        same_shape.push(second);
    }
    Ok(())
}

/// Returns whether the router rejects two rows whose paths have the same shape. Different methods may share exactly the same path.
fn is_conflict(first: &Row, second: &Row) -> bool {
    first.method == second.method || first.path != second.path
}

/// Returns a path without the names of its parameters.
fn shape(path: &str) -> String {
    let part = |part: &str| if part.starts_with('{') { "{}".to_owned() } else { part.to_owned() };
    path.split('/').map(part).collect::<Vec<_>>().join("/")
}

fn name(row: &Row) -> String {
    format!("{} {}", row.method, row.path)
}
