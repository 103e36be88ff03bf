//! Blocks: the pieces of a section.

use base::Timestamp;
use screens::{ActionLink, Block, Cell, Filter, FilterField, Link, Step, Table, Tone};

use super::cells::{anchor, cell, prose, tone_class, words};
use super::{Context, numbers};
use crate::chart;
use crate::markup::{Element, Markup, hidden_text, tag};

/// How many columns fit on a phone.
const NARROW: usize = 3;
/// Texts that are longer are sentences.
const LONG_TEXT: usize = 40;

/// Renders a block. `name` is unique on the page, and `title` is that of the section.
pub(super) fn block(block: &Block, context: &Context<'_>, name: &str, title: &str) -> Markup {
    match block {
        Block::Text(text) => tag("p").class("text").child(prose(text)).into(),
        Block::Notice { tone, text, link } => notice(*tone, text, link.as_ref()).into(),
        Block::Facts(facts) => {
            let fact = |(name, value): &(String, Cell)| {
                tag("div").child(tag("dt").text(name)).child(tag("dd").child(cell(value)))
            };
            tag("dl").class("facts card").children(facts.iter().map(fact)).into()
        }
        Block::Figures(figures) => tag("dl").class("figures").children(figures.iter().map(figure)).into(),
        Block::Table(table) => self::table(table, context, title),
        Block::Chart(chart) => tag("div").class("chart-wide").child(chart::chart(chart, name)).into(),
        Block::Charts(charts) => {
            let one = |(index, chart)| chart::chart(chart, &format!("{name}-{index}"));
            tag("div").class("charts").children(charts.iter().enumerate().map(one)).into()
        }
        Block::Timeline(steps) => timeline(steps).into(),
        Block::Filter(filter) => self::filter(filter, context, name).into(),
        Block::Code(text) => code(text, title).into(),
        Block::Empty { text, link } => empty(text, link.as_ref()).into(),
        Block::Links(links) => {
            let one = |link| tag("li").child(anchor(link));
            tag("ul").class("links").children(links.iter().map(one)).into()
        }
    }
}

/// Renders something that the reader must not miss.
pub(super) fn notice(tone: Tone, text: &str, link: Option<&Link>) -> Element {
    let kind = match tone {
        Tone::Neutral => "Note: ",
        Tone::Good => "Good: ",
        Tone::Warning => "Warning: ",
        Tone::Bad => "Problem: ",
    };
    let body = match text.split_once('\n') {
        None => tag("p").child(hidden_text(kind)).child(prose(text)).into(),
        // A line that announces others, and the others; or several of one kind.
        Some((head, rest)) if head.ends_with(':') => {
            let head = tag("p").child(hidden_text(kind)).child(prose(head));
            Markup::from(head).with(lines(rest))
        }
        Some(_) => Markup::from(hidden_text(kind)).with(lines(text)),
    };
    let link = link.map(|link| tag("p").child(anchor(link)));
    tag("div").class(&format!("notice {}", tone_class(tone))).child(body).child(link)
}

/// Renders lines as a list.
fn lines(text: &str) -> Element {
    tag("ul").children(text.lines().map(|line| tag("li").child(prose(line))))
}

/// Renders a text as it is. The region can be scrolled with the keyboard.
pub(super) fn code(text: &str, title: &str) -> Element {
    let region =
        tag("pre").class("code").attr("tabindex", "0").attr("role", "group").attr("aria-label", title);
    region.child(tag("code").text(text))
}

fn figure((name, value, href): &(String, Cell, Option<String>)) -> Element {
    let (name, value) = (words(name), tag("dd").child(cell(value)));
    let name = match href {
        Some(href) => tag("dt").child(tag("a").href(href).text(&name)),
        None => tag("dt").text(&name),
    };
    tag("div").class(if href.is_some() { "figure leads" } else { "figure" }).child(name).child(value)
}

