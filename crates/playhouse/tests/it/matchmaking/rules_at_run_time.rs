//! Rule sets, profiles and queues that are changed while real processes run.

use std::path::PathBuf;

use super::*;
use crate::crashes::assert_killed;
use crate::shop::{admin_get, in_outbox, operators};

const ASSIGNERS: &str = "[matchmaking.assigners.one_each]\naddresses = [\"{match_id}.test:7777\"]\n";

/// Players that one side of two has.
fn rules(players: u32) -> String {
    format!(
        "name = \"ranked\"\nversion = \"for {players}\"\n[teams.side]\ncount = 2\nmin = {players}\nmax = {players}\n"
    )
}

/// A folder with files for commands.
struct Files(Folder);

impl Files {
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.0.path().join(name);
        std::fs::write(&file, text).unwrap();
        file
    }
}

/// Runs `playhouse rules` as the operator `tester`.
async fn rules_command(admin: &str, args: &[&str]) -> (i32, String, String) {
    let url = format!("http://{admin}");
    run(playhouse(&["rules", "--admin", &url]).args(args.iter().copied())).await
}

async fn succeed(admin: &str, args: &[&str]) -> String {
    let (code, shown, errors) = rules_command(admin, args).await;
    assert_eq!(code, 0, "{args:?}: {errors}");
    shown
}

async fn fail(admin: &str, args: &[&str]) -> String {
    let (code, shown, errors) = rules_command(admin, args).await;
    assert_eq!(code, 1, "{args:?}: {shown}");
    errors
}

async fn create_tickets(open_match: &str, count: usize) -> Vec<String> {
    let mut tickets = Vec::new();
    for _ in 0..count {
        let (status, ticket) = create(open_match).await;
        assert_eq!(status, 200, "{ticket}");
        tickets.push(ticket["id"].as_str().unwrap().to_owned());
    }
    tickets
}

/// Reads a ticket until it is assigned. Returns its assignment.
async fn assignment(open_match: &str, ticket: &str) -> Value {
    let url = format!("http://{open_match}/v1/frontendservice/tickets/{ticket}");
    eventually("the ticket is assigned", PATIENCE, async || {
        let (_, ticket) = get(url.clone()).await;
        ticket["assignment"]["connection"].is_string().then(|| ticket["assignment"].clone())
    })
    .await
}

