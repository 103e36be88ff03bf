//! The match function.

use std::collections::HashSet;
use std::sync::Arc;

use futures::FutureExt;
use matchmaking::engine::{Answer, MatchFunction, Pools};
use matchmaking::model::{Moment, Proposal, Ticket};

/// Teams of players of similar skill. Who waits is less and less choosy.
#[derive(Clone, Copy, Debug)]
pub struct SkillTeams {
    pub teams: usize,
    pub players_per_team: usize,
    /// How far apart the skills of two players may be at first, and by how much more after each second.
    pub window: f64,
    pub window_per_second: f64,
}

impl SkillTeams {
    /// The number of the ticket by which it goes.
    pub const FIELD: &'static str = "skill";

    /// How far from this player's skill another's may be.
    fn window(&self, ticket: &Ticket, now: Moment) -> f64 {
        self.window + self.window_per_second * ticket.created.age(now).as_secs_f64()
    }

    /// The match around one player: those who are closest, if there are enough whom it suits, both ways.
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

    /// Team by team: dealt out from the best to the worst and back, so that the teams are even.
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

    fn make_matches<'a>(&'a self, pools: &'a Pools) -> Answer<'a, Vec<Proposal>> {
        let mut proposals = Vec::new();
        for (_, tickets) in &pools.pools {
            let mut free = tickets.clone();
            // The longest waiting choose first.
            for player in tickets {
                if !free.iter().any(|ticket| ticket.id == player.id) {
                    continue;
                }
                if let Some((players, farthest)) = self.around(player, &free, pools.now) {
                    let taken: HashSet<_> = players.iter().map(|ticket| ticket.id.clone()).collect();
                    free.retain(|ticket| !taken.contains(&ticket.id));
                    // The closer, the better.
                    proposals.push(Proposal { tickets: players, score: -farthest });
                }
            }
        }
        std::future::ready(Ok(proposals)).boxed()
    }
}