fn empty(text: &str, link: Option<&Link>) -> Element {
    tag("div")
        .class("empty")
        .child(tag("p").child(prose(text)))
        .child(link.map(|link| tag("p").child(anchor(link))))
}

/// Renders a table with the buttons of its rows, its size and the link to its next page.
fn table(table: &Table, context: &Context<'_>, title: &str) -> Markup {
    if table.rows.is_empty() {
        let is_first =
            table.next.is_none() && table.page_key.and_then(|key| context.first_page(key)).is_none();
        let empty = empty(&table.empty, None);
        return if is_first { empty.into() } else { Markup::from(empty).with(pages(table, context)) };
    }
    let actions: Vec<Markup> = table.rows.iter().map(|row| buttons(&row.actions, context)).collect();
    let has_actions = actions.iter().any(|actions| !actions.is_empty());
    // On a phone, the rows of a wide table are stacked. Browsers forget that such a table is one, so every part has its role.
    let is_wide = table.columns.len() + usize::from(has_actions) > NARROW;
    let role = |element: Element, role| element.attr_if("role", is_wide.then_some(role));
    let head = table.columns.iter().map(|column| {
        let head = tag("th").attr("scope", "col").attr_if("class", column.is_number.then_some("number"));
        role(head, "columnheader").text(column.title)
    });
    let actions_head = has_actions.then(|| {
        role(tag("th").attr("scope", "col").class("actions"), "columnheader").child(hidden_text("Actions"))
    });
    let rows = table.rows.iter().zip(actions).map(|(row, actions)| {
        let cells = row.cells.iter().enumerate().map(|(index, value)| {
            let column = table.columns.get(index);
            let is_number = column.is_some_and(|column| column.is_number);
            let class = if is_number { Some("number") } else { is_long(value).then_some("prose") };
            let element = role(tag("td").attr_if("class", class), "cell");
            let element = element.attr_if("data-column", column.map(|column| column.title));
            element.child(tag("div").child(cell(value)))
        });
        let actions = has_actions.then(|| role(tag("td").class("actions"), "cell").child(actions));
        role(tag("tr"), "row").children(cells).child(actions)
    });
    let head = role(tag("tr"), "row").children(head).child(actions_head);
    let table_element = role(tag("table").attr_if("class", is_wide.then_some("wide")), "table")
        .child(tag("caption").class("hidden-text").text(title))
        .child(role(tag("thead"), "rowgroup").child(head))
        .child(role(tag("tbody"), "rowgroup").children(rows));
    let scroll =
        tag("div").class("scroll").attr("tabindex", "0").attr("role", "group").attr("aria-label", title);
    tag("div").class("card").child(scroll.child(table_element)).child(pages(table, context)).into()
}

/// Returns whether a value is a sentence, which needs a wide column.
fn is_long(value: &Cell) -> bool {
    matches!(value, Cell::Text(text) | Cell::Link(Link { text, .. }) if text.chars().count() > LONG_TEXT)
}

/// Renders how many rows there are, and the links to the first and to the next page.
fn pages(table: &Table, context: &Context<'_>) -> Markup {
    let total = table.total.map(|total| {
        let noun = if total.counted == 1 && !total.capped { "row" } else { "rows" };
        tag("span").text(&format!("{} {noun}", numbers::count(total)))
    });
    let first = table.page_key.and_then(|key| context.first_page(key));
    let next = table.next.as_deref().map(|next| context.next_page(next));
    if total.is_none() && first.is_none() && next.is_none() {
        return Markup::new();
    }
    let first = first.map(|href| tag("a").class("button quiet").href(&href).text("First page"));
    let next =
        next.map(|href| tag("a").class("button quiet").attr("rel", "next").href(&href).text("Next page"));
    let links = tag("span").class("page-links").child(first).child(next);
    tag("div").class("pages").child(total.unwrap_or_else(|| tag("span"))).child(links).into()
}

