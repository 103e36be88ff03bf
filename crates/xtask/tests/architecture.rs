//! Holds the picture that ARCHITECTURE.md draws.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A second crypto provider, the C library we do not want to link, code with open advisories.
const REFUSED: &[&str] = &["native-tls", "openssl-sys", "ring", "rsa"];

const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "OpenSSL",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn metadata(args: &[&str]) -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked"])
        .args(args)
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn document() -> String {
    std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap()
}

/// Reads the list under "The direction of dependencies": each crate with the crates that it uses in the product.
fn edges(document: &str) -> Vec<(&str, BTreeSet<&str>)> {
    let (_, section) = document.split_once("## The direction of dependencies").unwrap();
    let list = section.split("```").nth(1).unwrap();
    let mut edges: Vec<(&str, BTreeSet<&str>)> = Vec::new();
    for line in list.lines().filter(|line| !line.is_empty()) {
        // A line without an arrow goes on with the one before it.
        let used = match line.split_once('→') {
            Some((name, used)) => {
                edges.push((name.trim(), BTreeSet::new()));
                used
            }
            None => line,
        };
        let used =
            used.split(',').map(str::trim).filter(|name| !name.is_empty() && *name != "nothing of ours");
        edges.last_mut().unwrap().1.extend(used);
    }
    edges
}

/// Where an invariant lets a library be used.
#[derive(Debug, PartialEq)]
struct Places<'a> {
    /// In modules of these names, of any crate, and everything below them.
    modules: Vec<&'a str>,
    crates: Vec<&'a str>,
}

