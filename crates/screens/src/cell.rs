//! Values in tables and facts.

use std::time::Duration;

use base::Timestamp;

/// How good or bad a state is. It is always shown as a colour and as a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tone {
    #[default]
    Neutral,
    Good,
    Warning,
    Bad,
}

/// A link to another screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub text: String,
    pub href: String,
}

impl Link {
    pub fn new(text: impl Into<String>, href: impl Into<String>) -> Self {
        Self { text: text.into(), href: href.into() }
    }
}

/// A number of rows that is counted only up to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub counted: u64,
    /// Whether there are more.
    pub capped: bool,
}

impl Count {
    /// Creates a count from a query that counts at most `cap + 1` rows.
    pub const fn up_to(counted: u64, cap: u64) -> Self {
        if counted > cap { Self { counted: cap, capped: true } } else { Self { counted, capped: false } }
    }
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// There is no value.
    None,
    Text(String),
    /// An id or another text of a machine.
    Code(String),
    Link(Link),
    /// An id that leads to its screen.
    Id(Link),
    Time(Timestamp),
    Duration(Duration),
    Number(i64),
    Decimal(f64),
    Count(Count),
    State(Tone, String),
    Many(Vec<Self>),
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub fn code(text: impl Into<String>) -> Self {
        Self::Code(text.into())
    }

    pub fn link(text: impl Into<String>, href: impl Into<String>) -> Self {
        Self::Link(Link::new(text, href))
    }

    pub fn id(id: impl Into<String>, href: impl Into<String>) -> Self {
        Self::Id(Link::new(id, href))
    }

    pub fn number(number: impl TryInto<i64>) -> Self {
        Self::Number(number.try_into().unwrap_or(i64::MAX))
    }

    pub fn state(tone: Tone, text: impl Into<String>) -> Self {
        Self::State(tone, text.into())
    }

    /// Shows a value if there is one.
    pub fn optional<T>(value: Option<T>, show: impl FnOnce(T) -> Self) -> Self {
        value.map_or(Self::None, show)
    }
}
