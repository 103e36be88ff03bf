//! Renders screens and forms as HTML.
//!
//! Everything works without JavaScript: actions are links to form pages, filters are forms, pages of tables are links. The scripts in
//! `assets` add dialogs, relative times and live updates.

mod blocks;
mod cells;
mod form;
pub(crate) mod numbers;
mod shell;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use screens::{ActionLink, Section, View};
use url::form_urlencoded::{Serializer, parse};

pub(crate) use form::{ActionForm, CHECK, CheckReport, Input, SignIn, error_page, form_page, sign_in_page};
pub(crate) use shell::{MenuGroup, MenuItem, Search, Shell, page};

use crate::markup::{Markup, tag};

/// The query parameter that asks for one section of a screen.
pub(crate) const FRAGMENT: &str = "fragment";

/// A file that pages of the console load from `/console/assets/`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asset {
    pub(crate) name: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) body: &'static str,
}

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// All files of `/console/assets/`.
pub(crate) const ASSETS: &[Asset] = &[
    Asset {
        name: "console.css",
        content_type: "text/css; charset=utf-8",
        body: include_str!("assets/console.css"),
    },
    Asset { name: "console.js", content_type: JAVASCRIPT, body: include_str!("assets/console.js") },
    Asset { name: "dialog.js", content_type: JAVASCRIPT, body: include_str!("assets/dialog.js") },
    Asset { name: "live.js", content_type: JAVASCRIPT, body: include_str!("assets/live.js") },
    Asset { name: "times.js", content_type: JAVASCRIPT, body: include_str!("assets/times.js") },
    Asset { name: "icon.svg", content_type: "image/svg+xml", body: include_str!("assets/icon.svg") },
];

/// How an action is offered to an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) label: String,
    /// The page of the action's form.
    pub(crate) href: String,
    /// Whether something is lost.
    pub(crate) is_dangerous: bool,
}

/// The request that a view is rendered for.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    /// The path of the screen, as it was requested.
    pub(crate) path: &'a str,
    /// The query as it was requested: links to other pages of a table keep it.
    pub(crate) query: &'a BTreeMap<String, String>,
    /// Returns how an action is offered. None hides it, because the operator or the console is read-only.
    pub(crate) offers: &'a dyn Fn(&ActionLink) -> Option<Offer>,
}

impl Context<'_> {
    /// Returns the URL of the same screen with other values in its query. `changes` is an encoded query.
    fn next_page(&self, changes: &str) -> String {
        let mut query = self.query.clone();
        query.extend(parse(changes.as_bytes()).into_owned());
        self.url(&query)
    }

    /// Returns the URL of the first page of a table, if the URL has a later one: `key` names where that begins.
    fn first_page(&self, key: &str) -> Option<String> {
        let mut query = self.query.clone();
        query.remove(key)?;
        Some(self.url(&query))
    }

    fn url(&self, query: &BTreeMap<String, String>) -> String {
        let pairs = query.iter().filter(|(name, _)| *name != FRAGMENT);
        let query = Serializer::new(String::new()).extend_pairs(pairs).finish();
        if query.is_empty() { self.path.to_owned() } else { format!("{}?{query}", self.path) }
    }
}

/// A rendered section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) id: &'static str,
    /// Changes when anything in the section changes. The same in every process of the same build.
    pub(crate) version: String,
    pub(crate) markup: Markup,
}

/// Renders a view as a document that can be kept and opened without a server, such as a report. Actions and filters are left out.
pub fn standalone_page(title: &str, question: &str, view: &View) -> String {
    let context = Context { path: "", query: &BTreeMap::new(), offers: &|_| None };
    shell::standalone(title, question, self::view(view, &context))
}

/// Renders all sections of a view.
pub(crate) fn view(view: &View, context: &Context<'_>) -> Markup {
    view.sections.iter().map(|section| self::section(section, context).markup).collect()
}

/// Renders a section: `<section id=ID data-fragment=ID data-version=VERSION>`.
pub(crate) fn section(section: &Section, context: &Context<'_>) -> Fragment {
    let heading = format!("{}-title", section.id);
    let actions = blocks::buttons(&section.actions, context);
    let actions = (!actions.is_empty()).then(|| tag("div").class("buttons").child(actions));
    let title = tag("h2").attr("id", &heading).text(&section.title);
    let head = tag("div").class("section-head").child(title).child(actions);
    let block =
        |(index, block)| blocks::block(block, context, &format!("{}-{index}", section.id), &section.title);
    let content = Markup::from(head).with(section.blocks.iter().enumerate().map(block).collect::<Markup>());
    let mut hasher = DefaultHasher::new();
    content.as_str().hash(&mut hasher);
    let version = format!("{:016x}", hasher.finish());
    let element = tag("section")
        .attr("id", section.id)
        .attr("data-fragment", section.id)
        .attr("data-version", &version)
        .attr("aria-labelledby", &heading)
        .child(content);
    Fragment { id: section.id, version, markup: element.into() }
}

#[cfg(test)]
mod tests;
