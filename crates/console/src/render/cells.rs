//! Cells: values in tables, facts and figures.

use base::Timestamp;
use screens::{Cell, Link, Tone};

use super::numbers;
use crate::markup::{Element, Markup, hidden_text, tag};

/// Texts of machines that are longer are shortened in tables.
const LONG: usize = 24;
/// How many characters at the end of a shortened text are always shown. The last ones distinguish ids that were made in the same second.
const TAIL: usize = 8;

/// Renders a value.
pub(crate) fn cell(cell: &Cell) -> Markup {
    match cell {
        Cell::None => none().into(),
        Cell::Many(cells) if cells.is_empty() => none().into(),
        Cell::Text(text) if text.is_empty() => none().into(),
        Cell::Text(text) => prose(text),
        Cell::Code(text) => code(text).into(),
        Cell::Link(link) => anchor(link).into(),
        Cell::Id(Link { text, href }) => tag("a").class("id").href(href).child(code(text)).into(),
        Cell::Time(at) => time(*at).into(),
        Cell::Duration(duration) => Markup::text(&numbers::duration(*duration)),
        Cell::Number(number) => Markup::text(&numbers::whole(*number)),
        Cell::Decimal(number) => Markup::text(&numbers::decimal(*number)),
        Cell::Count(count) => Markup::text(&numbers::count(*count)),
        Cell::State(tone, text) => state(*tone, text).into(),
        Cell::Many(cells) => {
            let item = |one: &Cell| tag("span").class("item").child(self::cell(one));
            tag("span").class("many").children(cells.iter().map(item)).into()
        }
    }
}

fn none() -> Element {
    let dash = tag("span").attr("aria-hidden", "true").text("\u{2013}");
    tag("span").class("none").child(dash).child(hidden_text("none"))
}

/// Renders a text. A part in backticks, such as the name of a command, becomes code.
pub(crate) fn prose(text: &str) -> Markup {
    if text.matches('`').count() % 2 == 1 {
        return Markup::text(text);
    }
    let part = |(index, part): (usize, &str)| match index % 2 {
        0 => Markup::text(part),
        _ => tag("code").text(part).into(),
    };
    text.split('`').enumerate().map(part).collect()
}

/// Renders a text of a machine. Tables hide the middle of a long one by style, so it can still be found and copied as a whole.
fn code(text: &str) -> Element {
    let count = text.chars().count();
    let cut = text.char_indices().nth(count.saturating_sub(TAIL)).map_or(0, |(index, _)| index);
    if count <= LONG || text.contains(' ') {
        return tag("code").text(text);
    }
    let (head, tail) = text.split_at(cut);
    tag("code").class("long").attr("title", text).child(tag("span").class("head").text(head)).text(tail)
}

/// Writes the word of a state for people: `REFUND_DUE` as "Refund due".
pub(crate) fn words(word: &str) -> String {
    let is_constant = word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let text = if is_constant { word.to_ascii_lowercase().replace('_', " ") } else { word.to_owned() };
    let mut rest = text.chars();
    match rest.next() {
        Some(first) => first.to_ascii_uppercase().to_string() + rest.as_str(),
        None => text,
    }
}

/// Renders a link to another screen.
pub(crate) fn anchor(link: &Link) -> Element {
    tag("a").href(&link.href).text(&link.text)
}

/// Renders a time as an absolute text. The page's script shows how long ago it was.
pub(crate) fn time(at: Timestamp) -> Element {
    let text = numbers::absolute(at);
    tag("time").attr("datetime", at.to_rfc3339()).attr("title", &text).flag("data-relative", true).text(&text)
}

/// Renders a state as a dot and a text.
pub(crate) fn state(tone: Tone, text: &str) -> Element {
    tag("span").class(&format!("state {}", tone_class(tone))).text(&words(text))
}

pub(crate) const fn tone_class(tone: Tone) -> &'static str {
    match tone {
        Tone::Neutral => "neutral",
        Tone::Good => "good",
        Tone::Warning => "warning",
        Tone::Bad => "bad",
    }
}
