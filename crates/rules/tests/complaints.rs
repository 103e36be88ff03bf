//! What players and studios complain about in other matchmakers, each with the reason why it does not happen here.

use std::collections::BTreeMap;
use std::sync::Arc;

use rules::{Options, Pass, Player, Reason, RuleSet, Seated, Ticket, Value};

fn rules(text: &str) -> RuleSet {
    RuleSet::parse(text).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

fn ticket(id: &str, joined: i64, players: usize, attributes: &[(&str, Value)]) -> Ticket {
    let attributes: BTreeMap<Arc<str>, Value> =
        attributes.iter().map(|(name, value)| ((*name).into(), value.clone())).collect();
    let player = |at: usize| Player {
        id: format!("{id}/{at}").into(),
        attributes: attributes.clone(),
        latency: BTreeMap::new(),
    };
    Ticket { id: id.into(), created: joined * 1000, players: (0..players).map(player).collect() }
}

fn skill(value: f64) -> [(&'static str, Value); 1] {
    [("skill", Value::Number(value))]
}

fn pass(rules: &RuleSet, tickets: &[Ticket], at: i64) -> Pass {
    rules.find_matches(tickets, at * 1000, Options::default())
}

#[test]
fn lowered_minimum_still_matches_two_waiting_players_together() {
    let rules = rules("name = \"x\"\n[teams.a]\nmin = 4\nmax = 4\nrelax = [{ after = 10, min = 1 }]\n");
    let made = pass(&rules, &[ticket("a", 0, 1, &[]), ticket("b", 1, 1, &[])], 10).matches;
    assert_eq!(made.len(), 1);
    assert_eq!(made[0].tickets().count(), 2);
    assert_eq!(made[0].open(), 2, "the match says how many places a backfill would fill");
}

/// Lets tickets join a match of team `a` whose members are the first ones. Returns who is in it then.
fn joined(rules: &RuleSet, tickets: &[Ticket], members: usize, at: i64) -> Vec<String> {
    let seated = |ticket| Seated { team: "a".into(), ticket };
    let under_way = [(0..members).map(seated).collect()];
    let joins = rules.find_joins(&under_way, tickets, at * 1000, Options::default());
    joins.iter().flat_map(|join| join.lineup.tickets()).map(|at| tickets[at].id.to_string()).collect()
}

#[test]
fn oldest_ticket_that_fits_joins_a_match_with_room() {
    let rules = rules(
        "name = \"x\"\n[attributes.skill]\ntype = \"number\"\n[teams.a]\nmin = 4\nmax = 4\nrelax = [{ after = 10, min = 1 }]\n\
         [rules.skill]\ntype = \"batch-distance\"\nattribute = \"skill\"\nmax = 10\nrelax = [{ after = 30, max = 100 }]\n",
    );
    let skilled = |id: &str, created, players, value| ticket(id, created, players, &skill(value));
    let tickets = [
        skilled("member", 90, 1, 50.0),
        skilled("far", 80, 1, 90.0),
        skilled("young", 99, 1, 51.0),
        skilled("large", 85, 4, 50.0),
        skilled("old", 95, 2, 45.0),
        skilled("late", 100, 1, 50.0),
    ];
    assert_eq!(joined(&rules, &tickets, 1, 100), ["member", "old", "young"]);
    // At 110 the oldest has waited so long that the rule is wide. Then there is room for one more, and no more.
    assert_eq!(joined(&rules, &tickets, 1, 110), ["member", "far", "old"]);
    assert_eq!(joined(&rules, &tickets[..1], 1, 110), [] as [&str; 0]);
}

#[test]
fn tickets_that_only_fit_together_join_together() {
    let rules = rules(
        "name = \"x\"\n[teams.a]\nmin = 1\nmax = 3\n[teams.b]\nmin = 1\nmax = 3\n\
         [rules.sizes]\ntype = \"comparison\"\nmeasurements = \"count(teams[*].players)\"\noperation = \"=\"\n",
    );
    let tickets: Vec<Ticket> = ["a1", "b1", "one", "two", "three"].map(|id| ticket(id, 0, 1, &[])).into();
    let seated = |team: &str, ticket| Seated { team: team.into(), ticket };
    let under_way = vec![vec![seated("a", 0), seated("b", 1)]];
    let sizes = |tickets: &[Ticket]| -> Vec<usize> {
        let joins = rules.find_joins(&under_way, tickets, 0, Options::default());
        joins.iter().flat_map(|join| &join.lineup.teams).map(|team| team.tickets.len()).collect()
    };
    assert_eq!(sizes(&tickets[..3]), [] as [usize; 0], "one would be too many");
    assert_eq!(sizes(&tickets), [2, 2]);
}

#[test]
fn new_ticket_does_not_reset_the_clock_of_the_oldest() {
    let text = "name = \"x\"\n[attributes.skill]\ntype = \"number\"\n[teams.a]\ncount = 2\nmax = 1\n\
                [rules.skill]\ntype = \"batch-distance\"\nattribute = \"skill\"\nmax = 10\nrelax = [{ after = 30, max = 100 }]\n";
    let tickets = [ticket("old", 0, 1, &skill(10.0)), ticket("new", 29, 1, &skill(90.0))];
    assert_eq!(pass(&rules(text), &tickets, 30).matches.len(), 1);
    let by_the_newest = text.replace("max = 10\n", "max = 10\nage = \"youngest\"\n");
    assert_eq!(pass(&rules(&by_the_newest), &tickets, 30).matches.len(), 0);
}

#[test]
fn party_that_can_never_be_placed_is_found_before_it_waits() {
    // All values must differ, and a party counts as one value for each player.
    let text = "name = \"x\"\n[attributes.clan]\ntype = \"string\"\n[teams.a]\ncount = 2\nmax = 2\n\
                [rules.sizes]\ntype = \"comparison\"\nmeasurements = \"count(teams[*].players)\"\noperation = \"=\"\n\
                [rules.solo]\ntype = \"premade-similarity\"\nmax = 0\n\
                [rules.clans]\ntype = \"batch-distance\"\nattribute = \"clan\"\n";
    assert_eq!(rules(text).lint(), []);
    let odd = "name = \"x\"\n[teams.a]\nmax = 3\n[teams.b]\nmax = 1\n[rules.premades]\ntype = \"premade-similarity\"\nmax = 0\n";
    let warnings: Vec<String> = rules(odd).lint().iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("a party of 2") && warnings[1].contains("a party of 3"), "{warnings:?}");
    // A limit on parties makes it whole, and larger ones are refused at once.
    let limited = rules(&format!("max_party = 1\n{odd}"));
    assert_eq!(limited.lint(), []);
    let refusal = ticket("trio", 0, 3, &[]).check(&limited).unwrap_err();
    assert_eq!(refusal.to_string(), "trio: a party of 3 is larger than 1");
}

#[test]
fn value_of_the_wrong_type_is_refused_with_its_name() {
    let rules = rules(
        "name = \"x\"\n[attributes.skill]\ntype = \"number\"\n[teams.a]\nmax = 1\n[rules.s]\ntype = \"batch-distance\"\nattribute = \"skill\"\nmax = 1\n",
    );
    let refusal = ticket("t", 0, 1, &[("skill", Value::Text("40".into()))]).check(&rules).unwrap_err();
    assert_eq!(refusal.reason, "player t/0: skill must be a number, and is a string");
    let refusal = ticket("t", 0, 1, &[]).check(&rules).unwrap_err();
    assert_eq!(refusal.reason, "player t/0: skill is missing and has no default");
    let nan = ticket("t", 0, 1, &skill(f64::NAN)).check(&rules).unwrap_err();
    assert_eq!(nan.reason, "player t/0: skill is not a finite number");
}

#[test]
fn player_with_two_tickets_never_meets_themselves() {
    let rules = rules("name = \"x\"\n[teams.a]\ncount = 2\nmax = 1\n");
    let again = Ticket { id: "again".into(), ..ticket("anna", 0, 1, &[]) };
    let made = pass(&rules, &[ticket("anna", 0, 1, &[]), again, ticket("ben", 5, 1, &[])], 9).matches;
    assert_eq!(made.len(), 1);
    assert_eq!(made[0].tickets().collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn ticket_that_never_matches_has_a_reason() {
    let rules = rules(
        "name = \"x\"\n[attributes.mode]\ntype = \"string\"\n[teams.a]\ncount = 2\nmax = 1\n[rules.mode]\ntype = \"batch-distance\"\nattribute = \"mode\"\n",
    );
    let mode = |word: &str| [("mode", Value::Text(word.into()))];
    let tickets = [ticket("anna", 0, 1, &mode("coop")), ticket("ben", 0, 1, &mode("duel"))];
    let why = rules.why("anna", &tickets, 60_000).unwrap();
    assert_eq!(why.reason, Reason::Rule { rule: "mode".into() });
    assert_eq!(why.nearest[0].admitted_in, None, "no relaxation ever admits the other");
}

#[test]
fn match_names_its_teams_and_every_ticket_in_them() {
    let rules = rules("name = \"x\"\n[teams.red]\nmax = 1\n[teams.blue]\nmax = 1\n");
    let made = &pass(&rules, &[ticket("anna", 0, 1, &[]), ticket("ben", 0, 1, &[])], 0).matches[0];
    let teams: Vec<(&str, &[usize])> =
        made.teams.iter().map(|team| (&*team.name, team.tickets.as_slice())).collect();
    assert_eq!(teams, [("red", &[0][..]), ("blue", &[1][..])]);
}
