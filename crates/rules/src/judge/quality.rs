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

#[cfg(test)]
mod tests {
    use crate::judge::Lineup;
    use crate::matcher::Pool;
    use crate::{Player, RuleSet, Ticket, Value};

    fn rules(quality: &str) -> RuleSet {
        RuleSet::parse(&format!(
            "name = \"x\"\n[attributes.skill]\ntype = \"number\"\n[teams.side]\ncount = 3\nmin = 0\nmax = 3\n\
             [rules.near]\ntype = \"latency\"\nmax = 100\n[quality]\nattribute = \"skill\"\n{quality}"
        ))
        .unwrap()
    }

    /// A party of 10 and 20 that has waited 30 seconds, then single players of 24 and 40 who have waited 5.
    fn tickets() -> Vec<Ticket> {
        let player = |skill: f64, eu: f64, us: f64| Player {
            id: skill.to_string().into(),
            attributes: [("skill".into(), Value::Number(skill))].into(),
            latency: [("eu".into(), eu), ("us".into(), us)].into(),
        };
        let ticket = |id: &str, created: i64, players| Ticket { id: id.into(), created, players };
        vec![
            ticket("party", 0, vec![player(10.0, 20.0, 60.0), player(20.0, 40.0, 60.0)]),
            ticket("third", 25_000, vec![player(24.0, 90.0, 30.0)]),
            ticket("best", 25_001, vec![player(40.0, 101.0, 50.0)]),
        ]
    }

    fn quality(weights: &str, lineup: &Lineup) -> f64 {
        let (rules, tickets) = (rules(weights), tickets());
        let pool = Pool::new(&rules, &tickets, 0);
        pool.judge(&rules, 30_000).quality(lineup)
    }

    #[test]
    fn each_weight_counts_its_own_measure() {
        let lineup = vec![vec![0], vec![1], vec![]];
        for (weights, expected) in [
            ("", 0.0),
            // The averages are 15 and 24. The team without players does not count.
            ("balance = 2\n", -18.0),
            // From 10 to 24: each player counts, not the average of a party.
            ("spread = 3\n", -42.0),
            // 50 on average in both regions; 20, 40 and 90 in eu.
            ("latency = 0.5\n", -25.0),
            ("wait = 4\n", 120.0),
            ("balance = 2\nspread = 3\nlatency = 0.5\nwait = 4\n", 35.0),
        ] {
            assert_eq!(quality(weights, &lineup), expected, "{weights}");
        }
    }

    #[test]
    fn balance_goes_by_the_players_of_teams_and_not_by_their_tickets() {
        // 10, 20 and 24 against 40: the average is 18.
        assert_eq!(quality("balance = 1\n", &vec![vec![0, 1], vec![2], vec![]]), -22.0);
        // The highest and the lowest of three teams: 15, 24 and 40.
        assert_eq!(quality("balance = 1\n", &vec![vec![0], vec![1], vec![2]]), -25.0);
        assert_eq!(quality("balance = 1\n", &vec![vec![0, 1], vec![], vec![]]), 0.0);
    }

    #[test]
    fn latency_is_that_of_the_best_region_that_all_can_reach() {
        // Only us is near for the last one: 60, 60 and 50.
        let lineup = vec![vec![0], vec![2], vec![]];
        assert!((quality("latency = 1\n", &lineup) + 170.0 / 3.0).abs() < 1e-9);
        // In eu they have 30 on average, in us 60.
        assert_eq!(quality("latency = 1\n", &vec![vec![0], vec![], vec![]]), -30.0);
    }
}
