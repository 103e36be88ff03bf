//! Links between documents lead somewhere: to a file that exists, and to a heading of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::root;

/// Folders with files that are not ours: build output, and what package managers install.
const SKIPPED: [&str; 2] = ["target", "node_modules"];
/// The kinds of files whose comments and texts may name a document.
const NAMING: [&str; 12] = ["css", "go", "html", "java", "js", "mjs", "py", "rs", "sh", "toml", "ts", "yaml"];

/// Returns the files of the repository with one of these extensions, by their path from its root.
pub(super) fn files(extensions: &[&str]) -> BTreeMap<PathBuf, String> {
    fn add(folder: &Path, extensions: &[&str], files: &mut BTreeMap<PathBuf, String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_symlink() || name.starts_with('.') || SKIPPED.contains(&name) {
                continue;
            }
            if path.is_dir() {
                add(&path, extensions, files);
            } else if path.extension().is_some_and(|own| extensions.iter().any(|one| own == *one)) {
                let text = std::fs::read_to_string(&path).unwrap();
                files.insert(path.strip_prefix(root()).unwrap().to_owned(), text);
            }
        }
    }
    let mut files = BTreeMap::new();
    add(root(), extensions, &mut files);
    assert!(files.len() > 20, "the files could not be found: {files:?}");
    files
}

/// Returns the lines of a document outside of its code blocks.
fn prose(document: &str) -> Vec<&str> {
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for line in document.lines() {
        let ticks = line.trim_start();
        let ticks = &ticks[..ticks.len() - ticks.trim_start_matches('`').len()];
        match fence {
            Some(open) if ticks.starts_with(open) => fence = None,
            None if ticks.len() >= 3 => fence = Some(ticks),
            None => lines.push(line),
            Some(_) => {}
        }
    }
    lines
}

/// Returns the targets of a document's links and images, without those to other sites.
fn links(document: &str) -> Vec<String> {
    let text = prose(document).join("\n");
    // Per paragraph, because a code span ends with it.
    let without_code = text.split("\n\n").flat_map(|paragraph| paragraph.split('`').step_by(2));
    let without_code: String = without_code.collect();
    let inline = without_code.split("](").skip(1).filter_map(|rest| rest.split([')', ' ', '\n']).next());
    let definitions = text.lines().filter(|line| line.starts_with('['));
    let definitions = definitions.filter_map(|line| line.split_once("]: ")?.1.split(' ').next());
    let all = inline.chain(definitions).map(str::to_owned);
    all.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// Returns the anchors of a document's headings, as GitHub makes them.
fn anchors(document: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(document).into_iter().filter_map(|line| {
        let text = line.trim_start_matches('#');
        (text.len() < line.len()).then(|| text.strip_prefix(' ')).flatten()
    });
    let anchor = |heading: &str| -> String {
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    let numbered = headings.map(anchor).map(|anchor| {
        let count = counts.entry(anchor.clone()).or_default();
        *count += 1;
        if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
    });
    numbered.collect()
}

/// Returns the path from the root that a link in this document leads to. None if it leads out of the repository.
fn resolve(document: &Path, target: &str) -> Option<PathBuf> {
    let mut path = document.parent()?.to_owned();
    for part in Path::new(target).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::ParentDir => {
                if !path.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(path)
}

/// Returns what is wrong with a link, if anything.
fn fault(document: &Path, target: &str, documents: &BTreeMap<PathBuf, String>) -> Option<String> {
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { Some(document.to_owned()) } else { resolve(document, file) };
    let Some(path) = path.filter(|path| root().join(path).exists() || documents.contains_key(path)) else {
        return Some(format!("{}: there is no {target}", document.display()));
    };
    let known = documents.get(&path).map(|text| anchors(text)).unwrap_or_default();
    let is_missing = anchor.is_some_and(|anchor| !known.contains(anchor));
    is_missing.then(|| format!("{}: {} has no heading for {target}", document.display(), path.display()))
}

#[test]
fn links_of_documents_lead_to_files_and_headings() {
    let documents = files(&["md"]);
    let links: Vec<(&PathBuf, String)> = documents
        .iter()
        .flat_map(|(path, text)| links(text).into_iter().map(move |link| (path, link)))
        .collect();
    assert!(links.len() > 300, "the links could not be parsed: {}", links.len());
    let faults: Vec<String> = links.iter().filter_map(|(path, link)| fault(path, link, &documents)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

/// A comment or a text of the program that sends the reader to a document names one that exists.
#[test]
fn documents_named_in_code_exist() {
    let mut named = 0;
    for (path, text) in files(&NAMING).iter().filter(|(path, _)| !path.ends_with("architecture/links.rs")) {
        let starts = text.match_indices("docs/").map(|(at, _)| &text[at..]);
        for rest in starts {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"/-_.".contains(c));
            let name = &rest[..end.unwrap_or(rest.len())];
            let Some(name) = name.split_inclusive(".md").next().filter(|name| name.ends_with(".md")) else {
                continue;
            };
            assert!(root().join(name).exists(), "{} names {name}, which does not exist", path.display());
            named += 1;
        }
    }
    assert!(named > 20, "the names could not be parsed: {named}");
}

#[test]
fn broken_link_is_found() {
    let guide = "# A guide\n\n## Calls & errors\n[a](#calls--errors) `[no](link)` ![b](../images/c.png \"d\")\n\
                 ```\n# no heading\n[no](link)\n```\n## Calls & errors\n[e]: ../README.md\n[web](https://example.com)\n";
    assert_eq!(links(guide), ["#calls--errors", "../images/c.png", "../README.md"]);
    let expected = ["a-guide", "calls--errors", "calls--errors-1"].map(str::to_owned);
    assert_eq!(anchors(guide), BTreeSet::from(expected));
    let path = PathBuf::from("docs/guides/guide.md");
    let documents = BTreeMap::from([(path.clone(), guide.to_owned())]);
    for good in ["#calls--errors-1", "guide.md#a-guide", "../../Cargo.toml", "../guides/guide.md"] {
        assert_eq!(fault(&path, good, &documents), None, "{good}");
    }
    for bad in ["#calls", "guide.md#no-heading", "other.md", "../../../outside.md", "/etc/hostname"] {
        assert!(fault(&path, bad, &documents).is_some(), "{bad}");
    }
}
