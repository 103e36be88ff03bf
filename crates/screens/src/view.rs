//! Views, sections and blocks.

use crate::{ActionLink, Cell, Chart, Link, Step, Table, Tone};

/// What a screen shows. The sections are updated independently while the screen is open.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// The title, if it is not that of the screen: the name of a player, the name of a drop.
    pub title: Option<String>,
    pub sections: Vec<Section>,
}

impl View {
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a view with its own title.
    pub fn titled(title: impl Into<String>) -> Self {
        Self { title: Some(title.into()), sections: Vec::new() }
    }

    /// Adds a section.
    pub fn section(mut self, section: Section) -> Self {
        self.sections.push(section);
        self
    }
}

/// A part of a view with a heading.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// The name in URLs of live updates, unique in its view.
    pub id: &'static str,
    pub title: String,
    pub blocks: Vec<Block>,
    pub actions: Vec<ActionLink>,
}

impl Section {
    pub fn new(id: &'static str, title: impl Into<String>) -> Self {
        Self { id, title: title.into(), blocks: Vec::new(), actions: Vec::new() }
    }

    pub fn block(mut self, block: impl Into<Block>) -> Self {
        self.blocks.push(block.into());
        self
    }

    pub fn text(self, text: impl Into<String>) -> Self {
        self.block(Block::Text(text.into()))
    }

    pub fn notice(self, tone: Tone, text: impl Into<String>) -> Self {
        self.block(Block::Notice { tone, text: text.into(), link: None })
    }

    /// Adds names with their values.
    pub fn facts<N: Into<String>>(self, facts: impl IntoIterator<Item = (N, Cell)>) -> Self {
        self.block(Block::Facts(facts.into_iter().map(|(name, value)| (name.into(), value)).collect()))
    }

    /// Adds a button that leads to the form of an action.
    pub fn action(mut self, action: ActionLink) -> Self {
        self.actions.push(action);
        self
    }
}

/// A piece of a section.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    Text(String),
    /// Something that the reader must not miss.
    Notice {
        tone: Tone,
        text: String,
        link: Option<Link>,
    },
    Facts(Vec<(String, Cell)>),
    /// Large figures in a row: the name, the value, and where it leads.
    Figures(Vec<(String, Cell, Option<String>)>),
    Table(Table),
    Chart(Chart),
    /// Several small charts side by side.
    Charts(Vec<Chart>),
    Timeline(Vec<Step>),
    Filter(Filter),
    /// Text that is shown as it is, such as a JSON document.
    Code(String),
    /// There is nothing to show: says what to do.
    Empty {
        text: String,
        link: Option<Link>,
    },
    Links(Vec<Link>),
}

impl From<Table> for Block {
    fn from(table: Table) -> Self {
        Self::Table(table)
    }
}

impl From<Chart> for Block {
    fn from(chart: Chart) -> Self {
        Self::Chart(chart)
    }
}

impl From<Filter> for Block {
    fn from(filter: Filter) -> Self {
        Self::Filter(filter)
    }
}

/// A form whose values become the query of the screen's URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub fields: Vec<FilterField>,
    /// The label of its button, such as "Search".
    pub submit: &'static str,
}

/// A field of a filter. A field without choices is a text field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterField {
    pub name: &'static str,
    pub label: &'static str,
    pub value: String,
    pub choices: Vec<Choice>,
    /// An example of a value.
    pub hint: &'static str,
}

/// A value that a field can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub value: &'static str,
    pub label: &'static str,
}

impl Filter {
    pub const fn new(submit: &'static str) -> Self {
        Self { fields: Vec::new(), submit }
    }

    /// Adds a text field.
    pub fn text(
        mut self,
        name: &'static str,
        label: &'static str,
        hint: &'static str,
        value: Option<&str>,
    ) -> Self {
        let value = value.unwrap_or_default().to_owned();
        self.fields.push(FilterField { name, label, value, choices: Vec::new(), hint });
        self
    }

    /// Adds a choice among `(value, label)` pairs. The first one is the default.
    pub fn choice(
        mut self,
        name: &'static str,
        label: &'static str,
        choices: &[(&'static str, &'static str)],
        value: Option<&str>,
    ) -> Self {
        let choices: Vec<Choice> = choices.iter().map(|(value, label)| Choice { value, label }).collect();
        let value = value.unwrap_or_default().to_owned();
        self.fields.push(FilterField { name, label, value, choices, hint: "" });
        self
    }
}
