//! Writes HTML and SVG. Texts and values of attributes can only get in escaped.
//!
//! Names of elements and attributes are part of the program. There is no function for raw HTML, and none for inline styles or scripts,
//! which the content security policy would refuse.

use std::fmt::Write as _;

use base::html::escape;

/// Elements without content and end tag.
const VOID: &[&str] = &["br", "hr", "input", "link", "meta"];

/// A piece of HTML.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Markup(String);

impl Markup {
    pub(crate) const fn new() -> Self {
        Self(String::new())
    }

    /// Creates a piece that is a text.
    pub(crate) fn text(text: &str) -> Self {
        Self(escape(text))
    }

    /// Creates a style element from a style sheet of the program, for documents that are not served.
    pub(crate) fn own_styles(css: &'static str) -> Self {
        debug_assert!(!css.contains("</"), "a style sheet cannot end its element");
        Self(format!("<style>{css}</style>"))
    }

    /// Appends another piece.
    pub(crate) fn push(&mut self, other: impl Into<Self>) {
        self.0.push_str(&other.into().0);
    }

    /// Returns this piece with another one after it.
    pub(crate) fn with(mut self, other: impl Into<Self>) -> Self {
        self.push(other);
        self
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

impl<T: Into<Self>> FromIterator<T> for Markup {
    fn from_iter<I: IntoIterator<Item = T>>(pieces: I) -> Self {
        pieces.into_iter().fold(Self::new(), Self::with)
    }
}

impl<T: Into<Self>> From<Option<T>> for Markup {
    fn from(piece: Option<T>) -> Self {
        piece.map_or_else(Self::new, Into::into)
    }
}

/// An element that is being written.
#[derive(Clone, Debug)]
pub(crate) struct Element {
    name: &'static str,
    attributes: String,
    content: Markup,
}

/// Begins an element.
pub(crate) const fn tag(name: &'static str) -> Element {
    Element { name, attributes: String::new(), content: Markup::new() }
}

impl Element {
    /// Sets an attribute.
    pub(crate) fn attr(mut self, name: &'static str, value: impl AsRef<str>) -> Self {
        debug_assert!(name != "style" && !name.starts_with("on"), "the CSP refuses {name}=");
        // Writing to a string does not fail.
        let _ = write!(self.attributes, " {name}=\"{}\"", escape(value.as_ref()));
        self
    }

    /// Sets an attribute if there is a value for it.
    pub(crate) fn attr_if(self, name: &'static str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.attr(name, value),
            None => self,
        }
    }

    /// Sets an attribute without a value, such as `hidden`, if `is_set`.
    pub(crate) fn flag(self, name: &'static str, is_set: bool) -> Self {
        self.attr_if(name, is_set.then_some(""))
    }

    pub(crate) fn class(self, class: &str) -> Self {
        self.attr("class", class)
    }

    /// Sets the target of a link. Leaves it out unless it is a path, a query, a fragment or an HTTP URL, so that no link runs a script.
    pub(crate) fn href(self, href: &str) -> Self {
        let is_safe = ["/", "?", "#", "https://", "http://"].iter().any(|start| href.starts_with(start));
        self.attr_if("href", is_safe.then_some(href))
    }

    /// Appends a text.
    pub(crate) fn text(mut self, text: &str) -> Self {
        self.content.push(Markup::text(text));
        self
    }

    /// Appends an element or a piece.
    pub(crate) fn child(mut self, child: impl Into<Markup>) -> Self {
        self.content.push(child);
        self
    }

    /// Appends several elements or pieces.
    pub(crate) fn children<T: Into<Markup>>(self, children: impl IntoIterator<Item = T>) -> Self {
        self.child(children.into_iter().collect::<Markup>())
    }
}

impl From<Element> for Markup {
    fn from(Element { name, attributes, content }: Element) -> Self {
        if VOID.contains(&name) {
            return Self(format!("<{name}{attributes}>"));
        }
        Self(format!("<{name}{attributes}>{}</{name}>", content.0))
    }
}

/// Writes a text that only screen readers present.
pub(crate) fn hidden_text(text: &str) -> Element {
    tag("span").class("hidden-text").text(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_values_are_escaped() {
        let link = tag("a").attr("title", "\"><script>").href("/a?b&c").text("<b>").child(tag("br"));
        let html = Markup::from(link).into_string();
        assert_eq!(html, "<a title=\"&quot;&gt;&lt;script&gt;\" href=\"/a?b&amp;c\">&lt;b&gt;<br></a>");
    }

    #[test]
    fn link_cannot_run_a_script() {
        let html = Markup::from(tag("a").href("javascript:alert(1)").text("x")).into_string();
        assert_eq!(html, "<a>x</a>");
    }
}
