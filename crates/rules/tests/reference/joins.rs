//! Tickets that join matches under way, beside an exhaustive search.

use std::collections::BTreeSet;

use proptest::prelude::*;
use rules::{Join, Match, Options, Seated, Ticket};

use crate::players::{NOW, Teams};
use crate::setup::Setup;
use crate::{parse, teams};

impl Setup {
    /// Returns whether any of these tickets, with any of the others, can join a match under way.
    fn can_join<'a>(&self, teams: &mut Teams<'a>, waiting: &[&'a Ticket], before: usize) -> bool {
        let Some((first, rest)) = waiting.split_first() else {
            return teams.iter().map(Vec::len).sum::<usize>() > before && self.follows_rules(teams);
        };
        for slot in 0..teams.len() {
            teams[slot].push(first);
            let found = self.can_join(teams, rest, before);
            teams[slot].pop();
            if found {
                return true;
            }
        }
        self.can_join(teams, rest, before)
    }
}

fn seats(made: &Match) -> Vec<Seated> {
    let teams = made.teams.iter();
    teams
        .flat_map(|team| team.tickets.iter().map(|at| Seated { team: team.name.clone(), ticket: *at }))
        .collect()
}

/// Checks a join, and takes its tickets out of those that wait.
fn check_join(
    setup: &Setup,
    join: &Join,
    seated: &[Seated],
    tickets: &[Ticket],
    waiting: &mut BTreeSet<usize>,
) -> Result<(), TestCaseError> {
    let teams = teams(&join.lineup, tickets);
    prop_assert!(setup.follows_rules(&teams), "breaks a rule: {join:?}\n{}", setup.text());
    for seated in seated {
        let team = join.lineup.teams.iter().find(|team| team.name == seated.team);
        prop_assert!(team.is_some_and(|team| team.tickets.contains(&seated.ticket)), "{seated:?} has moved");
    }
    let new: Vec<usize> = join.lineup.tickets().filter(|at| waiting.remove(at)).collect();
    prop_assert!(!new.is_empty());
    prop_assert_eq!(join.lineup.tickets().count(), new.len() + seated.len());
    Ok(())
}

/// Makes matches of the first tickets, and lets the others join them.
fn check(setup: &Setup, tickets: &[Ticket], matched: usize) -> Result<(), TestCaseError> {
    let rules = parse(&setup.text())?;
    let made = rules.find_matches(&tickets[..matched.min(tickets.len())], NOW, Options::EXHAUSTIVE).matches;
    // Tickets without a match wait with the others.
    let under_way: Vec<Vec<Seated>> = made.iter().map(seats).collect();
    let joins = rules.find_joins(&under_way, tickets, NOW, Options::EXHAUSTIVE);
    prop_assert_eq!(&joins, &rules.find_joins(&under_way, tickets, NOW, Options::EXHAUSTIVE));
    let seated: BTreeSet<usize> = under_way.iter().flatten().map(|seated| seated.ticket).collect();
    let mut waiting: BTreeSet<usize> = (0..tickets.len()).filter(|at| !seated.contains(at)).collect();
    for join in &joins {
        check_join(setup, join, &under_way[join.under_way], tickets, &mut waiting)?;
    }
    let refused = rules.find_matches(tickets, NOW, Options::EXHAUSTIVE).refused;
    let is_refused = |ticket: &Ticket| refused.iter().any(|refusal| refusal.ticket == ticket.id);
    let waiting: Vec<&Ticket> =
        waiting.iter().map(|at| &tickets[*at]).filter(|ticket| !is_refused(ticket)).collect();
    let is_joined = |at: usize| joins.iter().any(|join| join.under_way == at);
    for (at, made) in made.iter().enumerate().filter(|(at, _)| !is_joined(*at)) {
        let mut teams = teams(made, tickets);
        let before = teams.iter().map(Vec::len).sum();
        prop_assert!(
            !setup.can_join(&mut teams, &waiting, before),
            "match {at} could be joined\n{}",
            setup.text()
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn tickets_join_only_by_the_rules_and_nobody_waits_who_could_join(
        setup in Setup::any(),
        tickets in crate::players::tickets(),
        matched in 1..5_usize,
    ) {
        check(&setup, &tickets, matched)?;
    }
}
