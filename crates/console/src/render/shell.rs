//! The frame of every page: head, menu, title and notices.

use screens::{Link, Tone};

use super::blocks::notice;
use super::cells::anchor;
use crate::markup::{Element, Markup, tag};

/// The frame of a page.
#[derive(Clone, Debug)]
pub(crate) struct Shell<'a> {
    pub(crate) title: &'a str,
    /// The question that the screen answers. May be empty.
    pub(crate) question: &'a str,
    pub(crate) menu: &'a [MenuGroup],
    /// The path of the page.
    pub(crate) here: &'a str,
    /// The screens that lead to this one, outermost first.
    pub(crate) crumbs: &'a [Link],
    /// The name of the operator who is signed in.
    pub(crate) operator: &'a str,
    /// Whether the operator or the console may only read.
    pub(crate) read_only: bool,
    /// What the operator's last action did.
    pub(crate) flash: Option<(Tone, &'a str)>,
    /// Whether sections of the page are updated while it is open.
    pub(crate) live: bool,
    /// The search field above the menu.
    pub(crate) search: Option<Search<'a>>,
    /// Where the form of the sign-out button posts to.
    pub(crate) sign_out: &'a str,
}

/// A group of the menu.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MenuGroup {
    pub(crate) title: &'static str,
    pub(crate) items: Vec<MenuItem>,
}

/// A screen in the menu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MenuItem {
    pub(crate) title: &'static str,
    pub(crate) href: &'static str,
}

/// A search field that opens a screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Search<'a> {
    /// The screen that shows what was found.
    pub(crate) action: &'a str,
    /// The name of the parameter.
    pub(crate) name: &'a str,
    /// What can be found: "Find a player, order or event".
    pub(crate) label: &'a str,
}

/// Renders a whole page.
pub(crate) fn page(shell: &Shell<'_>, body: Markup) -> String {
    let flash = shell.flash.map(|(tone, text)| {
        let role = if tone == Tone::Bad { "alert" } else { "status" };
        notice(tone, text, None).attr("role", role)
    });
    let main = tag("main")
        .attr("id", "console-main")
        .attr("tabindex", "-1")
        .child(page_head(shell))
        .child(flash)
        .child(body);
    let skip = tag("a").class("skip").href("#console-main").text("Skip to the content");
    let body = tag("body").class("framed").flag("data-live", shell.live);
    document(shell.title, body.child(skip).child(side(shell)).child(main))
}

/// Renders a document with a body.
pub(super) fn document(title: &str, body: Element) -> String {
    let meta = |name: &str, content: &str| tag("meta").attr("name", name).attr("content", content);
    let asset = |name: &str| format!("/console/assets/{name}");
    let head = tag("head")
        .child(tag("meta").attr("charset", "utf-8"))
        .child(meta("viewport", "width=device-width, initial-scale=1"))
        .child(meta("color-scheme", "light dark"))
        .child(meta("referrer", "same-origin"))
        .child(tag("title").text(&format!("{title} \u{b7} Playhouse")))
        .child(tag("link").attr("rel", "icon").attr("type", "image/svg+xml").href(&asset("icon.svg")))
        .child(tag("link").attr("rel", "stylesheet").href(&asset("console.css")))
        .child(tag("script").attr("type", "module").attr("src", asset("console.js")));
    let html = Markup::from(tag("html").attr("lang", "en").child(head).child(body));
    format!("<!doctype html>\n{}\n", html.as_str())
}

/// Renders a view as a document that needs no server: its styles are in it, and it has no scripts.
pub(crate) fn standalone(title: &str, question: &str, body: Markup) -> String {
    let meta = |name: &str, content: &str| tag("meta").attr("name", name).attr("content", content);
    let head = tag("head")
        .child(tag("meta").attr("charset", "utf-8"))
        .child(meta("viewport", "width=device-width, initial-scale=1"))
        .child(meta("color-scheme", "light dark"))
        .child(tag("title").text(&format!("{title} \u{b7} Playhouse")))
        .child(Markup::own_styles(include_str!("../assets/console.css")));
    let titles = tag("div").child(brand()).child(tag("h1").text(title));
    let titles = titles.child(tag("p").class("question").text(question));
    let main = tag("main").child(tag("header").class("page-head").child(titles)).child(body);
    let html = tag("html").attr("lang", "en").child(head).child(tag("body").child(main));
    format!("<!doctype html>\n{}\n", Markup::from(html).as_str())
}

