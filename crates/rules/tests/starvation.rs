//! No ticket is passed over for ever while the rules admit a match for it.

use std::time::Duration;

use rules::{Options, Player, RuleSet, Ticket, Value};

const RULES: &str = "name = \"duel\"\n[attributes.skill]\ntype = \"number\"\n[attributes.maps]\ntype = \"string-list\"\n\
    [teams.side]\ncount = 2\nmax = 1\n[rules.skill]\ntype = \"batch-distance\"\nattribute = \"skill\"\nmax = 10000\n\
    [rules.maps]\ntype = \"collection\"\nmeasurements = \"flatten(teams[*].players.attributes[maps])\"\n\
    operation = \"intersection\"\nmin = 1\n";

/// How many players with the popular map join between two passes.
const FLOOD: usize = 100;

fn ticket(id: String, created: i64, skill: f64, maps: &[&str]) -> Ticket {
    let maps = Value::TextList(maps.iter().map(|map| (*map).into()).collect());
    let attributes = [("skill".into(), Value::Number(skill)), ("maps".into(), maps)];
    let player = Player { id: id.as_str().into(), attributes: attributes.into(), ..Player::default() };
    Ticket { id: id.into(), created, players: vec![player] }
}

/// Plays passes, each with a flood of new players next to `rare` and one far away who plays the rare map too. Returns how many
/// passes it took until all tickets whose id begins with `rare` were matched.
fn passes_until_matched(waiting: Vec<Ticket>, patience: Duration, limit: u64) -> Option<u64> {
    let Ok(rules) = RuleSet::parse(RULES) else { panic!("the rule set is not valid") };
    let mut pool = waiting;
    for turn in 0..limit {
        let now = 60_000 + turn as i64 * 100;
        let flood = (0..FLOOD).map(|at| {
            ticket(format!("flood-{turn}-{at}"), now - 50, 1000.0 + at as f64 * 0.01, &["popular"])
        });
        pool.extend(flood);
        // Would play with either. Someone older in the flood gets it, unless the older `rare` finds it first.
        pool.push(ticket(format!("both-{turn}"), now - 10, 9_000.0, &["popular", "rare"]));
        let options = Options { patience, turn, ..Options::default() };
        let pass = rules.find_matches(&pool, now, options);
        let matched: Vec<usize> = pass.matches.iter().flat_map(rules::Match::tickets).collect();
        let mut at = 0;
        pool.retain(|_| {
            at += 1;
            !matched.contains(&(at - 1))
        });
        if !pool.iter().any(|ticket| ticket.id.starts_with("rare")) {
            return Some(turn);
        }
    }
    None
}

#[test]
fn ticket_whose_only_partners_are_far_away_is_not_passed_over_for_ever() {
    let rare = || vec![ticket("rare".to_owned(), 0, 1000.0, &["rare"])];
    assert_eq!(passes_until_matched(rare(), Duration::from_secs(30), 3), Some(0));
    // Without that search the nearest candidates, all of them useless, hide the others.
    assert_eq!(passes_until_matched(rare(), Duration::MAX, 20), None);
}

#[test]
fn tickets_that_nobody_can_match_do_not_keep_younger_ones_from_their_turn() {
    let hopeless = (0..40).map(|at| ticket(format!("hopeless-{at}"), at, 1000.0, &[&format!("only-{at}")]));
    let rare = ticket("rare".to_owned(), 1_000, 1000.0, &["rare"]);
    let waited = passes_until_matched(hopeless.chain([rare]).collect(), Duration::from_secs(30), 100);
    assert!(waited.is_some_and(|passes| passes <= 41), "{waited:?}");
}

#[test]
fn same_pass_makes_the_same_matches() {
    let rules = RuleSet::parse(RULES).unwrap();
    let pool: Vec<Ticket> = (0..2_000)
        .map(|at| {
            let maps: &[&str] = if at % 7 == 0 { &["rare"] } else { &["popular", "other"] };
            ticket(format!("t{at}"), at, (at * 37 % 5_000) as f64, maps)
        })
        .collect();
    let options = Options { turn: 9, ..Options::default() };
    let pass = || rules.find_matches(&pool, 100_000, options);
    assert_eq!(pass(), pass());
}
