//! The line: nobody is missing from it, and nobody is overtaken.

use std::collections::{HashMap, HashSet};

use crate::history::{DropTruth, History, LineEntry, Purchase};

/// Finds players who joined and are not in the line.
pub(super) fn missing(history: &History) -> impl Iterator<Item = String> + '_ {
    let known: HashSet<&str> =
        history.drop.iter().flat_map(|drop| &drop.line).map(|entry| entry.user_id.as_str()).collect();
    let players = history.drop.iter().flat_map(|_| &history.players);
    players.filter_map(move |player| {
        let has_joined = !matches!(player.purchase, None | Some(Purchase::TooLate));
        (has_joined && !known.contains(player.user_id.as_str()))
            .then(|| format!("{} ({}) joined the line and has no entry", player.name, player.user_id))
    })
}

/// Finds players who were admitted before somebody ahead of them.
pub(super) fn overtaken(history: &History) -> Vec<String> {
    let Some(DropTruth { line, .. }) = &history.drop else { return Vec::new() };
    let names: HashMap<&str, &str> =
        history.players.iter().map(|player| (player.user_id.as_str(), player.name.as_str())).collect();
    let name = |entry: &LineEntry| {
        let name = names.get(entry.user_id.as_str()).copied().unwrap_or("another player");
        format!("{name} ({}, place {})", entry.user_id, entry.place)
    };
    let mut line: Vec<&LineEntry> = line.iter().collect();
    line.sort_unstable_by_key(|entry| (entry.place, &entry.user_id));
    let mut found = out_of_turn(&line, &name);
    // From the back: the earliest admission behind each place.
    let mut first_behind: Option<&LineEntry> = None;
    for entry in line.iter().rev() {
        if let Some(behind) = first_behind {
            match &entry.entered_at {
                Some(at) if behind.entered_at.as_ref() < Some(at) => found.push(format!(
                    "{} was admitted at {at}, after {} behind it at {}",
                    name(entry),
                    name(behind),
                    behind.entered_at.as_deref().unwrap_or_default(),
                )),
                None if entry.state == "WAITING" => {
                    found.push(format!(
                        "{} still waits, and {} behind it was admitted",
                        name(entry),
                        name(behind)
                    ));
                }
                _ => {}
            }
        }
        let is_earlier = |other: &LineEntry| entry.entered_at < other.entered_at;
        if entry.entered_at.is_some() && first_behind.is_none_or(is_earlier) {
            first_behind = Some(entry);
        }
    }
    found.reverse();
    found
}

/// Finds players who joined later and stand further ahead. The drop of a simulation has one lane and no shuffle, so the places follow the
/// numbers of the joins.
fn out_of_turn(line: &[&LineEntry], name: &dyn Fn(&LineEntry) -> String) -> Vec<String> {
    let mut latest: Option<&LineEntry> = None;
    let mut found = Vec::new();
    for entry in line {
        match latest {
            Some(ahead) if ahead.number > entry.number => {
                let (join, other) = (ahead.number, entry.number);
                found.push(format!(
                    "{} is ahead of {} with join {join} against {other}",
                    name(ahead),
                    name(entry)
                ));
            }
            _ => latest = Some(entry),
        }
    }
    found
}