/// Reads the invariant that says where something is: "**SQL is in the modules `store` and the crates `db`, `hierlock`.**"
fn places<'a>(document: &'a str, what: &str) -> Places<'a> {
    let (_, section) = document.split_once("## Invariants").unwrap();
    let sentences = section.split("- **").filter_map(|invariant| invariant.split_once(".**"));
    let mut of_it = sentences.filter_map(|(sentence, _)| sentence.strip_prefix(what));
    let sentence = of_it.next().unwrap_or_else(|| panic!("no invariant says where {what}"));
    assert_eq!(of_it.next(), None, "one invariant says where {what}");
    let (modules, crates) = sentence.split_once("the crates ").unwrap();
    let names = |text: &'a str| text.split('`').skip(1).step_by(2).collect();
    Places { modules: names(modules), crates: names(crates) }
}

/// Returns each file of the product with this extension by its path from `crates`, without the tests in it.
fn sources(extension: &str) -> BTreeMap<String, String> {
    fn add(folder: &Path, extension: &str, sources: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add(&path, extension, sources);
            } else if path.extension().is_some_and(|found| found == extension) {
                let text = std::fs::read_to_string(&path).unwrap();
                let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
                let name = path.strip_prefix(root().join("crates")).unwrap().to_str().unwrap().to_owned();
                sources.insert(name, product);
            }
        }
    }
    let mut sources = BTreeMap::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path().join("src");
        if folder.is_dir() {
            add(&folder, extension, &mut sources);
        }
    }
    sources.retain(|path, _| !path.ends_with("/tests.rs"));
    assert!(!sources.is_empty(), "no .{extension} files were found");
    sources
}

/// Returns whether a text uses a path or a method: `name` as a word of its own, with `next` behind it.
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

/// Returns the files that use any of these names outside of the places.
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

/// Checks that these names are used in the places that the invariant says, and nowhere else.
fn assert_places(sources: &BTreeMap<String, String>, what: &str, names: &[(&str, &str)]) {
    let document = document();
    let places = places(&document, what);
    let misplaced = misplaced(sources, &places, names);
    assert!(misplaced.is_empty(), "{misplaced:?}: {what} {places:?}");
    // A name that nobody uses there would let it grow unseen.
    for name in places.crates.iter().chain(&places.modules) {
        let is_it = |part: &str| part.strip_suffix(".rs").unwrap_or(part) == *name;
        let used = sources.iter().any(|(path, text)| {
            path.split('/').any(is_it) && names.iter().any(|(name, next)| uses(text, name, next))
        });
        assert!(used, "{what} {name}, says ARCHITECTURE.md, and it is not");
    }
}

#[test]
fn sql_redis_and_nats_stay_where_the_document_says() {
    const SQL: &[(&str, &str)] = &[
        ("sqlx", "::"),
        ("sqlx_core", "::"),
        // These take statements.
        ("insert_at_commit", "("),
        ("delete_at_commit", "("),
        ("insert_and_read", "("),
        // And these are some.
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
fn the_system_clock_is_read_where_the_document_says() {
    let readers = [("Clock::system", "("), ("SystemTime::now", "(")];
    assert_places(&sources("rs"), "The system clock is read in", &readers);
}

#[test]
fn a_library_outside_of_its_places_is_found() {
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

/// Returns the parts that the comment at the top of a script lacks.
fn missing_in_header(path: &str, text: &str) -> Vec<&'static str> {
    let header: Vec<&str> = text.lines().take_while(|line| line.starts_with("-- ")).collect();
    let is_part = path.contains("/parts/");
    let mut wanted = vec!["-- KEYS", "-- ARGV", if is_part { "-- Defines:" } else { "-- Reply:" }];
    // The first line says what the script does.
    wanted.retain(|start| !header.iter().skip(1).any(|line| line.starts_with(start)));
    wanted
}

#[test]
fn every_script_says_its_keys_arguments_and_reply() {
    for (path, text) in sources("lua") {
        let missing = missing_in_header(&path, &text);
        assert!(missing.is_empty(), "{path} lacks {missing:?} in its header");
    }
}

#[test]
fn a_header_that_lacks_something_is_noticed() {
    let whole = "-- Does it.\n-- KEYS[1] a.\n-- ARGV: none.\n-- Reply: OK.\nreturn 1\n";
    assert!(missing_in_header("a/src/b.lua", whole).is_empty());
    assert_eq!(missing_in_header("a/src/parts/b.lua", whole), ["-- Defines:"]);
    assert_eq!(missing_in_header("a/src/b.lua", &whole.replace("-- KEYS", "-- keys")), ["-- KEYS"]);
    let late = "-- Does it.\nlocal x\n-- KEYS[1] a.\n-- ARGV: none.\n-- Reply: OK.\n";
    assert_eq!(missing_in_header("a/src/b.lua", late).len(), 3);
}

/// The tests of declared keys see only scripts that `redis_store::script!` declares.
#[test]
fn every_script_is_declared_in_the_one_way() {
    let code = sources("rs");
    for path in sources("lua").keys() {
        let (krate, (_, file)) = (path.split_once('/').unwrap().0, path.rsplit_once('/').unwrap());
        let is_declared = code
            .iter()
            .any(|(of, text)| of.starts_with(&format!("{krate}/")) && text.contains(&format!("/{file}\"")));
        assert!(is_declared, "{path} is no part of a script");
    }
    let is_exempt = |path: &str| path.starts_with("redis-store/") || path.starts_with("testkit/");
    for (path, text) in code.iter().filter(|(path, _)| !is_exempt(path)) {
        for other in ["redis::Script", "EVALSHA", "include_str!(\"scripts/"] {
            assert!(!text.contains(other), "{path} runs a script past redis_store::script!: {other}");
        }
    }
}

/// So that a bare `cargo run`, as the README has it, runs the product.
#[test]
fn there_is_one_program_to_run() {
    let metadata = metadata(&["--no-deps"]);
    let default: BTreeSet<&str> = items(&metadata["workspace_default_members"]).map(text).collect();
    let packages = items(&metadata["packages"]).filter(|package| default.contains(text(&package["id"])));
    let programs: Vec<&str> = packages
        .flat_map(|package| items(&package["targets"]))
        .filter(|target| items(&target["kind"]).any(|kind| kind == "bin"))
        .map(|target| text(&target["name"]))
        .collect();
    assert_eq!(programs, ["playhouse"]);
}

#[test]
fn dependencies_between_our_crates_point_one_way() {
    let metadata = metadata(&["--no-deps"]);
    let names: BTreeSet<&str> = items(&metadata["packages"]).map(|package| text(&package["name"])).collect();
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in items(&metadata["packages"]) {
        let edges = found.entry(text(&package["name"])).or_default();
        for dependency in items(&package["dependencies"]) {
            let name = text(&dependency["name"]);
            if names.contains(name) && text(&dependency["kind"]) != "dev" {
                edges.insert(name);
            }
        }
    }
    let document = document();
    let drawn = edges(&document);
    for (at, (name, edges)) in drawn.iter().enumerate() {
        let below: BTreeSet<&str> = drawn[at + 1..].iter().map(|(name, _)| *name).collect();
        let up: Vec<&&str> = edges.iter().filter(|edge| !below.contains(*edge)).collect();
        assert!(up.is_empty(), "{name} is drawn above {up:?}, or they are not drawn at all");
    }
    let drawn: BTreeMap<&str, BTreeSet<&str>> = drawn.into_iter().collect();
    assert_eq!(found, drawn, "draw the edge in ARCHITECTURE.md, or undo it");
}

#[test]
fn every_crate_is_on_the_map_and_obeys_the_lints_of_the_workspace() {
    let map = document();
    for (name, _) in edges(&map) {
        assert!(map.contains(&format!("| `{name}` |")), "{name} is not on the code map of ARCHITECTURE.md");
        let manifest = std::fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true"), "{name} does not obey the workspace's lints");
    }
}

/// The documents whose names of code must exist.
const DOCUMENTS: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"];
/// What they name of other people's crates.
const FOREIGN: &[&str] = &["SystemTime", "utoipa"];

/// Lists the code names in backticks outside of code blocks, such as `hierlock::ServerError` and `Db::begin_locked`.
fn code_names(document: &str) -> impl Iterator<Item = &str> {
    let prose = document.split("```").step_by(2);
    let code = prose.flat_map(|text| text.split('`').skip(1).step_by(2));
    // Without arguments and generics.
    let names =
        code.filter_map(|code| code.split(|c: char| !c.is_alphanumeric() && !"_:".contains(c)).next());
    names.filter(|name| name.contains("::"))
}