/// Renders the name of the product, with its mark.
pub(super) fn brand() -> Element {
    let shape = |d: &str| tag("path").attr("d", d);
    let mark = tag("svg")
        .class("mark")
        .attr("viewBox", "0 0 20 20")
        .attr("aria-hidden", "true")
        .attr("focusable", "false")
        .child(shape("M3 3h14v2.5H3z"))
        .child(shape("M3 7h2.6c0 4-.6 7.3-2.6 10z"))
        .child(shape("M17 7h-2.6c0 4 .6 7.3 2.6 10z"))
        .child(shape("M8 10.2a2 2 0 1 1 4 0 2 2 0 0 1-4 0zM6.6 17c.2-2.3 1.6-3.6 3.4-3.6s3.2 1.3 3.4 3.6z"));
    tag("span").class("brand").child(mark).child(tag("span").text("Playhouse"))
}

/// Renders the title of the page with its question, and the state of live updates, which only scripts show.
fn page_head(shell: &Shell<'_>) -> Element {
    let crumbs = (!shell.crumbs.is_empty()).then(|| {
        let items = shell.crumbs.iter().map(|link| tag("li").child(anchor(link)));
        tag("nav").class("crumbs").attr("aria-label", "Breadcrumbs").child(tag("ol").children(items))
    });
    let question = (!shell.question.is_empty()).then(|| tag("p").class("question").text(shell.question));
    let live = shell.live.then(|| {
        let state = tag("span").class("live-state").attr("role", "status").text("Live");
        let pause = tag("button").class("button quiet").attr("type", "button").text("Pause");
        tag("div").class("live").flag("data-live-state", true).flag("hidden", true).child(state).child(pause)
    });
    let titles = tag("div").child(crumbs).child(tag("h1").text(shell.title)).child(question);
    tag("header").class("page-head").child(titles).child(live)
}

/// Renders the menu with the search field and the operator.
fn side(shell: &Shell<'_>) -> Element {
    let home = tag("a").class("home").href("/console").attr("aria-label", "Playhouse console").child(brand());
    let groups = shell.menu.iter().enumerate().map(|(index, group)| menu_group(shell, index, group));
    let nav = tag("nav").attr("aria-label", "Screens").children(groups);
    let read_only = shell.read_only.then(|| {
        tag("span")
            .class("badge")
            .attr("title", "You can look at everything and change nothing.")
            .text("Read-only")
    });
    let sign_out = tag("form")
        .attr("method", "post")
        .attr("action", shell.sign_out)
        .child(tag("button").class("button quiet").text("Sign out"));
    let name = tag("span").class("operator-name").attr("title", shell.operator).text(shell.operator);
    let operator =
        tag("div").class("operator").child(tag("span").child(name).child(read_only)).child(sign_out);
    let folded =
        tag("details").class("menu").flag("data-menu", true).child(tag("summary").text("Menu")).child(
            tag("div").class("menu-content").child(shell.search.map(search)).child(nav).child(operator),
        );
    tag("header").class("side").child(home).child(folded)
}

fn menu_group(shell: &Shell<'_>, index: usize, group: &MenuGroup) -> Element {
    let is_here = |item: &MenuItem| {
        let below = shell.here.strip_prefix(item.href).is_some_and(|rest| rest.starts_with('/'));
        shell.here == item.href || below && item.href != "/console"
    };
    let item = |item: &MenuItem| {
        let current = is_here(item).then_some(if shell.here == item.href { "page" } else { "true" });
        tag("li").child(tag("a").href(item.href).attr_if("aria-current", current).text(item.title))
    };
    let id = format!("menu-{index}");
    // A group whose only screen has the same name needs no heading.
    let is_alone = group.items.len() == 1 && group.items.iter().all(|item| item.title == group.title);
    let title = (!is_alone).then(|| tag("p").class("menu-title").attr("id", &id).text(group.title));
    let items = tag("ul").attr_if("aria-labelledby", (!is_alone).then_some(id.as_str()));
    tag("div").class("menu-group").child(title).child(items.children(group.items.iter().map(item)))
}

fn search(search: Search<'_>) -> Element {
    let input = tag("input")
        .attr("type", "search")
        .attr("name", search.name)
        .attr("aria-label", search.label)
        .attr("placeholder", search.label)
        .attr("autocomplete", "off")
        .attr("spellcheck", "false")
        .flag("data-search", true);
    let submit = tag("button").class("hidden-text").text("Find");
    let form = tag("form").class("search").attr("role", "search").attr("aria-label", "Everything");
    form.attr("method", "get").attr("action", search.action).child(input).child(submit)
}
