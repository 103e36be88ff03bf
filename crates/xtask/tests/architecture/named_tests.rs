//! The tests that documents name as proof of a promise exist.

use std::collections::BTreeMap;
use std::path::Path;

use super::root;

/// The documents, and how many tests they name at least: fewer means that their tables could not be read.
const DOCUMENTS: [(&str, usize); 8] = [
    ("docs/reference/open-match.md", 50),
    ("docs/explanation/consistency.md", 200),
    ("docs/explanation/outbox.md", 4),
    ("docs/explanation/security.md", 35),
    ("docs/guides/javascript-client.md", 9),
    ("docs/guides/notifications.md", 14),
    ("docs/guides/run-a-drop.md", 18),
    ("docs/guides/service-clients.md", 3),
];

/// The tests of the JavaScript client begin with where they run. A name that begins with `*_` stands for one in each.
const HOSTS: [&str; 2] = ["node", "chromium"];

/// The end-to-end tests of Open Match (`testing/e2e`), without `Test`. The document says of each which test of ours holds its behaviour.
const OPEN_MATCH: &str = "HappyPath MatchFunctionMatchCollision SynchronizerMatchCollision EvaluatorReturnInvalidId \
    EvaluatorReturnDuplicateMatchId MatchWithNoTickets EvaluatorError MMFError NoMatches NoProfile NoConfig Cancel \
    Streaming RegistrationWindow ProposalWindowClose MultipleFetchCalls SlowBackendDoesntBlock HTTPMMF AssignTickets \
    AssignTicketsEmpty AssignTicketsInvalidArgument AssignTicketsMissingTicket TicketDelete EmptyReleaseTicketsRequest \
    ReleaseTickets ReleaseAllTickets TicketReleaseByTimeout CreateTicketErrors AssignedTicketsNotReturnedByQuery \
    AssignedTicketDeleteTimeout WatchAssignments NoPool NoTickets Paging TicketFound TicketNotFound \
    QueryBackfillsWithEmptyPool NoBackfills QueryBackfillsPaging BackfillQueryAfterMMFUpdate \
    BackfillQueryAfterGSUpdate CreateGetBackfill BackfillFrontendLifecycle AcknowledgeBackfill \
    AcknowledgeBackfillDeletedTicket ProposedBackfillCreate ProposedBackfillUpdate BackfillGenerationMismatch \
    BackfillSkipNotfoundError ServiceHealth";

/// Returns each Rust file below a folder with the parts of its path, without `.rs`.
fn rust_files(folder: &Path, files: &mut BTreeMap<Vec<String>, String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let path = path.strip_prefix(root().join("crates")).unwrap().with_extension("");
            files.insert(path.iter().map(|part| part.to_str().unwrap().to_owned()).collect(), text);
        }
    }
}

/// Lists the names of tests in the tables: `directors fetching::name`, `…::name` or a long `name_in_snake_case`. Types, metrics and
/// settings are not tests.
fn names(document: &str) -> Vec<&str> {
    let rows = document.lines().filter(|line| line.starts_with('|'));
    let code = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    let is_type =
        |code: &str| code.rsplit(':').next().is_some_and(|last| last.starts_with(char::is_uppercase));
    let is_plain = |name: &str| {
        name.matches('_').count() >= 3
            && name.chars().all(|c| c.is_ascii_lowercase() || "_*0123456789".contains(c))
            && !name.starts_with("playhouse_")
            && !name.ends_with("_total")
    };
    let settings = include_str!("../../../playhouse/src/reference.toml");
    let is_test = |code: &&str| {
        if code.contains("::") { !is_type(code) } else { is_plain(code) && !settings.contains(*code) }
    };
    code.filter(is_test).collect()
}

/// Returns whether a file has the test: its path has all modules of the name, and it declares the function. A name may end with `*`.
fn exists(files: &BTreeMap<Vec<String>, String>, name: &str) -> bool {
    if let Some(rest) = name.strip_prefix("*_") {
        return HOSTS.iter().all(|host| exists(files, &format!("{host}_{rest}")));
    }
    let parts: Vec<&str> = name.split([' ', ':']).filter(|part| !["", "tests"].contains(part)).collect();
    let (last, modules) = parts.split_last().unwrap();
    let has_modules = |path: &[String]| {
        let mut modules = modules.iter().filter(|module| **module != "…");
        modules.all(|module| path.iter().any(|part| part.replace('-', "_") == module.replace('-', "_")))
    };
    let (start, end) = last.strip_suffix(['*', '…']).map_or((*last, "("), |start| (start, ""));
    let declares = |text: &str| text.contains(&format!("fn {start}{end}"));
    files.iter().any(|(path, text)| has_modules(path) && declares(text))
}

#[test]
fn every_test_of_open_match_has_a_counterpart() {
    let text = std::fs::read_to_string(root().join("docs/reference/open-match.md")).unwrap();
    let rows: Vec<(&str, &str)> =
        text.lines().filter_map(|line| line.strip_prefix('|')?.split_once('|')).collect();
    let is_held = |name: &&str| {
        let is_named = |cell: &str| cell.split(|c: char| !c.is_alphanumeric()).any(|word| word == *name);
        rows.iter().any(|(left, right)| is_named(left) && !names(&format!("|{right}")).is_empty())
    };
    let original: Vec<String> = OPEN_MATCH.split_whitespace().map(|name| format!("Test{name}")).collect();
    assert_eq!(original.len(), 50);
    let missing: Vec<&str> = original.iter().map(String::as_str).filter(|name| !is_held(name)).collect();
    assert!(missing.is_empty(), "no test of ours is named for {missing:?}");
}

#[test]
fn tests_that_documents_name_exist() {
    let mut files = BTreeMap::new();
    rust_files(&root().join("crates"), &mut files);
    for (path, least) in DOCUMENTS {
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        let names = names(&text);
        assert!(names.len() >= least, "{path}: only {names:?}");
        let missing: Vec<&str> = names.into_iter().filter(|name| !exists(&files, name)).collect();
        assert!(missing.is_empty(), "{path} names tests that do not exist: {missing:#?}");
    }
    assert!(exists(&files, "store lock::lock_of_a_dead_holder_expires"));
    assert!(!exists(&files, "store fetching::lock_of_a_dead_holder_expires"), "the module is checked");
    assert!(!exists(&files, "store lock::nothing_of_this_name"));
    assert!(exists(&files, "*_silent_connection_is_replaced"));
    assert!(!exists(&files, "*_two_tabs_send_each_queued_action_once"), "it runs in Chromium only");
}