/// Renders the buttons of actions that the operator may take.
pub(super) fn buttons(actions: &[ActionLink], context: &Context<'_>) -> Markup {
    let button = |action| {
        let offer = (context.offers)(action)?;
        let class = if offer.is_dangerous { "button danger" } else { "button" };
        Some(tag("a").class(class).flag("data-dialog", true).href(&offer.href).text(&offer.label))
    };
    actions.iter().filter_map(button).collect()
}

/// Renders steps as an ordered list with the gap before each one.
fn timeline(steps: &[Step]) -> Element {
    let mut before: Option<Timestamp> = None;
    let step = |step: &Step| {
        let (date, clock) = numbers::date_and_clock(step.at);
        let is_new_day = before.is_none_or(|before| numbers::date_and_clock(before).0 != date);
        let gap = before.map(|before| gap(before, step.at));
        before = Some(step.at);
        let at = tag("time")
            .attr("datetime", step.at.to_rfc3339())
            .attr("title", numbers::absolute(step.at))
            .text(&clock);
        let day = is_new_day.then(|| tag("span").class("date").text(&date));
        let when = tag("span").class("when").child(at).child(gap);
        let link = step.link.as_ref().map(anchor);
        let what = tag("span")
            .class("what")
            .child(tag("span").child(prose(&step.what)))
            .child(link.map(|link| Markup::text(" ").with(link)));
        let store = tag("span").class(&format!("store {}", store_class(step.store))).text(step.store);
        let source = tag("span").class("source").child(store).child(tag("span").text(step.part));
        tag("li").class(tone_class(step.tone)).child(day).child(when).child(what).child(source)
    };
    tag("ol").class("timeline card").children(steps.iter().map(step).collect::<Vec<_>>())
}

fn store_class(store: &str) -> &'static str {
    match store {
        "sql" => "sql",
        "redis" => "redis",
        "bus" => "bus",
        _ => "other",
    }
}

/// Renders the time between a step and the one above it. Lists are oldest first or newest first.
fn gap(before: Timestamp, at: Timestamp) -> Element {
    let between = before.distance(at);
    let text = numbers::duration(between);
    let class = if between.as_secs() >= 1 { "gap long" } else { "gap" };
    if at < before {
        tag("span").class("gap").text(&format!("{text} earlier"))
    } else {
        tag("span").class(class).text(&format!("+{text}"))
    }
}

/// Renders a form whose fields become the query of the URL.
fn filter(filter: &Filter, context: &Context<'_>, name: &str) -> Element {
    let field = |field: &FilterField| {
        let id = format!("{name}-{}", field.name);
        let label = tag("label").attr("for", &id).text(field.label);
        let input = if field.choices.is_empty() {
            let input = tag("input").attr("type", "search").attr("id", &id).attr("name", field.name);
            let input =
                input.attr("value", &field.value).attr("autocomplete", "off").attr("spellcheck", "false");
            input.attr_if("placeholder", Some(field.hint).filter(|hint| !hint.is_empty()))
        } else {
            let option = |choice: &screens::Choice| {
                let is_chosen = choice.value == field.value;
                tag("option").attr("value", choice.value).flag("selected", is_chosen).text(choice.label)
            };
            let select = tag("select").attr("id", &id).attr("name", field.name);
            select.children(field.choices.iter().map(option))
        };
        tag("div").class("field").child(label).child(input)
    };
    let submit = if filter.submit.is_empty() { "Apply" } else { filter.submit };
    let is_set = filter.fields.iter().any(|field| {
        let default = field.choices.first().map_or("", |choice| choice.value);
        !field.value.is_empty() && field.value != default
    });
    let clear = is_set.then(|| tag("a").class("button quiet").href(context.path).text("Clear"));
    tag("form")
        .class("filter")
        .attr("method", "get")
        .attr("role", "search")
        .attr("action", context.path)
        .children(filter.fields.iter().map(field))
        .child(tag("div").class("submit").child(tag("button").class("button").text(submit)).child(clear))
}
