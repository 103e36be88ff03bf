//! Which region a match can be in.

use rules::{Options, Player, RuleSet, Ticket};

fn ticket(id: &str, created: i64, eu: f64, us: f64) -> Ticket {
    let latency = [("eu".into(), eu), ("us".into(), us)].into();
    let player = Player { id: id.into(), latency, ..Player::default() };
    Ticket { id: id.into(), created, players: vec![player] }
}

#[test]
fn one_region_passes_all_latency_rules() {
    let rules = RuleSet::parse(
        "name = \"x\"\n[teams.a]\ncount = 2\nmax = 1\n[rules.near]\ntype = \"latency\"\nmax = 80\n\
         [rules.similar]\ntype = \"latency\"\nmax_distance = 10\n",
    )
    .unwrap();
    // Anna and Ben are near eu, where their latencies differ, and have similar latencies to us, which is far.
    let mut tickets = vec![ticket("anna", 0, 20.0, 150.0), ticket("ben", 1, 70.0, 150.0)];
    let matches = |tickets: &[Ticket]| rules.find_matches(tickets, 10_000, Options::default()).matches;
    assert_eq!(matches(&tickets), []);
    tickets.push(ticket("carl", 2, 30.0, 90.0));
    let made = &matches(&tickets)[0];
    assert_eq!(made.tickets().collect::<Vec<_>>(), [0, 2]);
    assert_eq!(made.regions, [("eu".into(), 25.0)]);
}
