//! The screens and operations of all services.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base::Code;
use http_server::Problem;
use screens::{ActionLink, Operation, View};
use service::{AdminApi, Menu, OperatorRow, Provided, Screen, ScreenRequest, Services};
use tokio::time::timeout;

use crate::Config;
use crate::call::escape;
use crate::live::Live;
use crate::render::{MenuGroup, MenuItem, Offer};

/// How long a screen may take to read.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The console of a process. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(crate) struct Console(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: Config,
    provided: Provided,
    screens: Vec<Screen>,
    menu: Vec<MenuGroup>,
    operations: HashMap<String, (OperatorRow, Operation)>,
    /// The URL of the admin listener, for commands that operators copy.
    origin: String,
    live: Live,
}

/// A screen that matches a URL, and its request.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) screen: Screen,
    pub(crate) path: String,
    pub(crate) request: ScreenRequest,
}

impl Console {
    pub(crate) fn new(config: Config, services: Services, provided: Provided, origin: String) -> Self {
        let is_shown = |screen: &Screen| screen.menu != Some(Menu::Development) || config.try_it;
        let screens: Vec<Screen> = services.screens().into_iter().filter(is_shown).collect();
        let offered = services.operator_routes().into_iter().filter_map(|route| {
            let key = format!("{} {}", route.row.method(), route.row.path());
            Some((key, (route.row, route.operation?)))
        });
        let menu = menu(&screens);
        let operations = offered.collect();
        Self(Arc::new(Inner { config, provided, screens, menu, operations, origin, live: Live::default() }))
    }

    pub(crate) fn config(&self) -> &Config {
        &self.0.config
    }

    pub(crate) fn menu(&self) -> &[MenuGroup] {
        &self.0.menu
    }

    pub(crate) fn provided(&self) -> &Provided {
        &self.0.provided
    }

    pub(crate) fn origin(&self) -> &str {
        &self.0.origin
    }

    pub(crate) fn live(&self) -> &Live {
        &self.0.live
    }

    /// Returns the router of the admin API.
    pub(crate) fn api(&self) -> Option<AdminApi> {
        self.provided().find()
    }

    /// Returns the screens that the menu does not hide.
    pub(crate) fn screens(&self) -> &[Screen] {
        &self.0.screens
    }

    /// Finds the screen of a path and query.
    pub(crate) fn find(&self, path: &str, query: &str) -> Option<Found> {
        let query: BTreeMap<String, String> =
            url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let matching = |screen: &Screen| screen.matches(path).map(|parameters| (screen.clone(), parameters));
        // A fixed path wins over one with a parameter.
        let found = self.0.screens.iter().filter_map(matching).min_by_key(|(_, parameters)| parameters.len());
        let (screen, parameters) = found?;
        Some(Found { screen, path: path.to_owned(), request: ScreenRequest { parameters, query } })
    }

    /// Reads a screen within a deadline.
    pub(crate) async fn read(&self, found: &Found) -> Result<View, Problem> {
        let reading = found.screen.read(self.0.provided.clone(), found.request.clone());
        timeout(READ_TIMEOUT, reading).await.unwrap_or_else(|_| {
            tracing::warn!(screen = found.screen.path, "a screen was not read in time");
            Err(Problem::new(Code::Timeout)
                .detail("This screen could not be read in time. Narrow the filter, or try again."))
        })
    }

    /// Finds the operation of a route such as `POST /drops/{drop_id}/pause`.
    pub(crate) fn operation(&self, route: &str) -> Option<&(OperatorRow, Operation)> {
        self.0.operations.get(route)
    }

    /// Returns how an action is offered on a page. `may_change` is false for operators who may only read.
    pub(crate) fn offer(&self, action: &ActionLink, back: &str, may_change: bool) -> Option<Offer> {
        if !may_change || self.0.config.read_only {
            return None;
        }
        let (_, operation) = self.operation(action.route)?;
        let mut href = format!("/console/action?route={}", escape(action.route));
        for (prefix, values) in [("p.", &action.parameters), ("f.", &action.values)] {
            for (name, value) in values {
                href += &format!("&{prefix}{name}={}", escape(value));
            }
        }
        href += &format!("&back={}", escape(back));
        let label = action.label.clone().unwrap_or_else(|| operation.label.to_owned());
        Some(Offer { label, href, is_dangerous: operation.is_dangerous })
    }
}

/// Groups the screens of the menu. Groups have the order of [`Menu`]; screens have the order of their services.
fn menu(screens: &[Screen]) -> Vec<MenuGroup> {
    let mut groups: BTreeMap<Menu, Vec<MenuItem>> = BTreeMap::new();
    for screen in screens {
        if let Some(menu) = screen.menu {
            groups.entry(menu).or_default().push(MenuItem { title: screen.title, href: screen.path });
        }
    }
    groups.into_iter().map(|(menu, items)| MenuGroup { title: title(menu), items }).collect()
}

const fn title(menu: Menu) -> &'static str {
    match menu {
        Menu::Overview => "Overview",
        Menu::Players => "Players",
        Menu::Events => "Events",
        Menu::Matchmaking => "Matchmaking",
        Menu::Sales => "Sales",
        Menu::System => "System",
        Menu::Development => "Development",
    }
}
