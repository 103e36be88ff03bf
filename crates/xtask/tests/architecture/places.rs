//! Libraries and the system clock are used only where the invariants allow it.

use std::collections::BTreeMap;

use super::{document, sources};

/// The modules and crates in which an invariant allows a library.
#[derive(Debug, PartialEq)]
struct Places<'a> {
    /// Modules of these names in any crate, with everything below them.
    modules: Vec<&'a str>,
    crates: Vec<&'a str>,
}

/// Parses an invariant like "**SQL is in the modules `store` and the crates `db`, `hierlock`.**"
fn places<'a>(document: &'a str, what: &str) -> Places<'a> {
    let (_, section) = document.split_once("## Invariants").unwrap();
    let sentences = section.split("- **").filter_map(|invariant| invariant.split_once(".**"));
    let mut of_it = sentences.filter_map(|(sentence, _)| sentence.strip_prefix(what));
    let sentence = of_it.next().unwrap_or_else(|| panic!("no invariant says where {what}"));
    assert_eq!(of_it.next(), None, "several invariants say where {what}");
    let (modules, crates) = sentence.split_once("the crates ").unwrap();
    let names = |text: &'a str| text.split('`').skip(1).step_by(2).collect();
    Places { modules: names(modules), crates: names(crates) }
}

/// Returns whether a text uses a path or a method: `name` as a whole word, followed by `next`.
fn uses(text: &str, name: &str, next: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(|line| line.match_indices(name).map(move |(at, _)| line.split_at(at))).any(
        |(before, at)| {
            at[name.len()..].starts_with(next)
                && !before.ends_with(is_word)
                && !is_own_module(text, name, before)
        },
    )
}

/// Returns whether the name is that of a module of the same file, and not of a crate.
fn is_own_module(text: &str, name: &str, before: &str) -> bool {
    let own = text.lines().any(|line| line.ends_with(&format!("mod {name};")));
    let is_path = before.ends_with("self::") || before.ends_with("super::") || before.ends_with("crate::");
    is_path || own && !before.ends_with("::")
}

/// Returns the files that use any of these names outside the allowed places.
fn misplaced(sources: &BTreeMap<String, String>, places: &Places<'_>, names: &[(&str, &str)]) -> Vec<String> {
    let is_allowed = |path: &str| {
        let mut parts = path.split('/');
        let krate = parts.next().unwrap();
        places.crates.contains(&krate)
            || parts.any(|part| places.modules.contains(&part.strip_suffix(".rs").unwrap_or(part)))
    };
    let all = sources.iter().filter(|(path, _)| !is_allowed(path));
    let using = all.filter(|(_, text)| names.iter().any(|(name, next)| uses(text, name, next)));
    using.map(|(path, _)| path.clone()).collect()
}

/// Checks that these names are used in the places of the invariant and nowhere else.
fn assert_places(sources: &BTreeMap<String, String>, what: &str, names: &[(&str, &str)]) {
    let document = document();
    let places = places(&document, what);
    let misplaced = misplaced(sources, &places, names);
    assert!(misplaced.is_empty(), "{misplaced:?}: {what} {places:?}");
    // Every allowed place must use the library; an unused entry would permit future uses.
    for name in places.crates.iter().chain(&places.modules) {
        let is_it = |part: &str| part.strip_suffix(".rs").unwrap_or(part) == *name;
        let used = sources.iter().any(|(path, text)| {
            path.split('/').any(is_it) && names.iter().any(|(name, next)| uses(text, name, next))
        });
        assert!(used, "ARCHITECTURE.md says that {what} {name}, but it is not used there");
    }
}

#[test]
fn sql_redis_and_nats_are_used_only_in_their_places() {
    const SQL: &[(&str, &str)] = &[
        ("sqlx", "::"),
        ("sqlx_core", "::"),
        // Methods that take statements.
        ("insert_at_commit", "("),
        ("delete_at_commit", "("),
        ("update_at_commit", "("),
        ("upsert_at_commit", "("),
        ("insert_and_read", "("),
        // Statements.
        ("\"SELECT", " "),
        ("\"(SELECT", " "),
        ("\"INSERT", " "),
        ("\"REPLACE INTO", " "),
        ("\"UPDATE", " "),
        ("\"DELETE FROM", " "),
    ];
    let sources = sources("rs");
    assert_places(&sources, "SQL is in", SQL);
    assert_places(&sources, "Redis types are in", &[("redis", "::")]);
    assert_places(&sources, "NATS types are in", &[("async_nats", "::")]);
}

#[test]
fn system_clock_is_read_only_in_its_places() {
    let readers = [("Clock::system", "("), ("SystemTime::now", "(")];
    assert_places(&sources("rs"), "The system clock is read in", &readers);
}

#[test]
fn library_outside_its_places_is_found() {
    let document = "## Invariants\n- **SQL is in the modules `store` and the crates `db`, `bus`.** More.\n- **Other.**\n";
    let places = places(document, "SQL is in");
    assert_eq!(places, Places { modules: vec!["store"], crates: vec!["db", "bus"] });
    let found = |path: &str, text: &str| {
        let sources = BTreeMap::from([(path.to_owned(), text.to_owned())]);
        !misplaced(&sources, &places, &[("sqlx", "::"), ("insert_at_commit", "("), ("Clock::system", "(")])
            .is_empty()
    };
    for text in [
        "use sqlx::Row;",
        "use ::sqlx::Row;",
        "    tx.insert_at_commit(TEXT, rows);",
        "mod sqlx;\n::sqlx::query(TEXT)",
        "let now = base::Clock::system().now();",
    ] {
        assert!(found("account/src/service.rs", text), "{text}");
        for path in ["db/src/tx.rs", "account/src/store.rs", "account/src/dead/store/letters.rs"] {
            assert!(!found(path, text), "{path}: {text}");
        }
    }
    for text in ["// sqlx::Row", "[\"sqlx\"]", "mysqlx::Row", "mod sqlx;\nuse self::sqlx::Row;\nsqlx::Row"] {
        assert!(!found("account/src/service.rs", text), "{text}");
    }
}
