//! What the weights of `[quality]` choose.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

use rules::{Match, Options, Player, RuleSet, Ticket, Value};

fn ticket(id: &str, created: i64, skill: f64, latency: &[(&str, f64)]) -> Ticket {
    let player = Player {
        id: id.into(),
        attributes: [("skill".into(), Value::Number(skill))].into(),
        latency: latency.iter().map(|(region, latency)| ((*region).into(), *latency)).collect(),
    };
    Ticket { id: id.into(), created, players: vec![player] }
}

/// Matches of one to three players within 80 ms.
fn matches(quality: &str, tickets: &[Ticket]) -> Vec<Match> {
    let text = format!(
        "name = \"x\"\n[attributes.skill]\ntype = \"number\"\n[teams.all]\nmin = 2\nmax = 3\n\
         [rules.near]\ntype = \"latency\"\nmax = 80\n[quality]\nattribute = \"skill\"\n{quality}"
    );
    RuleSet::parse(&text).unwrap().find_matches(tickets, 10_000, Options::default()).matches
}

fn names(made: &Match, tickets: &[Ticket]) -> Vec<String> {
    let mut names: Vec<String> = made.tickets().map(|at| tickets[at].id.to_string()).collect();
    names.sort();
    names
}

/// The oldest is a little nearer to eu. Those who can play in eu have a bad connection and other skills.
fn two_regions() -> Vec<Ticket> {
    vec![
        ticket("oldest", 0, 50.0, &[("eu", 20.0), ("us", 30.0)]),
        ticket("eu-1", 1, 58.0, &[("eu", 79.0)]),
        ticket("eu-2", 2, 59.0, &[("eu", 79.0)]),
        ticket("us-1", 3, 60.0, &[("us", 25.0)]),
        ticket("us-2", 4, 60.0, &[("us", 25.0)]),
    ]
}

#[test]
fn weight_on_latency_chooses_the_region_that_is_best_for_all() {
    let tickets = two_regions();
    let chosen = |quality: &str| names(&matches(quality, &tickets)[0], &tickets);
    assert_eq!(chosen(""), ["eu-1", "eu-2", "oldest"], "without it the nearest region of the oldest");
    assert_eq!(chosen("latency = 1\n"), ["oldest", "us-1", "us-2"]);
    // The spread is 9 in eu and 10 in us: weighed against 22 ms on average.
    assert_eq!(chosen("latency = 0.01\nspread = 1\n"), ["eu-1", "eu-2", "oldest"]);
}

#[test]
fn weight_on_spread_chooses_the_region_with_more_equal_players() {
    let mut tickets = two_regions();
    tickets[3] = ticket("us-1", 3, 51.0, &[("us", 80.0)]);
    tickets[4] = ticket("us-2", 4, 52.0, &[("us", 80.0)]);
    let chosen = |quality: &str| names(&matches(quality, &tickets)[0], &tickets);
    assert_eq!(chosen("balance = 1\n"), ["eu-1", "eu-2", "oldest"], "balance chooses no region");
    assert_eq!(chosen("spread = 1\n"), ["oldest", "us-1", "us-2"]);
}

#[test]
fn full_match_comes_before_a_better_one_with_open_places() {
    let mut tickets = two_regions();
    tickets.pop();
    let made = matches("latency = 1\n", &tickets);
    assert_eq!(names(&made[0], &tickets), ["eu-1", "eu-2", "oldest"]);
    // Without a full match the better one is made.
    tickets.remove(2);
    assert_eq!(names(&matches("latency = 1\n", &tickets)[0], &tickets), ["oldest", "us-1"]);
}

#[test]
fn quality_of_a_match_is_its_score_and_wait_raises_it() {
    let tickets = two_regions();
    let score = |quality: &str| matches(quality, &tickets)[0].quality;
    assert_eq!(score(""), 0.0);
    assert_eq!(score("wait = 2\n"), 20.0);
    let latency = score("latency = 1\n");
    assert!((latency + 80.0 / 3.0).abs() < 1e-9, "{latency}");
}
