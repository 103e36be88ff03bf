//! The match function.

use std::collections::HashSet;
use std::sync::Arc;

use futures::FutureExt;
use matchmaking::engine::{MatchFunction, PluginFuture, Pools};
use matchmaking::model::{Moment, Proposal, Ticket};

/// Makes teams of players with similar skill. The accepted difference grows with the waiting time.
#[derive(Clone, Copy, Debug)]
pub struct SkillTeams {
    pub teams: usize,
    pub players_per_team: usize,
    /// The accepted difference of skill at first, and its growth per second.
    pub window: f64,
    pub window_per_second: f64,
}

impl SkillTeams {
    /// The ticket field with the skill.
    pub const FIELD: &'static str = "skill";

    /// Returns the difference of skill that this player accepts.
    fn window(&self, ticket: &Ticket, now: Moment) -> f64 {
        self.window + self.window_per_second * ticket.created.age(now).as_secs_f64()
    }

    /// Returns a match of the player with the closest others, if enough of them accept each other. Also returns the largest difference.
    fn around(
        &self,
        player: &Arc<Ticket>,
        others: &[Arc<Ticket>],
        now: Moment,
    ) -> Option<(Vec<Arc<Ticket>>, f64)> {
        let (own, window) = (skill(player)?, self.window(player, now));
        let mut near: Vec<(f64, &Arc<Ticket>)> = others
            .iter()
            .filter(|other| other.id != player.id)
            .filter_map(|other| Some(((skill(other)? - own).abs(), other)))
            .filter(|(distance, other)| *distance <= window.min(self.window(other, now)))
            .collect();
        near.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let wanted = self.teams * self.players_per_team - 1;
        let farthest = near.get(..wanted)?.last().map_or(0.0, |(distance, _)| *distance);
        let mut players = vec![player.clone()];
        players.extend(near.into_iter().take(wanted).map(|(_, other)| other.clone()));
        Some((self.line_up(players), farthest))
    }

    /// Orders the players team by team. They are dealt in snake order by skill, so that the teams are balanced.
    fn line_up(&self, mut players: Vec<Arc<Ticket>>) -> Vec<Arc<Ticket>> {
        players.sort_by(|a, b| skill(b).unwrap_or_default().total_cmp(&skill(a).unwrap_or_default()));
        let mut teams = vec![Vec::new(); self.teams];
        for (at, player) in players.into_iter().enumerate() {
            let (round, turn) = (at / self.teams, at % self.teams);
            teams[if round % 2 == 0 { turn } else { self.teams - 1 - turn }].push(player);
        }
        teams.concat()
    }
}

fn skill(ticket: &Ticket) -> Option<f64> {
    ticket.fields.doubles.get(SkillTeams::FIELD).copied().filter(|skill| skill.is_finite())
}

impl MatchFunction for SkillTeams {
    fn name(&self) -> &'static str {
        "skill-teams"
    }

    fn make_matches<'a>(&'a self, pools: &'a Pools) -> PluginFuture<'a, Vec<Proposal>> {
        let mut proposals = Vec::new();
        for (_, tickets) in &pools.pools {
            let mut free = tickets.clone();
            // The longest waiting players are matched first.
            for player in tickets {
                if !free.iter().any(|ticket| ticket.id == player.id) {
                    continue;
                }
                if let Some((players, farthest)) = self.around(player, &free, pools.now) {
                    let taken: HashSet<_> = players.iter().map(|ticket| ticket.id.clone()).collect();
                    free.retain(|ticket| !taken.contains(&ticket.id));
                    // Closer matches have a higher score.
                    proposals.push(Proposal { tickets: players, score: -farthest, lineup: None });
                }
            }
        }
        std::future::ready(Ok(proposals)).boxed()
    }
}
