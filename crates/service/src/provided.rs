//! What services provide to each other and to their own routes.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::FromRequestParts;
use base::Code;
use http::request::Parts;
use http_server::Problem;

/// What open services provide, each value found by its type. Cheap to clone; clones share the values.
#[derive(Clone, Default)]
pub struct Provided(Arc<RwLock<Values>>);

type Values = HashMap<TypeId, Arc<dyn Any + Send + Sync>>;

impl Provided {
    /// Adds a value. Replaces an earlier one of the same type.
    pub fn put<T: Any + Send + Sync>(&self, value: T) {
        let mut values = self.0.write().unwrap_or_else(PoisonError::into_inner);
        values.insert(TypeId::of::<T>(), Arc::new(value));
    }

    /// Finds the value of a type.
    pub fn find<T: Any + Clone>(&self) -> Option<T> {
        let values = self.0.read().unwrap_or_else(PoisonError::into_inner);
        values.get(&TypeId::of::<T>())?.downcast_ref().cloned()
    }
}

impl fmt::Debug for Provided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provided").finish_non_exhaustive()
    }
}

/// Extracts what a service [provides](crate::Context::provide). Answers 503 until it does.
///
/// Routes that use it can be mounted before the stores are open, as operator routes are.
#[derive(Clone, Copy, Debug)]
pub struct Open<T>(pub T);

impl<T: Any + Clone + Send + Sync> FromRequestParts<Provided> for Open<T> {
    type Rejection = Problem;

    async fn from_request_parts(_: &mut Parts, provided: &Provided) -> Result<Self, Problem> {
        let not_yet = || Problem::new(Code::Unavailable).detail("the stores are not open yet");
        provided.find().map(Self).ok_or_else(not_yet)
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
    async fn a_route_answers_503_until_its_service_is_open() {
        let provided = Provided::default();
        let show = async |Open(Stock(count)): Open<Stock>| count.to_string();
        let routes: Router = Router::new().route("/stock", get(show)).with_state(provided.clone());
        let ask = async || {
            let request = Request::get("/stock").body(Body::empty()).unwrap();
            routes.clone().oneshot(request).await.unwrap().status().as_u16()
        };
        assert_eq!(ask().await, 503);
        // Something else that is open does not open it.
        provided.put(1_u32);
        assert_eq!(ask().await, 503);
        provided.put(Stock(1));
        assert_eq!(ask().await, 200);
    }
}
