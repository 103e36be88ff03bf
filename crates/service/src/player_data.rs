//! Data of services about users, for the console's screen of a user and for the export.

use std::fmt;
use std::sync::Arc;

use base::id::Uuid;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_server::Problem;
use screens::Section;
use serde_json::Value;

use crate::{Open, Provided};

/// A service's data about users. The export of a user has all of it, and the user's screen shows what operators look for.
#[derive(Clone)]
pub struct PlayerData {
    /// The member of the export that has the data, such as `entitlements`.
    pub name: &'static str,
    export: Read<Value>,
    sections: Option<Read<Vec<Section>>>,
}

type Reading<T> = BoxFuture<'static, Result<T, Problem>>;
type Read<T> = Arc<dyn Fn(Provided, Uuid) -> Reading<T> + Send + Sync>;

impl PlayerData {
    /// Creates data from the function that reads all of it. `export` gets the value of a service. Answers 503 until the service is
    /// open, so that no export is incomplete.
    pub fn new<T, Export>(
        name: &'static str,
        export: impl Fn(T, Uuid) -> Export + Send + Sync + 'static,
    ) -> Self
    where
        T: std::any::Any + Clone + Send + Sync,
        Export: Future<Output = Result<Value, Problem>> + Send + 'static,
    {
        Self { name, export: Arc::new(opened(export)), sections: None }
    }

    /// Adds sections to the user's screen. The id of each must be unique on that screen.
    pub fn with_sections<T, Sections>(
        self,
        sections: impl Fn(T, Uuid) -> Sections + Send + Sync + 'static,
    ) -> Self
    where
        T: std::any::Any + Clone + Send + Sync,
        Sections: Future<Output = Result<Vec<Section>, Problem>> + Send + 'static,
    {
        Self { sections: Some(Arc::new(opened(sections))), ..self }
    }

    /// Reads all data about a user.
    pub fn export(&self, provided: Provided, user: Uuid) -> Reading<Value> {
        (self.export)(provided, user)
    }

    /// Reads the sections of the user's screen.
    pub fn sections(&self, provided: Provided, user: Uuid) -> Reading<Vec<Section>> {
        match &self.sections {
            Some(sections) => sections(provided, user),
            None => async { Ok(Vec::new()) }.boxed(),
        }
    }
}

/// Calls `read` with the value of a service, or fails with 503 until the service is open.
fn opened<T, Answer, R>(
    read: impl Fn(T, Uuid) -> Answer + Send + Sync + 'static,
) -> impl Fn(Provided, Uuid) -> Reading<R> + Send + Sync + 'static
where
    T: std::any::Any + Clone + Send + Sync,
    Answer: Future<Output = Result<R, Problem>> + Send + 'static,
    R: Send + 'static,
{
    move |provided, user| match Open::<T>::from(&provided) {
        Ok(Open(value)) => read(value, user).boxed(),
        Err(problem) => async { Err(problem) }.boxed(),
    }
}

impl fmt::Debug for PlayerData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PlayerData").field(&self.name).finish()
    }
}
