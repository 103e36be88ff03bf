//! Which player of a team takes which role.

use crate::model::{Role, Value};
use crate::ticket::Member;

/// Assigns a role to each player, such that no role has too many. Players take the first role of their list that works out.
/// Returns none if that is impossible, or if more than `open` further players are needed for the least of each role.
pub(crate) fn assign(
    roles: &[Role],
    attribute: Option<usize>,
    players: &[&Member],
    open: usize,
) -> Option<Vec<usize>> {
    if roles.is_empty() {
        return Some(Vec::new());
    }
    let wishes: Vec<Vec<usize>> = players.iter().map(|player| wishes(roles, attribute, player)).collect();
    let mut seats = Seats {
        wishes: &wishes,
        holders: vec![Vec::new(); roles.len()],
        limits: roles.iter().map(|role| role.min).collect(),
    };
    let mut seated: Vec<bool> =
        (0..players.len()).map(|player| seats.seat(player, &mut vec![false; roles.len()])).collect();
    // The least of each role are as full as they can be. Further players never empty them.
    let missing: usize =
        roles.iter().zip(&seats.holders).map(|(role, holders)| role.min - holders.len()).sum();
    if missing > open {
        return None;
    }
    seats.limits = roles.iter().map(|role| role.max).collect();
    for (player, seated) in seated.iter_mut().enumerate().filter(|(_, seated)| !**seated) {
        *seated = seats.seat(player, &mut vec![false; roles.len()]);
    }
    let mut assigned = vec![0; players.len()];
    for (role, holders) in seats.holders.iter().enumerate() {
        holders.iter().for_each(|player| assigned[*player] = role);
    }
    seated.iter().all(|seated| *seated).then_some(assigned)
}

/// Returns the roles that a player would play. Someone who names none would play any.
fn wishes(roles: &[Role], attribute: Option<usize>, player: &Member) -> Vec<usize> {
    let find = |name: &str| roles.iter().position(|role| &*role.name == name);
    match attribute.map(|at| &player.values[at]) {
        Some(Value::Text(name)) => find(name).into_iter().collect(),
        Some(Value::TextList(names)) if !names.is_empty() => {
            names.iter().filter_map(|name| find(name)).collect()
        }
        _ => (0..roles.len()).collect(),
    }
}

struct Seats<'a> {
    wishes: &'a [Vec<usize>],
    holders: Vec<Vec<usize>>,
    limits: Vec<usize>,
}

impl Seats<'_> {
    /// Gives a player a role, moving others to roles that they would play too.
    fn seat(&mut self, player: usize, tried: &mut Vec<bool>) -> bool {
        for at in 0..self.wishes[player].len() {
            let role = self.wishes[player][at];
            if std::mem::replace(&mut tried[role], true) {
                continue;
            }
            if self.holders[role].len() < self.limits[role] {
                self.holders[role].push(player);
                return true;
            }
            for seat in 0..self.holders[role].len() {
                let holder = self.holders[role][seat];
                if self.seat(holder, tried) {
                    self.holders[role][seat] = player;
                    return true;
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn member(roles: &[&str]) -> Member {
        let roles = roles.iter().map(|role| Arc::from(*role)).collect();
        Member { id: "".into(), values: vec![Value::TextList(roles)], latency: Vec::new() }
    }

    fn role(name: &str, min: usize, max: usize) -> Role {
        Role { name: name.into(), min, max }
    }

    fn assigned(roles: &[Role], players: &[&[&str]], open: usize) -> Option<Vec<usize>> {
        let members: Vec<Member> = players.iter().map(|player| member(player)).collect();
        assign(roles, Some(0), &members.iter().collect::<Vec<_>>(), open)
    }

    #[test]
    fn players_move_to_other_roles_of_theirs_so_that_all_have_one() {
        let roles = [role("tank", 1, 1), role("healer", 1, 1), role("damage", 0, 2)];
        assert_eq!(assigned(&roles, &[&["tank", "damage"], &["tank"], &[]], 1), Some(vec![2, 0, 1]));
        assert_eq!(assigned(&roles, &[&["tank"], &["tank"]], 2), None);
        assert_eq!(assigned(&roles, &[&["bard"]], 2), None);
    }

    #[test]
    fn open_places_must_suffice_for_missing_roles() {
        let roles = [role("tank", 1, 1), role("healer", 1, 1), role("damage", 0, 2)];
        assert!(assigned(&roles, &[&["damage"], &["damage"]], 2).is_some());
        assert!(assigned(&roles, &[&["damage"], &["damage"]], 1).is_none());
    }
}
