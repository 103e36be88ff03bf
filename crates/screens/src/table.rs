//! Tables.

use crate::{ActionLink, Cell, Count};

/// A table. It shows one page; the next one begins after the last key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
    /// How many rows match, if that is known.
    pub total: Option<Count>,
    /// The query of the next page, such as `after=17`. The filter in the URL stays.
    pub next: Option<String>,
    /// The query parameter that says where a page begins. None for a table that has only one page.
    pub page_key: Option<&'static str>,
    /// What to say, and do, if there are no rows.
    pub empty: String,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub title: &'static str,
    pub is_number: bool,
}

/// A row of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    pub cells: Vec<Cell>,
    pub actions: Vec<ActionLink>,
}

impl Table {
    /// Creates a table. A title that begins with `#` is that of a column of numbers.
    pub fn new(titles: &[&'static str], empty: impl Into<String>) -> Self {
        let column = |title: &&'static str| match title.strip_prefix('#') {
            Some(title) => Column { title: title.trim_start(), is_number: true },
            None => Column { title, is_number: false },
        };
        Self { columns: titles.iter().map(column).collect(), empty: empty.into(), ..Self::default() }
    }

    pub fn row(mut self, cells: impl IntoIterator<Item = Cell>) -> Self {
        self.push(cells, []);
        self
    }

    pub fn push(
        &mut self,
        cells: impl IntoIterator<Item = Cell>,
        actions: impl IntoIterator<Item = ActionLink>,
    ) {
        self.rows.push(Row { cells: cells.into_iter().collect(), actions: actions.into_iter().collect() });
    }
}
