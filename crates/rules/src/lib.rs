//! Match rules: rule sets, the matcher, and why a ticket waits. Pure functions: no I/O, time and randomness are parameters.

mod document;
mod expression;
mod fields;
mod flexmatch;
mod judge;
mod lint;
mod matcher;
mod mistake;
pub mod model;
mod parse;
mod roles;
mod scenario;
mod ticket;
mod why;

pub use expression::Expression;
pub use flexmatch::{Import, import as import_flexmatch};
pub use lint::Warning;
pub use matcher::{Evaluations, Join, Match, Options, Pass, Seated, TeamLineup};
pub use mistake::{Mistake, Mistakes, Position};
pub use model::{RuleSet, Value};
pub use scenario::{Case, CaseResult, Scenario};
pub use ticket::{Player, Refusal, Ticket};
pub use why::{FewerPlayers, Limit, Miss, Near, NextLimit, Reason, RuleWhy, Unsent, Why};
