//! Errors of opening stores and services.

use std::any::type_name;
use std::error::Error;
use std::time::Duration;

/// Why the stores or a service cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{store} was not reachable within lifecycle.start_timeout ({after:?})")]
    Unreachable { store: &'static str, after: Duration, source: Box<dyn Error + Send + Sync> },
    #[error("{store} cannot be used")]
    Unusable { store: &'static str, source: Box<dyn Error + Send + Sync> },
    #[error(
        "the service {service:?} needs {needed}, which no service before it in the list of services provides"
    )]
    Missing { service: &'static str, needed: String },
    #[error(
        "{provided} is provided twice, by {first:?} and by {second:?}; services find it by its type, so one of them must provide it"
    )]
    ProvidedTwice { provided: String, first: &'static str, second: &'static str },
    #[error(
        "the player routes {first} of {first_service:?} and {second} of {second_service:?} match the same requests; change one of \
         the paths"
    )]
    RouteTwice { first: String, first_service: &'static str, second: String, second_service: &'static str },
}

impl OpenError {
    /// Creates the error of a `service` that needs a `T` that no service provides.
    pub(crate) fn missing<T: ?Sized>(service: &'static str) -> Self {
        Self::Missing { service, needed: public_name(type_name::<T>()) }
    }

    /// Creates the error of a `T` that two services provide.
    pub fn provided_twice<T: ?Sized>(first: &'static str, second: &'static str) -> Self {
        Self::ProvidedTwice { provided: public_name(type_name::<T>()), first, second }
    }

    /// Creates the error of a configured dependency that does not work. `store` is the key or the name of the part.
    pub fn unusable(store: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unusable { store, source: source.into() }
    }
}

/// Shortens the name of a type to its crate and its own name: `account::Accounts`.
fn public_name(type_name: &str) -> String {
    match (type_name.split_once("::"), type_name.rsplit_once("::")) {
        (Some((name, _)), Some((_, last))) if !type_name.contains('<') => format!("{name}::{last}"),
        _ => type_name.to_owned(),
    }
}
