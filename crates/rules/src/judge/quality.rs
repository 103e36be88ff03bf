//! How good a match is.

use super::{Judge, Lineup};

impl Judge<'_> {
    /// Returns the quality of a match. Higher is better; without weights it is 0.
    pub(crate) fn quality(&self, lineup: &Lineup) -> f64 {
        let weights = &self.rules.quality;
        let mut quality = weights.wait * self.ages(lineup).oldest;
        if weights.balance > 0.0 {
            quality -= weights.balance * self.imbalance(lineup);
        }
        if weights.spread > 0.0
            && let Some(attribute) = weights.attribute
        {
            let values =
                self.all_members(lineup).map(|member| crate::ticket::number(&member.values[attribute]));
            let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            });
            quality -= weights.spread * (high - low).max(0.0);
        }
        if weights.latency > 0.0
            && let Some((_, latency)) = self.admitted_regions(lineup).first()
        {
            quality -= weights.latency * latency;
        }
        quality
    }

    /// Returns the difference between the highest and the lowest team average of the quality's attribute.
    pub(crate) fn imbalance(&self, lineup: &Lineup) -> f64 {
        let Some(attribute) = self.rules.quality.attribute else { return 0.0 };
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for tickets in lineup.iter().filter(|tickets| !tickets.is_empty()) {
            let players = self.size(tickets) as f64;
            let sum: f64 = tickets
                .iter()
                .map(|at| &self.pool[*at])
                .map(|ticket| ticket.averages[attribute] * ticket.players.len() as f64)
                .sum();
            low = low.min(sum / players);
            high = high.max(sum / players);
        }
        (high - low).max(0.0)
    }
}
