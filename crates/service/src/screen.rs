//! Screens of the console.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use http_server::Problem;
use screens::View;

use crate::{Open, Provided};

/// A screen of the console, which answers one question. `console` serves it to operators and keeps it up to date while it is open.
#[derive(Clone)]
pub struct Screen {
    /// Its path below the admin listener: `/console/drops/{drop_id}`.
    pub path: &'static str,
    pub title: &'static str,
    /// The question that it answers.
    pub question: &'static str,
    /// Its place in the menu. None for a screen that another one leads to.
    pub menu: Option<Menu>,
    read: Arc<dyn Fn(Provided, ScreenRequest) -> ViewFuture + Send + Sync>,
}

type ViewFuture = BoxFuture<'static, Result<View, Problem>>;

/// The groups of the menu, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Menu {
    Overview,
    Players,
    Events,
    Matchmaking,
    Sales,
    System,
    /// Only with `console.try_it`, which `playhouse dev` sets.
    Development,
}

/// A request for a screen. It does not name the operator: everybody who may see a screen sees the same, so operators share what was
/// read.
#[derive(Clone, Debug, Default)]
pub struct ScreenRequest {
    /// The parameters of the path.
    pub parameters: BTreeMap<String, String>,
    /// The query: the filter, and the page.
    pub query: BTreeMap<String, String>,
}

impl ScreenRequest {
    /// Returns a parameter of the path. An empty text if the path has no such parameter.
    pub fn parameter(&self, name: &str) -> &str {
        self.parameters.get(name).map_or("", String::as_str)
    }

    /// Returns a value of the query that is not blank.
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }
}

impl Screen {
    /// Creates a screen that the menu lists. `read` gets the value of a service, and answers 503 until the service is open.
    pub fn listed<T, Read>(
        menu: Menu,
        path: &'static str,
        title: &'static str,
        question: &'static str,
        read: impl Fn(T, ScreenRequest) -> Read + Send + Sync + 'static,
    ) -> Self
    where
        T: std::any::Any + Clone + Send + Sync,
        Read: Future<Output = Result<View, Problem>> + Send + 'static,
    {
        Self { menu: Some(menu), ..Self::linked(path, title, question, read) }
    }

    /// Creates a screen that other screens lead to.
    pub fn linked<T, Read>(
        path: &'static str,
        title: &'static str,
        question: &'static str,
        read: impl Fn(T, ScreenRequest) -> Read + Send + Sync + 'static,
    ) -> Self
    where
        T: std::any::Any + Clone + Send + Sync,
        Read: Future<Output = Result<View, Problem>> + Send + 'static,
    {
        let read = move |provided: Provided, request: ScreenRequest| match Open::<T>::from(&provided) {
            Ok(Open(value)) => read(value, request).boxed(),
            Err(problem) => async { Err(problem) }.boxed(),
        };
        Self { path, title, question, menu: None, read: Arc::new(read) }
    }

    /// Reads what the screen shows.
    pub fn read(&self, provided: Provided, request: ScreenRequest) -> ViewFuture {
        (self.read)(provided, request)
    }

    /// Returns the parameters of `path` if it is a path of this screen.
    pub fn matches(&self, path: &str) -> Option<BTreeMap<String, String>> {
        let (mut own, mut given) = (self.path.split('/'), path.split('/'));
        let mut parameters = BTreeMap::new();
        loop {
            match (own.next(), given.next()) {
                (None, None) => return Some(parameters),
                (Some(own), Some(given)) => match own.strip_prefix('{').and_then(|own| own.strip_suffix('}'))
                {
                    Some(name) if !given.is_empty() => {
                        let decoded = percent_encoding::percent_decode_str(given).decode_utf8().ok()?;
                        parameters.insert(name.to_owned(), decoded.into_owned());
                    }
                    None if own == given => {}
                    _ => return None,
                },
                _ => return None,
            }
        }
    }
}

impl fmt::Debug for Screen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Screen").field(&self.path).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_of_a_screen_yields_its_decoded_parameters() {
        let read = async |(): (), _: ScreenRequest| Ok(View::new());
        let screen = Screen::linked("/console/drops/{drop_id}", "Drop", "?", read);
        assert_eq!(screen.matches("/console/drops/a%2Fb").unwrap()["drop_id"], "a/b");
        for other in ["/console/drops", "/console/drops/", "/console/drops/a/b", "/console/locks/a"] {
            assert_eq!(screen.matches(other), None, "{other}");
        }
    }
}
