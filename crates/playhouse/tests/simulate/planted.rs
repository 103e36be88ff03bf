//! Faults that are planted on purpose. The simulator fails and names each.

use testkit::Seed;

use super::*;

/// What a run against a process with a planted fault found.
struct Found {
    dev: Dev,
    /// The id of the run: part of the players' names.
    run: String,
    violations: Vec<String>,
    page: String,
}

/// Runs against a process with a planted fault. Fails unless this promise is reported as broken.
async fn find(plant: &str, promise: &str) -> Found {
    let (dev, folder) =
        (Dev::start(|program| program.env("TESTKIT_PLANT", plant)).await, Folder::fresh().unwrap());
    // SEED repeats a run.
    let seed = Seed::new().choices(0).u64(..).to_string();
    let html = folder.path().join("report.html");
    let args = [
        "--seed",
        &seed,
        "--players",
        "80",
        "--html",
        html.to_str().unwrap(),
        "--with",
        "arrival.over=2s",
        "--with",
        "drop.stock=20",
        "--with",
        "drop.opens_after=0.6",
        // A unit that is not paid for may become available when nobody looks for one any more.
        "--with",
        "drop.no_payment=0",
    ];
    let (code, text, report) = dev.simulate(&folder, &args).await;
    assert_eq!(code, Some(1), "{plant} was not found with --seed {seed}: {text}");
    let check = &report["checks"][promise];
    assert_eq!(check["holds"], false, "{plant} with --seed {seed}: {text}");
    let violations = check["violations"].as_array().unwrap();
    let violations = violations.iter().map(|what| what.as_str().unwrap().to_owned()).collect();
    let run = report["run"].as_str().unwrap().to_owned();
    Found { dev, run, violations, page: self_contained(&html) }
}

impl Found {
    /// Returns what the stars of `pattern` stand for in the first violation that it fits. A star is one word.
    fn ids(&self, pattern: &str) -> Vec<String> {
        let parts: Vec<&str> = pattern.split('*').collect();
        let fits = |violation: &String| {
            let (mut rest, mut found) = (violation.split_once(parts[0])?.1, Vec::new());
            for part in &parts[1..] {
                let end = if part.is_empty() {
                    rest.find([' ', ',', ')']).unwrap_or(rest.len())
                } else {
                    rest.find(part)?
                };
                found.push(rest[..end].to_owned());
                rest = &rest[end + part.len()..];
            }
            found.iter().all(|id| !id.is_empty() && !id.contains(' ')).then_some(found)
        };
        let found = self.violations.iter().find_map(fits);
        found.unwrap_or_else(|| panic!("{pattern:?} in {:#?}", self.violations))
    }

    /// Fails unless this is a player of the run, and the HTML report names the player.
    fn assert_player(&self, name: &str) {
        let number = name.strip_prefix(&format!("sim-{}-", self.run));
        assert!(number.is_some_and(|number| number.parse::<u32>().is_ok_and(|number| number < 80)), "{name}");
        self.assert_on_page(name);
    }

    fn assert_on_page(&self, id: &str) {
        assert!(self.page.contains(id) && self.page.contains("promises are broken"), "{id}: {}", self.page);
    }

    /// Fails unless `playhouse trace` knows the id.
    async fn assert_traced(&self, id: &str) {
        let admin = &self.dev.addresses["admin"];
        let trace = playhouse(&["trace", id, "--admin", admin])
            .env("PLAYHOUSE_OPERATOR_TOKEN", &self.dev.addresses["operator_token"]);
        let running = trace.start().unwrap();
        let status = running.wait(PATIENCE).await;
        let text = running.text(OutputStream::Stdout) + &running.text(OutputStream::Stderr);
        assert!(status.success() && text.contains(" steps of "), "{id}: {status} {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn oversold_unit_is_found() {
    let found = find("drops.oversell@3", "no_oversell").await;
    let [drop] = &found.ids("players own 21 of the 20 units of the drop *")[..] else { panic!() };
    assert_eq!(found.ids("the audit of the drop * found: ")[0], *drop);
    assert_eq!(found.ids("the drop * sold *, and players paid for 21")[0], *drop);
    found.assert_on_page(drop);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_notification_is_found() {
    let found = find("notification_intake.lost@7", "notifications_once_in_order").await;
    let [player, _] = &found.ids("* was not notified: *")[..] else { panic!() };
    found.assert_player(player);
}

/// The event of a match is published under two ids.
#[tokio::test(flavor = "multi_thread")]
async fn doubled_match_is_found() {
    let found = find("matchmaking.double_match@5", "no_double_match").await;
    assert_double_match(&found).await;
}

/// The store lets a ticket into two matches.
#[tokio::test(flavor = "multi_thread")]
async fn ticket_that_is_assigned_twice_is_found() {
    let found = find("matchmaking.double_assignment@5", "no_double_match").await;
    assert_double_match(&found).await;
}

async fn assert_double_match(found: &Found) {
    let [ticket, player, one, other] = &found.ids("the ticket * of * is in the matches * and *")[..] else {
        panic!()
    };
    assert_ne!(one, other);
    found.assert_player(player);
    found.assert_on_page(one);
    found.assert_traced(ticket).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inverted_line_is_found() {
    let found = find("drops.inverted_line@9", "line_in_order").await;
    let [ahead, first, _, other, second, _] =
        &found.ids("* (*, place *) is ahead of * (*, place *) with join 9 against 1")[..]
    else {
        panic!()
    };
    assert_overtaking(&found, [ahead, first, other, second]).await;
}

/// The instance says that the player who was put at the front joined before all others. Only what players saw tells.
#[tokio::test(flavor = "multi_thread")]
async fn inverted_join_is_found() {
    let found = find("drops.inverted_join@30", "line_in_order").await;
    let [ahead, first, _, _, other, second, _, _] = &found.ids(
        "* (*, place *) joined after * s and is ahead of * (*, place *), who had been answered after * s",
    )[..] else {
        panic!()
    };
    assert_overtaking(&found, [ahead, first, other, second]).await;
    assert!(found.violations.iter().all(|what| !what.contains("with join")), "{:#?}", found.violations);
}

async fn assert_overtaking(found: &Found, [ahead, first, other, second]: [&String; 4]) {
    found.assert_player(ahead);
    found.assert_player(other);
    for user in [first, second] {
        found.assert_traced(user).await;
    }
}
