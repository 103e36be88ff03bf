//! The line: nobody is missing from it, and nobody is overtaken.

use std::collections::{HashMap, HashSet};

use crate::history::{DropTruth, History, Join, LineEntry, PlayerHistory, Purchase};

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
    let players: HashMap<&str, &PlayerHistory> =
        history.players.iter().map(|player| (player.user_id.as_str(), player)).collect();
    let name = |entry: &LineEntry| {
        let name = players.get(entry.user_id.as_str()).map_or("another player", |player| &player.name);
        format!("{name} ({}, place {})", entry.user_id, entry.place)
    };
    let joined = |entry: &LineEntry| players.get(entry.user_id.as_str())?.joined;
    let mut line: Vec<&LineEntry> = line.iter().collect();
    line.sort_unstable_by_key(|entry| (entry.place, &entry.user_id));
    let mut found = out_of_turn(&line, &name);
    found.extend(out_of_sight(&line, &name, &joined));
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

/// Finds players whose place is not what they saw. Who was answered before another one sent the join is ahead of that one; and who was ahead
/// at the join still is. The instance says neither: it could be wrong about the order of the joins, too.
fn out_of_sight(
    line: &[&LineEntry],
    name: &dyn Fn(&LineEntry) -> String,
    joined: &dyn Fn(&LineEntry) -> Option<Join>,
) -> Vec<String> {
    let mut found = Vec::new();
    // From the back: the earliest response behind each place.
    let mut first_behind: Option<(&LineEntry, Join)> = None;
    for (rank, entry) in line.iter().enumerate().rev() {
        let Some(join) = joined(entry) else { continue };
        if let Some((behind, told)) = first_behind.filter(|(_, told)| told.answered < join.sent) {
            found.push(format!(
                "{} joined after {:.3} s and is ahead of {}, who had been answered after {:.3} s",
                name(entry),
                join.sent.as_secs_f64(),
                name(behind),
                told.answered.as_secs_f64(),
            ));
        }
        if let Some(ahead) = join.ahead.filter(|ahead| *ahead > rank as u64) {
            let was = if ahead == 1 { "1 player was".to_owned() } else { format!("{ahead} players were") };
            found.push(format!("{} was told that {was} ahead, and {rank} are", name(entry)));
        }
        if first_behind.is_none_or(|(_, told)| join.answered < told.answered) {
            first_behind = Some((entry, join));
        }
    }
    found
}
