//! The values that services provide to each other and to their own routes.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::FromRequestParts;
use base::Code;
use http::request::Parts;
use http_server::Problem;

use crate::OpenError;

/// The values of open services, found by their type. Cheap to clone; clones share the values.
#[derive(Clone, Default)]
pub struct Provided(Arc<RwLock<Values>>);

type Values = HashMap<TypeId, Value>;

struct Value {
    provider: &'static str,
    value: Arc<dyn Any + Send + Sync>,
}

impl Provided {
    /// Adds a value of the service `provider`. Fails if there is already a value of the same type.
    pub fn put<T: Any + Send + Sync>(&self, provider: &'static str, value: T) -> Result<(), OpenError> {
        let mut values = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match values.entry(TypeId::of::<T>()) {
            Entry::Occupied(first) => Err(OpenError::provided_twice::<T>(first.get().provider, provider)),
            Entry::Vacant(free) => {
                free.insert(Value { provider, value: Arc::new(value) });
                Ok(())
            }
        }
    }

    /// Returns the value of a type, if a service provides it.
    pub fn find<T: Any + Clone>(&self) -> Option<T> {
        let values = self.0.read().unwrap_or_else(PoisonError::into_inner);
        values.get(&TypeId::of::<T>())?.value.downcast_ref().cloned()
    }
}

impl fmt::Debug for Provided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provided").finish_non_exhaustive()
    }
}

/// Extracts a value that a service [provides](crate::Context::provide). Answers 503 until then.
///
/// Routes that use it can be mounted before the stores are open. Operator routes are.
#[derive(Clone, Copy, Debug)]
pub struct Open<T>(pub T);

impl<T: Any + Clone + Send + Sync> Open<T> {
    /// Finds the value. Fails with 503 until a service provides it.
    pub fn from(provided: &Provided) -> Result<Self, Problem> {
        let not_yet = || Problem::new(Code::Unavailable).detail("This process is still starting; try again.");
        provided.find().map(Self).ok_or_else(not_yet)
    }
}

impl<T: Any + Clone + Send + Sync> FromRequestParts<Provided> for Open<T> {
    type Rejection = Problem;

    async fn from_request_parts(_: &mut Parts, provided: &Provided) -> Result<Self, Problem> {
        Self::from(provided)
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::routing::get;
    use http::Request;
    use tower::ServiceExt;

    use super::*;

    #[derive(Clone)]
    struct Stock(u32);

    #[tokio::test]
    async fn route_answers_503_until_its_service_is_open() {
        let provided = Provided::default();
        let show = async |Open(Stock(count)): Open<Stock>| count.to_string();
        let routes: Router = Router::new().route("/stock", get(show)).with_state(provided.clone());
        let status = async || {
            let request = Request::get("/stock").body(Body::empty()).unwrap();
            routes.clone().oneshot(request).await.unwrap().status().as_u16()
        };
        assert_eq!(status().await, 503);
        // A value of another type does not count.
        provided.put("shop", 1_u32).unwrap();
        assert_eq!(status().await, 503);
        provided.put("shop", Stock(1)).unwrap();
        assert_eq!(status().await, 200);
    }

    #[test]
    fn second_value_of_a_type_is_refused_and_both_providers_named() {
        let provided = Provided::default();
        provided.put("shop", Stock(1)).unwrap();
        let refused = provided.put("drops", Stock(2)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "service::Stock is provided twice, by \"shop\" and by \"drops\"; services find it by its type, so one of them \
             must provide it"
        );
        assert_eq!(provided.find::<Stock>().unwrap().0, 1, "the first value stays");
    }
}
