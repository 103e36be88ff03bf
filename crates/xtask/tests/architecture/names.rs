//! Names of code in the documents exist.

use std::collections::BTreeMap;

use super::{root, sources};

/// The documents whose code names are checked.
const DOCUMENTS: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"];
/// Names of third-party crates in the documents.
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

/// Returns whether a source declares an item, an enum variant or a public field of that name.
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

/// Returns whether a source declares a type or has an `impl` of it.
fn defines_type(source: &str, name: &str) -> bool {
    let is_impl = |line: &str| {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        line.starts_with("impl") && words.any(|word| word == name)
    };
    declares(source, name) || source.lines().any(is_impl)
}

#[test]
fn code_names_in_documents_exist() {
    let mut crates: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, source) in sources("rs") {
        crates.entry(path.split('/').next().unwrap().replace('-', "_")).or_default().push(source);
    }
    let exists = |name: &&str| {
        let parts: Vec<&str> = name.split("::").collect();
        let (parent, last) = (parts[parts.len() - 2], parts[parts.len() - 1]);
        let is_type = parent.starts_with(char::is_uppercase);
        // `Type::function` must be in a source with the type. `module::item` may be anywhere in the crate.
        let holds = |source: &String| (!is_type || defines_type(source, parent)) && declares(source, last);
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
        assert!(path != "ARCHITECTURE.md" || names.len() > 10, "the names could not be parsed: {names:?}");
        let wrong: Vec<&str> = names.into_iter().filter(|name| !is_foreign(name) && !exists(name)).collect();
        assert!(wrong.is_empty(), "{path} names {wrong:?}, which no source of that crate declares");
    }
}