/// Returns the revision that a process follows.
async fn active_revision(admin: &str) -> u64 {
    let (_, metrics) = get(format!("http://{admin}/metrics")).await;
    let line = "playhouse_matchmaking_definitions_active_revision ";
    let found = metrics.as_str().unwrap().lines().find_map(|shown| shown.strip_prefix(line));
    found.unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_tickets_are_matched_by_changed_rules_without_a_restart() {
    let files = Files(Folder::fresh().unwrap());
    let database = files.0.path().join("playhouse.db");
    let config = files.write(
        "play.toml",
        &format!(
            "[db]\nurl = \"sqlite:{}\"\nmigrate = true\n{ASSIGNERS}[matchmaking.profiles.ranked]\nfunction = \"rules\"\n\
             assigner = \"one_each\"\nrules = \"\"\"\n{}\"\"\"\n{}",
            database.display(),
            rules(2),
            operators()
        ),
    );
    let listen =
        ["gateway", "service_api", "admin", "open_match"].map(|name| format!("listen.{name}=127.0.0.1:0"));
    let serve =
        playhouse_without_token(&["serve", "--print-addresses", "--config", config.to_str().unwrap()]);
    let program = serve.args(listen.iter().flat_map(|address| ["--set", address.as_str()]));
    let running = program.start().unwrap();
    let at = addresses(&running).await;
    let (admin, open_match) = (at["admin"].clone(), at["open_match"].clone());

    let waiting = create_tickets(&open_match, 2).await;
    let listed = succeed(&admin, &["list"]).await;
    assert!(listed.contains("rule-set") && listed.contains("revision 0; this process runs"), "{listed}");
    assert_eq!(succeed(&admin, &["show", "ranked"]).await.trim_end(), rules(2).trim_end());

    // A set with a mistake is refused with its line, and nothing changes.
    let bad = files.write("bad.toml", "name = \"ranked\"\n[teams.side]\nmaxx = 1\n");
    let errors = fail(&admin, &["set", "ranked", bad.to_str().unwrap()]).await;
    assert!(errors.contains("rule set ranked:3:1: ") && errors.contains("did you mean `max`?"), "{errors}");
    let (status, found) = admin_get(format!("http://{admin}/definitions/rule-set/ranked")).await;
    assert_eq!((status, &found["version"]), (200, &json!(0)));

    let single = files.write("single.toml", &rules(1));
    let single = single.to_str().unwrap();
    let shown = succeed(&admin, &["diff", "ranked", single]).await;
    assert!(shown.contains("-min = 2\n") && shown.contains("+min = 1\n"), "{shown}");
    let shown = succeed(&admin, &["set", "ranked", single, "--dry-run"]).await;
    assert!(shown.contains("nothing was changed"), "{shown}");
    let (_, ticket) = get(format!("http://{open_match}/v1/frontendservice/tickets/{}", waiting[0])).await;
    assert!(ticket["assignment"].is_null(), "two do not suffice: {ticket}");

    let shown = succeed(&admin, &["set", "ranked", single, "--note", "too few players at night"]).await;
    assert!(shown.contains("rule-set ranked is now version 1, revision 1"), "{shown}");
    let first = assignment(&open_match, &waiting[0]).await;
    assert_eq!(first["connection"], assignment(&open_match, &waiting[1]).await["connection"]);

    // The event names the version that made the match.
    let event = eventually("the event is published", PATIENCE, async || {
        for row in in_outbox(&admin, "published").await {
            let (_, row) = admin_get(format!("http://{admin}/outbox/{}", row["id"].as_str().unwrap())).await;
            let made = row["events"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|event| event["data"]["match_id"].is_string());
            if let Some(made) = made {
                return Some(made["data"].clone());
            }
        }
        None
    })
    .await;
    assert_eq!(
        (&event["definition"], &event["definition_version"]),
        (&json!("ranked"), &json!(1)),
        "{event}"
    );

    // Another version is expected, so somebody else's change is not overwritten.
    let four = files.write("four.toml", &rules(4));
    let four = four.to_str().unwrap();
    let errors = fail(&admin, &["set", "ranked", four, "--expected-version", "0"]).await;
    assert!(errors.contains("rule set ranked is at version 1, but you expected 0"), "{errors}");
    let client = Client::new();
    let url = format!("http://{admin}/definitions/rule-set/ranked");
    let put = client.put(&url).bearer_auth(crate::shop::OPERATOR_TOKEN);
    let refused = put.json(&json!({ "text": rules(4), "expected_version": 0 })).send().await.unwrap();
    assert_eq!(refused.status(), 409);
    let problem: Value = refused.json().await.unwrap();
    assert_eq!(problem["type"], "urn:playhouse:problem:matchmaking:definition-conflict");
    assert_eq!(problem["current_version"], 1);
    let reader = client.put(&url).bearer_auth(crate::shop::READER_TOKEN);
    assert_eq!(reader.json(&json!({ "text": rules(4) })).send().await.unwrap().status(), 403);

    succeed(&admin, &["set", "ranked", four, "--expected-version", "1"]).await;
    let shown = succeed(&admin, &["rollback", "ranked", "--to", "1", "--note", "four was a mistake"]).await;
    assert!(shown.contains("is now version 3"), "{shown}");
    let pair = create_tickets(&open_match, 2).await;
    let assigned = assignment(&open_match, &pair[0]).await;
    assert!(assigned["extensions"]["rules"].to_string().contains("definition"), "{assigned}");
    let history = succeed(&admin, &["history", "ranked"]).await;
    let lines: Vec<&str> = history.lines().collect();
    assert_eq!(lines.len(), 5, "{history}");
    assert!(lines[1].contains("tester") && lines[1].contains("four was a mistake"), "{history}");
    assert!(lines[3].contains("tester") && lines[3].contains("too few players at night"), "{history}");
    let (_, log) = admin_get(format!("http://{admin}/audit?action=definitions")).await;
    let entries = log.to_string();
    assert!(entries.contains("four was a mistake") && entries.contains("\"dry-run\""), "{entries}");

    // A restart keeps what is stored.
    running.kill();
    drop(running);
    let running = program.start().unwrap();
    let admin = addresses(&running).await["admin"].clone();
    assert_eq!(active_revision(&admin).await, 3);
    assert_eq!(succeed(&admin, &["show", "ranked"]).await.trim_end(), rules(1).trim_end());
    assert_eq!(succeed(&admin, &["show", "ranked", "--at", "2"]).await.trim_end(), rules(4).trim_end());
    let errors = fail(&admin, &["remove", "ranked"]).await;
    assert!(errors.contains("profile ranked: there is no rule set ranked"), "{errors}");
    succeed(&admin, &["remove", "ranked", "--kind", "profile"]).await;
    let errors = fail(&admin, &["show", "ranked", "--kind", "profile"]).await;
    assert!(errors.contains("was removed by tester"), "{errors}");
}

/// The configuration of these processes has no profile: the first one comes at run time.
#[tokio::test(flavor = "multi_thread")]
async fn fleet_switches_within_a_second_and_loses_no_ticket() {
    let files = Files(Folder::fresh().unwrap());
    let fleet = need!(Fleet::start().await);
    let settings =
        format!("[db]\nmigrate = true\n[matchmaking]\nassigned_ttl = \"10m\"\n{ASSIGNERS}{}", operators());
    let config = files.write("play.toml", &settings);
    let matchmaking = Matchmaking { fleet, folder: Folder::fresh().unwrap() };
    let serve = |fault: Option<&str>| {
        let program = matchmaking.fleet.serve(&["--config", config.to_str().unwrap()]);
        fault.iter().fold(program, |program, point| program.env("TESTKIT_FAULT", *point)).start().unwrap()
    };
    let first = serve(None);
    let one = addresses(&first).await["admin"].clone();
    let second = serve(None);
    let other = addresses(&second).await["admin"].clone();
    let store = matchmaking.store().await;
    let waiting = make_tickets(&store, 4).await;

    let switched = async |revision: u64| {
        let started = Instant::now();
        eventually("both processes follow", PATIENCE, async || {
            active_revision(&one).await == revision && active_revision(&other).await == revision
        })
        .await;
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    };
    let pairs = files.write("pairs.toml", "players = 2\nassigner = \"one_each\"\n");
    succeed(&one, &["set", "duel", pairs.to_str().unwrap(), "--kind", "profile"]).await;
    switched(1).await;
    let is_assigned = async |tickets: &[TicketId]| {
        let states = store.watch_states(tickets).await.unwrap();
        states.iter().all(|state| matches!(state, WatchState::Assigned(_)))
    };
    eventually("an engine has started", PATIENCE, async || is_assigned(&waiting).await).await;

    // A process without the assigner keeps the previous set, and the others refuse nothing for that.
    let bad = files.write("bad.toml", "players = 2\nassigner = \"nowhere\"\n");
    let errors = fail(&other, &["set", "duel", bad.to_str().unwrap(), "--kind", "profile"]).await;
    assert!(
        errors.contains("profile duel:2:1: ") && errors.contains("no [matchmaking.assigners.nowhere]"),
        "{errors}"
    );

    // Tickets arrive while the profile switches between two functions.
    let ranked = files.write("ranked.toml", &rules(1));
    succeed(&other, &["set", "ranked", ranked.to_str().unwrap()]).await;
    let by_rules =
        files.write("by_rules.toml", "function = \"rules\"\nrules = \"ranked\"\nassigner = \"one_each\"\n");
    let arriving = async {
        let mut tickets = Vec::new();
        for _ in 0..60 {
            tickets.extend(make_tickets(&store, 10).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tickets
    };
    let switching = async {
        for round in 0..6 {
            let file = if round % 2 == 0 { &by_rules } else { &pairs };
            let admin = if round % 3 == 0 { &one } else { &other };
            succeed(admin, &["set", "duel", file.to_str().unwrap(), "--kind", "profile"]).await;
        }
    };
    let (tickets, ()) = tokio::join!(arriving, switching);
    switched(8).await;
    eventually("every ticket is assigned", PATIENCE * 2, async || is_assigned(&tickets).await).await;
    let all = waiting.len() + tickets.len();
    let matches = matches_on_the_bus(&matchmaking.fleet.nats.url(), all / 2).await;
    let matched: HashSet<&String> = matches.values().flatten().collect();
    assert_eq!(matched.len(), all, "a ticket is in two matches");

    // A process that dies right after the commit has changed the rules of the others.
    let doomed = serve(Some("matchmaking.definition.stored"));
    let at = addresses(&doomed).await["admin"].clone();
    let (code, _, _) =
        rules_command(&at, &["set", "duel", by_rules.to_str().unwrap(), "--kind", "profile"]).await;
    assert_ne!(code, 0);
    assert_killed(&doomed).await;
    switched(9).await;
    let history = succeed(&one, &["history", "duel", "--kind", "profile"]).await;
    assert!(history.lines().nth(1).unwrap().contains("tester"), "{history}");

    // Without profiles no engine takes tickets from Directors.
    succeed(&other, &["remove", "duel", "--kind", "profile"]).await;
    switched(10).await;
    let left = make_tickets(&store, 2).await;
    eventually("nobody holds them", PATIENCE, async || {
        let fetched = store.fetch(&"test".into(), 10).await.unwrap().ids;
        store.release(&fetched).await.unwrap();
        fetched == left
    })
    .await;
}
