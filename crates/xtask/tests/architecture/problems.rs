//! The types of problem documents are those of docs/reference/errors.md, in the code and in all documents.

use std::collections::{BTreeMap, BTreeSet};

use super::links::files;
use super::{root, sources};

/// Returns the text up to the next character that is not part of a problem type.
fn name(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_lowercase() && c != '-' && c != ':');
    text[..end.unwrap_or(text.len())].trim_end_matches(':')
}

/// Returns the names that follow a prefix in a text.
fn names<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(prefix).skip(1).map(name).filter(|name| !name.is_empty())
}

/// Returns the general types with their HTTP status and gRPC code, as `base::error::Code` declares them.
fn general_types() -> BTreeMap<String, (String, String)> {
    let code = &sources("rs")["base/src/error.rs"];
    let rows = code.lines().filter_map(|line| line.split_once(" => (")?.1.split_once("\","));
    let rows = rows.filter_map(|(row, _)| {
        let [http, grpc, slug] = row.split(", ").collect::<Vec<_>>()[..] else { return None };
        Some((slug.trim_start_matches('"').to_owned(), (http.to_owned(), grpc.to_owned())))
    });
    let types: BTreeMap<String, (String, String)> = rows.collect();
    assert!(types.len() > 10, "the codes could not be parsed: {types:?}");
    types
}

/// Returns the types of causes: those that handlers name, and those of errors.
fn causes() -> BTreeSet<String> {
    let mut causes = BTreeSet::new();
    for (path, text) in sources("rs") {
        causes.extend(names(&text, ".cause(\"").map(str::to_owned));
        if path.ends_with("/problem.rs") {
            causes.extend(names(&text, "=> \"").map(str::to_owned));
        }
    }
    assert!(causes.len() > 20, "the causes could not be parsed: {causes:?}");
    causes
}

/// Returns the cells of the rows of errors.md that begin with a type.
fn documented() -> Vec<(String, Vec<String>)> {
    let text = std::fs::read_to_string(root().join("docs/reference/errors.md")).unwrap();
    let (_, tables) = text.split_once("\n## General types\n").unwrap();
    let rows = tables.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    rows.map(|(name, cells)| (name.to_owned(), cells.split(" | ").map(str::to_owned).collect())).collect()
}

#[test]
fn errors_page_lists_the_problem_types_of_the_code() {
    let (general, documented) = (general_types(), documented());
    let in_code: BTreeSet<&str> = general.keys().map(String::as_str).collect();
    let causes = causes();
    let in_code: BTreeSet<&str> = in_code.into_iter().chain(causes.iter().map(String::as_str)).collect();
    let on_page: BTreeSet<&str> = documented.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(on_page, in_code, "left: docs/reference/errors.md, right: the code");
    for (name, cells) in &documented {
        if let Some((http, grpc)) = general.get(name) {
            assert_eq!(&cells[0], http, "the status of {name}");
            assert_eq!(cells[1].split(' ').next(), Some(grpc.as_str()), "the gRPC code of {name}");
        }
    }
}

/// The type in the example of a server that is newer than its client.
const OF_A_LATER_VERSION: &str = "arena:full";

#[test]
fn problem_types_in_documents_exist() {
    let known: BTreeSet<String> = documented().into_iter().map(|(name, _)| name).collect();
    let mut named = 0;
    for (path, text) in files(&["json", "md"]) {
        let drops = names(&text, "`drops:").map(|name| format!("drops:{name}"));
        let whole = names(&text, "urn:playhouse:problem:").map(str::to_owned);
        for name in drops.chain(whole) {
            assert!(
                known.contains(&name) || name == OF_A_LATER_VERSION,
                "{} names the problem type {name}",
                path.display()
            );
            named += 1;
        }
    }
    assert!(named > 40, "the names could not be parsed: {named}");
}