/// Whether a source declares an item of that name, an enum's variant or a public field.
fn declares(source: &str, name: &str) -> bool {
    const KINDS: [&str; 9] =
        ["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "macro_rules"];
    source.lines().any(|line| {
        let words: Vec<&str> =
            line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect();
        let is_item = words.windows(2).any(|pair| KINDS.contains(&pair[0]) && pair[1] == name);
        let is_variant = ["", ",", "(", " {"].iter().any(|end| line.trim() == format!("{name}{end}"));
        let is_field = line.trim().starts_with(&format!("pub {name}: "));
        !line.trim_start().starts_with("//") && (is_item || is_variant || is_field)
    })
}

/// Whether a source has the body of a type: its declaration or an `impl`.
fn is_home_of(source: &str, name: &str) -> bool {
    let is_impl = |line: &str| {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        line.starts_with("impl") && words.any(|word| word == name)
    };
    declares(source, name) || source.lines().any(is_impl)
}

#[test]
fn names_of_code_in_the_documents_exist() {
    let mut crates: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, source) in sources("rs") {
        crates.entry(path.split('/').next().unwrap().replace('-', "_")).or_default().push(source);
    }
    let exists = |name: &&str| {
        let parts: Vec<&str> = name.split("::").collect();
        let (parent, last) = (parts[parts.len() - 2], parts[parts.len() - 1]);
        let is_type = parent.starts_with(char::is_uppercase);
        // `Type::function` is in a source with the type. What is in a crate or a module may be anywhere in the crate.
        let holds = |source: &String| (!is_type || is_home_of(source, parent)) && declares(source, last);
        match crates.get(parts[0]) {
            Some(sources) => {
                let mut path = parts[1..].iter();
                path.all(|part| sources.iter().any(|source| declares(source, part)))
                    && sources.iter().any(holds)
            }
            None => is_type && crates.values().flatten().any(holds),
        }
    };
    let is_foreign = |name: &&str| FOREIGN.iter().any(|known| name.starts_with(&format!("{known}::")));
    for path in DOCUMENTS {
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        let names: Vec<&str> = code_names(&text).collect();
        assert!(path != "ARCHITECTURE.md" || names.len() > 10, "the names were not understood: {names:?}");
        let wrong: Vec<&str> = names.into_iter().filter(|name| !is_foreign(name) && !exists(name)).collect();
        assert!(wrong.is_empty(), "{path} names {wrong:?}, which no source of that crate declares");
    }
}

#[test]
fn refused_dependencies_are_not_linked() {
    let linked = tree(&["--workspace"]);
    let linked: BTreeSet<&str> = linked.keys().filter_map(|package| package.split(' ').next()).collect();
    assert!(linked.contains("aws-lc-rs"), "the list of linked crates was not understood");
    let refused: Vec<&&str> = REFUSED.iter().filter(|name| linked.contains(**name)).collect();
    assert!(refused.is_empty(), "{refused:?}: see `cargo tree -i NAME`");
}

/// A dependency with other features is built again, and all that use it.
#[test]
fn every_entry_point_wants_the_same_features_of_its_dependencies() {
    let all = tree(&["--workspace", "--edges=normal,build,dev"]);
    // What `cargo run`, `cargo build --package playhouse`, `cargo test` and `cargo bench` choose from.
    let entries: [&[&str]; 3] = [
        &["--edges=normal,build"],
        &["--package=playhouse", "--edges=normal,build"],
        &["--edges=normal,build,dev"],
    ];
    for entry in entries {
        for (package, features) in tree(entry).iter().filter(|(package, _)| !package.contains("(/")) {
            assert_eq!(features, &all[package], "{package} with {entry:?} and with the whole workspace");
        }
    }
}

/// The packages that a selection builds, each with the sets of features that it is built with.
fn tree(args: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--prefix=none", "--format={p}|{f}|"])
        .args(args)
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut packages: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let mut parts = line.split('|');
        if let (Some(package), Some(features)) = (parts.next(), parts.next()) {
            packages.entry(package.trim().to_owned()).or_default().insert(features.to_owned());
        }
    }
    packages
}

#[test]
fn licences_of_dependencies_are_ones_we_accept() {
    let accepted = |licence: &str| LICENCES.contains(&licence.trim_matches(['(', ')', ' ']));
    let metadata = metadata(&[]);
    for package in items(&metadata["packages"]) {
        let licence = text(&package["license"]).replace('/', " OR ");
        let sound = licence.split(" OR ").any(|alternative| alternative.split(" AND ").all(accepted));
        assert!(sound, "{} has the licence {licence:?}", package["name"]);
    }
}
