//! The screens of the fleet: the overview, and nodes and stores.

mod nodes;
mod overview;

use base::error::{Coded, chain};
use base::finding::Verdict;
use http_server::Problem;
use screens::{Cell, Tone};
use service::{Menu, Screen};

pub(crate) use nodes::Nodes;

/// The path of the screen of nodes and stores.
pub(crate) const NODES: &str = "/console/nodes";

/// Returns the screens.
pub(crate) fn screens() -> Vec<Screen> {
    vec![
        Screen::listed(
            Menu::Overview,
            overview::PATH,
            "Overview",
            "Is anything wrong, since when?",
            overview::read,
        ),
        Screen::listed(
            Menu::System,
            NODES,
            "Nodes and stores",
            "Which process, version, role and lease is where?",
            nodes::read,
        ),
    ]
}

/// Shows how good a finding is.
fn verdict_cell(verdict: Verdict) -> Cell {
    match verdict {
        Verdict::Good => Cell::state(Tone::Good, "Good"),
        Verdict::Warning => Cell::state(Tone::Warning, "Warning"),
        Verdict::Failure => Cell::state(Tone::Bad, "Failure"),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn to_problem(error: db::Error) -> Problem {
    tracing::error!(cause = chain(&error), "cannot read the status");
    Problem::new(error.code()).detail("The database does not answer: run `playhouse doctor`.")
}
