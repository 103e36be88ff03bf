//! The effective configuration.

use std::collections::BTreeSet;
use std::fmt;

use crate::problem::Origin;

/// The effective value of every key with its origin. Displays as TOML with comments.
#[derive(Debug, Default)]
pub struct Effective {
    groups: Vec<Group>,
    secrets: BTreeSet<String>,
}

/// One table. TOML allows each table only once, so keys of a table are grouped even if they are read at different times.
#[derive(Debug)]
struct Group {
    section: String,
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    key: String,
    reference_key: String,
    shown: Option<String>,
    origin: Origin,
}

impl Effective {
    /// Returns every key that was read.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.lines().map(|line| line.key.as_str())
    }

    /// Returns the same keys as the reference spells them: with `NAME` for the name of a user's table.
    pub fn reference_keys(&self) -> impl Iterator<Item = &str> {
        self.lines().map(|line| line.reference_key.as_str())
    }

    /// Returns the keys whose value may be a secret, and may come from a file of its own.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().map(String::as_str)
    }

    pub(crate) fn add_secret(&mut self, key: &str) {
        self.secrets.insert(key.to_owned());
    }

    fn lines(&self) -> impl Iterator<Item = &Line> {
        self.groups.iter().flat_map(|group| &group.lines)
    }

    /// Adds a table if it is not there yet, so that it shows even without keys. Returns its index.
    pub(crate) fn add_table(&mut self, section: &str) -> usize {
        let at = self.groups.iter().position(|group| group.section == section);
        at.unwrap_or_else(|| {
            self.groups.push(Group { section: section.to_owned(), lines: Vec::new() });
            self.groups.len() - 1
        })
    }

    pub(crate) fn add(&mut self, key: String, reference_key: String, shown: Option<String>, origin: Origin) {
        let section = key.rsplit_once('.').map_or("", |(section, _)| section);
        let at = self.add_table(section);
        self.groups[at].lines.push(Line { key, reference_key, shown, origin });
    }

    /// Returns the settings of a table and of those below it, as a text without the header of the table. Leaves out defaults.
    pub(crate) fn text_of(&self, table: &str) -> String {
        let mut text = String::new();
        for Group { section, lines } in &self.groups {
            let Some(rest) = section.strip_prefix(table) else { continue };
            match rest.strip_prefix('.') {
                Some(below) => text.push_str(&format!("[{below}]\n")),
                None if rest.is_empty() => {}
                None => continue,
            }
            for Line { key, shown, origin, .. } in lines {
                let name = key.rsplit('.').next().unwrap_or(key);
                if let Some(value) = shown.as_ref().filter(|_| *origin != Origin::Default) {
                    text.push_str(&format!("{name} = {value}\n"));
                }
            }
        }
        text
    }

    /// Sorts the tables by `rank`, a function of the first segment of a table's name. The sort is stable.
    pub(crate) fn sort_by_rank(&mut self, rank: impl Fn(&str) -> usize) {
        self.groups.sort_by_key(|group| rank(group.section.split('.').next().unwrap_or_default()));
    }
}

impl fmt::Display for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, group) in self.groups.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            if !group.section.is_empty() {
                writeln!(f, "[{}]", group.section)?;
            }
            for Line { key, shown, origin, .. } in &group.lines {
                let name = key.rsplit('.').next().unwrap_or(key);
                match shown {
                    Some(value) => writeln!(f, "{:<48} # {origin}", format!("{name} = {value}"))?,
                    None => writeln!(f, "{:<48} # not set", format!("# {name} ="))?,
                }
            }
        }
        Ok(())
    }
}
