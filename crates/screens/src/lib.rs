//! The vocabulary of the console: what a screen shows, without HTML.
//!
//! A service describes its screens with these types, and `console` renders them. So all screens look and behave alike, no service
//! escapes texts or knows about live updates, and a screen can be tested without a browser.
//!
//! # Invariants
//! - **A view is a value.** Two views of the same state are equal: times are absolute, and nothing depends on the moment of rendering.
//!   Live updates compare views.
//! - **Texts are plain.** The renderer escapes all of them.

mod action;
mod cell;
mod chart;
mod step;
mod table;
mod view;

pub use action::{ActionLink, FieldKind, FormField, Operation, Place};
pub use cell::{Cell, Count, Link, Tone};
pub use chart::{Chart, ChartKind, Combine, Figure, Measure, Series, Unit};
pub use step::{Stage, Step, Subject};
pub use table::{Column, Row, Table};
pub use view::{Block, Choice, Filter, FilterField, Section, View};
