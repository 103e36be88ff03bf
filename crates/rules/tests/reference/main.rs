//! The matcher beside a slow and obvious one, on small random pools.

mod condition;
mod joins;
mod players;
mod schedule;
mod setup;
mod sort;

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use rules::{Match, Options, Pass, RuleSet, Ticket};

use self::players::{NOW, Teams, equal_tickets, tickets};
use self::setup::{ATTRIBUTES, Setup};
use self::sort::Sort;

fn parse(text: &str) -> Result<RuleSet, TestCaseError> {
    RuleSet::parse(text).map_err(|mistakes| TestCaseError::fail(format!("{mistakes}\n{text}")))
}

fn teams<'a>(made: &Match, tickets: &'a [Ticket]) -> Teams<'a> {
    made.teams.iter().map(|team| team.tickets.iter().map(|at| &tickets[*at]).collect()).collect()
}

/// Checks a match against the rules, and what it says of itself.
fn check_match(setup: &Setup, made: &Match, tickets: &[Ticket]) -> Result<(), TestCaseError> {
    let teams = teams(made, tickets);
    prop_assert!(setup.is_match(&teams), "not a match: {made:?}\n{}", setup.text());
    prop_assert_eq!(setup.mistake_in(made, &teams), None, "{:?}\n{}", made, setup.text());
    Ok(())
}

/// Checks that an exhaustive pass makes matches only, and passes over no ticket that has one.
fn check(setup: &Setup, tickets: &[Ticket]) -> Result<(), TestCaseError> {
    let rules = parse(&setup.text())?;
    let pass = rules.find_matches(tickets, NOW, Options::EXHAUSTIVE);
    prop_assert_eq!(pass.cut_short, 0);
    let mut order: Vec<usize> = (0..tickets.len()).collect();
    order.sort_by_key(|at| (tickets[*at].created, tickets[*at].id.clone()));
    let refused: BTreeSet<&str> = pass.refused.iter().map(|refusal| &*refusal.ticket).collect();
    let mut free: BTreeSet<usize> =
        order.iter().copied().filter(|at| !refused.contains(&*tickets[*at].id)).collect();
    let mut matches = pass.matches.iter().peekable();
    for pivot in order.into_iter().filter(|at| !refused.contains(&*tickets[*at].id)) {
        if !free.contains(&pivot) {
            continue;
        }
        if let Some(made) = matches.next_if(|made| made.oldest == pivot) {
            check_match(setup, made, tickets)?;
            for ticket in made.tickets() {
                prop_assert!(free.remove(&ticket), "{ticket} is in two matches");
            }
        } else {
            free.remove(&pivot);
            let others: Vec<&Ticket> = free.iter().map(|at| &tickets[*at]).collect();
            prop_assert!(
                !setup.can_match(&tickets[pivot], &others),
                "{} waits, although it has a match\n{}",
                tickets[pivot].id,
                setup.text()
            );
        }
    }
    prop_assert!(matches.next().is_none(), "matches are not in the order of their oldest tickets");
    Ok(())
}

/// Returns a pass with the ids of the tickets in the place of their indexes.
fn by_id(pass: &Pass, tickets: &[Ticket]) -> String {
    let mut lines = Vec::new();
    for made in &pass.matches {
        let id = |at: &usize| tickets[*at].id.to_string();
        let of_team = |team: &rules::TeamLineup| {
            let ids: Vec<String> = team.tickets.iter().map(id).collect();
            format!("{} {ids:?} {:?} {}", team.name, team.roles, team.open)
        };
        let of_teams: Vec<String> = made.teams.iter().map(of_team).collect();
        lines.push(format!("{} {of_teams:?} {:?} {}", id(&made.oldest), made.regions, made.quality));
    }
    let mut refused: Vec<String> = pass.refused.iter().map(ToString::to_string).collect();
    refused.sort();
    format!("{lines:#?}\n{refused:?}\n{:?} {}", pass.evaluations, pass.cut_short)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn matches_follow_the_rules_and_no_pivot_waits_that_an_exhaustive_search_can_match(
        setup in Setup::any(),
        tickets in tickets(),
    ) {
        check(&setup, &tickets)?;
    }

    #[test]
    fn matches_of_a_limited_search_follow_the_rules(setup in Setup::any(), tickets in tickets(), seed in any::<u64>()) {
        let rules = parse(&setup.text())?;
        let patience = Duration::from_millis(500);
        let options =
            Options { seed, candidates: 4, pivot_budget: 5, pass_budget: 20, patience, turn: seed };
        let mut seen = BTreeSet::new();
        for made in rules.find_matches(&tickets, NOW, options).matches {
            check_match(&setup, &made, &tickets)?;
            prop_assert!(made.tickets().all(|ticket| seen.insert(ticket)));
        }
    }

    #[test]
    fn order_of_the_tickets_given_does_not_matter(
        setup in Setup::any(),
        (tickets, shuffled) in tickets().prop_flat_map(|tickets| (Just(tickets.clone()), Just(tickets).prop_shuffle())),
        seed in any::<u64>(),
    ) {
        let rules = parse(&setup.text())?;
        let few = Options { seed, candidates: 3, pivot_budget: 5, pass_budget: 20, ..Options::default() };
        for options in [Options { seed, ..Options::default() }, few] {
            let [one, two] = [&tickets, &shuffled].map(|tickets| by_id(&rules.find_matches(tickets, NOW, options), tickets));
            prop_assert_eq!(one, two, "{}", setup.text());
        }
    }

    #[test]
    fn sorts_choose_the_partner_of_the_oldest_ticket(
        (size, tickets) in (1..3_usize).prop_flat_map(|size| (Just(size), equal_tickets(size))),
        sorts in proptest::collection::vec(Sort::any(), 1..3),
    ) {
        let mut text = format!("name = \"pairs\"\n{ATTRIBUTES}[teams.side]\ncount = 2\nmax = {size}\n");
        text.extend(sorts.iter().enumerate().map(|(at, sort)| sort.text(&format!("sort-{at}"))));
        let pass = parse(&text)?.find_matches(&tickets, NOW, Options::default());
        let mut free: Vec<&Ticket> = tickets.iter().collect();
        free.sort_by_key(|ticket| (ticket.created, ticket.id.clone()));
        for made in &pass.matches {
            let pivot = free.remove(0);
            prop_assert_eq!(&tickets[made.oldest].id, &pivot.id);
            let partner = made.tickets().map(|at| &tickets[at]).find(|ticket| ticket.id != pivot.id);
            let partner = partner.ok_or_else(|| TestCaseError::fail("no partner"))?;
            for other in &free {
                let orders = sorts.iter().map(|sort| sort.compare(pivot, partner, other));
                let order = orders.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then);
                prop_assert!(order.is_le(), "{} before {} for {}\n{text}", partner.id, other.id, pivot.id);
            }
            free.retain(|ticket| ticket.id != partner.id);
        }
        prop_assert!(free.len() < 2);
    }
}
